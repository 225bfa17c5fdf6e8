//! `gridguard completions`: writes completion scripts.

use clap::Args;
use clap_complete::Shell;

use crate::error::{CommandError, Exit};
use crate::output;

#[derive(Args)]
pub(crate) struct Completions {
    /// Shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self, mut command: clap::Command) -> Result<Exit, CommandError> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "gridguard", &mut script);
        output::write(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Yes)
    }
}
