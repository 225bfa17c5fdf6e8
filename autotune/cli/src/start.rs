//! `gridguard` without a subcommand: what this machine has, and which command to begin with.

use std::fmt::{self, Display};
use std::fs;
use std::path::Path;
use std::time::Duration;

use gridguard::profile::user_folder;

use crate::doctor::child;
use crate::error::Exit;
use crate::output::{count, note};

/// What can be found out without loading the driver, which may take seconds or hang.
#[derive(Default)]
struct Machine {
    /// The models of the GPUs; `GPU` where the kernel does not state the model.
    gpus: Vec<String>,
    /// The version of PyTorch in `python3`.
    torch: Option<String>,
    /// The user's profiles.
    profiles: usize,
}

/// Shows the screen. It is a usage error, because no subcommand is given.
pub(crate) fn run() -> Exit {
    let machine = Machine { gpus: gpus(), torch: torch(), profiles: profiles() };
    note(machine);
    Exit::InvalidInput
}

/// Names in a folder; none if it cannot be read.
fn names(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn gpus() -> Vec<String> {
    const OF_DRIVER: &str = "/proc/driver/nvidia/gpus";
    let model = |name: &String| {
        let text =
            fs::read_to_string(format!("{OF_DRIVER}/{name}/information")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Model:"));
        line.map_or_else(|| "GPU".to_owned(), |line| line.trim().to_owned())
    };
    let models: Vec<_> = names(OF_DRIVER).iter().map(model).collect();
    if models.is_empty() && Path::new("/dev/dxg").exists() {
        return vec!["GPU of Windows".to_owned()];
    }
    models
}

/// Does not import PyTorch, which takes seconds.
fn torch() -> Option<String> {
    const VERSION: &str = "import importlib.metadata as m; print(m.version('torch'))";
    const LIMIT: Duration = Duration::from_secs(2);
    let output = child::run(child::python("python3".as_ref(), VERSION), LIMIT, |_| true);
    let version = output.out.trim();
    (output.end.is_ok() && !version.is_empty()).then(|| version.to_owned())
}

fn profiles() -> usize {
    let names = user_folder().map(names).unwrap_or_default();
    names.iter().filter(|name| name.ends_with(".ron")).count()
}

impl Machine {
    /// The first commands, each with its purpose.
    fn commands(&self) -> Vec<(&'static str, &'static str)> {
        let has_gpu = !self.gpus.is_empty();
        let rows = [
            (true, "gridguard explain training.log", "what an error means, and how to fix it"),
            (
                true,
                "gridguard check --gpu h200 --grid 1,76800 --block 128",
                "whether a launch is legal",
            ),
            (has_gpu, "gridguard run -- python3 train.py", "which launch of a program fails"),
            (
                has_gpu && self.torch.is_some(),
                "gridguard doctor --torch",
                "whether PyTorch fits the driver",
            ),
            (has_gpu && self.torch.is_none(), "gridguard doctor", "whether the machine runs CUDA"),
            (has_gpu && self.profiles == 0, "gridguard tune", "which chunks are fastest here"),
            (!has_gpu, "gridguard doctor", "why CUDA finds no GPU here"),
        ];
        rows.into_iter().filter(|row| row.0).map(|(_, command, what)| (command, what)).collect()
    }
}

impl Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "gridguard {}: legal and fast CUDA launches\n", env!("GRIDGUARD_VERSION"))?;
        let gpus = match &self.gpus[..] {
            [] => "none found; most commands need none".to_owned(),
            [gpu] => gpu.clone(),
            [gpu, more @ ..] => format!("{gpu} and {}", count(more.len(), "other", "others")),
        };
        writeln!(f, "GPU       {gpus}")?;
        writeln!(f, "PyTorch   {}", self.torch.as_deref().unwrap_or("none in python3"))?;
        let profiles = match self.profiles {
            0 => "none of your own".to_owned(),
            several => format!("{several} of your own"),
        };
        writeln!(f, "profiles  {profiles}\n")?;
        for (command, what) in self.commands() {
            writeln!(f, "  {command:55}{what}")?;
        }
        write!(
            f,
            "\nUsage: gridguard COMMAND; --help lists all commands, COMMAND -h shows examples"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_commands_depend_on_the_machine() {
        let first = |gpus: &[&str], torch: Option<&str>, profiles| {
            let gpus = gpus.iter().map(ToString::to_string).collect();
            let text = Machine { gpus, torch: torch.map(str::to_owned), profiles }.to_string();
            assert!(text.lines().count() <= 15, "{text}");
            text
        };
        let without = first(&[], None, 0);
        assert!(
            without.contains("none found") && without.contains("why CUDA finds no GPU"),
            "{without}"
        );
        assert!(!without.contains("gridguard run") && !without.contains("tune"), "{without}");
        let with = first(&["NVIDIA H200", "NVIDIA H200"], Some("2.9.1"), 0);
        assert!(with.contains("NVIDIA H200 and 1 other\nPyTorch   2.9.1\n"), "{with}");
        assert!(with.contains("doctor --torch") && with.contains("gridguard tune"), "{with}");
        assert!(!first(&["NVIDIA L4"], None, 2).contains("gridguard tune"));
    }
}
