//! The guard and the prepared launches of candle's devices.

use core::hash::Hash;
use core::num::NonZeroUsize;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use candle_core::{CudaDevice, Device, Error, Result};
use cudarc::driver::CudaFunction;
use gridguard::cuda::{Args, Kernel};
use gridguard::profile::{Objective, Policy};
use gridguard::{BatchAxis, Guard, LaunchRequest, Parameter};
use gridguard_kernels::argsort::Argsort;
use gridguard_kernels::rms_norm::RmsNorm;
use gridguard_kernels::softmax::Softmax;
use gridguard_kernels::temporal_attention::TemporalAttention;
use gridguard_kernels::{KernelError, Kernels, Operation, Prepared};
use lru::LruCache;
use once_cell::sync::OnceCell;
use parking_lot::{Mutex, RwLock};

/// The guard of a candle device. It validates launches of your own kernels on candle's memory, and splits them if they
/// are too large and declare a batch.
///
/// ```no_run
/// use candle_core::{CudaDevice, CudaStorage, Result};
/// use gridguard::cuda::{Args, InOrder, Kernel};
/// use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest, Parameter};
/// use gridguard_candle::GuardedDevice;
///
/// /// Once: a kernel of PTX that candle loads.
/// fn load(device: &CudaDevice, ptx: &str) -> Result<Kernel> {
///     let function = device.get_or_load_custom_func("scale_rows", "scale", ptx)?;
///     // SAFETY: it takes two pointers and the number of rows behind them.
///     let parameters = [Parameter::Memory, Parameter::Memory, Parameter::of::<u64>()];
///     unsafe { device.guarded_kernel(&function, &parameters) }
/// }
///
/// /// In the `cuda_fwd` of an operator: one block for each row on y, which takes 65,535.
/// fn scale(kernel: &Kernel, from: &CudaStorage, rows: u64, columns: u64) -> Result<CudaStorage> {
///     let (device, stream) = (&from.device, from.device.cuda_stream());
///     let mut out = device.alloc_zeros::<f32>(from.as_cuda_slice::<f32>()?.len())?;
///     let request = LaunchRequest::new(Dim3::new(1, rows, 1), Dim3::new(128, 1, 1));
///     // SAFETY: all of candle's work on both is on the device's stream.
///     let (x, mut y) = unsafe {
///         (InOrder::new(from.as_cuda_slice::<f32>()?.as_view()), InOrder::new(out.as_view_mut()))
///     };
///     let mut args = Args::new(&stream);
///     args.read_items(&x, columns).write_items(&mut y, columns).length();
///     device.launch_guarded(kernel, &request, Some(&BatchAxis::new(Axis::Y, rows)), args)?;
///     Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
/// }
/// ```
pub trait GuardedDevice {
    /// The device itself.
    ///
    /// # Errors
    ///
    /// candle's error for a device that is not a CUDA device.
    fn cuda_device(&self) -> Result<&CudaDevice>;

    /// The guard of the device, in candle's context, with the user's profile or the profile shipped for the GPU.
    /// Created at the first use. Guard and context are kept until the process ends.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if the device cannot be queried, and candle's error for a device that is not a CUDA device.
    fn guard(&self) -> Result<Arc<Guard>> {
        Ok(Arc::clone(DeviceLaunches::of(self.cuda_device()?)?.kernels.guard()))
    }

    /// Notices about entries of the profiles that are not used or may be stale. Usually empty.
    ///
    /// # Errors
    ///
    /// As [`Self::guard`].
    fn profile_notices(&self) -> Result<Vec<String>> {
        Ok(DeviceLaunches::of(self.cuda_device()?)?.notices.clone())
    }

    /// Our kernels on the device, compiled once for all users of the device.
    ///
    /// # Errors
    ///
    /// As [`Self::guard`].
    fn kernels(&self) -> Result<Kernels> {
        Ok(DeviceLaunches::of(self.cuda_device()?)?.kernels.clone())
    }

    /// A function that candle loaded on the device, as a kernel of the guard. Queries its limits, so keep the kernel.
    ///
    /// # Safety
    ///
    /// As [`Kernel::from_cudarc`]: the function takes `parameters`, and accesses only the memory that its arguments
    /// reach.
    ///
    /// # Errors
    ///
    /// As [`Self::guard`], and [`Error::Cuda`] with a [`CudaError`](gridguard::cuda::CudaError) if the driver reports
    /// other parameters.
    #[allow(unsafe_code, reason = "the kernel is the caller's")]
    unsafe fn guarded_kernel(
        &self,
        function: &CudaFunction,
        parameters: &[Parameter],
    ) -> Result<Kernel> {
        let stream = self.cuda_device()?.cuda_stream();
        // SAFETY: this function's contract. candle loads functions of a device in the context of its stream.
        unsafe { Kernel::from_cudarc(stream.context(), function, parameters) }.map_err(failed)
    }

