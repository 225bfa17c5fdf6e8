//! Waits until no other process uses a device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gridguard_autotune::{FailureKind, MeasureFailure, Measured};

use super::target::Target;
use crate::doctor::smi;
use crate::error::CommandError;

/// A device that other processes may use first.
#[derive(Clone)]
pub(crate) struct SharedDevice<'a> {
    uuid: String,
    interrupt: &'a AtomicBool,
    deadline: Option<Instant>,
}

impl<'a> SharedDevice<'a> {
    /// Fails if the driver does not report how much the device is used.
    pub(crate) fn new(
        target: &Target,
        interrupt: &'a AtomicBool,
        deadline: Option<Instant>,
    ) -> Result<Self, CommandError> {
        let uuid = target.uuid().ok_or_else(|| {
            CommandError::invalid(format_args!("--idle needs a device with a UUID, not {target}"))
        })?;
        let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &uuid[part]);
        let device = Self { uuid: format!("GPU-{a}-{b}-{c}-{d}-{e}"), interrupt, deadline };
        let unknown = |reason| {
            let remedy = "run without --idle when nothing else uses the device";
            CommandError::failed(format_args!(
                "cannot see whether {target} is idle: {reason}: {remedy}"
            ))
        };
        device.is_used().map(|_| device).map_err(unknown)
    }

    /// Returns when the device was idle for this time. This process must not use the device meanwhile.
    pub(crate) fn wait(&self, needed: Duration) -> Measured<()> {
        let mut since = Instant::now();
        while since.elapsed() < needed {
            let is_over = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if is_over || self.interrupt.load(Ordering::Relaxed) {
                return Err(ended("the device was never idle".to_owned()));
            }
            if self.is_used().map_err(ended)? {
                since = Instant::now();
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Whether a kernel ran in the last sample period of the driver, which is a sixth of a second to a second.
    fn is_used(&self) -> Result<bool, String> {
        let query = "--query-gpu=utilization.gpu";
        let args = ["--id", &self.uuid, query, "--format=csv,noheader,nounits"];
        let output = smi::ask(&args, smi::LIMIT);
        output.end.map_err(|error| format!("nvidia-smi: {error}"))?;
        let percent = output.out.trim().parse::<u32>();
        percent.map(|percent| percent > 0).map_err(|_| {
            format!(
                "nvidia-smi reports the utilisation {:?}, as of a part of a GPU",
                output.out.trim()
            )
        })
    }
}

fn ended(reason: String) -> MeasureFailure {
    MeasureFailure::new(FailureKind::Ended, reason)
}

const POLL: Duration = Duration::from_millis(150);
