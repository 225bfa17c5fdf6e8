//! The Rust blocks of the README and of `docs/rust.md` compile: each is repeated here word for word.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(dead_code, unsafe_code, reason = "compiled, never run")]

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig};
use gridguard::{Choice, Guard};
use gridguard_kernels::Kernels;
use gridguard_kernels::temporal_attention::TemporalAttention;
use half::f16;

const README: &str = include_str!("../../README.md");
const GUIDE: &str = include_str!("../../docs/rust.md");
const HERE: &str = include_str!("readme.rs");
const SOURCE: &str = "";

type Tensors = [CudaSlice<f16>; 3];

#[rustfmt::skip]
fn a_guard_that_owns_a_context(
    stream: Arc<CudaStream>,
    [q, k, v]: Tensors,
    mut out: CudaSlice<f16>,
    [items, heads, per_item]: [u64; 3],
    scale: f32,
) -> Result<(), Box<dyn Error>> {
    use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest, Parameter, Parameter::Memory};
    use gridguard::cuda::Args;

    let guard = Guard::cuda(0)?;
    let module = guard.compile("attention.cu", SOURCE)?;
    // SAFETY: `attention` takes these parameters, and stays within the per-item sizes passed to
    // `read_items` and `write_items` below.
    let attention = unsafe { module.kernel("attention", &[Memory, Memory, Memory, Memory, Parameter::of::<f32>()])? };

    let request = LaunchRequest::new(Dim3::new(1, items * heads, 1), Dim3::new(128, 1, 1));
    let batch = BatchAxis::new(Axis::Y, items).blocks_per_item(heads);
    let mut args = Args::new(&stream);
    args.read_items(&q, per_item).read_items(&k, per_item).read_items(&v, per_item)
        .write_items(&mut out, per_item)
        .value(scale);
    guard.launch(&attention, (&request, &batch), args)?;
    Ok(())
}

#[rustfmt::skip]
fn cudarc_s_launch_builder(
    (guard, stream, function): (&Guard, Arc<CudaStream>, CudaFunction),
    config: LaunchConfig,
    [q, k, v]: Tensors,
    mut out: CudaSlice<f16>,
    [items, heads, per_item]: [u64; 3],
    scale: f32,
) -> Result<u64, Box<dyn Error>> {
    use gridguard::{Axis, BatchAxis};

    let mut launch = guard.builder(&stream, &function); // was: stream.launch_builder(&function)
    launch.batch(BatchAxis::new(Axis::Y, items).blocks_per_item(heads));
    launch.read_items(&q, per_item).read_items(&k, per_item).read_items(&v, per_item);
    launch.write_items(&mut out, per_item).arg(&scale);
    // SAFETY: as for cudarc's own launch.
    let launches = unsafe { launch.launch(config)? }; // 2
    Ok(launches)
}

#[rustfmt::skip]
fn a_server_that_looks_up_tuned_choices(
    attention: TemporalAttention,
) -> Result<(), Box<dyn Error>> {
    use gridguard::profile::{MissLog, Objective, Policy};

    let guard = Guard::cuda(0)?;
    // The user's own profile takes precedence over the one built in for the device.
    let (guard, notices) = guard.with_device_profile();
    notices.iter().for_each(|notice| eprintln!("{notice}"));
    let misses = Arc::new(MissLog::new(10_000));
    let guard = Arc::new(guard.with_miss_log(Arc::clone(&misses)));

    let tuned = Kernels::new(guard).prepare_tuned(attention, Policy::default(), Objective::Throughput)?;
    println!("{}", tuned.matched); // exact, bucket, neighbour at 0.4 octaves, or default, and why
    misses.write("misses.ron".as_ref())?; // for `gridguard tune --shapes misses.ron`
    Ok(())
}

#[rustfmt::skip]
fn the_kernels(
    guard: Arc<Guard>,
    stream: Arc<CudaStream>,
    [q, k, v]: Tensors,
    mut out: CudaSlice<f16>,
) -> Result<(), Box<dyn Error>> {
    use gridguard_kernels::temporal_attention::{Shape, TemporalAttention};
    use gridguard_kernels::{ElementType, Kernels, Tensor, TensorMut};

    let kernels = Kernels::new(Arc::clone(&guard));
    let shape = Shape::new(15_360, 5, 16, 64)?; // items, heads, frames, head dimension
    let attention = TemporalAttention::new(shape, ElementType::F16, guard.limits())?;
    let attention = kernels.prepare(attention, Choice::AUTOMATIC)?;
    let [q, k, v] = [&q, &k, &v].map(|tensor| Tensor::new(tensor, shape.dims()));
    attention.launch(&stream, [q, k, v], None, shape.scale(), TensorMut::new(&mut out, shape.dims()))?;
    Ok(())
}

#[test]
fn every_rust_block_of_the_documents_compiles() {
    let squeezed = |text: &str| text.split_whitespace().collect::<String>();
    let here = squeezed(HERE);
    for (document, expected) in [(README, 1), (GUIDE, 4)] {
        let blocks: Vec<&str> = document
            .split("```rust\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .collect();
        assert_eq!(blocks.len(), expected);
        for block in blocks {
            assert!(here.contains(&squeezed(block)), "not compiled here:\n{block}");
        }
    }
}
