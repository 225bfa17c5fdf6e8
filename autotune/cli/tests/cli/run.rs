//! `gridguard run` and `gridguard report`, with the fake driver.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use expect_test::expect_file;
use gridguard_test_support::fake_library::{self, DRIVER};
use serde_json::{Value, json};

use crate::command::{Ran, command, run};

/// Runs `gridguard run OPTIONS -- launches dlsym ACTION...` with the fake driver.
fn run_launches(folder: &Path, options: &[&str], actions: &[&str]) -> Ran {
    let program = built().join("launches");
    let mut words = vec!["run"];
    words.extend(options);
    words.extend(["--", program.to_str().unwrap(), "dlsym"]);
    words.extend(actions);
    let mut command = command(folder, &words);
    command.env("LD_LIBRARY_PATH", built()).env("GRIDGUARD_PRELOAD", preload());
    command.output().unwrap().into()
}

/// The library. Beside the command there may be one of an earlier build.
pub(crate) fn preload() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libgridguard_preload.so")
}

/// A folder with the fake driver and a program that launches.
pub(crate) fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run");
        let [library, link] = DRIVER;
        fake_library::build(&folder, "libcuda.c", library, link, None);
        compile(&folder.join("launches"), LAUNCHES, &["-lpthread"]);
        compile(&folder.join("allocates"), ALLOCATES, &["-std=gnu11", "-rdynamic", "-lpthread"]);
        folder
    })
}

/// Compiles `source`, a C file or the text of one.
fn compile(output: &Path, source: &str, options: &[&str]) {
    let folder = tempfile::tempdir_in(output.parent().unwrap()).unwrap();
    let (fresh, text) = (folder.path().join("program"), folder.path().join("program.c"));
    if source.ends_with(".c") {
        fs::copy(source, &text).unwrap();
    } else {
        fs::write(&text, source).unwrap();
    }
    let gcc = Command::new("gcc").arg("-o").args([&fresh, &text]).args(options).output().unwrap();
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
    // Another run of the tests may be using the old file.
    fs::rename(&fresh, output).unwrap();
}

#[test]
fn the_exit_code_and_the_output_are_the_program_s() {
    let folder = tempfile::tempdir().unwrap();
    let ran = run(folder.path(), &["run", "--", "sh", "-c", "echo out; exit 7"]).exits(7);
    assert_eq!((&*ran.out, &*ran.err), ("out\n", ""));
    let ran = run_launches(folder.path(), &[], &["good", "refused"]).exits(0);
    assert_eq!(ran.out, "set up 0 0 0 0 0\ngood 0\nrefused 1\n");
    ran.notes("rule      grid-dim-y: grid.y is 70000 blocks")
        .notes("gridguard: 1 launch of 1 kernel accepted, 1 refused");
    let ran = run_launches(folder.path(), &["--quiet", "--abort"], &["refused", "good"]);
    assert_eq!((ran.code, ran.err.matches("gridguard:").count()), (None, 1), "{}", ran.err);
}

