//! Every kernel compiles for every architecture, without a spilled register, and its image states the
//! resources that the assembler reports.
//!
//! Needs NVRTC, no device; `.ci/run` fetches it and runs this with `KERNEL_SAMPLE=4`: each code is then compiled for every
//! fourth architecture, and each architecture has every fourth code of each kernel. A release compiles everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![cfg(feature = "cuda")]

mod attention;

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use gridguard::cuda::{CompileOptions, Compiler, CudaErrorKind};
use gridguard::image::ImageFile;
use gridguard::{ComputeCapability, DeviceLimits};
use gridguard_kernels::argsort::{Argsort, Order};
use gridguard_kernels::compare::Compare;
use gridguard_kernels::gated_product::GatedProduct;
use gridguard_kernels::geglu::Geglu;
use gridguard_kernels::layer_norm::LayerNorm;
use gridguard_kernels::residual_norm::ResidualNorm;
use gridguard_kernels::rms_norm::RmsNorm;
use gridguard_kernels::softmax::Softmax;
use gridguard_kernels::temporal_attention::GroupSum;
use gridguard_kernels::{Code, ElementType, KernelError, Operation};
use half::{bf16, f16};

/// Turing to Blackwell.
const ARCHITECTURES: [(u32, u32); 8] =
    [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)];

/// A device of an architecture, with its shared memory limit.
fn device((major, minor): (u32, u32)) -> DeviceLimits {
    let opt_in = match (major, minor) {
        (7, 5) => 64,
        (8, 0 | 7) => 163,
        (8, _) | (12, _) => 99,
        _ => 227,
    };
    DeviceLimits {
        compute_capability: ComputeCapability::new(major, minor),
        max_shared_bytes_per_block_opt_in: opt_in * 1024,
        ..DeviceLimits::any_device()
    }
}

/// The resources of one kernel, as the assembler reports them.
struct Usage {
    kernel: String,
    registers: u32,
    spilled_bytes: u32,
    shared_bytes: u32,
    stack_bytes: u32,
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
            let (spilled_bytes, shared_bytes, stack_bytes) = (u32::MAX, 0, 0);
            let usage = Usage { kernel, registers: 0, spilled_bytes, shared_bytes, stack_bytes };
            usages.push(usage);
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
            let of = |word| after.contains(word).then(|| number_before(after, word))?;
            usage.shared_bytes = of(" bytes smem").unwrap_or(0);
            usage.stack_bytes = of(" bytes cumulative stack size").unwrap_or(0);
        }
    }
    usages
}

/// Compiles `code` for `device`, and returns problems such as spilled registers.
///
/// From Hopper on, kernels of split launches, whose chunks `overlap`, have other code.
fn compile(code: &Code, device: &DeviceLimits, overlap: bool) -> Result<(), String> {
    if let Some(folder) = std::env::var_os("KERNEL_SOURCES") {
        let is_wanted = device.compute_capability == ComputeCapability::new(8, 0) && !overlap;
        return if is_wanted { write_source(code, Path::new(&folder)) } else { Ok(()) };
    }
    let options = code.compile_options(device.compute_capability);
    let mut options = options.define("OVERLAP", u8::from(overlap));
    if let Some(file) = std::env::var_os("KERNEL_CONFIGURATIONS") {
        return write_configuration(code, &options, Path::new(&file));
    }
    options.options.push("--ptxas-options=-v".into());
    // Its destructor keeps a chunk from ending before an earlier one.
    if !code.source.contains("    const Overlap overlap;\n") {
        return Err(format!("{} does not construct an Overlap", code.kernel));
    }
    let compiler = Compiler::find().expect("NVRTC");
    let compiled = compiler.compile(code.source, &options).map_err(|error| error.to_string())?;
    let what = format!("{} {} {:?}", code.kernel, options.target(), code.defines);
    let usages = usages(&compiled.log);
    let [Usage { kernel, registers, spilled_bytes, shared_bytes, stack_bytes }] = &usages[..]
    else {
        return Err(format!("{what}: not one kernel: {}", compiled.log));
    };
    println!("{what}: {registers} registers");
    let file = ImageFile::parse(compiled.image.bytes()).map_err(|error| error.to_string())?;
    let image = file.images().next().ok_or_else(|| format!("{what}: no image"))?;
    let stated = image.kernels().map_err(|error| format!("{what}: {error}"))?;
    let reported = [*registers, *shared_bytes, *stack_bytes].map(|number| Some(number.into()));
    let agrees = matches!(&stated[..], [one] if one.name == *kernel && reported
        == [one.registers_per_thread, one.static_shared_bytes, one.local_bytes_per_thread]);
    if !agrees || image.architecture().map(|own| own.capability) != Some(device.compute_capability)
    {
        return Err(format!("{what}: {reported:?} reported, but the image states {stated:?}"));
    }
    if kernel != code.kernel || *spilled_bytes != 0 || !(1..=255).contains(registers) {
        return Err(format!("{what}: {registers} registers, {spilled_bytes} bytes spilled"));
    }
    Ok(())
}

