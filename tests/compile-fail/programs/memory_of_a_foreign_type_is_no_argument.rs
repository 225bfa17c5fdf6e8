//! Memory of a type that is not cudarc's could report any address.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DeviceSlice, SyncOnDrop};
use gridguard::cuda::Args;

/// Memory that does not exist.
struct Invented(Arc<CudaStream>);

impl DeviceSlice<f32> for Invented {
    fn len(&self) -> usize {
        usize::MAX
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.0
    }
}

impl DevicePtr<f32> for Invented {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        (0x1234, SyncOnDrop::record_event(&None, stream))
    }
}

fn read<'a>(args: &mut Args<'a>, invented: &'a Invented) {
    args.read(invented);
}

fn main() {}
