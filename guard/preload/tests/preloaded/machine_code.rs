//! Kernels of machine code under `--fix`: real fat binaries of nvcc, Triton's cache, compilers in the process.

mod triton;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixes::{FIX, Loaded, QUIET, assert_blocks_of, load, logged};
use crate::indices::INDEX;
use crate::programs::{compiles, loads, object_with, test_program};

pub(crate) const ZSTD: &[u8] = include_bytes!("../images/zstd.fatbin");
const LZ4: &[u8] = include_bytes!("../images/lz4.fatbin");
const LARGE: [u32; 3] = [1, 70_000, 1];
const LAUNCH: &str = "get=function launch=1,70000,1";

/// Checks that all launches were repaired without a word.
#[track_caller]
fn assert_repaired(loaded: &Loaded) {
    assert!(loaded.ran.status.success() && loaded.ran.err.is_empty(), "{}", loaded.ran.err);
    assert!(loaded.ran.out.ends_with(" 0\n"), "{}", loaded.ran.out);
    assert_blocks_of(&loaded.launches(), LARGE);
}

/// Checks that the launch was refused, for this reason.
#[track_caller]
fn assert_refused(loaded: &Loaded, reason: &str) {
    let err = &loaded.ran.err;
    assert!(err.contains(&format!("  fix       not possible: {reason}")), "{err}");
    assert_eq!((loaded.launches().len(), err.matches("launch refused").count()), (0, 1), "{err}");
    assert!(loaded.ran.status.success() && loaded.ran.out.ends_with(" 1\n"), "{}", loaded.ran.out);
}

/// The entries of a fat binary, header by header.
pub(crate) fn entries(fatbin: &[u8]) -> Vec<&[u8]> {
    let mut rest = &fatbin[16..];
    let mut all = Vec::new();
    while !rest.is_empty() {
        let number = |at: usize, bytes: usize| {
            rest[at..at + bytes].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        };
        let (entry, others) = rest.split_at(number(4, 4) + number(8, 8));
        all.push(entry);
        rest = others;
    }
    all
}

/// The fat binary of these entries.
pub(crate) fn fatbin(entries: &[&[u8]]) -> Vec<u8> {
    let bytes = u64::try_from(entries.concat().len()).unwrap();
    [&ZSTD[..8], &bytes.to_le_bytes(), &entries.concat()].concat()
}

#[test]
fn a_fat_binary_of_machine_code_is_repaired_by_its_ptx_however_it_is_compressed_and_loaded() {
    for image in [ZSTD, LZ4] {
        for how in ["data", "freed", "ex", "file", "fatbin", "wrapped"] {
            let actions = format!("load={how} {LAUNCH}");
            assert_repaired(&load(image, "dlsym", &actions, &[FIX, QUIET]));
        }
        for how in ["library", "library-file"] {
            for lookup in ["kernel", "kernel-function", "library-module"] {
                let actions = format!("load={how} get={lookup} launch=1,70000,1");
                assert_repaired(&load(image, "dlsym", &actions, &[FIX, QUIET]));
            }
        }
    }
    let with_parts = "load=data get=function launch=1,70000,70000";
    let loaded = load(ZSTD, "thread", with_parts, &[FIX, QUIET]);
    assert_blocks_of(&loaded.launches(), [1, 70_000, 70_000]);
    assert_eq!(loaded.launches().len(), 4);
}

#[test]
fn a_fat_binary_of_400_megabytes_is_repaired_by_its_ptx() {
    const CODE: u64 = 400 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let file = fs::File::create(&path).unwrap();
    let all = entries(ZSTD);
    // Machine code for an older device, a hole in the file.
    let mut large = all[0][..64].to_vec();
    large[8..16].copy_from_slice(&CODE.to_le_bytes());
    large[28..32].copy_from_slice(&80_u32.to_le_bytes());
    let (start, others) = (fatbin(&[&large]), all.concat());
    let bytes = 64 + CODE + u64::try_from(others.len()).unwrap();
    file.write_all_at(&start, 0).unwrap();
    file.write_all_at(&bytes.to_le_bytes(), 8).unwrap();
    file.write_all_at(&others, u64::try_from(start.len()).unwrap() + CODE).unwrap();
    for how in ["freed", "file"] {
        let words = format!("dlsym {} load={how} {LAUNCH}", path.display());
        assert_repaired(&logged(&mut loads(&words), &[FIX, QUIET]));
    }
}

