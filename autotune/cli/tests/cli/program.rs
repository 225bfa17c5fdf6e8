//! `gridguard tune --command`: programs that measure their own kernels.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gridguard::catalog;
use gridguard::profile::{DeviceIdentity, Objective, StoredChoice};
use tempfile::TempDir;

use crate::command::{Ran, command, gridguard, parsed, run, signal, start, wait_until};

const README: &str = include_str!("../../README.md");

/// A program whose synthetic time is least for a block of 64 and chunks of 250. It fails with a block of
/// 512, appends a line to `started` each time, and from the fourth on waits while the file `hold` exists.
const MODEL: &str = r#"
import json, os, sys, time
block, chunk = int(sys.argv[1]), int(sys.argv[2])
with open("started", "a") as started:
    print(os.environ.get("CUDA_VISIBLE_DEVICES", "-"), file=started)
while os.path.exists("hold") and len(open("started").readlines()) > 3:
    time.sleep(0.01)
if block == 512:
    sys.exit("out of registers")
ms = 1e-3 * (1 + abs(block - 64) / 64 + abs(chunk - 250) / 1000)
print(json.dumps({"ms": [ms, ms, ms], "check": "ok"}))
"#;

const KERNEL: [&str; 7] = [
    "tune",
    "--kernel",
    "paged_attention",
    "--sizes",
    "items=1000,head_dim=128",
    "--profile",
    "p.ron",
];
const PROGRAM: [&str; 6] = [
    "--command",
    "python3 model.py {block} {chunk}",
    "--parameter",
    "block=256,64,512",
    "--chunk",
    "1000,250",
];

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("model.py"), MODEL).expect("written");
    folder
}

fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    KERNEL.into_iter().chain(PROGRAM).chain(more.iter().copied()).collect()
}

fn started(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("started")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_program_is_tuned_and_its_entry_explained() {
    let folder = folder();
    let key = ["--dtype", "f16", "--variant", "v2", "--source", "4f2e", "--policy", "hot-graph"];
    let ran = run(folder.path(), &args(&[&["--device", "host"], &key[..]].concat())).exits(0);
    let title = "paged_attention v2 f16 1000x128 on the host as NVIDIA H200: throughput\n";
    assert!(ran.out.starts_with(title), "{}", ran.out);
    let words = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("block 512: the program failed (exit status: 1): out of registers"));
    ran.prints("choice: chunked, 4 launches of 250 items, block 64\n").prints("\n1 tuned, in ");
    let document = parsed(&folder.path().join("p.ron"));
    let [entry] = document.entries() else { panic!("one entry: {document}") };
    assert_eq!((&*entry.key.kernel, &*entry.key.dtypes), ("paged_attention", "f16"));
    assert_eq!((&*entry.key.variant, &*entry.key.source), ("v2", "4f2e"));
    assert_eq!(entry.key.policy.to_string(), "hot-graph");
    assert_eq!(entry.shape, [("items".to_owned(), 1000), ("head_dim".to_owned(), 128)]);
    assert_eq!(entry.parameters, [("block".to_owned(), 64)]);
    assert_eq!(entry.choice.to_string(), "chunks of 250");
    assert_eq!((entry.launches, entry.chosen.median_ns), (4, 1000));
    assert_eq!((entry.default.median_ns, entry.found.failed), (4750, 2));
    assert!(!folder.path().join("p.ron.unfinished").exists());
    assert!(started(folder.path()).iter().all(|device| device == "-"), "the host hides no device");

    let explain = ["profile", "explain", "paged_attention", "900x128", "--device", "host"];
    let explain = [&explain[..], &["--profile", "p.ron", "--policy", "hot-graph"]].concat();
    run(folder.path(), &explain)
        .exits(0)
        .prints("match: row 1 of the decision list, entry 1000x128 of explicit profile p.ron\n")
        .prints("choice: chunks of 250, block 64, 4 launches");

    let again = run(folder.path(), &args(&[&["--device", "host"], &key[..]].concat())).exits(0);
    assert!(again.out.starts_with("0 tuned, 1 already in the profile, in "), "{}", again.out);
}

#[test]
fn the_example_of_the_readme_runs() {
    let block = |language: &str, with: &str| {
        let start = format!("```{language}\n");
        let blocks = README.split(&*start).skip(1).filter_map(|rest| rest.split("```").next());
        blocks.into_iter().find(|block| block.contains(with)).expect("a block").to_owned()
    };
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("bench.py"), block("python", "bench.py")).expect("written");
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("made");
    std::os::unix::fs::symlink(gridguard(), bin.join("gridguard")).expect("a link");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a path"));
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &block("sh", "--command '")]).current_dir(&folder).stdin(Stdio::null());
    let ran = shell.env("PATH", path).env("GRIDGUARD_PROFILES", ".").output().expect("a shell");
    Ran::from(ran)
        .exits(0)
        .prints("\n6 candidates timed, 0 failed, ")
        .prints("\nmatch: exact, entry 20000 of user profile ");
}

