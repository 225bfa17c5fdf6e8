//! cudarc's launch builder for the kernels of a guard: `Guard::launch_builder` in place of
//! `CudaStream::launch_builder`.

use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, LaunchConfig, PushKernelArg, UnifiedSlice,
    UnifiedView, UnifiedViewMut,
};

use crate::cuda::arguments::Args;
use crate::cuda::error::LaunchError;
use crate::cuda::kernel::Kernel;
use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::plan::slot::Scalar;

impl Guard {
    /// As cudarc's `launch_builder`, for a kernel that the guard loaded: [`Args`] with the calls of cudarc's
    /// builder, and [`Self::plan_and_launch`] as its launch.
    ///
    /// A kernel of `Guard::load_ptx` (feature `ptx`) whose grid is too large is launched in parts, or flat on
    /// x: the builder has all arguments, and adds those that rewriting made.
    ///
    /// ```no_run
    /// # use cudarc::driver::{CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
    /// # use gridguard::cuda::{Kernel, LaunchError};
    /// # fn run(
    /// #     guard: &gridguard::Guard, scale: &Kernel, stream: &CudaStream, x: &mut CudaSlice<f32>,
    /// # ) -> Result<(), LaunchError> {
    /// // 76,800 blocks on y, which takes 65,535.
    /// let config =
    ///     LaunchConfig { grid_dim: (4, 76_800, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };
    /// let mut launch = guard.launch_builder(stream, scale); // was: stream.launch_builder(&function)
    /// launch.arg(x).arg(&0.5_f32);
    /// assert_eq!(launch.launch(config)?, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn launch_builder<'a>(
        &'a self,
        stream: &'a CudaStream,
        kernel: &'a Kernel,
    ) -> KernelLaunchArgs<'a> {
        KernelLaunchArgs { guard: self, kernel, args: Args::new(stream) }
    }
}

/// A launch of a [`Kernel`] that takes its arguments as cudarc's
/// [`LaunchArgs`](cudarc::driver::LaunchArgs) does: slices and views of device memory and of unified memory,
/// integers and floats.
#[derive(Debug)]
#[must_use]
pub struct KernelLaunchArgs<'a> {
    guard: &'a Guard,
    kernel: &'a Kernel,
    args: Args<'a>,
}

impl<'a> KernelLaunchArgs<'a> {
    /// A value of any size, such as a struct, in the kernel's memory layout.
    pub fn bytes(&mut self, bytes: &'a [u8]) -> &mut Self {
        self.args.bytes(bytes);
        self
    }

    /// Plans and launches the kernel, and returns the number of launches. The arguments go with them:
    /// another launch takes its own.
    ///
    /// # Errors
    ///
    /// As [`Guard::plan_and_launch`].
    #[inline]
    #[track_caller]
    pub fn launch(self, config: LaunchConfig) -> Result<u64, LaunchError> {
        self.guard.plan_and_launch(self.kernel, &request(config), None, self.args)
    }

    /// As [`Self::launch`], of a cooperative launch, which is never split.
    ///
    /// # Errors
    ///
    /// As [`Self::launch`].
    #[inline]
    #[track_caller]
    pub fn launch_cooperative(self, config: LaunchConfig) -> Result<u64, LaunchError> {
        self.guard.plan_and_launch(self.kernel, &request(config).cooperative(), None, self.args)
    }
}

#[inline]
fn request(config: LaunchConfig) -> LaunchRequest {
    let LaunchConfig { grid_dim, block_dim, shared_mem_bytes } = config;
    LaunchRequest::new(grid_dim.into(), block_dim.into())
        .dynamic_shared_bytes(shared_mem_bytes.into())
}

// SAFETY: the value is passed as the bytes that it has, and copied.
unsafe impl<T: Scalar> PushKernelArg<&T> for KernelLaunchArgs<'_> {
    #[inline(always)]
    fn arg(&mut self, arg: &T) -> &mut Self {
        self.args.value(*arg);
        self
    }
}

/// Memory that the kernel reads, or writes, as a whole.
macro_rules! memory {
    ($($method:ident $memory:ty),* $(,)?) => {$(
        // SAFETY: passes the memory's address, and borrows the memory until the launch.
        unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<$memory> for KernelLaunchArgs<'a> {
            #[inline(always)]
            fn arg(&mut self, arg: $memory) -> &mut Self {
                self.args.$method::<T, _>(arg);
                self
            }
        }
    )*};
}

memory! {
    read &'b CudaSlice<T>,
    write &'b mut CudaSlice<T>,
    read &'b CudaView<'c, T>,
    write &'b mut CudaViewMut<'c, T>,
    read &'b UnifiedSlice<T>,
    write &'b mut UnifiedSlice<T>,
    read &'b UnifiedView<'c, T>,
    read &'b UnifiedViewMut<'c, T>,
    write &'b mut UnifiedViewMut<'c, T>,
}
