//! Measures in a child process, so that a candidate that crashes or hangs cannot stop the tuner.

use std::fmt::Display;
use std::process::Command;
use std::sync::Arc;

use clap::Args;
use gridguard::profile::Policy;
use gridguard_autotune::{FailureKind, MeasureFailure, Remote, Timeouts, serve};

use super::args::{self, DeviceSelection};
use super::progress::DeviceProgress;
use super::target::Target;
use super::workload::LocalBench;
use crate::error::{CommandError, Exit};
use crate::interrupt;

/// Serves the measurements of its parent process; started by `tune`
#[derive(Args)]
pub(crate) struct Measure {
    #[arg(long, value_parser = args::device)]
    device: DeviceSelection,
    #[arg(long)]
    gpu: String,
    #[arg(long, value_parser = args::policy)]
    policy: Policy,
    /// Fail while another process uses the device
    #[arg(long)]
    yields: bool,
    /// Fail if a bit of an output differs from the default's
    #[arg(long)]
    same_bits: bool,
}

impl Measure {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        // The parent handles signals and closes the connection.
        interrupt::ignore()?;
        let target = match self.device {
            DeviceSelection::Ordinal(ordinal) => Target::device(ordinal)?,
            DeviceSelection::Host | DeviceSelection::All => Target::host(&self.gpu)?,
        };
        let bench = LocalBench::new(Arc::new(target.guard()?), self.policy, self.yields)?;
        let bench = bench.same_bits(self.same_bits);
        serve(|problem| {
            let invalid = |error: gridguard_problems::Error| {
                MeasureFailure::new(FailureKind::Launch, error.to_string())
            };
            match problem.strip_prefix(TRANSFER).and_then(|bytes| bytes.parse().ok()) {
                Some(bytes) => bench.transfer(bytes),
                None => bench.open(&problem.parse().map_err(invalid)?),
            }
        })?;
        Ok(Exit::Yes)
    }
}

/// The name of a transfer, before its bytes.
pub(crate) const TRANSFER: &str = "transfer ";

/// The measuring process of one device, reused for problems of the same policy.
pub(crate) struct MeasuringProcess<'a> {
    target: &'a Target,
    /// Whether other processes have precedence.
    yields: bool,
    pub(crate) same_bits: bool,
    remote: Option<(Policy, Remote)>,
}

impl<'a> MeasuringProcess<'a> {
    pub(crate) const fn new(target: &'a Target, yields: bool, same_bits: bool) -> Self {
        Self { target, yields, same_bits, remote: None }
    }

    /// The process, with this problem open.
    pub(crate) fn open(
        &mut self,
        problem: &impl Display,
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
        let (gpu, policy) = (self.target.limits.name.clone(), policy.to_string());
        let flags = [(self.yields, "--yields"), (self.same_bits, "--same-bits")];
        let flags = flags.map(|(is_set, flag)| is_set.then_some(flag));
        let command = move || {
            let mut command = Command::new(&program);
            command.args(["measure", "--device", &device, "--gpu", &gpu, "--policy", &policy]);
            command.args(flags.iter().flatten());
            command
        };
        Ok(Remote::spawn(command, problem.to_string(), Timeouts::default())?)
    }

    /// Keeps a working process for the next problem, and notes its output.
    pub(crate) fn keep(&mut self, mut remote: Remote, policy: Policy, progress: &DeviceProgress) {
        if let Some(printed) = remote.take_printed() {
            progress.note(format_args!("the measuring process printed {printed:?}"));
        }
        self.remote = Some((policy, remote)).filter(|(_, remote)| remote.lost().is_none());
    }
}