/// Writes the source of `code`, its macros defined, for another compiler: `tests/ptx.sh` sets
/// `KERNEL_SOURCES` to the folder.
fn write_source(code: &Code, folder: &Path) -> Result<(), String> {
    let mut text = String::new();
    let mut name = code.kernel.to_string();
    for (macro_name, value) in &code.defines {
        text += &format!("#define {macro_name} {value}\n");
        name += &format!("-{value}");
    }
    let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let file = folder.join(name.chars().map(safe).collect::<String>() + ".cu");
    std::fs::write(file, text + code.source).map_err(|error| error.to_string())
}

/// Appends a line with the parts of the source, target and macros for `same_code.py`, which compares the machine code of two revisions.
fn write_configuration(code: &Code, options: &CompileOptions, file: &Path) -> Result<(), String> {
    let part = |line: &'static str| line.strip_prefix("#line 1 \"")?.strip_suffix('"');
    let parts = code.source.lines().filter_map(part).collect::<Vec<_>>().join(",");
    let line = format!("{parts} {} {:?}\n", options.target(), options.defines);
    let file = std::fs::File::options().append(true).create(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(|error| error.to_string())
}

/// Compiles the code of operations for all architectures that support them, in parallel.
fn all_compile(codes: fn(&DeviceLimits) -> Vec<Code>) {
    let devices: Vec<DeviceLimits> = ARCHITECTURES.into_iter().map(device).collect();
    let sample: usize =
        std::env::var("KERNEL_SAMPLE").map_or(1, |text| text.parse().expect("a number"));
    let mut work = Vec::new();
    for (row, device) in devices.iter().enumerate() {
        // One step from the sample of the architecture before.
        let first = row % sample;
        work.extend(
            codes(device).into_iter().skip(first).step_by(sample).map(|code| (code, device)),
        );
    }
    assert!(!work.is_empty());
    let queue = Mutex::new(work.into_iter());
    let wrong = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no panic holds it").next();
                    let Some((code, device)) = next else { break };
                    let split = device.compute_capability >= ComputeCapability::new(9, 0);
                    for overlap in [false, true].into_iter().filter(|overlap| !overlap || split) {
                        if let Err(what) = compile(&code, device, overlap) {
                            let mut wrong = wrong.lock().expect("no panic holds it");
                            wrong.push(format!("overlap {overlap}: {what}"));
                        }
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no panic holds it");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs NVRTC"]
fn gated_product_compiles_for_hopper_without_a_spill() {
    all_compile(|device| {
        let mut codes = Vec::new();
        for (inner, columns) in [(64, 64), (320, 1280), (384, 1536), (448, 192), (640, 2560)] {
            for element in [ElementType::F16, ElementType::Bf16] {
                let product = GatedProduct::new(1, inner, columns, element).expect("legal");
                codes.extend(product.code(device));
            }
        }
        codes
    });
}

/// Adds the code of operations of every type of element.
fn add<O: Operation>(
    codes: &mut Vec<Code>,
    device: &DeviceLimits,
    new: impl Fn(ElementType) -> Result<O, KernelError>,
) {
    for element in ElementType::ALL {
        codes.push(code(&new(element).expect("legal"), device));
    }
}

fn code(operation: &impl Operation, device: &DeviceLimits) -> Code {
    operation.code(device).expect("supported")
}

/// Adds the code of every set of launch parameters worth measuring.
fn add_candidates<O: Operation>(codes: &mut Vec<Code>, device: &DeviceLimits, operation: &O) {
    for parameters in operation.candidates() {
        let other = operation.with_parameters(&parameters).expect("worth measuring");
        codes.push(code(&other, device));
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn kernels_of_rows_compile_for_every_architecture_without_a_spill() {
    const ROWS: u64 = 1 << 20;
    all_compile(|device| {
        let all = &mut Vec::new();
        for columns in [63, 64, 4096, 100_000] {
            add(all, device, |element| RmsNorm::new(ROWS, columns, element));
        }
        for columns in [63, 1001, 320, 1280, 2048, 4096, 100_000] {
            add(all, device, |element| LayerNorm::new(ROWS, columns, element));
        }
        add_candidates(all, device, &LayerNorm::new(ROWS, 320, ElementType::F16).expect("legal"));
        for columns in [1, 63, 1280, 5120, 100_000, 100_001] {
            add(all, device, |element| Geglu::new(ROWS, columns, element));
        }
        add_candidates(all, device, &Geglu::new(ROWS, 1280, ElementType::Bf16).expect("legal"));
        for columns in [1, 63, 64, 1000, 4096, 32_000, 131_072] {
            add(all, device, |element| Softmax::new(ROWS, columns, element));
        }
        for columns in [1, 33, 1024, 5000, 16_384] {
            add(all, device, |element| Argsort::new(ROWS, columns, element, Order::Ascending));
        }
        for (members, columns) in [(2, 16), (7, 384), (64, 262_144)] {
            add(all, device, |element| GroupSum::new(ROWS, members, columns, element));
        }
        let residual = [(8, false), (192, false), (512, true), (520, false), (2048, true)];
        for (columns, centered) in residual {
            for element in [ElementType::F16, ElementType::Bf16] {
                let norm = ResidualNorm::new(ROWS, columns, element, centered);
                all.push(code(&norm.expect("legal"), device));
            }
        }
        core::mem::take(all)
    });
}

#[test]
#[ignore = "needs NVRTC"]
fn compare_compiles_for_every_architecture_without_a_spill() {
    all_compile(|device| {
        let elements = 1 << 20;
        vec![
            code(&Compare::<f16>::new(elements).expect("legal"), device),
            code(&Compare::<bf16>::new(elements).expect("legal"), device),
            code(&Compare::<f32>::new(elements).expect("legal"), device),
            code(&Compare::<u32>::new(elements).expect("legal"), device),
        ]
    });
}

#[test]
#[ignore = "needs NVRTC"]
fn a_compilation_error_keeps_the_compiler_log() {
    let compiler = Compiler::find().expect("NVRTC");
    let options = CompileOptions::new("broken.cu", ComputeCapability::new(9, 0));
    let error = compiler.compile("__global__ void k() { frobnicate(); }", &options);
    let error = error.expect_err("no such function");
    let CudaErrorKind::Compilation { log, program, .. } = error.kind() else {
        panic!("{error:?}");
    };
    assert_eq!(program, "broken.cu");
    assert!(log.contains("frobnicate"), "{log}");
    let error = compiler.compile("a\0b", &options).expect_err("a zero byte");
    assert_eq!(error.to_string(), "the source contains a zero byte");
}
