//! cudarc's traits may be implemented for its slices with elements of one's own, which could report any
//! address and length.

use std::sync::Arc;

use cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, MappedBuffer, SyncOnDrop,
};
use gridguard::cuda::Args;

struct Mine;

impl DeviceSlice<Mine> for CudaSlice<f32> {
    fn len(&self) -> usize {
        usize::MAX
    }

    fn stream(&self) -> &Arc<CudaStream> {
        CudaSlice::stream(self)
    }
}

impl DevicePtr<Mine> for CudaSlice<f32> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        (0x1234, SyncOnDrop::record_event(&None, stream))
    }
}

impl DevicePtrMut<Mine> for CudaSlice<f32> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        (0x1234, SyncOnDrop::record_event(&None, stream))
    }
}

impl DeviceSlice<Mine> for MappedBuffer {
    fn len(&self) -> usize {
        usize::MAX
    }

    fn stream(&self) -> &Arc<CudaStream> {
        DeviceSlice::<u8>::stream(self)
    }
}

impl DevicePtr<Mine> for MappedBuffer {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        (0x1234, SyncOnDrop::record_event(&None, stream))
    }
}

fn read<'a>(args: &mut Args<'a>, slice: &'a CudaSlice<f32>, buffer: &'a MappedBuffer) {
    args.read::<Mine, _>(slice);
    args.read_items::<Mine, _>(buffer, 1);
}

fn write<'a>(args: &mut Args<'a>, slice: &'a mut CudaSlice<f32>) {
    args.write::<Mine, _>(slice);
}

fn main() {}
