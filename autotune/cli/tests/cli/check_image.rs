//! `gridguard check --image`: kernels of files, chosen by name and device.

use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::{Ran, run_with_input};
use crate::ptx::ROWS;

/// A file of compiled kernels; `guard/tests/kernel_images/main.rs` says how they were compiled.
fn compiled(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guard/tests/kernel_images").join(name)
}

fn check(image: &Path, args: &str) -> Ran {
    run_with_input(&format!("check --image {} {args}", image.display()), b"")
}

/// PTX of kernels with these names.
fn ptx(names: &[&str]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kernels.ptx");
    let entry = |name: &&str| format!(".visible .entry {name}(.param .u64 x) {{ ret; }}\n");
    let entries: String = names.iter().map(entry).collect();
    fs::write(&path, format!(".version 8.0\n.target sm_80\n{entries}")).expect("written");
    (folder, path)
}

const MANGLED: [&str; 4] =
    ["_ZN2ns4tmplILi64EEEvPfi", "_ZN2ns4tmplILi128EEEvPfi", "_Z5scalePff", "plain_kernel"];

#[test]
fn without_a_grid_the_kernels_of_every_image_are_listed() {
    let ran = check(&compiled("zstd.fatbin"), "--kernel exact");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    expect_file!["screens/kernels.txt"].assert_eq(&ran.out);
    let ran = check(&compiled("zstd.fatbin"), "--gpu h100 --format json");
    let kernels = ran.json();
    let kernels = kernels.as_array().expect("a list");
    assert_eq!(kernels.len(), 7);
    assert!(kernels.iter().all(|kernel| kernel["architecture"] == "sm_90a"));
    let stack = kernels.iter().find(|kernel| kernel["name"] == "stack").expect("there");
    assert_eq!(
        *stack,
        json!({
            "architecture": "sm_90a", "ptx": false, "name": "stack",
            "registers_per_thread": 10, "static_shared_bytes": 0, "local_bytes_per_thread": 3000,
            "parameter_bytes": 8, "max_threads_per_block": null, "required_block": null,
            "required_cluster": null, "cluster_must_be_set": false, "unchecked_rules": [],
        })
    );
}

#[test]
fn the_image_fills_in_the_limits_of_the_kernel() {
    let hopper = compiled("hopper.cubin");
    let rules = |args: &str| {
        let ran = check(&hopper, &format!("--gpu h100 --format json {args}"));
        let rules = ran.json()["violations"].clone();
        let rules = rules.as_array().expect("a list").iter();
        (ran.code, rules.map(|violation| violation["rule"].clone()).collect::<Vec<Value>>())
    };
    let legal = (Some(0), Vec::new());
    assert_eq!(rules("--kernel exact --grid 8 --block 64,2"), legal);
    assert_eq!(
        rules("--kernel exact --grid 8 --block 64,4"),
        (Some(1), vec![json!("kernel-threads-per-block"), json!("required-block")])
    );
    assert_eq!(
        rules("--kernel bounded --grid 8 --block 129"),
        (Some(1), vec![json!("kernel-threads-per-block")])
    );
    assert_eq!(
        rules("--kernel clustered --grid 8,3 --block 32"),
        (Some(1), vec![json!("cluster-divides-grid")])
    );
    assert_eq!(
        rules("--kernel any_cluster --grid 8 --block 32"),
        (Some(1), vec![json!("cluster-required")])
    );
    // 272 bytes are static.
    let shared = "--kernel shared_memory --grid 8 --block 32 --shared-mem";
    assert_eq!(rules(&format!("{shared} 232176")), legal);
    assert_eq!(rules(&format!("{shared} 232177")), (Some(1), vec![json!("shared-memory-total")]));
}

#[test]
fn the_reply_says_which_kernel_was_checked() {
    let args = "--gpu h100 --kernel exact --grid 1 --block 64,1";
    let ran = check(&compiled("hopper.cubin"), args);
    assert_eq!(ran.code, Some(1));
    expect_file!["screens/check-image.txt"].assert_eq(&ran.out);
}

