//! cudarc's launch builder with a guard: `guard.builder(&stream, &function)` replaces `stream.launch_builder(&function)`.

mod codes;

use core::ops::{Deref, DerefMut};
use core::panic::Location;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig};

use crate::cuda::arguments::Args;
use crate::cuda::error::{CudaError, LaunchError, LaunchErrorKind};
use crate::cuda::kernel::Kernel;
use crate::cuda::kernel::functions::{find_kernel, with_kernel};
use crate::cuda::launch::Contract;
use crate::cuda::launch::guarded::GuardedCall;
use crate::cuda::launch::planned::PlanInput;
use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::plan::batch::BatchAxis;
#[cfg(feature = "profile")]
use {crate::cuda::kernel::tuning::KernelTuning, crate::profile::model::Key, std::borrow::Cow};

/// cudarc's `LaunchArgs` with a guard: [`Args`] with the function to launch, a cudarc function or a [`Kernel`].
#[derive(Debug)]
#[must_use]
pub struct LaunchBuilder<'a, F> {
    guard: &'a Guard,
    function: &'a F,
    args: Args<'a>,
    batch: Option<BatchAxis>,
    #[cfg(feature = "profile")]
    tuning: Option<Box<KernelTuning<'a>>>,
}

impl Guard {
    /// Replaces cudarc's `launch_builder`. Every launch is validated, and split into chunks if it declares a
    /// [`batch`](LaunchBuilder::batch). `function` is a `CudaFunction`, or a [`Kernel`], whose launches are safe.
    ///
    /// The limits of a `CudaFunction` are queried at its first use and kept. The function's module stays loaded
    /// for as long, see [`forget_functions`](crate::cuda::forget_functions).
    ///
    /// Launches of a `CudaFunction` are ordered as by cudarc's builder, through cudarc's events alone. A launch has at
    /// most [`MAX_ARGS`](crate::MAX_ARGS) arguments.
    ///
    /// A kernel of `Guard::load_ptx` (feature `ptx`) whose grid is too large is launched in parts, or flat on x.
    ///
    /// ```no_run
    /// # use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig};
    /// use gridguard::{Axis, BatchAxis, Guard};
    /// # fn run(
    /// #     guard: &Guard, stream: &CudaStream, attention: &CudaFunction, q: &CudaSlice<f32>,
    /// #     out: &mut CudaSlice<f32>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // 15,360 items of 5 blocks each: 76,800 blocks on y, which takes 65,535.
    /// let config =
    ///     LaunchConfig { grid_dim: (1, 76_800, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };
    /// let mut launch = guard.builder(stream, attention); // was: stream.launch_builder(attention)
    /// launch.batch(BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5));
    /// launch.read_items(q, 5_120).write_items(out, 5_120).value(0.125_f32).length();
    /// // SAFETY: the function takes two pointers, a float and the number of items behind the pointers.
    /// let launches = unsafe { launch.launch(config)? };
    /// assert_eq!(launches, 2);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn builder<'a, F: Function>(
        &'a self,
        stream: &'a CudaStream,
        function: &'a F,
    ) -> LaunchBuilder<'a, F> {
        LaunchBuilder {
            guard: self,
            function,
            args: Args::ordered_by(stream, F::CONTRACT),
            batch: None,
            #[cfg(feature = "profile")]
            tuning: None,
        }
    }
}

impl<'a, F: Function> LaunchBuilder<'a, F> {
    /// Declares the batch along one axis of the grid: a launch that is too large is split into chunks of its items.
    pub const fn batch(&mut self, batch: BatchAxis) -> &mut Self {
        self.batch = Some(batch);
        self
    }