    /// Launches `kernel` on the stream of `args`, as one launch if it is legal, else in chunks of `batch`. Returns the
    /// number of launches without waiting for them.
    ///
    /// # Errors
    ///
    /// As [`Self::guard`], and [`Error::Cuda`] with a [`LaunchError`](gridguard::cuda::LaunchError), which lists every
    /// violation.
    #[track_caller]
    fn launch_guarded(
        &self,
        kernel: &Kernel,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        args: Args<'_>,
    ) -> Result<u64> {
        self.guard()?.launch(kernel, (request, batch), args).map_err(failed)
    }
}

impl GuardedDevice for CudaDevice {
    fn cuda_device(&self) -> Result<&CudaDevice> {
        Ok(self)
    }
}

impl GuardedDevice for Device {
    fn cuda_device(&self) -> Result<&CudaDevice> {
        self.as_cuda_device()
    }
}

/// A failure on a device as candle's error, with `error` as its source.
pub(crate) fn failed(error: impl core::error::Error + Send + Sync + 'static) -> Error {
    Error::Cuda(Box::new(error)).bt()
}

/// The kernels of a context, and the most recently used launches of each operator.
pub(crate) struct DeviceLaunches {
    pub(crate) kernels: Kernels,
    /// Notices about the profiles.
    notices: Vec<String>,
    pub(crate) attention: Kept<TemporalAttention>,
    pub(crate) softmax: Kept<Softmax>,
    pub(crate) argsort: Kept<Argsort>,
    pub(crate) rms_norm: Kept<RmsNorm>,
}

/// By the address of the context. The address is not reused, because each guard keeps its context alive.
static DEVICES: LazyLock<RwLock<HashMap<usize, Arc<DeviceLaunches>>>> =
    LazyLock::new(RwLock::default);

impl DeviceLaunches {
    /// The launches of the device's context, which all candle devices of one GPU share.
    pub(crate) fn of(device: &CudaDevice) -> Result<Arc<Self>> {
        let stream = device.cuda_stream();
        let address = stream.context().cu_ctx().addr();
        if let Some(known) = DEVICES.read().get(&address) {
            return Ok(Arc::clone(known));
        }
        // Created without the lock. If two threads race, the first one stored is kept.
        let guard = Guard::with_context(Arc::clone(stream.context())).map_err(failed)?;
        let (guard, notices) = guard.with_device_profile();
        let notices = notices.iter().map(ToString::to_string).collect();
        let kernels = Kernels::new(guard);
        let made = Self {
            kernels,
            notices,
            attention: Kept::default(),
            softmax: Kept::default(),
            argsort: Kept::default(),
            rms_norm: Kept::default(),
        };
        Ok(Arc::clone(DEVICES.write().entry(address).or_insert_with(|| Arc::new(made))))
    }
}

/// The most launches of an operator that are kept. The code of a dropped launch is usually still loaded.
const MAX_KEPT: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

type Launch<O> = Arc<OnceCell<Arc<Prepared<O>>>>;

/// The most recently used launches of an operator.
pub(crate) struct Kept<O>(Mutex<LruCache<O, Launch<O>>>);

impl<O: Hash + Eq> Default for Kept<O> {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MAX_KEPT)))
    }
}

impl<O: Prepare> Kept<O> {
    /// The prepared launch. The table is not locked while a kernel is compiled, and a failure is not kept.
    pub(crate) fn get(&self, kernels: &Kernels, operation: O) -> Result<Arc<Prepared<O>>> {
        let launch = Arc::clone(self.0.lock().get_or_insert(operation, Arc::default));
        let prepared = launch.get_or_try_init(|| operation.prepare(kernels).map(Arc::new));
        prepared.cloned().map_err(failed)
    }
}

/// An operation that is prepared with the choice of the profile.
pub(crate) trait Prepare: Operation + Copy + Hash + Eq {
    fn prepare(self, kernels: &Kernels) -> core::result::Result<Prepared<Self>, KernelError> {
        let tuned = kernels.prepare_tuned(self, Policy::default(), Objective::default())?;
        Ok(tuned.prepared)
    }
}

impl Prepare for Softmax {}
impl Prepare for Argsort {}
impl Prepare for RmsNorm {}

impl Prepare for TemporalAttention {
    fn prepare(self, kernels: &Kernels) -> core::result::Result<Prepared<Self>, KernelError> {
        Ok(kernels.prepare_attention(self)?.prepared)
    }
}