#[test]
fn attributes_missing_in_ptx_are_not_checked_unless_options_give_them() {
    let image = compiled("kernels.ptx");
    let launch = "--gpu h100 --kernel stack --grid 1 --block 64";
    let ran = check(&image, launch);
    assert_eq!(ran.code, Some(0));
    let file = image.to_str().expect("text");
    expect_file!["screens/check-ptx.txt"].assert_eq(&ran.out.replace(file, "FILE"));
    let stated = "--registers 200 --local-mem 0 --static-shared-mem 0";
    let ran = check(&image, &format!("{launch} {stated}"));
    assert!(!ran.out.contains("not checked"), "{}", ran.out);
    let ran =
        check(&compiled("recursive.cubin"), "--kernel=recursive --grid 1 --block 64 --gpu=a100");
    ran.prints("not checked: local-memory: the depth of recursion");
    let ran = check(&image, "--kernel=stack --gpu=t4,h100 --grid=1 --block=64");
    assert!(ran.out.contains("not checked") && ran.out.contains("local-memory"), "{}", ran.out);
}

#[test]
fn an_option_that_contradicts_the_image_is_a_usage_error() {
    let launch = "--gpu h100 --kernel stack --grid 1 --block 64";
    for (option, of_image) in [
        ("--registers", 10),
        ("--local-mem", 3000),
        ("--static-shared-mem", 0),
        ("--param-bytes", 8),
    ] {
        let of =
            |number: u64| check(&compiled("hopper.cubin"), &format!("{launch} {option} {number}"));
        assert_eq!(of(of_image).code, Some(0));
        let ran = of(of_image + 1);
        assert_eq!(ran.code, Some(2));
        let message = format!("error: {option} contradicts the image, which states {of_image}\n");
        assert_eq!(ran.err, message);
    }
}

#[test]
fn each_device_uses_its_own_image_and_one_without_any_rejects_the_launch() {
    let plain = "--kernel stack --grid 8 --block 64";
    let launch = &format!("{plain} --format json");
    let gpus = "--gpu a100,h100,rtx-5090";
    let ran = check(&compiled("lz4.fatbin"), &format!("{launch} {gpus}"));
    let rows = ran.json();
    let images: Vec<_> = rows.as_array().expect("a list").iter().collect();
    let architecture = |row: &&Value| row["kernel"]["architecture"].clone();
    assert_eq!(images.iter().map(architecture).collect::<Vec<_>>(), ["sm_80", "sm_90a", "sm_75"]);

    let ran = check(&compiled("hopper.cubin"), &format!("{plain} --gpu a100"));
    assert_eq!(ran.code, Some(1));
    let reason = "is for sm_90a, but NVIDIA A100-SXM4-80GB has compute capability 8.0: compile it for \
                  sm_80\n";
    assert!(ran.out.starts_with("rejected (NVIDIA A100-SXM4-80GB)\n"), "{}", ran.out);
    assert!(ran.out.ends_with(reason), "{}", ran.out);
    let ran = check(&compiled("hopper.cubin"), &format!("{launch} --gpu a100"));
    let reply = ran.json();
    assert_eq!((&reply["verdict"], &reply["plan"]), (&json!("rejected"), &Value::Null));
    assert!(reply["kernel"]["error"].as_str().expect("text").contains("sm_90a"));
    let ran = check(&compiled("hopper.cubin"), &format!("{plain} --gpu a100,h100"));
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("is for sm_90a") && ran.out.contains("legal"), "{}", ran.out);
}