#[test]
fn nothing_is_loaded_beside_machine_code_whose_launches_are_legal() {
    let refused = ("GRIDGUARD_FAKE_FAIL_TEXT", "__gridguard");
    let actions = "load=data get=function launch=1,6000,1";
    let loaded = load(ZSTD, "dlsym", actions, &[FIX, QUIET, refused]);
    assert!(loaded.succeeded() && loaded.ran.err.is_empty(), "{}", loaded.ran.err);
    assert_eq!(loaded.launches().len(), 1);
    let loaded = load(ZSTD, "dlsym", &format!("load=data {LAUNCH}"), &[FIX, QUIET, refused]);
    assert_refused(&loaded, "the driver refused its rewritten PTX: CUDA_ERROR_INVALID_PTX (218)");
}

#[test]
fn the_fat_binary_of_a_loaded_object_is_read_when_a_launch_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    fs::write(&image, ZSTD).unwrap();
    let object = object_with(folder.path(), &image);
    let run = |actions: &str| {
        logged(&mut loads(&format!("dlsym {} {actions}", object.display())), &[FIX, QUIET])
    };
    assert_repaired(&run(&format!("load=object {LAUNCH}")));
    // Repaired once, it stays repaired.
    let loaded = run(&format!("load=object {LAUNCH} drop launch=1,70000,1"));
    assert!(loaded.succeeded() && loaded.launches().len() == 2, "{}", loaded.ran.err);
    let gone = run("load=object get=function drop launch=1,70000,1");
    assert_refused(&gone, "the library with its fat binary was unloaded");
    // It is not kept loaded, so that a plugin can be rebuilt, and may go while its launch is explained.
    for option in [FIX, INDEX] {
        for actions in ["threads=60000 unload drop gone", "drop-threads=70000 gone"] {
            let words = format!("dlsym {} load=object get=function {actions}", object.display());
            let loaded = logged(&mut loads(&words), &[option]);
            assert!(loaded.succeeded(), "{}{}", loaded.ran.out, loaded.ran.err);
        }
    }
    let repaired = run("load=object get=function launch=1,70000,1 unload drop gone");
    assert!(repaired.succeeded(), "{}", repaired.ran.out);
}

#[test]
fn what_changed_since_it_was_loaded_is_not_used() {
    let changed = "load=file get=function write=other launch=1,70000,1";
    let loaded = load(ZSTD, "dlsym", changed, &[FIX, QUIET]);
    assert!(loaded.ran.err.contains("was changed since it was loaded"), "{}", loaded.ran.err);
    // Another build of equal size, which differs far behind.
    let [code, ptx] = entries(ZSTD)[..] else { panic!("two entries") };
    let mut older = [&code[..64], &[0; 1 << 20]].concat();
    older[8..16].copy_from_slice(&(1_u64 << 20).to_le_bytes());
    older[28..32].copy_from_slice(&80_u32.to_le_bytes());
    let image = fatbin(&[&older, code, ptx]);
    assert_repaired(&load(&image, "dlsym", &format!("load=file {LAUNCH}"), &[FIX, QUIET]));
    let changed = "load=file get=function patch=1000000 launch=1,70000,1";
    let loaded = load(&image, "dlsym", changed, &[FIX, QUIET]);
    assert!(loaded.ran.err.contains("was changed since it was loaded"), "{}", loaded.ran.err);
}

const OF_OTHER: &str = "its fat binary has no PTX of the compilation that made its code for sm_90: compile it with -gencode \
     arch=compute_90,code=[sm_90,compute_90]";