#[test]
fn a_policy_says_what_follows_a_refused_launch() {
    let folder = tempfile::tempdir().unwrap();
    let with = |policy: &str, batch: &str| {
        let options = ["--on-refused", policy, "--batch", batch];
        run_launches(folder.path(), &options, &["refused", "good", "wait", "wait"])
    };
    let waits = |ran: &Ran| ran.out.lines().rev().take(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(waits(&with("report", "6").exits(0)), ["wait 0", "wait 0"]);
    assert_eq!(waits(&with("raise", "6").exits(0)), ["wait 0", "wait 1"]);
    assert_eq!(waits(&with("fix,raise", "6").exits(0)).len(), 2);
    let aborted = with("raise,abort", "6");
    assert_eq!((aborted.code, aborted.out.contains("refused")), (None, false), "{}", aborted.err);
    with("ignore", "6").exits(2);
    with("report", "0").exits(2);
}

#[test]
fn a_report_is_shown_with_refused_kernels_first() {
    let folder = tempfile::tempdir().unwrap();
    for actions in [&["good"][..], &["good", "refused", "good", "names=1"]] {
        // The second one replaces the first one.
        run_launches(folder.path(), &["--report", "r.json"], actions).exits(0);
    }
    let shown = run(folder.path(), "report r.json").exits(1).out;
    // Without the program and the frames, which name folders of this machine.
    let lines = shown.lines().skip(1).filter(|line| !line.starts_with("         at "));
    expect_file!["screens/report.txt"].assert_eq(&lines.collect::<Vec<_>>().join("\n"));
    let json = run(folder.path(), "report r.json --format json").exits(1).json();
    assert_eq!(json[0]["kernels"][0]["refused"], 1);
    run_launches(folder.path(), &["--report", "good.json"], &["good"]).exits(0);
    run(folder.path(), "report good.json").exits(0);
}

#[test]
fn a_report_shows_the_memory_and_the_refused_allocations() {
    let folder = tempfile::tempdir().unwrap();
    let program = built().join("allocates");
    let actions = ["alloc=3145728", "alloc=83886080", "launch"];
    let mut words = vec!["run", "--report", "r.json", "--", program.to_str().unwrap(), "dlsym"];
    words.extend(actions);
    let mut command = command(folder.path(), &words);
    command.env("LD_LIBRARY_PATH", built()).env("GRIDGUARD_PRELOAD", preload());
    let ran: Ran = command.env("GRIDGUARD_FAKE_ALLOC_LIMIT", "67108864").output().unwrap().into();
    ran.exits(0);
    let shown = run(folder.path(), "report r.json").exits(0);
    for line in [
        "memory of device 0: at most 3.00 MiB held, 3.00 MiB now\n",
        "out of memory: 1 refused, of which 0 were followed by a success of the same size\n",
        "\nout of memory: cuMemAlloc_v2 returned CUDA_ERROR_OUT_OF_MEMORY (2), out of memory\n\
         request  80.00 MiB (83886080 bytes) of device memory\n",
        "\nlargest  3.00 MiB in 1 allocation, from\n",
        "\n         at ",
    ] {
        assert!(shown.out.contains(line), "{line}\n{}", shown.out);
    }
}

#[test]
fn launches_are_fixed_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--fix", "--report", "r.json"];
    let ran = run_launches(folder.path(), &options, &["good", "refused", "refused"]).exits(0);
    assert_eq!(ran.out, "set up 0 0 0 0 0\ngood 0\nrefused 0\nrefused 0\n");
    assert!(ran.err.starts_with("gridguard: 1 launch of 1 kernel accepted, 0 refused, 2 fixed\n"));
    run(folder.path(), "report r.json")
        .exits(0)
        .prints("\n1 launch of 1 kernel accepted, 0 refused, 2 fixed\n")
        .prints("touch(float*, int)         1      2");
}

#[test]
fn a_run_with_fix_has_a_private_folder_for_the_ptx_of_compilers_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let temporary = folder.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    // It writes its output, as `ptxas INPUT -o OUTPUT` does.
    let writes = "#include <stdio.h>\nint main(int count, char **words) {\n\
                  FILE *file = fopen(words[count - 1], \"w\");\n\
                  return !file || fputs(\"code\", file) < 0 || fclose(file);\n}\n";
    compile(&folder.path().join("ptxas"), writes, &[]);
    fs::write(folder.path().join("a.ptx"), "a text\n").unwrap();
    let shown = |options: &[&str]| {
        let script = "echo $GRIDGUARD_RUN_PTX; ./ptxas a.ptx -o a.cubin; stat -c %a $GRIDGUARD_RUN_PTX; exit 0";
        let words = [&["run"], options, &["--", "bash", "-c", script]].concat();
        let mut command = command(folder.path(), &words);
        command.env("GRIDGUARD_PRELOAD", preload()).env("TMPDIR", &temporary);
        let ran = Ran::from(command.output().unwrap()).exits(0);
        ran.out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = shown(&["--fix"]);
    assert!(lines.len() == 2 && lines[1] == "700", "{lines:?}");
    let path = Path::new(&lines[0]);
    assert!(path.starts_with(&temporary) && !path.exists(), "{lines:?}");
    assert_eq!(shown(&[])[0], "");
    assert_eq!(fs::read_dir(temporary).unwrap().count(), 0, "nothing is left");
}

