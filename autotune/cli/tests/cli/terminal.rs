//! What the command prints on terminals of several widths.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use expect_test::expect_file;
use gridguard::profile::{Backend, DeviceIdentity};
use gridguard_report::WatchReport;
use tempfile::TempDir;

use crate::command::{command, gridguard};
use crate::profile::entries::{EARLY, LATE, document, host, norm, put_text};
use crate::ptx::PTX;

/// What a screen shows besides help texts, with its exit code.
const SCREENS: [(&str, i32); 27] = [
    ("limits h200", 0),
    ("limits --compare a100 h200 sm_120", 0),
    ("limits rtx-2080-mobile", 2),
    ("check --gpu h200 --grid 1,76800 --block 128", 1),
    (
        "check --gpu h200 --grid 1,76800 --block 128 --batch-axis y --items 15360 --blocks-per-item 5 --max-items",
        0,
    ),
    (
        "check --gpu any,sm_86,h200 --grid 1,76800 --block 128 --shared-mem 100KiB --batch-axis y --items 76800",
        1,
    ),
    ("check --gpu h200 --grid x --block 128", 2),
    ("check --requests --help", 0),
    ("explain 9", 0),
    ("explain grid-dim-y", 0),
    ("explain no failure at all", 1),
    (TUNE, 0),
    (TUNE, 0),
    ("tune --device host --kernel none", 2),
    ("tune --device host --memory x", 2),
    ("profile show p.ron", 0),
    ("profile show bad.ron", 0),
    ("profile show none.ron", 2),
    ("profile explain rms_norm 350x8 --dtype f32 --gpu h200 --profile p.ron", 0),
    ("profile explain rms_norm 9000000x8 --dtype f32 --gpu h200 --profile p.ron", 1),
    ("profile merge p.ron q.ron --output all.ron", 0),
    ("profile merge q.ron --output all.ron", 2),
    ("profile prune all.ron --dry-run", 0),
    ("ptx a.ptx", 1),
    ("ptx a.ptx --index --grid 1,40000,1 --block 256,1,1", 0),
    ("report r.json", 0),
    ("doctor", 1),
];
/// Programs that print the same times.
const TUNE: &str = "tune --gpu h200 --kernel mine --dtype f32 --sizes items=4096 --chunk 4096,1024 \
                    --parameter block_size=128,256 --command ./{chunk}x{block_size} --profile t.ron";
const TIMES: &str = "#!/bin/sh\necho '{\"ms\": [0.001, 0.001, 0.001, 0.001], \"check\": \"ok\"}'\n";

/// A folder with the files of [`SCREENS`], and a machine without CUDA.
fn files() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let device = DeviceIdentity { backend: Backend::Cuda, processor: None, ..host() };
    let of_gpu = |entries| document(device.clone(), entries).to_string();
    put_text(&folder, "p.ron", &of_gpu(vec![norm(300, EARLY), norm(70_000, LATE)]));
    put_text(&folder, "q.ron", &of_gpu(vec![norm(300, LATE), norm(500, EARLY)]));
    let bad = of_gpu(vec![norm(300, EARLY)]).replace("choice: whole", "choice: hole");
    put_text(&folder, "bad.ron", &bad);
    put_text(&folder, "a.ptx", PTX);
    let report = WatchReport::pending("train".to_owned(), 7);
    put_text(&folder, "r.json", &serde_json::to_string(&report).expect("JSON"));
    for program in ["4096x128", "4096x256", "1024x128", "1024x256"] {
        put_text(&folder, program, TIMES);
        let path = folder.path().join(program);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it may run");
    }
    fs::create_dir(folder.path().join("lib")).expect("a folder");
    let nvrtc = ["so", "so.13", "so.12", "so.11.2"].map(|end| format!("libnvrtc.{end}"));
    for library in nvrtc.iter().map(String::as_str).chain(["libcuda.so.1", "libcuda.so"]) {
        put_text(&folder, &format!("lib/{library}"), "");
    }
    folder
}

