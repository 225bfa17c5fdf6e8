//! The process that measures for `tune`: what a candidate breaks, breaks here.

use std::io;
use std::process::Command;

use clap::Args;
use gridguard::profile::Policy;
use gridguard_autotune::serve;

use super::target::Target;
use super::values::{self, DeviceSelection};
use super::workload::Bench;
use crate::error::{CommandError, Exit};
use crate::interrupt;

/// Measures what is asked for on standard input; started by `tune`.
#[derive(Args)]
pub(crate) struct Measure {
    #[arg(long, value_parser = values::device)]
    device: DeviceSelection,
    #[arg(long)]
    gpu: String,
    #[arg(long, value_parser = values::policy)]
    policy: Policy,
}

impl Measure {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        // Whoever started this closes its input; signals that reach both are the other one's matter.
        interrupt::ignore()?;
        let target = match self.device {
            DeviceSelection::One(ordinal) => Target::device(ordinal)?,
            DeviceSelection::Host | DeviceSelection::All => Target::host(&self.gpu)?,
        };
        let bench = Bench::new(target.guard()?, self.policy)?;
        serve(io::stdin(), io::stdout(), |problem| bench.open(problem))?;
        Ok(Exit::Yes)
    }
}

/// How such a process is started.
pub(crate) fn command(
    target: &Target,
    gpu: &str,
    policy: Policy,
) -> Result<impl Fn() -> Command + Send + 'static, CommandError> {
    let program = std::env::current_exe().map_err(CommandError::io("finding this program"))?;
    let device = target.ordinal.map_or("host".to_owned(), |ordinal| ordinal.to_string());
    let (gpu, policy) = (gpu.to_owned(), policy.to_string());
    Ok(move || {
        let mut command = Command::new(&program);
        command.args(["measure", "--device", &device, "--gpu", &gpu, "--policy", &policy]);
        command
    })
}
