//! Runs the commands of `docs/candle.md` and compares their output. Repeats its Rust code word for word.

#![allow(clippy::expect_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const DOCUMENT: &str = include_str!("../../../docs/candle.md");

const HERE: &str = include_str!("documents.rs");

#[rustfmt::skip]
#[test]
fn the_operators_run() -> candle_core::Result<()> {
    use candle_core::{Device, Tensor};
    use gridguard_candle::{Attention, argsort};

    let device = Device::cuda_if_available(0)?;
    let scores = Tensor::rand(0_f32, 1.0, (4, 32_000), &device)?;
    let order = argsort(&scores, false)?;
    assert_eq!(order.dims(), [4, 32_000]);

    let q = Tensor::randn(0_f32, 1.0, (64, 5, 16, 64), &device)?;
    let mask = Tensor::zeros((16, 16), q.dtype(), &device)?;
    let out = Attention::new(0.125).with_bias(&mask)?.forward(&q, &q, &q)?;
    assert_eq!(out.dims(), q.dims());
    Ok(())
}

#[cfg(feature = "cuda")]
#[allow(dead_code, unsafe_code, reason = "compiled, never run")]
#[rustfmt::skip]
fn a_kernel_of_the_user(
    device: &candle_core::CudaDevice,
    ptx: &str,
    x: &cudarc::driver::CudaSlice<f32>,
    mut out: cudarc::driver::CudaSlice<f32>,
    [rows, columns]: [u64; 2],
) -> candle_core::Result<()> {
    use gridguard::cuda::{Args, InOrder};
    use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest, Parameter};
    use gridguard_candle::GuardedDevice;

    let stream = device.cuda_stream();
    let function = device.get_or_load_custom_func("scale_rows", "scale", ptx)?;
    let parameters = [Parameter::Memory, Parameter::Memory, Parameter::of::<u64>()];
    // SAFETY: it takes two pointers and the number of rows behind them. Keep the kernel: its limits are queried here.
    let kernel = unsafe { device.guarded_kernel(&function, &parameters)? };

    // SAFETY: candle's work on both comes in the order of the device's stream.
    let (x, mut out) = unsafe { (InOrder::new(x.as_view()), InOrder::new(out.as_view_mut())) };
    let mut args = Args::new(&stream);
    args.read_items(&x, columns).write_items(&mut out, columns).length();
    let request = LaunchRequest::new(Dim3::new(1, rows, 1), Dim3::new(128, 1, 1));
    device.launch_guarded(&kernel, &request, Some(&BatchAxis::new(Axis::Y, rows)), args)?;
    Ok(())
}

#[test]
fn the_document_has_the_rust_code_of_this_file() {
    let blocks = DOCUMENT.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    let here: Vec<&str> = HERE.lines().map(str::trim).collect();
    let mut found = 0;
    for block in blocks {
        let block: Vec<&str> = block.lines().map(str::trim).collect();
        assert!(here.windows(block.len()).any(|part| part == block), "{block:#?}");
        found += 1;
    }
    assert_eq!(found, 2);
}

/// The commands of the blocks of shell text, without what installs programs.
fn commands() -> Vec<&'static str> {
    let blocks = DOCUMENT.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).filter(|line| !line.starts_with("cargo install ")).collect()
}

/// The folder of the workspace's programs, with `gridguard` built.
fn programs() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let folder = test.parent().and_then(Path::parent).expect("the build folder").to_owned();
    if !folder.join("gridguard").exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "gridguard-cli"]);
        build.args(["--manifest-path", "../../Cargo.toml"]);
        let built = build.arg("--target-dir").arg(folder.join("..")).status();
        assert!(built.expect("cargo runs").success());
    }
    folder
}

#[test]
fn the_commands_of_the_document_print_the_documented_output() {
    let programs = programs();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").expect("a path"));
    let run = |command: &str| -> Output {
        // cargo has built the examples with the tests; by itself this package has other features, and builds again.
        let example =
            command.strip_prefix("cargo run --manifest-path kernels/candle/Cargo.toml --example ");
        let example =
            example.map(|name| programs.join("examples").join(name).display().to_string());
        let command = example.as_deref().unwrap_or(command);
        let mut shell = Command::new("bash");
        shell.args(["-c", command]).env("PATH", &path).output().expect("bash")
    };
    let expected = [
        (1, "dynamic shared memory is 131072 bytes, the limit is 49152"),
        (0, "2 launches"),
        (0, "both blocks have the same weights"),
    ];
    let commands = commands();
    assert_eq!(commands.len(), expected.len(), "{commands:?}");
    for (command, (status, words)) in commands.into_iter().zip(expected) {
        let output = run(command);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(status), "{command}\n{text}");
        assert!(text.contains(words), "{command}\n{text}");
    }
}
