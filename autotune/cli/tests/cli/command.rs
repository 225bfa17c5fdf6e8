//! Runs the command as a process of its own, away from the user's profiles.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gridguard::profile::{Document, ParsedProfile, load};
use serde_json::Value;

pub(crate) struct Ran {
    /// The exit code; `None` if a signal ended the command.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// The one JSON document on standard output.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    /// Checks the exit code, and shows the output if it is another.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// Checks that standard output contains `text`.
    #[track_caller]
    pub(crate) fn prints(&self, text: &str) -> &Self {
        assert!(self.out.contains(text), "{text:?}\nstdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// Checks that standard error contains `text`.
    #[track_caller]
    pub(crate) fn notes(&self, text: &str) -> &Self {
        assert!(self.err.contains(text), "{text:?}\nstdout: {}\nstderr: {}", self.out, self.err);
        self
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// The command's executable. `GRIDGUARD_COMMAND` names it where it is run on another machine than built.
pub(crate) fn gridguard() -> PathBuf {
    let built = || env!("CARGO_BIN_EXE_gridguard").into();
    std::env::var_os("GRIDGUARD_COMMAND").map_or_else(built, PathBuf::from)
}

/// Arguments: a list, or one text whose words are separated by blanks; `''` is an empty word.
pub(crate) trait Words {
    fn words(&self) -> Vec<&str>;
}

impl Words for str {
    fn words(&self) -> Vec<&str> {
        self.split_whitespace().map(|word| if word == "''" { "" } else { word }).collect()
    }
}

impl Words for String {
    fn words(&self) -> Vec<&str> {
        self.as_str().words()
    }
}

impl Words for [&str] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl<const N: usize> Words for [&str; N] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl Words for Vec<&str> {
    fn words(&self) -> Vec<&str> {
        self.clone()
    }
}

/// The command in `folder`, which its paths are relative to.
pub(crate) fn command(folder: &Path, args: &(impl Words + ?Sized)) -> Command {
    let mut command = Command::new(gridguard());
    command
        .args(args.words())
        .current_dir(folder)
        .env("GRIDGUARD_PROFILES", "off")
        .env_remove("COLUMNS")
        .stdin(Stdio::null());
    // A test that needs slow work is then slow on machines with many cores too.
    command.env("RAYON_NUM_THREADS", "1");
    command
}

pub(crate) fn run(folder: &Path, args: &(impl Words + ?Sized)) -> Ran {
    command(folder, args).output().expect("the command runs").into()
}

/// Runs the command with `input` on standard input, without the devices of this machine.
pub(crate) fn run_with_input(args: &(impl Words + ?Sized), input: &[u8]) -> Ran {
    let mut command = command(Path::new(env!("CARGO_MANIFEST_DIR")), args);
    let mut child = command
        .env("CUDA_VISIBLE_DEVICES", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let mut stdin = child.stdin.take().expect("standard input");
    std::thread::scope(|scope| {
        // The command may end before it has read everything.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().expect("the command ends").into()
    })
}

pub(crate) fn start(folder: &Path, args: &(impl Words + ?Sized)) -> Child {
    let mut command = command(folder, args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts")
}

/// Sends a signal such as `-INT` to the command alone, once it handles it, and waits for its end.
pub(crate) fn signal(child: Child, signal: &str) -> Ran {
    let number = [("-HUP", 1), ("-INT", 2), ("-TERM", 15)].iter().find(|(name, _)| *name == signal);
    wait_until(|| number.is_none_or(|(_, number)| handles(child.id(), *number)));
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    child.wait_with_output().expect("the command ends").into()
}

pub(crate) fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
}

/// Waits until a condition holds, however busy the machine is.
pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(600), "the condition never holds");
        sleep(Duration::from_millis(5));
    }
}

/// Whether a process handles a signal.
fn handles(process: u32, signal: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("its status");
    let handled = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask");
    u64::from_str_radix(handled.trim(), 16).expect("a mask") >> (signal - 1) & 1 == 1
}

/// A profile without invalid entries.
pub(crate) fn parsed(path: &Path) -> Document {
    let ParsedProfile { document, faults } = load(path).expect("a profile").expect("it exists");
    assert_eq!(faults, []);
    document
}
