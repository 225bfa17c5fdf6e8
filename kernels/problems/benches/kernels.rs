//! Times the other kernels and, as their limit, the fastest kernel that only moves the same bytes. Without a
//! CUDA device, times host references.
//!
//! The names of the cases contain the sizes of the problem, in the order of the kernel; programs that
//! compare with other implementations parse them.

mod support;

use std::hint::black_box;

use gridguard::Choice;
use gridguard_kernels::{Element, ElementType, rms_norm, synthetic};
use gridguard_problems::{Problem, Traffic};
use half::{bf16, f16};

use support::{Bench, Case, Device, Failure, Repeated};

/// Kernel, types and sizes.
const PROBLEMS: [&str; 16] = [
    "rms_norm f16 32768x4096",
    "rms_norm f16 131072x1024",
    "rms_norm f32 32768x4096",
    "layer_norm f16 245760x320",
    "layer_norm f16 61440x640",
    "layer_norm f16 15360x1280",
    "layer_norm f32 245760x320",
    "geglu f16 245760x1280",
    "geglu f16 61440x2560",
    "geglu f32 122880x1280",
    "softmax f16 1228800x128",
    "softmax f16 262144x1024",
    "softmax f32 32768x4096",
    "argsort f16 262144x256",
    "argsort f32 65536x1024",
    "argsort f32 4096x32768",
];

/// Rows and columns for the host.
const ON_HOST: [u64; 2] = [64, 4096];
const EPSILON: f32 = 1e-6;

fn main() {
    let mut bench = Bench::new();
    match Device::new() {
        Ok(device) => on_device(&mut bench, &device),
        Err(reason) => {
            eprintln!("no CUDA device ({reason}): host references are measured");
            rms_norm_reference::<f16>(&mut bench);
            rms_norm_reference::<f32>(&mut bench);
        }
    }
    bench.finish();
}

fn on_device(bench: &mut Bench, device: &Device) {
    for text in PROBLEMS {
        if let Err(reason) = beside_limit(bench, device, text) {
            eprintln!("{text} was skipped: {reason}");
        }
    }
}

/// A problem, beside its limit.
fn beside_limit(bench: &mut Bench, device: &Device, text: &str) -> Result<(), Failure> {
    let problem: Problem = text.parse()?;
    let sizes: Vec<String> = problem.shape().iter().map(|(_, size)| size.to_string()).collect();
    let case = Case {
        operation: problem.kernel(),
        shape: sizes.join("x"),
        element: problem.element(),
        name: "ours",
        traffic: problem.traffic(device.limits())?,
    };
    bench.measure(&case, || {
        let mut bench_case = problem.on_device(device.kernels(), device.stream())?;
        let error = bench_case.verify()?;
        let handle = bench_case.prepare(&[], Choice::AUTOMATIC, None)?;
        let launch = move || Ok(bench_case.launch(handle).map(drop)?);
        Ok(device.repeated(launch).with_error(error))
    });
    match problem.element() {
        ElementType::F16 => device.measure_limit::<f16>(bench, case),
        ElementType::Bf16 => device.measure_limit::<bf16>(bench, case),
        ElementType::F32 => device.measure_limit::<f32>(bench, case),
    }
    Ok(())
}

fn rms_norm_reference<T: Element>(bench: &mut Bench) {
    let [rows, columns] = ON_HOST;
    let bytes = u128::from(rows * columns * T::TYPE.bytes());
    let case = Case {
        operation: "rms_norm",
        shape: format!("{rows}x{columns}"),
        element: T::TYPE,
        name: "reference",
        traffic: Traffic { read: bytes, written: bytes },
    };
    bench.measure(&case, || {
        let columns = usize::try_from(columns)?;
        let x = synthetic::<T>(usize::try_from(rows)? * columns, 1);
        let weight = synthetic::<T>(columns, 2);
        Ok(Repeated::on_host(move || {
            for row in x.chunks(columns) {
                black_box(rms_norm::reference(row, &weight, EPSILON));
            }
        }))
    });
}
