//! Every kernel compiles for every architecture, without a spilled register.
//!
//! Needs NVRTC, no device; `.ci/run` fetches it and runs this.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![cfg(feature = "cuda")]

use gridguard::ComputeCapability;
use gridguard::cuda::{CompileOptions, Compiler, Image, NvrtcError};

/// Turing to Blackwell.
const ARCHITECTURES: [(u32, u32); 8] =
    [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)];

const GENERAL: &str = include_str!("../cu/temporal_attention.cu");
const SHORT: &str = include_str!("../cu/short_attention.cu");

/// Frames and head dimensions of the short kernel that are looked at.
const SHORT_SHAPES: [(u32, u32); 9] =
    [(8, 64), (16, 64), (25, 64), (32, 64), (16, 40), (16, 72), (24, 80), (16, 96), (32, 128)];

/// What the assembler says of one kernel.
struct Usage {
    kernel: String,
    registers: u32,
    spilled_bytes: u32,
}

/// Reads the assembler's report: a line with the name, then spills, then registers.
fn usages(log: &str) -> Vec<Usage> {
    let number_before = |line: &str, word: &str| -> Option<u32> {
        line.split(word).next()?.split_whitespace().last()?.parse().ok()
    };
    let mut usages: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, after)) = line.split_once("Compiling entry function '") {
            let kernel = after.split('\'').next().unwrap_or_default().to_owned();
            usages.push(Usage { kernel, registers: 0, spilled_bytes: u32::MAX });
        }
        let Some(usage) = usages.last_mut() else {
            continue;
        };
        if let Some(stores) = number_before(line, " bytes spill stores") {
            let loads = line.split("spill stores,").nth(1).unwrap_or_default();
            let loads = number_before(loads, " bytes spill loads").unwrap_or(u32::MAX);
            usage.spilled_bytes = stores.saturating_add(loads);
        }
        if let Some((_, after)) = line.split_once("Used ") {
            usage.registers = number_before(after, " registers").unwrap_or(u32::MAX);
        }
    }
    usages
}

/// Compiles `source`, which has `kernels`, and asserts that none spills a register.
fn compiles_without_a_spill(source: &str, kernels: usize, mut options: CompileOptions) {
    let compiler = Compiler::find().expect("NVRTC");
    options.options.push("--ptxas-options=-v".into());
    let compiled = compiler.compile(source, &options).expect("compiles");
    assert!(Image::new(compiled.image.bytes()).is_ok());
    let usages = usages(&compiled.log);
    assert_eq!(usages.len(), kernels, "{}", compiled.log);
    for Usage { kernel, registers, spilled_bytes } in usages {
        let (architecture, defines) = (options.architecture, &options.defines);
        println!("{kernel} {architecture} {defines:?}: {registers} registers");
        assert_eq!(spilled_bytes, 0, "{kernel} {architecture} {defines:?}");
        assert!((1..=255).contains(&registers), "{kernel} {architecture} {defines:?}");
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn the_general_kernel_compiles_for_every_architecture_without_a_spill() {
    for (major, minor) in ARCHITECTURES {
        let architecture = ComputeCapability::new(major, minor);
        let options = CompileOptions::new("temporal_attention.cu", architecture);
        compiles_without_a_spill(GENERAL, 6, options);
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn the_short_kernel_compiles_from_ampere_on_without_a_spill() {
    for (major, minor) in ARCHITECTURES.into_iter().filter(|(major, _)| *major >= 8) {
        let architecture = ComputeCapability::new(major, minor);
        for (frames, head_dim) in SHORT_SHAPES {
            for bf16 in [0, 1] {
                let options = CompileOptions::new("short_attention.cu", architecture)
                    .define("FRAMES", frames)
                    .define("HEAD_DIM", head_dim)
                    .define("BF16", bf16);
                compiles_without_a_spill(SHORT, 2, options);
            }
        }
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn a_source_that_does_not_compile_keeps_the_compiler_s_words() {
    let compiler = Compiler::find().expect("NVRTC");
    let options = CompileOptions::new("broken.cu", ComputeCapability::new(9, 0));
    let error = compiler.compile("__global__ void k() { frobnicate(); }", &options);
    let Err(NvrtcError::Compilation { log, program, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(program, "broken.cu");
    assert!(log.contains("frobnicate"), "{log}");
    let error = compiler.compile("a\0b", &options).expect_err("a zero byte");
    assert_eq!(error.to_string(), "the source holds a zero byte");
}
