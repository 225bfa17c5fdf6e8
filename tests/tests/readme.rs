//! The Rust block of the README compiles: it is repeated here word for word. `tests/outside.sh` compiles those of
//! `docs/rust.md`, which are programs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(dead_code, unsafe_code, reason = "compiled, never run")]

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig};
use gridguard::Guard;
use half::f16;

const README: &str = include_str!("../../README.md");
const HERE: &str = include_str!("readme.rs");

type Tensors = [CudaSlice<f16>; 3];

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

#[test]
fn the_rust_block_of_the_readme_compiles() {
    let squeezed = |text: &str| text.split_whitespace().collect::<String>();
    let mut blocks = README.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    let block = blocks.next().expect("one");
    assert!(squeezed(HERE).contains(&squeezed(block)), "not compiled here:\n{block}");
    assert_eq!(blocks.next(), None);
}