/// What the command prints with `columns`, on both streams, in the folder of [`files`].
fn printed(folder: &TempDir, args: &str, code: i32, columns: usize) -> String {
    let mut command = command(folder.path(), args);
    for name in ["CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"] {
        command.env_remove(name);
    }
    command.envs([("COLUMNS", &*columns.to_string()), ("LC_ALL", "C"), ("TERM", "dumb")]);
    command.envs([("LD_LIBRARY_PATH", "lib"), ("PATH", "lib")]);
    let output = command.output().expect("the command runs");
    let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{args}: {text}");
    // What a run took, and what changes with kernels and releases.
    let text = text.replace(&norm(1, EARLY).key.source, "0123456789abcdef");
    let text = text.replace(concat!("tuner ", env!("CARGO_PKG_VERSION")), "tuner 0.1.0");
    let seconds = (0..100).map(|tenths| format!("in {}.{} s", tenths / 10, tenths % 10));
    seconds.fold(text, |text, seconds| text.replace(&seconds, "in 0.0 s"))
}

/// The subcommands below `path`, which `-h` lists.
fn subcommands(folder: &TempDir, path: &str) -> Vec<String> {
    let help = printed(folder, &format!("{path} -h"), 0, 100);
    let listed = help.split("\nCommands:\n").nth(1).unwrap_or_default();
    let lines = listed.lines().take_while(|line| line.starts_with("  "));
    let first = lines.filter_map(|line| line.strip_prefix("  ").filter(|it| !it.starts_with(' ')));
    let names = first.filter_map(|line| line.split_whitespace().next());
    let named = names.filter(|name| *name != "help").map(|name| format!("{path} {name}"));
    named.flat_map(|path| [vec![path.clone()], subcommands(folder, &path)].concat()).collect()
}

#[test]
fn every_screen_fits_the_terminal_and_breaks_no_word() {
    let helps = [vec![String::new()], subcommands(&files(), "")].concat();
    let helps = helps.iter().map(|path| (format!("{path} -h"), 0));
    let screens = SCREENS.map(|(args, code)| (args.to_owned(), code));
    let cases: Vec<(String, i32)> = helps.chain(screens).collect();
    assert!(cases.len() > 25, "{cases:?}");
    // The feature adds subcommands of profiles.
    let (name, shown_below) =
        if cfg!(feature = "fleet") { ("fleet", "profile") } else { ("terminal", "") };
    for columns in [20, 40, 80, 120] {
        let mut shown = String::new();
        let (folder, wide) = (files(), files());
        for (args, code) in &cases {
            let screen = printed(&folder, args, *code, columns);
            let whole = printed(&wide, args, *code, 400);
            let words: BTreeSet<&str> = whole.split_whitespace().collect();
            for line in screen.lines() {
                let is_one_word = line.split_whitespace().count() <= 2;
                assert!(
                    line.chars().count() <= columns || is_one_word,
                    "{args} at {columns}: {line}"
                );
                for word in line.split_whitespace().filter(|word| !word.ends_with(['\\', '…'])) {
                    assert!(words.contains(word), "{args} at {columns}: {word}");
                }
            }
            if args.trim_start().starts_with(shown_below) {
                shown += &format!("$ gridguard {}\n{screen}\n", args.trim_start());
            }
        }
        if columns >= 40 {
            expect_file![format!("screens/{name}-{columns}.txt")].assert_eq(&shown);
        }
    }
}

#[test]
fn a_terminal_decides_the_width_and_the_colours() {
    let on_terminal = |variables: &[(&str, &str)]| {
        let shell = format!("stty rows 24 cols 44; exec {} explain 9", gridguard().display());
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &shell, "/dev/null"]);
        script.stdin(Stdio::null()).env_remove("NO_COLOR").env("TERM", "xterm");
        let output = script.envs(variables.iter().copied()).output().expect("script of util-linux");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let coloured = on_terminal(&[]);
    assert!(coloured.contains("\u{1b}[1mcudaErrorInvalidConfiguration"), "{coloured}");
    for plain in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = on_terminal(&[plain]);
        assert!(!plain.contains('\u{1b}'), "{plain}");
        assert!(plain.lines().all(|line| line.trim_end().chars().count() <= 44), "{plain}");
        assert!(plain.lines().count() > 14, "{plain}");
    }
}