#[test]
fn machine_code_without_usable_ptx_is_refused_with_the_reason() {
    let [code, ptx] = entries(ZSTD)[..] else { panic!("two entries") };
    let of_other = |number: u32| {
        let mut other = ptx.to_owned();
        other[28..32].copy_from_slice(&number.to_le_bytes());
        fatbin(&[code, &other])
    };
    // What the notes of the cubin say: `compute_90`, and the options of ptxas.
    let of_notes = |was: &[u8], now: &[u8]| {
        let mut code = code.to_owned();
        let at = code.windows(was.len()).position(|bytes| bytes == was).unwrap();
        code[at..at + now.len()].copy_from_slice(now);
        fatbin(&[&code, ptx])
    };
    let mut damaged = ptx.to_owned();
    damaged[120..].fill(0x55);
    for (image, reason) in [
        (
            fatbin(&[code]),
            "its fat binary has machine code without PTX: compile it also for code=compute_XX",
        ),
        // `__CUDA_ARCH__` may decide how many rows a block has.
        (of_other(80), OF_OTHER),
        (of_other(120), OF_OTHER),
        (fatbin(&[code, ptx, ptx]), OF_OTHER),
        (
            of_notes(&[2, 0, 0x5a, 0, 0x82, 0], &[2, 0, 0x50]),
            "its code for sm_90 was compiled from PTX for compute_80, which its fat binary lacks",
        ),
        (
            of_notes(b"-arch sm_90 -m 64", b"--fmad false -m 64"),
            "its code was compiled with an option that the driver does not apply: --fmad",
        ),
        (fatbin(&[code, &damaged]), "its fat binary cannot be read: "),
        (
            code[64..].to_vec(),
            "its module is machine code, whose PTX is neither in Triton's caches nor",
        ),
    ] {
        let loaded = load(image, "dlsym", &format!("load=data {LAUNCH}"), &[FIX, QUIET]);
        assert_refused(&loaded, reason);
    }
    let identified = format!("load=data name=identified {LAUNCH}");
    let loaded = load(ZSTD, "dlsym", &identified, &[FIX, QUIET]);
    assert!(
        loaded.ran.err.contains("in identified: %gridid identifies the grid"),
        "{}",
        loaded.ran.err
    );
}

#[test]
fn a_repaired_kernel_uses_the_variables_of_its_module_and_their_values_at_each_launch() {
    let log = ("GRIDGUARD_FAKE_LOG_WORK", "1");
    let actions = format!("load=data name=shares {LAUNCH} launch=1,70000,1");
    let loaded = load(ZSTD, "dlsym", &actions, &[FIX, QUIET, log]);
    assert!(loaded.succeeded() && loaded.ran.err.is_empty(), "{}", loaded.ran.err);
    let work: Vec<&str> = loaded.log.lines().filter(|line| line.starts_with("work ")).collect();
    let launched = "work 1 launch shares__gridguard1_folded";
    // The constant alone is copied; the variables have the addresses of the original.
    assert_eq!(work, ["work 1 copy 16", launched, "work 1 copy 16", launched]);
    assert!(!loaded.log.contains("race"), "{}", loaded.log);
}

#[test]
fn a_launch_is_repaired_while_it_is_captured() {
    let actions =
        "load=data stream name=shares get=function capture launch=1,70000,70000 end replay wait";
    let loaded = load(ZSTD, "dlsym", actions, &[FIX, QUIET]);
    assert!(
        loaded.succeeded() && loaded.ran.err.is_empty(),
        "{}{}",
        loaded.ran.out,
        loaded.ran.err
    );
    for stream in ["capturing", "graph"] {
        let of = loaded.launches().into_iter().filter(|one| one.stream == stream);
        assert_blocks_of(&of.collect::<Vec<_>>(), [1, 70_000, 70_000]);
    }
}

#[test]
fn only_the_first_part_of_a_dependent_launch_begins_early() {
    let actions = "load=data name=waits get=function ex=1,70000,70000,6 ex=1,70000,1,6";
    let loaded = load(ZSTD, "dlsym", actions, &[FIX, QUIET]);
    assert!(loaded.succeeded() && loaded.ran.err.is_empty(), "{}", loaded.ran.err);
    let mut launches = loaded.launches();
    let folded = launches.pop().unwrap();
    let rest: Vec<&str> = launches.iter().map(|one| one.rest.as_str()).collect();
    assert_eq!(rest[0], "overlap=1 priority=2");
    assert!(rest.len() == 4 && rest[1..].iter().all(|one| *one == "priority=2"), "{rest:?}");
    assert_blocks_of(&launches, [1, 70_000, 70_000]);
    assert_eq!(folded.rest, "overlap=1 priority=2");
    assert_blocks_of(&[folded], LARGE);
}

