//! What a launch writes is borrowed for it alone.

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::Args;

fn read_and_written(stream: &CudaStream, memory: &mut CudaSlice<f32>) {
    let mut args = Args::new(stream);
    args.read_items(memory, 8);
    args.write_items(memory, 8);
    drop(args);
}

fn written_twice(stream: &CudaStream, memory: &mut CudaSlice<f32>) {
    let mut args = Args::new(stream);
    args.write_items(memory, 8);
    args.write(memory);
    drop(args);
}

fn overlapping_views(stream: &CudaStream, memory: &mut CudaSlice<f32>) {
    let mut args = Args::new(stream);
    let (mut front, mut back) = (memory.slice_mut(..8), memory.slice_mut(4..));
    args.write(&mut front).write(&mut back);
    drop(args);
}

fn main() {}
