//! The commands of the documents run, one after another, on the host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::{Server, load, program, text, wait_until};
use clap::CommandFactory;
use gridguard_server::options::Options;
use rustix::process::Signal;

const README: &str = include_str!("../../README.md");
const DOCUMENT: &str = include_str!("../../../../docs/server.md");

/// The commands of the blocks of shell text, without comments and what installs programs.
fn commands(document: &str) -> Vec<&str> {
    let blocks = document.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks.flat_map(str::lines);
    lines.filter(|line| !line.starts_with('#') && !line.starts_with("cargo install ")).collect()
}

/// A folder whose `bin` has the programs of the documents.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    let link = |from: &Path, name: &str| symlink(from, bin.join(name)).expect("a link");
    link(env!("CARGO_BIN_EXE_gridguard-server").as_ref(), "gridguard-server");
    link(&program("gridguard-load", "gridguard-load"), "gridguard-load");
    link(&program("gridguard-cli", "gridguard"), "gridguard");
    // In place of curl, which a machine may lack.
    let curl = "#!/usr/bin/env python3\nimport sys, urllib.request\n\
                print(urllib.request.urlopen(sys.argv[-1]).read().decode())\n";
    fs::write(bin.join("curl"), curl).expect("a script");
    fs::set_permissions(bin.join("curl"), fs::Permissions::from_mode(0o755)).expect("its mode");
    folder
}

fn shell(command: &str, folder: &Path) -> Command {
    let path = std::env::var("PATH").expect("a path");
    let mut shell = Command::new("bash");
    shell.args(["-c", command]).current_dir(folder).env("GRIDGUARD_PROFILES", "off");
    shell.env("PATH", format!("{}:{path}", folder.join("bin").display()));
    shell
}

/// Runs the commands of a document in a shell, but with servers on free ports. Returns their output, and the server
/// that runs at the end.
fn run(document: &str, folder: &Path) -> (Vec<(String, String)>, Option<Server>) {
    let mut printed = Vec::new();
    let mut server: Option<Server> = None;
    for command in commands(document) {
        if let Some(start) = command.strip_suffix(" &") {
            let own = " --listen 127.0.0.1:8080 --devices host";
            assert!(start.contains(own), "{start}");
            let started = Server::spawn(&mut shell(
                &format!("exec {} \"$0\" \"$@\"", start.replace(own, "")),
                folder,
            ));
            wait_until(|| started.get("/readyz").status == 200);
            server = Some(started);
            continue;
        }
        let command = match command.strip_prefix("kill -TERM $! && wait $!") {
            Some(rest) => {
                let mut ended = server.take().expect("a server runs");
                ended.signal(Signal::TERM);
                assert!(ended.ended().success(), "{}", ended.log());
                rest.trim_start_matches(" && ")
            }
            None => command,
        };
        if command.is_empty() {
            continue;
        }
        let address = server.as_ref().map_or("nowhere", |server| &server.address);
        let admin = server.as_ref().map_or("nowhere", |server| &server.admin);
        let command = command.replace("127.0.0.1:8080", address).replace("127.0.0.1:8081", admin);
        let output = shell(&command, folder).output().expect("bash");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{command}\n{text}");
        printed.push((command, text));
    }
    (printed, server)
}

#[test]
fn the_cycle_of_an_operator_works_as_the_readme_says() {
    let folder = folder();
    let (printed, server) = run(README, folder.path());
    let [(_, loaded), (_, metrics), (_, tuned)] = &printed[..] else { panic!("{printed:?}") };
    assert!(loaded.contains("status   200: 100"), "{loaded}");
    assert!(loaded.contains("verified 10 replies, 0 wrong"), "{loaded}");
    assert!(metrics.contains("gridguard_server_answered_total 100"), "{metrics}");
    assert!(tuned.contains("temporal_attention"), "{tuned}");

    let server = server.expect("the second one runs");
    let lookups = || server.metric("gridguard_profile_lookups_total", "match=\"exact\"");
    assert_eq!(lookups(), 0.0);
    let load = commands(README)[1].replace("127.0.0.1:8080", &server.address);
    assert!(shell(&load, folder.path()).output().expect("bash").status.success());
    assert_eq!(lookups(), 100.0);
    server.stop();
}

/// The labels of each metric of the document's table.
fn documented_labels() -> BTreeMap<String, BTreeSet<String>> {
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `gridguard_server_"));
    rows.flat_map(|row| {
        let cells: Vec<Vec<&str>> =
            row.split('|').map(|cell| cell.split('`').skip(1).step_by(2).collect()).collect();
        let labels: BTreeSet<_> = cells[3].iter().map(ToString::to_string).collect();
        let whole = |name: &str| match name.strip_prefix('_') {
            Some(end) => format!("gridguard_server_{end}"),
            None => name.to_owned(),
        };
        cells[1].iter().map(|name| (whole(name), labels.clone())).collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn metrics_have_the_labels_of_the_document() {
    let server = Server::start(&["--batch-wait", "0s"]);
    let loaded = load(&server, &["--shape", "1x1x2x4", "--requests", "2"]);
    assert!(loaded.status.success(), "{}", text(&loaded));
    let documented = documented_labels();
    let metrics = String::from_utf8(server.get("/metrics").body).expect("text");
    let mut seen = BTreeSet::new();
    for line in metrics.lines().filter(|line| line.starts_with("gridguard_server_")) {
        let (name, labels) = line.split_once(['{', ' ']).expect("a value");
        let labels = labels.rsplit_once('}').map_or("", |(labels, _)| labels);
        let labels =
            labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        let labels: BTreeSet<_> = labels.filter(|label| label != "le").collect();
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let name = histogram.unwrap_or(name);
        assert_eq!(documented.get(name), Some(&labels), "{line}");
        seen.insert(name.to_owned());
    }
    assert!(seen.contains("gridguard_server_batch_seconds"), "{seen:?}");
    assert!(seen.contains("gridguard_server_requests_total"), "{seen:?}");
    server.stop();
}

#[test]
fn the_commands_of_the_document_work_and_its_names_are_those_of_the_program() {
    let folder = folder();
    let (printed, server) = run(DOCUMENT, folder.path());
    assert!(server.is_none());
    assert_eq!(printed.len(), 6, "{printed:?}");
    assert!(printed[0].1.contains("\"ready\":true"), "{printed:?}");
    for (command, text) in &printed[2..] {
        assert!(text.contains("0 wrong"), "{command}\n{text}");
    }
    let command = Options::command();
    let known: BTreeSet<&str> = command.get_arguments().filter_map(|one| one.get_long()).collect();
    let of_load = [
        "requests",
        "duration",
        "concurrency",
        "rate",
        "shape",
        "shapes",
        "resource",
        "silent",
        "format",
        "attack",
        "attackers",
        "attack-from",
    ];
    for document in [README, DOCUMENT] {
        let options = document.split("--").skip(1).map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '-');
            &rest[..end.unwrap_or(rest.len())]
        });
        for option in options.filter(|option| option.chars().any(char::is_alphabetic)) {
            let of_others =
                of_load.contains(&option) || ["path", "device", "budget"].contains(&option);
            assert!(known.contains(option) || of_others, "--{option}");
        }
    }
}
