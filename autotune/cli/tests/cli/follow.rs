//! `gridguard explain --follow`: logs that grow, pipes, and files that are replaced.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::Value;

use crate::command::{command, mkfifo, run, run_with_input, signal, start};

/// A followed log in a folder of its own.
struct Followed {
    folder: tempfile::TempDir,
    child: Child,
    findings: Lines<BufReader<ChildStdout>>,
}

impl Followed {
    /// Follows `train.log`, after `prepare` made it.
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        prepare(&folder.path().join("train.log"));
        let args = "explain --follow train.log --format json";
        let mut child = start(folder.path(), args);
        let findings = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self { folder, child, findings }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("train.log")
    }

    fn append(&self, text: &str) {
        let mut file = OpenOptions::new().append(true).open(self.path()).expect("it exists");
        file.write_all(text.as_bytes()).expect("written");
    }

    /// Line and number of the next finding.
    fn next(&mut self) -> (u64, u64) {
        let line = self.findings.next().expect("a finding").expect("UTF-8");
        let found: Value = serde_json::from_str(&line).expect("one JSON document a line");
        let number = &found["diagnosis"]["failure"]["number"];
        (found["line"].as_u64().expect("a line"), number.as_u64().expect("a number"))
    }

    fn interrupt(self) {
        signal(self.child, "-INT").exits(130);
    }
}

#[test]
fn a_growing_log_is_followed_until_it_is_interrupted() {
    let begin = |path: &Path| fs::write(path, "step 1\nCUDA error: out of mem").expect("written");
    let mut log = Followed::new(begin);
    log.append("ory\n");
    assert_eq!(log.next(), (2, 2));
    log.append("CUDA error: misaligned address\n");
    assert_eq!(log.next(), (3, 716));
    // What was explained is not explained again.
    log.append("CUDA error: out of memory\nCUDA error: invalid device ordinal\n");
    assert_eq!(log.next(), (5, 101));
    log.interrupt();
}

#[test]
fn a_pipe_is_read_as_it_is_written_and_an_interrupt_does_not_wait_for_its_writer() {
    let mut log = Followed::new(mkfifo);
    let mut pipe = File::options().write(true).open(log.path()).expect("a reader");
    pipe.write_all(b"CUDA error: misaligned address\n").expect("written");
    assert_eq!(log.next(), (1, 716));
    log.interrupt();
    // Without a writer, opening it waits.
    Followed::new(mkfifo).interrupt();
}

#[test]
fn a_log_without_a_pause_is_explained_too() {
    let mut log = Followed::new(mkfifo);
    let mut pipe = File::options().write(true).open(log.path()).expect("a reader");
    let writer = std::thread::spawn(move || {
        let failed = pipe.write_all(b"CUDA error: misaligned address\n");
        let busy = (0..).map(|_| pipe.write_all(b"step\n"));
        failed.is_ok() && busy.take_while(Result::is_ok).count() > 0
    });
    assert_eq!(log.next(), (1, 716));
    log.interrupt();
    assert!(writer.join().expect("no panic"));
}

#[test]
fn a_log_that_is_replaced_or_truncated_begins_anew() {
    let begin = |path: &Path| fs::write(path, "ok\nCUDA error: out of memory\n").expect("written");
    let mut log = Followed::new(begin);
    assert_eq!(log.next(), (2, 2));
    fs::rename(log.path(), log.folder.path().join("train.log.1")).expect("renamed");
    fs::write(log.path(), "CUDA error: out of memory\n").expect("written");
    assert_eq!(log.next(), (1, 2));
    File::create(log.path()).expect("truncated");
    log.append("CUDA error: 700\n");
    assert_eq!(log.next(), (1, 700));
    log.interrupt();
}

#[test]
fn after_more_failures_than_are_kept_further_ones_are_explained() {
    let xid = |number: u64| format!("NVRM: Xid (PCI:0000:06:00): {number}, x\n");
    let begin = |path: &Path| fs::write(path, (1..=64).map(xid).collect::<String>()).expect("ok");
    let mut log = Followed::new(begin);
    for number in 1..=64 {
        assert_eq!(log.next(), (number, number));
    }
    log.append(&xid(65));
    assert_eq!(log.next(), (65, 65));
    log.interrupt();
}

#[test]
fn an_unnamed_pipe_is_followed_to_its_end() {
    let follow = |input: &[u8]| run_with_input("explain --follow /dev/stdin", input);
    let ran = follow(b"ok\nCUDA error: misaligned address");
    assert!(ran.out.starts_with("line 2: CUDA error: misaligned address\n"), "{}", ran.out);
    assert_eq!(ran.code, Some(0));
    assert_eq!(follow(b"ok\n").code, Some(1));
}

#[test]
fn a_missing_file_and_a_text_beside_a_file_are_invalid() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = run(folder.path(), "explain --follow none.log");
    assert_eq!(missing.code, Some(2), "{}", missing.err);
    fs::write(folder.path().join("train.log"), "").expect("written");
    assert_eq!(run(folder.path(), "explain --follow train.log 9").code, Some(2));
}

#[test]
fn a_log_on_standard_input_that_does_not_end_says_what_explains_it() {
    let mut command = command(Path::new("."), "explain -");
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the command starts");
    let mut notes = BufReader::new(child.stderr.take().expect("its notes")).lines();
    let mut said = || notes.next().expect("a line").expect("UTF-8");
    assert!(said().starts_with("still reading standard input"));
    assert_eq!(said(), "  gridguard explain --follow FILE");
    let mut input = child.stdin.take().expect("its input");
    input.write_all(b"CUDA error: misaligned address\n").expect("it reads");
    drop(input);
    let ran = child.wait_with_output().expect("the command ends");
    assert!(ran.stdout.starts_with(b"CUDA_ERROR_MISALIGNED_ADDRESS (716)"));
}