#[test]
fn a_table_shows_the_fastest_and_the_default_and_all_of_them_on_request() {
    let folder = folder();
    let blocks = (65..85).rev().map(|block| block.to_string()).collect::<Vec<_>>().join(",");
    let blocks = format!("block=999,{blocks}");
    let args = |more: &[&'static str]| {
        let program = ["--command", "python3 model.py {block} {items}", "--parameter", &*blocks];
        let args = [&KERNEL[..], &program, &["--device", "host", "--again"], more].concat();
        run(folder.path(), &args).exits(0).out
    };
    let rows = |text: &str| {
        let table = text.lines().skip(2).take_while(|line| !line.starts_with("choice: "));
        table.filter(|line| !line.starts_with("...") && !line.starts_with("eliminated")).count()
    };
    let short = args(&[]);
    assert_eq!(rows(&short), 15, "{short}");
    assert!(short.contains("\n... 6 more candidates\nchoice: "), "{short}");
    assert!(
        short.contains("\ndefault ") && short.contains("\n--all shows every candidate\n"),
        "{short}"
    );
    let all = args(&["--all"]);
    assert_eq!(rows(&all), 21, "{all}");
    assert!(!all.contains("more candidates") && !all.contains("--all"), "{all}");
}

#[test]
fn a_gpu_that_only_the_program_reaches_has_its_own_profile() {
    let folder = folder();
    let ran = run(folder.path(), &args(&["--gpu", "a100-80gb", "--objective", "memory:4096:16"]));
    ran.exits(0).prints(" on NVIDIA A100");
    let document = parsed(&folder.path().join("p.ron"));
    let limits = &catalog::gpu("a100-80gb").expect("in the catalogue").limits;
    assert_eq!(*document.device(), DeviceIdentity::new(limits));
    // 256 items fit into the memory, and 1,000 do not.
    let entry = &document.entries()[0];
    assert_eq!(entry.key.objective, Objective::Memory { bytes_per_item: 16, bytes: 4096 });
    assert!(matches!(entry.choice, StoredChoice::Chunked { max_items } if max_items.get() == 250));

    let mut without = command(folder.path(), &args(&[]));
    Ran::from(without.env("CUDA_VISIBLE_DEVICES", "").output().expect("runs"))
        .exits(3)
        .notes("there is no GPU to measure on");
}

#[test]
fn commands_and_values_that_do_not_fit_are_usage_errors() {
    let folder = folder();
    let program = ["--command", "p {block}", "--parameter", "block=1,2"];
    let sizes = ["--sizes", "items=8"];
    let named = ["--kernel", "mine"];
    let long = "x".repeat(65);
    let many = (0..17).map(|n| format!("s{n}=1")).collect::<Vec<_>>().join(",");
    let cases: [(&[&[&str]], &str); 25] = [
        (&[&program, &sizes], "--kernel <NAME>"),
        (&[&program, &named], "--sizes <NAME=N,...>"),
        (&[&named, &sizes], "--command <PROGRAM>"),
        (&[&named, &["--parameter", "block=1"]], "--command <PROGRAM>"),
        (&[&named, &["--chunk", "4"]], "--command <PROGRAM>"),
        (&[&named, &["--source", "4f2e"]], "--command <PROGRAM>"),
        (&[&named, &["--timeout", "4s"]], "--command <PROGRAM>"),
        (&[&program, &sizes, &named, &["--shape", "8"]], "cannot be used with"),
        (&[&program, &sizes, &named, &["--shapes", "f.ron"]], "cannot be used with"),
        (&[&program, &sizes, &named, &named], "cannot be used multiple times|give --kernel once"),
        (&[&program, &sizes, &["--kernel", "softmax"]], "softmax is a kernel of gridguard"),
        (&[&program, &sizes, &["--kernel", ""]], "a value is required|kernel is empty"),
        (
            &[&program, &sizes, &["--kernel", &long]],
            "--command: kernel has 65 bytes, the limit is 64",
        ),
        (
            &[&program, &named, &["--sizes", &many]],
            "--command: shape has 17 values, the limit is 16",
        ),
        (&[&program, &named, &["--sizes", "items"]], "such as items=15360,head_dim=64"),
        (&[&program, &named, &["--sizes", "items=0"]], "--command: there are no items"),
        (&[&program, &named, &["--sizes", "block=4"]], "--command: block is given twice"),
        (
            &[&program, &sizes, &named, &["--parameter", "block=4"]],
            "--command: block is given twice",
        ),
        (&[&program, &sizes, &named, &["--parameter", "warps=4"]], "the command has no {warps}"),
        (&[&program, &sizes, &named, &["--parameter", "a=x"]], "such as block=64,128,256"),
        (&[&program, &sizes, &named, &["--chunk", "4"]], "the command has no {chunk}"),
        (&[&program, &sizes, &named, &["--objective", "latency:1ms"]], "cannot be a latency"),
        (&[&sizes, &named, &["--command", "p {"]], "a brace outside a placeholder"),
        (&[&sizes, &named, &["--command", "p 'x"]], "within a quotation"),
        (&[&sizes, &named, &["--command", "p x"]], "--command: nothing varies"),
    ];
    for (parts, messages) in cases {
        let args = [&["tune", "--device", "host", "--profile", "p.ron"], &*parts.concat()].concat();
        let ran = run(folder.path(), &args).exits(2);
        let is_told = messages.split('|').any(|message| ran.err.contains(message));
        assert!(is_told && ran.out.is_empty(), "{args:?}: {}", ran.err);
    }
    assert!(!folder.path().join("p.ron").exists());
}

