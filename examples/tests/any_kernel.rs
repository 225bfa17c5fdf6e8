//! Runs the example `08_any_kernel` where there is no device, on PTX of our own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::process::{Command, Output};

/// Two kernels. The example shows the second one.
const PTX: &str = "\
.version 8.0
.target sm_80
.address_size 64
\t// .globl other
.visible .entry other()
{
\tret;
}
\t// .globl quantize_q8_1
.visible .entry quantize_q8_1(
\t.param .u64 x, .param .u64 y, .param .u32 columns, .param .u32 padded
)
{
\t.reg .b32 %r<3>;
\tmov.u32 %r1, %ctaid.y;
\tmov.u32 %r2, %nctaid.x;
\tret;
}
";

fn run(ptx: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kernels.ptx");
    std::fs::write(&file, ptx).expect("written");
    let test = std::env::current_exe().expect("this program");
    let built = test.parent().and_then(Path::parent).expect("the build folder");
    let mut command = Command::new(built.join("examples").join("08_any_kernel"));
    command.arg(file).env("CUDA_VISIBLE_DEVICES", "").output().expect("the example is built")
}

#[test]
fn a_kernel_is_rewritten_and_planned_without_a_device() {
    let output = run(PTX);
    let out = String::from_utf8(output.stdout).expect("UTF-8");
    let (shown, reason) = out.split_once("not run ").expect("there is no device");
    let lines: Vec<&str> = shown.lines().skip(1).collect();
    let expected = [
        "reads      block index: \"y\", grid size: \"x\"",
        "forms      quantize_q8_1__gridguard_shifted, quantize_q8_1__gridguard_folded",
        "rejected   grid.y is 76800 blocks, the limit is 65535 (NVIDIA H200): split axis y into 2 launches of \
         38400, or fold it into x",
        "shifted    launches: 2",
        "           grid 2 x 38400 x 1, from block [0, 0, 0]",
        "           grid 2 x 38400 x 1, from block [0, 38400, 0]",
        "folded     launches: 1",
        "           grid 153600 x 1 x 1, from block [0, 0, 0]",
        "planned    folded, untuned",
    ];
    assert_eq!(lines, expected);
    assert!(reason.contains("there is no device: "), "{reason}");
    assert!(output.status.success());
}

#[test]
fn a_kernel_that_cannot_have_forms_and_a_file_without_it_are_errors() {
    for (ptx, why) in [
        (PTX.replace("\tmov.u32 %r1", "\tmov.u32 %r1, %clusterid.x;\n\tmov.u32 %r1"), "%clusterid"),
        (PTX.replace("quantize_q8_1", "quantize"), "no such kernel"),
        ("no PTX".to_owned(), "NotPtx"),
    ] {
        let output = run(&ptx);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(why), "{error}");
    }
}