#[test]
fn indices_are_compared_on_demand_and_shown_by_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let environment = |options: &[&str]| {
        let words = [&["run"][..], options, &["--", "/usr/bin/env"]].concat();
        let mut command = command(folder.path(), &words);
        let ran: Ran = command.env("GRIDGUARD_PRELOAD", preload()).output().unwrap().into();
        ran.exits(0).out.lines().any(|line| line == "GRIDGUARD_RUN_INDEX=1")
    };
    assert!(environment(&["--index"]) && !environment(&[]));
    let options = ["--index", "--quiet", "--report", "r.json"];
    let ran = run_launches(folder.path(), &options, &["good"]).exits(0);
    assert_eq!((&*ran.out, &*ran.err), ("set up 0 0 0 0 0\ngood 0\n", ""));
    let path = folder.path().join("r.json");
    let mut report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    report["indices"] = json!([{
        "kernel": "rows",
        "request": { "grid": [1, 40000, 1], "block": [32, 1, 1] },
        "wraps": ["blockIdx.y * 65536 reaches 2621374464, computed by \u{1b}rows.cu:12"],
    }]);
    fs::write(&path, report.to_string()).unwrap();
    let shown = run(folder.path(), "report r.json").exits(0);
    let line = "\nwraps: a 32-bit index of rows with a grid of 1 x 40000 x 1: blockIdx.y * 65536 reaches \
                2621374464, computed by rows.cu:12\n";
    shown.prints(line);
}

