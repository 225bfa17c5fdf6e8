//! Tasks of external programs, from their arguments.

use std::env;
use std::fmt;
use std::time::Duration;

use clap::Args;
use gridguard::profile::{Entry, Key, Named, Objective, Policy, Provenance, StoredChoice, Summary};
use gridguard_autotune::{ProgramMeasurer, ProgramProblem};
use gridguard_problems::Problem;

use crate::error::CommandError;
use crate::measure::args;
use crate::measure::target::Target;
use crate::output::joined_sizes;

#[derive(Args)]
pub(crate) struct ProgramArgs {
    /// Tune this program, which gets values for placeholders, for example {block} and {chunk}, and prints its times
    /// in milliseconds as JSON, for example {"ms": [0.361, 0.358]}
    ///
    /// Runs at least once for each combination of values, without a shell. {chunk} is the number of items of a
    /// launch, {NAME} the value of a --parameter or size, and {{ a brace. The program warms up, checks its output,
    /// prints consecutive times on a line to standard output, and exits with 0. "check" is "ok", or describes the
    /// error in the output. Other lines are ignored. With --device N it sees only that device
    #[arg(
        long, value_name = "PROGRAM", group = "problem", requires_all = ["kernels", "sizes"],
        conflicts_with_all = ["shapes", "file"]
    )]
    command: Option<String>,
    /// Sizes of the problem, the number of items first, for example items=15360,head_dim=64; repeat for several
    /// problems
    #[arg(long, value_name = "NAME=N,...", value_parser = named, requires = "command")]
    sizes: Vec<Named>,
    /// Parameter of the program and its values, the default first, for example block=64,128,256; repeat for several
    /// parameters
    #[arg(
        long = "parameter", value_name = "NAME=N,...", value_parser = parameter, requires = "command"
    )]
    parameters: Vec<(String, Vec<u64>)>,
    /// Values of {chunk} in items, the default first [default: all items, half of them, and so on]
    #[arg(long = "chunk", value_name = "N,...", value_delimiter = ',', requires = "command")]
    chunks: Vec<u64>,
    /// Implementation that the program runs, for the profile's key [default: none]
    #[arg(long, hide_short_help = true, value_name = "TEXT", requires = "command")]
    variant: Option<String>,
    /// Version of the kernel's source, for example a hash; lookups match only the same version [default: none]
    #[arg(long, hide_short_help = true, value_name = "TEXT", requires = "command")]
    source: Option<String>,
    /// Time limit for one run of the program
    #[arg(
        long, hide_short_help = true, value_name = "TIME", default_value = "60s",
        value_parser = args::duration, requires = "command"
    )]
    timeout: Duration,
}

/// A problem of an external program, with the key of its entry.
#[derive(Debug, PartialEq)]
pub(crate) struct ProgramTask {
    pub(crate) key: Key,
    pub(crate) problem: ProgramProblem,
    timeout: Duration,
}

impl ProgramArgs {
    pub(crate) const fn is_given(&self) -> bool {
        self.command.is_some()
    }

    pub(crate) fn tasks(
        &self,
        kernels: &[String],
        dtypes: Option<&str>,
        policy: Policy,
        objective: Objective,
    ) -> Result<Vec<ProgramTask>, CommandError> {
        let Some(command) = &self.command else { return Ok(Vec::new()) };
        let [kernel] = kernels else {
            let message = "a program measures one kernel: give --kernel once";
            return Err(CommandError::invalid(message));
        };
        if Problem::KERNELS.contains(&kernel.as_str()) {
            let message = format!("{kernel} is a kernel of gridguard: give it another name");
            return Err(CommandError::invalid(message));
        }
        if matches!(objective, Objective::Latency { .. }) {
            let message =
                "a program times all of its launches together: the objective cannot be a latency";
            return Err(CommandError::invalid(message));
        }
        let key = Key {
            kernel: kernel.clone(),
            source: self.source.clone().unwrap_or_default(),
            variant: self.variant.clone().unwrap_or_default(),
            dtypes: dtypes.unwrap_or_default().to_owned(),
            policy,
            objective,
        };
        let task = |sizes: &Named| {
            let (parameters, chunks) = (self.parameters.clone(), self.chunks.clone());
            let problem = ProgramProblem::new(command, sizes.clone(), parameters, chunks);
            let problem = problem.map_err(|error| invalid(&error))?;
            let task = ProgramTask { key: key.clone(), problem, timeout: self.timeout };
            // Reports errors before anything is measured.
            task.entry().check().map_err(|error| invalid(&error))?;
            Ok(task)
        };
        self.sizes.iter().map(task).collect()
    }
}

impl ProgramTask {
    /// Runs the program so that it sees only the target device.
    pub(crate) fn measurer(&self, target: &Target) -> ProgramMeasurer<'static> {
        let measurer = ProgramMeasurer::new(self.problem.clone(), self.timeout);
        match target.ordinal {
            Some(ordinal) => {
                let visible = env::var(VISIBLE_DEVICES).ok();
                measurer.environment(VISIBLE_DEVICES, nth_device(visible.as_deref(), ordinal))
            }
            None => measurer,
        }
    }

    /// The unmeasured entry of the default, to check names and numbers.
    fn entry(&self) -> Entry {
        let default = self.problem.candidates().into_iter().next();
        Entry {
            key: self.key.clone(),
            shape: self.problem.sizes().clone(),
            choice: StoredChoice::default(),
            parameters: default.map(|default| default.parameters).unwrap_or_default(),
            launches: 1,
            chosen: Summary::default(),
            default: Summary::default(),
            found: Provenance::default(),
        }
    }
}

impl fmt::Display for ProgramTask {
    /// `paged_attention v2 f16 1024x128`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { kernel, variant, dtypes, .. } = &self.key;
        let names = [kernel, variant, dtypes].into_iter().filter(|name| !name.is_empty());
        names.map(String::as_str).try_for_each(|name| write!(f, "{name} "))?;
        f.write_str(&joined_sizes(self.problem.sizes()))
    }
}

/// The device with this ordinal in the list of visible devices, or among all.
fn nth_device(visible: Option<&str>, ordinal: usize) -> String {
    let device = visible.and_then(|list| list.split(',').nth(ordinal));
    device.map_or_else(|| ordinal.to_string(), |device| device.trim().to_owned())
}

/// `items=15360,head_dim=64`.
fn named(text: &str) -> Result<Named, String> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    };
    let expected = "expected names and whole numbers, such as items=15360,head_dim=64";
    text.split(',').map(pair).collect::<Option<_>>().ok_or_else(|| expected.into())
}

/// `block=64,128,256`.
fn parameter(text: &str) -> Result<(String, Vec<u64>), String> {
    let parse = || {
        let (name, values) = text.split_once('=')?;
        let values: Option<_> = values.split(',').map(|value| value.trim().parse().ok()).collect();
        Some((name.trim().to_owned(), values?))
    };
    let expected = "expected a name and whole numbers, such as block=64,128,256";
    parse().ok_or_else(|| expected.into())
}

fn invalid(error: &dyn fmt::Display) -> CommandError {
    CommandError::invalid(format_args!("--command: {error}"))
}

const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_among_the_visible_ones() {
        assert_eq!(nth_device(None, 3), "3");
        assert_eq!(nth_device(Some("GPU-8932, MIG-4711"), 1), "MIG-4711");
        assert_eq!(nth_device(Some("2"), 0), "2");
    }
}