#[test]
fn a_program_whose_default_fails_has_no_entry_and_others_are_tuned() {
    let folder = folder();
    let fails = "import sys\nprint('{\"ms\": 0.001}')\nsys.exit(int(sys.argv[1]) // 8)\n";
    fs::write(folder.path().join("fails.py"), fails).expect("written");
    let args =
        ["tune", "--device", "host", "--kernel", "mine", "--profile", "p.ron", "--format", "json"];
    let sizes = ["--sizes", "items=8", "--sizes", "items=6", "--chunk", "9,2"];
    let program = ["--command", "python3 fails.py {items} {chunk}"];
    let json = run(folder.path(), &[&args[..], &sizes, &program].concat()).exits(1).json();
    let error = "the default failed: the program failed (exit status: 1)";
    let failed = &json["tuned"][0];
    assert_eq!((&failed["problem"], &failed["error"]), (&"mine 8".into(), &error.into()));
    assert_eq!(json["tuned"][1]["report"]["complete"], true);
    let document = parsed(&folder.path().join("p.ron"));
    let [entry] = document.entries() else { panic!("one entry: {document}") };
    assert_eq!(entry.shape, [("items".to_owned(), 6)]);
    assert!(!folder.path().join("p.ron.unfinished").exists());
}

#[test]
fn a_program_that_hangs_is_ended_after_its_time() {
    let folder = folder();
    let args = ["tune", "--device", "host", "--kernel", "mine", "--profile", "p.ron"];
    let program = ["--sizes", "items=8", "--command", "sleep 100000{chunk}", "--timeout", "1s"];
    let ran = run(folder.path(), &[&args[..], &program].concat()).exits(1);
    ran.notes("the default failed: the program did not end within 1s");
    assert!(ran.out.starts_with("0 tuned, 1 failed, in "), "{}", ran.out);
    assert!(!folder.path().join("p.ron").exists());
}

#[test]
fn an_interrupted_run_ends_its_program_and_the_next_one_resumes() {
    let folder = folder();
    let unfinished = folder.path().join("p.ron.unfinished");
    let journal = || -> Option<PathBuf> {
        let files = fs::read_dir(&unfinished).ok()?.flatten().map(|file| file.path());
        files.into_iter().find(|path| path.extension().is_some_and(|of| of == "jsonl"))
    };
    let args = args(&["--device", "host"]);
    // The fourth process waits until it is killed.
    fs::write(folder.path().join("hold"), "").expect("written");
    let child = start(folder.path(), &args);
    wait_until(|| started(folder.path()).len() > 3);
    signal(child, "-INT").exits(130).prints("0 tuned, 1 left for the next run");
    fs::remove_file(folder.path().join("hold")).expect("removed");
    let path = journal().expect("a journal");
    let measured = fs::read_to_string(&path).expect("text");
    // Three checks, and two samples from the output of the default's run.
    assert_eq!(measured.lines().count(), 1 + 3 + 2, "{measured}");

    // Results of another command do not count.
    let other: Vec<&str> =
        args.iter().map(|word| word.strip_suffix(",250").unwrap_or(word)).collect();
    run(folder.path(), &other)
        .exits(0)
        .notes("a journal cannot be resumed and is kept as ")
        .notes(": its problem is ");

    fs::remove_file(folder.path().join("p.ron")).expect("removed");
    fs::remove_dir_all(&unfinished).expect("removed");
    fs::create_dir(&unfinished).expect("made");
    fs::write(&path, measured).expect("written");
    let ran = run(folder.path(), &args).exits(0);
    ran.prints("choice: chunked, 4 launches of 250 items, block 64\n");
    assert!(ran.err.is_empty() && !unfinished.exists(), "{}", ran.err);
}

/// On a device, the program sees that device alone.
#[test]
#[ignore = "needs a CUDA GPU"]
fn a_program_on_a_device_sees_only_that_device() {
    let folder = folder();
    let mut tune = command(folder.path(), &args(&["--device", "0"]));
    Ran::from(tune.env_remove("CUDA_VISIBLE_DEVICES").output().expect("runs")).exits(0);
    assert!(started(folder.path()).iter().all(|device| device == "0"));
    let limits = gridguard::cuda::device_limits(0).expect("a device");
    assert_eq!(*parsed(&folder.path().join("p.ron")).device(), DeviceIdentity::new(&limits));
}
