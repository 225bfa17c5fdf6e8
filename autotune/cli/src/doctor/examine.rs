//! The process that touches driver and devices for `doctor`: what hangs or crashes, does so here.
//!
//! It tells what it finds out as it goes, one line each, behind a mark: libraries may print as well.

use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;

use clap::Args;
use gridguard::ComputeCapability;
use gridguard::cuda::{self, CudaError, DriverUnavailable};
use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::{device, library, profiles, trip, version};
use crate::error::{CommandError, Exit};

/// What stands before each line.
pub(super) const MARK: &str = "gridguard-doctor ";

/// Examines driver and devices; started by `doctor`.
#[derive(Args)]
pub(crate) struct Examine {
    #[arg(long)]
    profile: Option<PathBuf>,
}

/// What is found out, in any order but the first and the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Event {
    /// What the driver says of itself: the first.
    Driver(Driver),
    /// A device, before anything is done on it.
    Device { ordinal: usize, name: String, capability: ComputeCapability },
    /// What a device came to.
    Examined { ordinal: usize, findings: Vec<Finding> },
    /// What the profiles came to.
    Profiles(Vec<Finding>),
    /// The last.
    Done,
}

/// What the driver says before it is asked of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Driver {
    /// The file that serves as libcuda.
    pub(super) loaded: Option<PathBuf>,
    /// The CUDA that it supports.
    pub(super) version: Option<i32>,
    /// Devices that it shows, where it serves.
    pub(super) shown: Option<usize>,
    /// Why it does not serve.
    pub(super) fault: Option<Fault>,
}

/// Why a driver does not serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) what: String,
    pub(super) remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// There is no library, or none that loads.
    Missing,
    /// The library lacks a function.
    Incomplete,
    /// Another library is found by another of its names.
    Divided,
    /// It is older than what serves.
    TooOld,
    /// It does not initialise, or fails later.
    Failed,
}

impl Examine {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let driver = Driver::ask();
        let count = driver.shown.unwrap_or(0);
        tell(&Event::Driver(driver))?;
        // A device that does not answer is told of by its examination.
        for (ordinal, limits) in (0..count).map(|it| (it, cuda::device_limits(it))) {
            if let Ok(limits) = limits {
                let (name, capability) = (limits.name.clone(), limits.compute_capability);
                tell(&Event::Device { ordinal, name, capability })?;
            }
        }
        let examined = trip::examine(count);
        let named = self.profile.clone();
        let profiles = thread::spawn(move || profiles::gather(count, named.as_deref()));
        for (ordinal, examined) in examined {
            tell(&Event::Examined { ordinal, findings: of_examined(ordinal, examined) })?;
        }
        let profiles = profiles.join().unwrap_or_default();
        tell(&Event::Profiles(profiles.iter().flat_map(profiles::findings).collect()))?;
        tell(&Event::Done)?;
        Ok(Exit::Yes)
    }
}

fn tell(event: &Event) -> Result<(), CommandError> {
    let line = crate::output::json(event)?;
    let mut out = io::stdout().lock();
    let written = writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush());
    written.map_err(CommandError::io("telling what was found"))
}

impl Driver {
    fn ask() -> Self {
        let version = cuda::driver_version();
        let loaded = library::loaded("libcuda.so");
        match version {
            Ok(version) => {
                let (shown, fault) = match cuda::device_count() {
                    Ok(count) => (Some(count), None),
                    Err(CudaError::Unavailable(DriverUnavailable::NoDevice { .. })) => {
                        (Some(0), None)
                    }
                    Err(error) => (None, Some(Fault::of(&error))),
                };
                Self { loaded, version: Some(version), shown, fault }
            }
            Err(CudaError::Unavailable(DriverUnavailable::NoDevice { driver_version, .. })) => {
                Self { loaded, version: driver_version, shown: Some(0), fault: None }
            }
            Err(error) => Self { loaded, fault: Some(Fault::of(&error)), ..Self::default() },
        }
    }
}

impl Fault {
    fn of(error: &CudaError) -> Self {
        let kind = match error {
            CudaError::Unavailable(DriverUnavailable::LibraryMissing { .. }) => Kind::Missing,
            CudaError::Unavailable(DriverUnavailable::SymbolMissing { .. }) => Kind::Incomplete,
            CudaError::Unavailable(DriverUnavailable::OtherLibrary { .. }) => Kind::Divided,
            CudaError::Unavailable(DriverUnavailable::TooOld { .. }) => Kind::TooOld,
            _ => Kind::Failed,
        };
        let what = match error {
            CudaError::Unavailable(DriverUnavailable::InitFailed(error)) => error.to_string(),
            CudaError::Unavailable(DriverUnavailable::TooOld { version, oldest }) => {
                let [version, oldest] = [*version, *oldest].map(version::words);
                format!("supports CUDA {version}, {oldest} is the oldest that serves")
            }
            other => other.to_string(),
        };
        Self { kind, what, remedy: version::remedy(error.diagnosis()) }
    }
}

fn of_examined(ordinal: usize, examined: trip::Examined) -> Vec<Finding> {
    use super::finding::Level;

    match examined {
        Ok((device, trip)) => {
            let mut findings = device::findings(&device);
            // Who may not be used need not be said to refuse as well.
            if !findings.iter().any(|finding| finding.level == Level::Bad) {
                findings.push(trip::finding(&device, &trip));
            }
            findings
        }
        Err(error) => {
            let remedy = version::remedy(error.diagnosis());
            vec![Finding::unknown(device::subject(ordinal), error.to_string(), remedy)]
        }
    }
}
