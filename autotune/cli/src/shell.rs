//! `gridguard completions` and `gridguard man`: writes completion scripts and manual pages.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::error::{CommandError, Exit};
use crate::files::write_file;
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

#[derive(Args)]
pub(crate) struct ManPages {
    /// Folder for the pages of the command and all subcommands [default: one page to standard output]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

impl ManPages {
    pub(crate) fn run(&self, mut command: clap::Command) -> Result<Exit, CommandError> {
        command.build();
        let Some(folder) = &self.output else {
            output::write(&page(&command)?)?;
            return Ok(Exit::Yes);
        };
        let mut pages = vec![command];
        while let Some(command) = pages.pop() {
            // The whole name, for example `gridguard-profile-show`.
            let name = command.get_display_name().unwrap_or_else(|| command.get_name());
            write_file(&folder.join(format!("{name}.1")), &page(&command)?)?;
            let shown = |one: &&clap::Command| !one.is_hide_set() && one.get_name() != "help";
            pages.extend(command.get_subcommands().filter(shown).cloned());
        }
        Ok(Exit::Yes)
    }
}

fn page(command: &clap::Command) -> Result<String, CommandError> {
    let mut page = Vec::new();
    let written = Man::new(command.clone()).render(&mut page);
    CommandError::check_write(written, "writing a page")?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