#[test]
fn a_module_may_be_unloaded_and_loaded_again() {
    let actions = format!("load=data {LAUNCH} wait unload load=data {LAUNCH} wait unload");
    let reused = ("GRIDGUARD_FAKE_REUSE", "1");
    for options in [&[FIX, QUIET][..], &[FIX, QUIET, reused]] {
        let loaded = load(ZSTD, "dlsym", &actions, options);
        assert!(loaded.succeeded() && loaded.ran.err.is_empty(), "{}", loaded.ran.err);
        assert_eq!(loaded.launches().len(), 2);
        // Each time the module of the program, and the one beside it.
        assert_eq!(loaded.log.matches("unload 0").count(), 4, "{}", loaded.log);
        assert!(!loaded.log.contains("race"), "{}", loaded.log);
    }
}

#[test]
fn a_kernel_that_many_threads_launch_is_repaired_in_each() {
    let loaded = load(ZSTD, "dlsym", "load=data get=function threads=70000", &[FIX, QUIET]);
    assert!(loaded.succeeded() && loaded.ran.err.is_empty(), "{}", loaded.ran.err);
    let launches = loaded.launches();
    assert_eq!(launches.len(), 8);
    launches.into_iter().for_each(|launch| assert_blocks_of(&[launch], LARGE));
}

const OF_OPTION: &str = "it was compiled with an option that the driver does not apply: ";

#[test]
fn what_nvrtc_compiled_is_repaired_by_the_ptx_of_the_same_program() {
    let options = [FIX, QUIET, ("GRIDGUARD_FAKE_NVRTC_CUBIN", "8,4")];
    for is_linked in [false, true] {
        let run = |actions: &str| {
            logged(&mut compiles(&format!("dlsym /dev/null {actions}"), is_linked), &options)
        };
        assert_repaired(&run(&format!("load=nvrtc {LAUNCH}")));
        for (option, is_repaired) in [
            ("--fmad=false", true),
            ("-DN=1", true),
            ("--ptxas-options=--fmad=false", false),
            ("-G", false),
        ] {
            let mut program = compiles(&format!("dlsym /dev/null load=nvrtc {LAUNCH}"), is_linked);
            let loaded = logged(program.env("NVRTC_OPTION", option), &options);
            match is_repaired {
                true => assert_repaired(&loaded),
                false => assert_refused(&loaded, &format!("{OF_OPTION}{option}")),
            }
        }
        // Another program of the same kernel.
        let two = run(&format!("load=nvrtc {LAUNCH} name=other load=nvrtc {LAUNCH}"));
        assert!(two.succeeded() && two.ran.err.is_empty(), "{}", two.ran.err);
        let kernels: Vec<_> = two.launches().into_iter().map(|one| one.kernel).collect();
        assert_eq!(kernels, ["rows__gridguard_folded", "other__gridguard_folded"]);
    }
}

#[test]
fn what_nvjitlink_made_of_one_ptx_or_of_code_alone_is_repaired_and_of_other_inputs_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    fs::write(&path, crate::fixes::ROWS).unwrap();
    let run = |how: &str| {
        let words = format!("dlsym {} load={how} {LAUNCH}", path.display());
        logged(&mut compiles(&words, false), &[FIX, QUIET])
    };
    // Of code for optimisation at link time nvJitLink makes PTX when a launch needs it.
    for how in ["linked-1", "optimized-1", "optimized-2"] {
        assert_repaired(&run(how));
    }
    for how in ["linked-0", "linked-2", "optimized-0"] {
        assert_refused(&run(how), "nvJitLink made it of several inputs");
    }
    assert_refused(&run("limited"), &format!("{OF_OPTION}-maxrregcount=32"));
    // `--index` uses it, too.
    let words = format!("dlsym {} load=linked-1 get=function launch=1,6000,1", path.display());
    let compared = logged(&mut compiles(&words, false), &[INDEX]);
    assert!(compared.succeeded(), "{}", compared.ran.out);
    assert!(!compared.ran.err.contains("no usable PTX"), "{}", compared.ran.err);
}