#[test]
fn a_kernel_is_found_by_its_name_in_the_source() {
    let (_folder, path) = ptx(&MANGLED);
    let found = |name: &str| {
        let args = ["check", "--image", path.to_str().expect("text"), "--kernel", name];
        let list = run_with_input(&[&args[..], &["--format", "json"]].concat(), b"").json();
        let names = list.as_array().expect("a list").iter();
        names.map(|kernel| kernel["name"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found("_Z5scalePff"), ["_Z5scalePff"]);
    assert_eq!(found("scale"), ["_Z5scalePff"]);
    assert_eq!(found("scale(float*, float)"), ["_Z5scalePff"]);
    assert_eq!(found("plain_kernel"), ["plain_kernel"]);
    assert_eq!(found("ns::tmpl<128>"), ["_ZN2ns4tmplILi128EEEvPfi"]);
    assert_eq!(found("tmpl").len(), 2);
    assert_eq!(found("ns::tmpl").len(), 2);
    check(&path, "--kernel scale").prints("scale(float*, float)");
}

#[test]
fn a_kernel_that_is_missing_ambiguous_or_misspelt_is_an_error_with_names() {
    let (_folder, path) = ptx(&MANGLED);
    let launch = "--gpu h100 --grid 1 --block 32";
    let error = |args: &str| {
        let ran = check(&path, &format!("{launch} {args}"));
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
        ran.err.replace(&path.display().to_string(), "FILE")
    };
    assert_eq!(
        error(""),
        "error: FILE contains 4 kernels: choose one with --kernel\n  \
         _Z5scalePff\n  _ZN2ns4tmplILi128EEEvPfi\n  _ZN2ns4tmplILi64EEEvPfi\n  plain_kernel\n"
    );
    assert_eq!(
        error("--kernel tmpl"),
        "error: FILE contains 2 kernels called \"tmpl\": use one of these names\n  \
         _ZN2ns4tmplILi128EEEvPfi\n  _ZN2ns4tmplILi64EEEvPfi\n"
    );
    assert_eq!(
        error("--kernel plain_kernl"),
        "error: FILE contains no kernel \"plain_kernl\"; similar names are\n  plain_kernel\n"
    );
    assert_eq!(
        error("--kernel qqq").lines().next(),
        Some("error: FILE contains no kernel \"qqq\"; it contains")
    );
    let one = ptx(&["only"]);
    assert_eq!(check(&one.1, launch).code, Some(0));
    let none = ptx(&[]);
    let ran = check(&none.1, launch);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.ends_with("contains no kernel\n"), "{}", ran.err);
    for (path, args, reason) in [
        (&none.1, "", "contains no kernel\n"),
        (&none.1, "--gpu h100", "contains no kernel\n"),
        (&compiled("hopper.cubin"), "--gpu a100", "capability 8.0: compile it for sm_80\n"),
    ] {
        let ran = check(path, &format!("--format json {args}")).exits(0);
        assert!(ran.out == "[]\n" && ran.err.ends_with(reason), "{}{}", ran.out, ran.err);
    }
    let many: Vec<String> = (0..30).map(|number| format!("kernel_{number:02}")).collect();
    let many = ptx(&many.iter().map(String::as_str).collect::<Vec<_>>());
    let ran = check(&many.1, launch);
    let last = "  kernel_19\n  and 10 more: without --grid and --kernel, all are listed\n";
    assert!(ran.err.ends_with(last), "{}", ran.err);
}

#[test]
fn bad_files_and_contradictory_arguments_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |bytes: &[u8]| {
        let path = folder.path().join("file");
        fs::write(&path, bytes).expect("written");
        check(&path, "")
    };
    let whole = fs::read(compiled("hopper.cubin")).expect("there");
    for (bytes, message) in [
        (&b""[..], "the image is empty"),
        (b"hello world", "the image is not PTX, a cubin or a fatbin"),
        (&whole[..whole.len() / 2], "the image is truncated"),
        (b".version 8.0\n.entry k {", "the image is truncated: its PTX entry ends"),
    ] {
        let ran = file(bytes);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
        ran.notes(message);
    }
    let ran = check(&folder.path().join("missing"), "");
    assert_eq!(ran.code, Some(2));
    ran.notes("missing");
    assert_eq!(check(folder.path(), "").code, Some(2));

    let hopper = compiled("hopper.cubin");
    for (args, message) in [
        ("--grid 1 --block 1", "--gpu <NAME>"),
        ("--grid 1 --gpu h100", "--block <X,Y,Z>"),
        ("--requests - --gpu h100", "--requests"),
        ("--gpu h100 --device 0", "--device"),
    ] {
        let ran = check(&hopper, args);
        assert_eq!(ran.code, Some(2));
        ran.notes(message);
    }
    let ran = run_with_input("check --kernel k --grid=1 --block=1 --gpu=t4", b"");
    assert_eq!(ran.code, Some(2));
    ran.notes("--image <FILE>");
}

