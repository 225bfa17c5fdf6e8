//! The child process that measures, so that a candidate that crashes or hangs cannot stop the tuner.

use std::process::Command;
use std::sync::Arc;

use clap::Args;
use gridguard::profile::Policy;
use gridguard_autotune::{FailureKind, MeasureFailure, Remote, Timeouts, serve};
use gridguard_kernels::bench::{Problem, ProblemError};

use super::args::{self, DeviceSelection};
use super::progress::DeviceProgress;
use super::target::Target;
use super::workload::LocalBench;
use crate::error::{CommandError, Exit};
use crate::interrupt;

/// Measures what its parent process asks for; started by `tune`
#[derive(Args)]
pub(crate) struct Measure {
    #[arg(long, value_parser = args::device)]
    device: DeviceSelection,
    #[arg(long)]
    gpu: String,
    #[arg(long, value_parser = args::policy)]
    policy: Policy,
}

impl Measure {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        // Signals are handled by the parent, which closes the connection.
        interrupt::ignore()?;
        let target = match self.device {
            DeviceSelection::Ordinal(ordinal) => Target::device(ordinal)?,
            DeviceSelection::Host | DeviceSelection::All => Target::host(&self.gpu)?,
        };
        let bench = LocalBench::new(Arc::new(target.guard()?), self.policy)?;
        serve(|problem| {
            let invalid =
                |error: ProblemError| MeasureFailure::new(FailureKind::Launch, error.to_string());
            bench.open(&problem.parse().map_err(invalid)?)
        })?;
        Ok(Exit::Yes)
    }
}

/// The measuring process of one device. It lives on from problem to problem as long as the policy
/// stays the same.
pub(crate) struct MeasuringProcess<'a> {
    target: &'a Target,
    /// The GPU whose limits the host uses.
    gpu: &'a str,
    remote: Option<(Policy, Remote)>,
}

impl<'a> MeasuringProcess<'a> {
    pub(crate) const fn new(target: &'a Target, gpu: &'a str) -> Self {
        Self { target, gpu, remote: None }
    }

    /// The process, with this problem open.
    pub(crate) fn open(
        &mut self,
        problem: &Problem,
        policy: Policy,
    ) -> Result<Remote, CommandError> {
        if let Some((previous, mut remote)) = self.remote.take()
            && previous == policy
            && remote.reopen(problem.to_string()).is_ok()
        {
            return Ok(remote);
        }
        let program = std::env::current_exe().map_err(CommandError::io("finding this program"))?;
        let device = self.target.ordinal.map_or("host".to_owned(), |ordinal| ordinal.to_string());
        let (gpu, policy) = (self.gpu.to_owned(), policy.to_string());
        let command = move || {
            let mut command = Command::new(&program);
            command.args(["measure", "--device", &device, "--gpu", &gpu, "--policy", &policy]);
            command
        };
        Ok(Remote::spawn(command, problem.to_string(), Timeouts::default())?)
    }

    /// Keeps the process for the next problem, unless it could not be restarted, and notes what it
    /// printed.
    pub(crate) fn keep(&mut self, mut remote: Remote, policy: Policy, progress: &DeviceProgress) {
        if let Some(printed) = remote.take_printed() {
            progress.note(format_args!("the measuring process printed {printed:?}"));
        }
        self.remote = Some((policy, remote)).filter(|(_, remote)| remote.lost().is_none());
    }
}
