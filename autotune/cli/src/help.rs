//! The examples at the end of each help text.

use clap::Command;

/// A subcommand and its examples, without the name of the command.
type Examples = (&'static str, [&'static str; 3]);

const EXAMPLES: [Examples; 20] = [
    (
        "",
        [
            "explain CUDA error: invalid argument",
            "check --gpu h200 --grid 1,76800 --block 128",
            "run -- python3 train.py",
        ],
    ),
    (
        "limits",
        ["limits h200", "limits --compare a100 h200 sm_120", "limits --device 0 --format json"],
    ),
    (
        "check",
        [
            "check --gpu h200,9.0 --grid 1,76800 --block 128 --shared-mem 100KiB",
            "check --gpu h200 --grid 1,76800 --block 128 --batch-axis y --items 15360 --blocks-per-item 5",
            "check --gpu h200 --image kernels.cubin --kernel attention --grid 1,4096 --block 256",
        ],
    ),
    (
        "tune",
        [
            "tune --kernel rms_norm --shape 32768x4096",
            "tune --budget 30m --shapes missed.ron",
            "tune --kernel mine --sizes items=4096 --command './bench {chunk}'",
        ],
    ),
    (
        "profile",
        [
            "profile show nvidia-h200.ron",
            "profile explain rms_norm 32768x4096 --gpu h200",
            "profile verify nvidia-h200.ron",
        ],
    ),
    (
        "profile show",
        [
            "profile show nvidia-h200.ron",
            "profile show nvidia-h200.ron --kernel rms_norm",
            "profile show nvidia-h200.ron --format json",
        ],
    ),
    (
        "profile merge",
        [
            "profile merge 0.ron 1.ron --output all.ron",
            "profile merge old.ron new.ron --output old.ron",
            "profile merge 0.ron 1.ron --output all.ron --force",
        ],
    ),
    (
        "profile digest",
        [
            "profile digest nvidia-h200.ron",
            "profile digest 0.ron 1.ron",
            "profile digest --device 0 --format json",
        ],
    ),
    (
        "profile diff",
        [
            "profile diff old.ron new.ron",
            "profile diff old.ron new.ron --times 5%",
            "profile diff old.ron new.ron --format json",
        ],
    ),
    (
        "profile verify",
        [
            "profile verify nvidia-h200.ron",
            "profile verify nvidia-h200.ron --kernel rms_norm --tolerance 10%",
            "profile verify nvidia-h200.ron --device 1 --format json",
        ],
    ),
    (
        "profile explain",
        [
            "profile explain rms_norm 32768x4096",
            "profile explain rms_norm 32768x4096 --gpu h200",
            "profile explain sum_of_squares 20000 --device host --policy hot-eager",
        ],
    ),
    (
        "profile prune",
        [
            "profile prune nvidia-h200.ron --dry-run",
            "profile prune nvidia-h200.ron --defaults",
            "profile prune nvidia-h200.ron --kernel rms_norm --stale",
        ],
    ),
    (
        "ptx",
        [
            "ptx kernels.ptx",
            "ptx kernels.ptx --output rewritten.ptx",
            "ptx kernels.ptx --index --grid 1,40000,1 --block 256,1,1",
        ],
    ),
    (
        "explain",
        [
            "explain CUDA error: invalid argument",
            "explain grid-dim-y",
            "explain --gpu rtx-4090 training.log",
        ],
    ),
    (
        "run",
        [
            "run -- python3 train.py",
            "run --fix -- ./program --its-option",
            "run --capture attention_kernel:3 -- python3 train.py",
        ],
    ),
    (
        "report",
        ["report report.json", "report report.json --all", "report report.json --html report.html"],
    ),
    ("doctor", ["doctor", "doctor --torch", "doctor --torch .venv --format json"]),
    ("bug-report", ["bug-report", "bug-report --report report.json", "bug-report --format json"]),
    ("completions", ["completions bash", "completions zsh", "completions fish"]),
    ("man", ["man", "man --output .", "man --output share/man/man1"]),
];