#[test]
fn recorded_launches_are_checked_for_another_gpu() {
    let folder = tempfile::tempdir().unwrap();
    run_launches(folder.path(), &["--record", "launches", "--quiet"], &["good", "good", "ex"])
        .exits(0);
    let check = ["check", "--gpu", "a100", "--requests", "launches"];
    let checked = run(folder.path(), &check).exits(1);
    let lines: Vec<&str> = checked.out.lines().collect();
    assert_eq!(lines.len(), 2, "{}", checked.out);
    assert!(lines[0].contains(r#""verdict":"legal""#), "{}", lines[0]);
    assert!(lines[1].contains("cluster-unsupported"), "{}", lines[1]);
}

#[test]
fn programs_that_ignore_the_library_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let empty = "int main(void) { return 0; }";
    compile(&path("static"), empty, &["-static"]);
    compile(&path("musl"), empty, &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
    for (name, text) in [
        ("script", "#!./static -x\n"),
        ("text", "echo\n"),
        ("cut", "\x7fELF\x02\x01"),
        ("other", "\x7fELF\x01\x01          "),
        ("good-script", "#!/usr/bin/env sh\nexit 5\n"),
        ("compute-sanitizer", "#!/bin/sh\n"),
    ] {
        fs::write(path(name), text).unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(path("plain"), "").unwrap();
    fs::create_dir(path("folder")).unwrap();
    for (name, why) in [
        ("./static", "./static: is a static program"),
        ("./musl", "./musl: is a program of musl"),
        ("./script", "./static: is a static program"),
        ("./text", "./text: is no program"),
        ("./cut", "./cut: is a malformed ELF file"),
        ("./other", "./other: is a program of another architecture"),
        ("./compute-sanitizer", "compute-sanitizer replaces the driver's functions"),
        ("no-such-program", "no-such-program: no such program"),
        ("./missing", "./missing: no such program"),
        ("./plain", "./plain: is not an executable file"),
        ("./folder", "./folder: is not an executable file"),
    ] {
        run(folder.path(), &["run", "--", name]).exits(2).notes(why);
    }
    run(folder.path(), "run -- ./good-script").exits(5);
    run(folder.path(), "run").exits(2);
}

#[test]
fn the_program_begins_at_the_first_word_that_is_no_option() {
    let folder = tempfile::tempdir().unwrap();
    let ran = |words: &[&str]| {
        let mut command = command(folder.path(), words);
        command.env("GRIDGUARD_PRELOAD", preload()).output().unwrap().into()
    };
    for words in [
        &["run", "--quiet", "echo", "--quiet", "-x"][..],
        &["run", "--quiet", "--", "echo", "--quiet", "-x"],
    ] {
        let ran: Ran = ran(words);
        assert_eq!(ran.exits(0).out, "--quiet -x\n");
    }
    let misspelt: Ran = ran(&["run", "--quite", "echo"]);
    assert!(misspelt.exits(2).err.contains("unexpected argument '--quite'"));
}

#[test]
fn a_program_that_gains_rights_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("setuid");
    fs::copy("/bin/true", &program).unwrap();
    let is_root = std::os::unix::fs::chown(&program, Some(65_534), None).is_ok();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    // Only root can give files away; for others there is a program of root's on every machine.
    let program = if is_root { program.to_str().unwrap() } else { "su" };
    run(folder.path(), &["run", "--", program]).exits(2).notes("is a setuid program");
}

#[test]
fn earlier_preloads_stay_and_sanitizers_come_first() {
    let folder = tempfile::tempdir().unwrap();
    let print = ["run", "--", "sh", "-c", "echo $LD_PRELOAD"];
    let preloaded = |before: &str| {
        let mut command = command(folder.path(), &print);
        command.env("GRIDGUARD_PRELOAD", preload()).env("LD_PRELOAD", before);
        Ran::from(command.output().unwrap()).exits(0).out
    };
    let own = preloaded("");
    assert!(own.ends_with("/libgridguard_preload.so\n"), "{own}");
    let own = own.trim();
    let both = preloaded("/x/libother.so /x/libasan.so.8");
    assert_eq!(both, format!("/x/libasan.so.8:{own}:/x/libother.so\n"));
    assert_eq!(preloaded(own), format!("{own}\n"), "once");
}

#[test]
fn a_missing_or_other_library_or_report_folder_is_reported_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let named = ["run", "--library", "/nowhere/x.so", "--", "echo", "ran"];
    for (words, variable) in
        [(&named[..], "/nowhere/y.so"), (&["run", "--", "echo", "ran"], named[2])]
    {
        let mut command = command(folder.path(), words);
        let ran: Ran = command.env("GRIDGUARD_PRELOAD", variable).output().unwrap().into();
        let ran = ran.exits(3);
        assert!(ran.out.is_empty() && ran.err.contains("looked for /nowhere/x.so"), "{}", ran.err);
    }
    let versions =
        "#ifdef V\nconst char gridguard_preload_version[] __attribute__((used)) = {V};\n#endif\n";
    compile(&folder.path().join("none.so"), versions, &["-shared"]);
    compile(&folder.path().join("old.so"), versions, &["-shared", "-DV='0','.','0','.','9'"]);
    fs::write(folder.path().join("text.so"), "text").unwrap();
    for (name, why) in [
        ("text.so", "text.so: is no shared library"),
        ("none.so", "none.so: is another library"),
        ("old.so", "old.so: is of gridguard 0.0.9, this command is of "),
    ] {
        let ran = run(folder.path(), &["run", "--library", name, "--", "echo", "ran"]).exits(2);
        assert!(ran.out.is_empty() && ran.err.contains(why), "{}", ran.err);
    }
    let ran = run(folder.path(), "run --report no/r.json -- echo ran").exits(3);
    assert!(ran.out.is_empty() && ran.err.contains("cannot write no/r.json"), "{}", ran.err);
}

#[test]
fn a_malformed_report_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("text", "no"), ("empty", "{}"), ("list", "[]")] {
        fs::write(folder.path().join(name), text).unwrap();
        run(folder.path(), &["report", name]).exits(2).notes(&format!("{name}: no report: "));
    }
    run_launches(folder.path(), &["--report", "r.json"], &["good"]).exits(0);
    let newer = fs::read_to_string(folder.path().join("r.json")).unwrap();
    let newer = newer.replace("\"format\": 1", "\"format\": 2");
    for text in [&newer, r#"{"format": 2, "launches": []}"#] {
        fs::write(folder.path().join("newer"), text).unwrap();
        run(folder.path(), "report newer")
            .exits(2)
            .notes("a report of format 2; this command reads 1");
    }
    run(folder.path(), "report missing.json").exits(2);
    run(folder.path(), "report r.json").exits(0);
}

const LAUNCHES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../guard/preload/tests/programs/launches.c");
const ALLOCATES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../guard/preload/tests/programs/allocates.c");
