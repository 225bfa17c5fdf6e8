//! What a stage sees of a chunk ends with its call, and no memory is bound twice.

use std::sync::Mutex;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard_pipeline::{Buffer, DeviceMemory, HostMemory, Pipeline};

fn keep() {
    let kept: Mutex<Vec<&mut [u32]>> = Mutex::new(Vec::new());
    let mut builder = Pipeline::builder(10);
    let y = builder.output::<u32>("y", 1);
    builder
        .stage("keep", |_, views| {
            kept.lock().unwrap().push(views.write(y)?);
            Ok(())
        })
        .write(y);
}

fn bind_twice<'m>(x: Buffer<u32>, y: Buffer<u32>, memory: &'m mut [u32]) -> HostMemory<'m> {
    HostMemory::new().read(x, memory).write(y, memory)
}

fn bind_twice_on_a_device(
    (x, y): (Buffer<u32>, Buffer<u32>),
    stream: &std::sync::Arc<CudaStream>,
    mut memory: CudaSlice<u32>,
) {
    let _bound = DeviceMemory::new(stream).read(x, &memory).write(y, &mut memory);
}

fn main() {
    let _ = (keep, bind_twice, bind_twice_on_a_device);
}