/// The subcommands of the feature `fleet`.
#[cfg(feature = "fleet")]
const FLEET_EXAMPLES: [Examples; 5] = [
    (
        "profile push",
        [
            "profile push oci://registry.example/gpu/profiles:stable nvidia-h200.ron --key key.pem",
            "profile push s3://bucket/profiles:stable nvidia-h200.ron --key key.pem --percent 10",
            "profile push oci://registry.example/gpu/profiles:stable --key key.pem --roll-back stable-7",
        ],
    ),
    (
        "profile pull",
        [
            "profile pull oci://registry.example/gpu/profiles:stable --keys keys.pem --folder profiles",
            "profile pull s3://bucket/profiles:stable --keys keys.pem --folder profiles --every 5m",
            "profile pull file:///mnt/profiles:stable --keys keys.pem --folder profiles --node node7",
        ],
    ),
    (
        "profile list",
        [
            "profile list oci://registry.example/gpu/profiles",
            "profile list s3://bucket/profiles",
            "profile list file:///mnt/profiles --format json",
        ],
    ),
    (
        "profile push-misses",
        [
            "profile push-misses oci://registry.example/gpu/profiles misses.ron",
            "profile push-misses s3://bucket/profiles misses.ron --node node7",
            "profile push-misses file:///mnt/profiles misses.ron --format json",
        ],
    ),
    (
        "profile pull-misses",
        [
            "profile pull-misses oci://registry.example/gpu/profiles --file missed.ron",
            "profile pull-misses s3://bucket/profiles --file missed.ron",
            "profile pull-misses file:///mnt/profiles --file missed.ron --format json",
        ],
    ),
];
#[cfg(not(feature = "fleet"))]
const FLEET_EXAMPLES: [Examples; 0] = [];

/// Adds the examples to the help texts of `command` and its subcommands.
pub(crate) fn with_examples(command: Command) -> Command {
    EXAMPLES.iter().chain(&FLEET_EXAMPLES).fold(command, |command, (path, examples)| {
        let lines: String = examples.iter().map(|one| format!("\n  gridguard {one}")).collect();
        let title = style(&command);
        let text = format!("{title}Examples:{title:#}{lines}");
        add(command, path, &text)
    })
}

/// The style of a heading, which only a terminal shows.
fn style(command: &Command) -> clap::builder::styling::Style {
    *command.get_styles().get_header()
}

/// Adds `text` to the subcommand at `path`, if this machine has it.
fn add(command: Command, path: &str, text: &str) -> Command {
    let (name, rest) = path.split_once(' ').unwrap_or((path, ""));
    if name.is_empty() {
        let end =
            command.get_after_help().map_or_else(String::new, |end| format!("\n\n{}", end.ansi()));
        return command.after_help(format!("{text}{end}"));
    }
    match command.find_subcommand(name) {
        Some(_) => command.mut_subcommand(name, |subcommand| add(subcommand, rest, text)),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Command as Gridguard;

    #[test]
    fn every_subcommand_has_examples_which_it_accepts() {
        let (all, mut named) = (with_examples(Gridguard::command()), 0);
        let mut left: Vec<&Command> = vec![&all];
        while let Some(command) = left.pop() {
            left.extend(command.get_subcommands().filter(|one| !one.is_hide_set()));
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  gridguard "), "{}", command.get_name());
            named += 1;
        }
        assert_eq!(named, EXAMPLES.len() + FLEET_EXAMPLES.len());
        let all_examples = EXAMPLES.iter().chain(&FLEET_EXAMPLES);
        for example in all_examples.flat_map(|(_, examples)| examples) {
            let words = example
                .split(" < ")
                .next()
                .unwrap_or_default()
                .replace("'./bench {chunk}'", "./bench");
            let words = ["gridguard"].into_iter().chain(words.split(' '));
            if let Err(error) = all.clone().try_get_matches_from(words) {
                panic!("{example}: {error}");
            }
        }
    }

    #[test]
    fn a_short_help_fits_on_a_screen() {
        let mut left = vec![with_examples(Gridguard::command())];
        while let Some(mut command) = left.pop() {
            left.extend(command.get_subcommands().filter(|one| !one.is_hide_set()).cloned());
            let lines = command.render_help().to_string().lines().count();
            assert!(lines <= SCREEN, "{}: {lines} lines", command.get_name());
        }
    }

    /// Lines of an ordinary terminal.
    const SCREEN: usize = 32;
}