/// Runs a program that assembles its image by `ptxas`, as the first process of a run with the folder `kept`.
fn assembled(ptxas: &Path, folder: &Path, actions: &str, more: &[(&str, &str)]) -> Loaded {
    let (image, kept) = (folder.join("image"), folder.join("kept"));
    fs::write(&image, crate::fixes::ROWS).unwrap();
    let program = loads(&format!("dlsym {} {actions}", image.display()));
    let mut first = Command::new("sh");
    first.args(["-c", r#"export GRIDGUARD_RUN_PROCESS=$$; exec "$0" "$@""#]);
    first.arg(program.get_program()).args(program.get_args());
    let settings = program.get_envs().filter_map(|(name, value)| Some((name, value?)));
    first.envs(settings).env("GRIDGUARD_RUN_PTX", kept).env("PTXAS", ptxas);
    logged(&mut first, &[&[FIX, QUIET], more].concat())
}

#[test]
fn what_a_ptxas_of_the_run_assembled_is_repaired_and_the_folder_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let assembled = |name: &str, actions: &str, more: &[(&str, &str)]| {
        fs::create_dir(folder.path().join(name)).unwrap();
        assembled(&test_program("ptxas"), &folder.path().join(name), actions, more)
    };
    let actions = format!("load=ptxas {LAUNCH}");
    assert_repaired(&assembled("plain", &actions, &[("PTXAS_OPTIONS", "-v -arch=sm_90a")]));
    assert!(!folder.path().join("plain/kept").exists());
    assert_repaired(&assembled("fatbin", &format!("load=ptxas-fatbin {LAUNCH}"), &[]));
    let other = [("GRIDGUARD_RUN_PTX", "/proc/none")];
    let other = assembled("unknown", &format!("load=ptxas-fatbin {LAUNCH}"), &other);
    assert_refused(&other, "its fat binary has machine code without PTX");
    let reason = "ptxas made it with options that the driver does not apply: -O0";
    assert_refused(&assembled("options", &actions, &[("PTXAS_OPTIONS", "-O0")]), reason);
    // The cubin is of other PTX: ptxas failed, or wrote nothing.
    for status in ["1", "0"] {
        let again = format!("load=ptxas-again {LAUNCH}");
        let again = assembled(&format!("again-{status}"), &again, &[("PTXAS_STATUS", status)]);
        assert_refused(
            &again,
            "its module is machine code, whose PTX is neither in Triton's caches",
        );
    }
    let none = assembled("none", &actions, &[("GRIDGUARD_RUN_PTX", "/proc/none")]);
    assert_refused(&none, "its module is machine code, whose PTX is neither in Triton's caches");
    let other = assembled("other", &actions, &[("PTXAS", "/bin/false")]);
    assert!(other.ran.out.starts_with("load=ptxas -1\n"), "{}", other.ran.out);
}

#[test]
fn a_folder_that_others_can_write_to_or_with_files_of_others_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let program = folder.path().join("ptxas");
    let script = |lines: &str| {
        let text = format!("#!/bin/sh\n{lines}\n{} \"$@\"\n", test_program("ptxas").display());
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    };
    script(&format!("mkdir {0}; chmod 777 {0}; touch {0}/file", kept.display()));
    let loaded = assembled(&program, folder.path(), &format!("load=ptxas {LAUNCH}"), &[]);
    assert_refused(&loaded, "the PTX of ptxas is not used: ");
    assert_eq!(fs::read_dir(kept).unwrap().count(), 1, "the other file stays");
}

/// Needs a `ptxas` of CUDA 12 or later.
#[test]
#[ignore = "needs the assembler of CUDA, as $PTXAS"]
fn what_the_assembler_of_cuda_made_is_repaired() {
    let real = PathBuf::from(std::env::var_os("PTXAS").expect("PTXAS names ptxas"));
    let folder = tempfile::tempdir().unwrap();
    let options = [("PTXAS_OPTIONS", "-arch=sm_90 --warn-on-spills -v")];
    let loaded = assembled(&real, folder.path(), &format!("load=ptxas {LAUNCH}"), &options);
    assert_blocks_of(&loaded.launches(), LARGE);
    assert!(
        loaded.ran.status.success() && !loaded.ran.err.contains("gridguard"),
        "{}",
        loaded.ran.err
    );
}