    /// Plans the launch as the guard's profile says for `key` and these sizes, as [`Kernel::with_tuning`] does.
    #[cfg(feature = "profile")]
    pub fn tuned(&mut self, key: &'a Key, items: &'a str, sizes: &[(&'a str, u64)]) -> &mut Self {
        self.tuning = Some(Box::new(KernelTuning::new(Cow::Borrowed(key), items, sizes)));
        self
    }

    #[inline]
    fn launch_with(
        &self,
        request: &LaunchRequest,
        call_site: &'static Location<'static>,
    ) -> Result<u64, LaunchError> {
        let (args, batch) = (&self.args, self.batch.as_ref());
        let launch = |kernel: &Kernel| {
            let call = GuardedCall { kernel, args, contract: F::CONTRACT, call_site };
            let (tuning, limits) = (kernel.tuning(), kernel.limits());
            #[cfg(feature = "profile")]
            let tuning = self.tuning.as_deref().or(tuning);
            self.guard.launch_guarded(&call, PlanInput { request, batch, tuning, limits })
        };
        self.function.with_kernel(args.stream(), launch).map_err(LaunchErrorKind::Unknown)?
    }
}

impl<'a, F> Deref for LaunchBuilder<'a, F> {
    type Target = Args<'a>;

    fn deref(&self) -> &Args<'a> {
        &self.args
    }
}

impl<'a, F> DerefMut for LaunchBuilder<'a, F> {
    fn deref_mut(&mut self) -> &mut Args<'a> {
        &mut self.args
    }
}

impl LaunchBuilder<'_, Kernel> {
    /// Plans and launches the kernel, and returns the number of launches: one, or the chunks. `request` is cudarc's
    /// `LaunchConfig` or a [`LaunchRequest`].
    ///
    /// # Errors
    ///
    /// As [`Guard::launch`].
    #[inline]
    #[track_caller]
    pub fn launch(&mut self, request: impl Into<LaunchRequest>) -> Result<u64, LaunchError> {
        self.launch_with(&request.into(), Location::caller())
    }
}

impl LaunchBuilder<'_, CudaFunction> {
    /// The kernel with its limits.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the limits cannot be queried, at the function's first use.
    pub fn kernel(&self) -> Result<Kernel, CudaError> {
        find_kernel(self.args.stream(), self.function)
    }

    /// Plans and launches the function, and returns the number of launches: one, or the chunks. `request` is cudarc's
    /// `LaunchConfig` or a [`LaunchRequest`].
    ///
    /// # Safety
    ///
    /// As cudarc's `LaunchArgs::launch`. With a [`batch`](Self::batch), the kernel computes each
    /// chunk like a batch of the chunk's items, see [`BatchAxis`]. Where the stream is being
    /// captured, function and memory live until the graph can run no more.
    ///
    /// # Errors
    ///
    /// [`LaunchErrorKind::Unknown`] if the limits cannot be queried, and as [`Guard::launch`].
    #[inline]
    #[track_caller]
    pub unsafe fn launch(&mut self, request: impl Into<LaunchRequest>) -> Result<u64, LaunchError> {
        self.launch_with(&request.into(), Location::caller())
    }
}

impl From<LaunchConfig> for LaunchRequest {
    #[inline]
    fn from(config: LaunchConfig) -> Self {
        let LaunchConfig { grid_dim, block_dim, shared_mem_bytes } = config;
        Self::new(grid_dim.into(), block_dim.into()).dynamic_shared_bytes(shared_mem_bytes.into())
    }
}

/// What a builder launches: cudarc's `CudaFunction`, or a [`Kernel`].
pub trait Function: LaunchFunction {}

impl<F: LaunchFunction> Function for F {}

pub trait LaunchFunction {
    /// Who guarantees the contract of its launches.
    const CONTRACT: Contract;

    /// Calls `f` with the kernel that launches on `stream`.
    fn with_kernel<R>(
        &self,
        stream: &CudaStream,
        f: impl FnMut(&Kernel) -> R,
    ) -> Result<R, CudaError>;
}

impl LaunchFunction for Kernel {
    const CONTRACT: Contract = Contract::Declared;

    #[inline]
    fn with_kernel<R>(
        &self,
        _: &CudaStream,
        mut f: impl FnMut(&Kernel) -> R,
    ) -> Result<R, CudaError> {
        Ok(f(self))
    }
}

impl LaunchFunction for CudaFunction {
    const CONTRACT: Contract = Contract::Launched;

    #[inline]
    fn with_kernel<R>(
        &self,
        stream: &CudaStream,
        f: impl FnMut(&Kernel) -> R,
    ) -> Result<R, CudaError> {
        with_kernel(stream, self, f)
    }
}
