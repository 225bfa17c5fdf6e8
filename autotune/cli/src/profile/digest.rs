//! `gridguard profile digest`: prints digests of choices, which the ranks of a job compare.

use std::path::PathBuf;

use clap::Args;
use gridguard::profile::{Layers, compare_digests};
use serde_json::json;

use super::entry;
use crate::error::{CommandError, Exit};
use crate::measure::args::{self, DeviceSelection};
use crate::measure::target::{DEFAULT_GPU, Target};
use crate::output::{OutputArgs, text};

#[derive(Args)]
pub(crate) struct Digest {
    /// Profiles to compare [default: the choices of a device, from the user's and the built-in profile]
    files: Vec<PathBuf>,
    /// Device ordinal, or `host`
    #[arg(long, value_name = "N|host", value_parser = args::device, default_value = "0", conflicts_with = "files")]
    device: DeviceSelection,
    #[command(flatten)]
    output: OutputArgs,
}

impl Digest {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let of_file = |file: &PathBuf| -> Result<(String, String), CommandError> {
            Ok((file.display().to_string(), entry::read(file)?.document.choices_digest()))
        };
        let mut digests = self.files.iter().map(of_file).collect::<Result<Vec<_>, _>>()?;
        if digests.is_empty() {
            let target = Target::select(self.device, None, DEFAULT_GPU)?;
            let layers = Layers::new().user().built_in(&target.identity);
            let loaded = layers.load(&target.identity, &target.environment()?);
            digests.push((target.to_string(), loaded.profile.choices_digest()));
        }
        let all: Vec<&String> = digests.iter().map(|(_, digest)| digest).collect();
        let are_equal = compare_digests(&all).is_ok();
        let rows: Vec<_> =
            digests.iter().map(|(of, digest)| json!({ "of": of, "digest": digest })).collect();
        let document = json!({ "digests": rows, "equal": are_equal });
        self.output.print(
            &document,
            text(|f| digests.iter().try_for_each(|(of, digest)| writeln!(f, "{digest}  {of}"))),
        )?;
        Ok(if are_equal { Exit::Yes } else { Exit::No })
    }
}