#[test]
fn linked_kernels_replace_the_relocatable_ones_that_they_were_made_of() {
    let linked = compiled("linked.so");
    let images = |args: &str| {
        let list = check(&linked, &format!("{args} --format json")).json();
        let row = |kernel: &Value| (kernel["name"].clone(), kernel["ptx"].clone());
        list.as_array().expect("a list").iter().map(row).collect::<Vec<_>>()
    };
    let of = |names: &[&str], kinds: &[bool]| {
        let all = names.iter().flat_map(|name| kinds.iter().map(move |ptx| (name, ptx)));
        all.map(|(name, ptx)| (json!(name), json!(ptx))).collect::<Vec<_>>()
    };
    let names = ["alone", "bounded_caller", "caller"];
    // The driver links the PTX for later devices.
    assert_eq!(images(""), of(&names, &[true, false]));
    assert_eq!(images("--gpu h100"), of(&names, &[false]));
    assert_eq!(images("--gpu b200"), of(&names, &[true]));

    let launch = "--kernel bounded_caller --grid 8 --block 129";
    let ran = check(&linked, &format!("{launch} --gpu h100")).exits(1);
    ran.prints("registers, 512 bytes of static shared memory").prints("kernel-threads-per-block: ");
    assert!(!ran.out.contains("not checked"), "{}", ran.out);
}

#[test]
fn kernels_of_a_static_library_are_checked_as_far_as_they_are_known() {
    let library = compiled("relocatable.a");
    let launch = "--kernel alone --grid 8 --block 1024 --gpu h100";
    let ran = check(&library, launch).exits(0);
    let advice = format!(
        "not checked: registers-per-block, local-memory, shared-memory-total, \
         dynamic-shared-memory-opt-in: the file is not linked yet, which may change the attributes \
         that they need; check the cubin that this writes: nvlink --arch sm_90 --output-file \
         linked.cubin {}\n",
        library.display()
    );
    ran.prints(&advice);
    check(&compiled("intermediate.o"), "").exits(2).notes("-dlto");
}

/// A row of blocks adds 65,536 to an index, or `pitch` with a pitch.
fn rows(with_pitch: bool) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.ptx");
    let shift = ROWS.replace("mul.lo.s32 %r3, %r2, %r1", "shl.b32 %r3, %r2, 16");
    fs::write(&path, if with_pitch { ROWS } else { &shift }).expect("written");
    (folder, path)
}

#[test]
fn the_first_launch_whose_indices_wrap_is_told_and_refused() {
    let (_folder, path) = rows(false);
    let check = |blocks: &str, more: &str| {
        check(&path, &format!("--gpu h100 --grid 1,{blocks} --block 32 {more}"))
    };
    let told = "  32-bit indices wrap from 32769 blocks on y\n";
    let legal = check("32768", "").exits(0);
    assert!(legal.out.starts_with("legal (") && legal.out.contains(told), "{}", legal.out);
    let wraps = check("32769", "").exits(1);
    assert!(wraps.out.starts_with("rejected (") && wraps.out.contains(told), "{}", wraps.out);
    let violation = "  index-wrap: a 32-bit index reaches 2147483648, the limit is 2147483647 \
                     (kernel rows): declare a batch along y, ";
    wraps.prints(violation);
    check("70000", "--batch-axis y --items 70000").exits(0).prints("plan: chunked, 3 launches\n");
    let document = check("32768", "--format json").exits(0).json();
    assert_eq!(document["kernel"]["index"], json!({ "wraps_from": { "y": 32769 } }));
}

#[test]
fn an_index_that_depends_on_a_parameter_is_decided_by_its_value() {
    let (_folder, path) = rows(true);
    let check = |more: &str| {
        let launch = "--gpu h100 --grid 1,40000 --block 32";
        check(&path, &format!("{launch} {more}"))
    };
    let open = check("").exits(0);
    let told =
        "  a 32-bit index: pitch * blockIdx.y wraps if pitch * gridDim.y - pitch > 2147483647\n";
    open.prints(told);
    // No device has as many blocks on y; a launch in parts does.
    check("--param pitch=4096").exits(0).prints("wrap from 524289 blocks on y\n");
    let safe = check("--param pitch=40000").exits(0);
    assert!(!safe.out.contains("a 32-bit index"), "{}", safe.out);
    safe.prints("wrap from 53689 blocks on y\n");
    check("--param pitch=65536").exits(1).prints("index-wrap: a 32-bit index reaches 2621374464");
    check("--param pitches=1").exits(2).notes("no such parameter: rows has out, pitch");
}
