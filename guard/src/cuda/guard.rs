//! The methods of [`Guard`] for CUDA devices.

use core::cmp::Reverse;
use core::ffi::c_void;
use core::ops::RangeInclusive;
use core::panic::Location;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::history::{ContextHistory, GuardContext, LaunchRecord, Watch};
use crate::cuda::driver::library::{CurrentContext, from_cudarc};
use crate::cuda::driver::nvrtc::{CompileOptions, Compiler};
use crate::cuda::driver::query;
use crate::cuda::driver::symbols::{Driver, Handle};
use crate::cuda::error::{CudaError, CudaErrorKind};
use crate::cuda::kernel::module::Module;
use crate::guard::{FallbackReason, Guard};
use crate::image::Image;
use crate::plan::batch::BatchAxis;
#[cfg(feature = "profile")]
use {
    crate::cuda::kernel::tuning::KernelTuning, crate::dim::saturated,
    crate::launch::request::LaunchRequest, crate::launch::validate::check,
    crate::limits::LaunchLimits, crate::plan::launches::Plan, crate::profile::model::MAX_SIZES,
    arrayvec::ArrayVec,
};

impl Guard {
    /// A guard of device `ordinal`, in its primary context.
    ///
    /// ```no_run
    /// use gridguard::cuda::Args;
    /// use gridguard::{Dim3, Guard, LaunchRequest, Parameter};
    ///
    /// let guard = Guard::cuda(0)?;
    /// let source = "extern \"C\" __global__ void fill(float *x) { x[threadIdx.x] = 1; }";
    /// // SAFETY: `fill` takes one pointer, to as many elements as the block has threads.
    /// let fill = unsafe { guard.compile("fill.cu", source)?.kernel("fill", &[Parameter::Memory])? };
    ///
    /// let stream = guard.context().expect("a device").default_stream();
    /// let mut x = stream.alloc_zeros::<f32>(128)?;
    /// let mut args = Args::new(&stream);
    /// args.write(&mut x);
    /// guard.launch(&fill, &LaunchRequest::new(Dim3::ONE, Dim3::new(128, 1, 1)), args)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CudaError`] if there is no driver, no such device, or the context cannot be created.
    pub fn cuda(ordinal: usize) -> Result<Self, CudaError> {
        let count = query::device_count()?;
        if ordinal >= count {
            return Err(CudaErrorKind::NoSuchDevice { ordinal, count }.into());
        }
        let context = CudaContext::new(ordinal)
            .map_err(|error| from_cudarc(None, "cuDevicePrimaryCtxRetain", error))?;
        Self::with_context(context)
    }

    /// A guard in the caller's context.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the device cannot be queried.
    pub fn with_context(context: Arc<CudaContext>) -> Result<Self, CudaError> {
        let limits = query::limits_of_context(Driver::get()?, &context)?;
        let mut guard = Self::host(limits);
        guard.cuda = Some(GuardContext::new(context.cu_ctx().cast(), Some(context)));
        Ok(guard)
    }

    /// A guard in a context of another CUDA binding (a `CUcontext`), for [`Self::launch_raw`].
    ///
    /// The calling thread's current context is the same afterwards.
    ///
    /// # Safety
    ///
    /// The context is alive for as long as the guard and its kernels are.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if there is no driver, or the device cannot be queried.
    pub unsafe fn with_raw_context(context: *mut c_void) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let _current = CurrentContext::new(driver, context)?;
        let mut guard = Self::host(query::limits_of_current_device(driver)?);
        guard.cuda = Some(GuardContext::new(context, None));
        Ok(guard)
    }

    /// A guard of the device with the most free memory, in its primary context.
    pub(crate) fn with_most_free_memory() -> Result<Self, CudaError> {
        let count = query::device_count()?;
        if count == 1 {
            return Self::cuda(0);
        }
        // A device that cannot be queried is skipped as long as another can.
        let mut failure = CudaErrorKind::NoSuchDevice { ordinal: 0, count }.into();
        let mut best = None;
        for ordinal in 0..count {
            match query::free_memory(ordinal) {
                Ok((free, _)) => best = best.max(Some((free, Reverse(ordinal)))),
                Err(error) => failure = error,
            }
        }
        best.map_or(Err(failure), |(_, Reverse(ordinal))| Self::cuda(ordinal))
    }

    /// The same guard, which synchronises each launch at once if `checked`, so that an error names the
    /// faulting launch instead of a list of suspects. Slow: for debugging. If other processes cause
    /// faults on the same device at the same time, the driver may report a fault one launch late (seen
    /// once in some hundreds of runs, H200, driver 580.159.04).
    ///
    /// By default the environment variable `GRIDGUARD_SYNC` decides, read once: `1` turns it on, also
    /// for launches without a guard. Launches during stream capture cannot be synchronised; they are
    /// counted in [`Counts::unchecked_in_capture`](crate::Counts::unchecked_in_capture).
    #[must_use]
    pub fn with_checked_launches(mut self, checked: bool) -> Self {
        if let Some(cuda) = &mut self.cuda {
            cuda.checked = checked;
        }
        self
    }

    /// Waits for all launches on `stream`. They are no longer suspects of an error that surfaces
    /// later.
    ///
    /// # Errors
    ///
    /// [`CudaErrorKind::Driver`] with its suspects, if an earlier launch failed.
    pub fn synchronize(&self, stream: &CudaStream) -> Result<(), CudaError> {
        Ok(synchronize(Driver::get()?, stream)?)
    }

    /// The recent launches in the guard's context, the newest first: up to 64 of each of 15 streams,
    /// and 64 of all others; including those through launch builders and raw handles.
    pub fn recent_launches(&self) -> Vec<LaunchRecord> {
        self.cuda.as_ref().map(|cuda| cuda.history.0.launches()).unwrap_or_default()
    }

    /// The context that the guard launches in; `None` on the host, and in a context of another binding.
    #[inline]
    pub fn context(&self) -> Option<&Arc<CudaContext>> {
        self.cuda.as_ref()?.context.as_ref()
    }

    /// The priorities that launches on the device can have, from the highest (the lowest number) to
    /// the lowest; `0..=0` if the device has none, `None` if the driver has no such query.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the query fails, or the guard runs on the host.
    pub fn priorities(&self) -> Result<Option<RangeInclusive<i32>>, CudaError> {
        let (driver, context) = (Driver::get()?, self.device_context()?);
        let Some(look_up) = driver.stream_priority_range else { return Ok(None) };
        driver.bind_cudarc(context)?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both pointers are to live integers, and a context is current.
        let status = unsafe { look_up(&raw mut least, &raw mut greatest) };
        driver.check("cuCtxGetStreamPriorityRange", status)?;
        // The highest priority is the lowest number.
        Ok(Some(greatest..=least))
    }

    /// Free and total memory of the guard's device in bytes, at this moment. Freed memory that the
    /// pools of streams retain does not count as free.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the query fails, or the guard runs on the host.
    pub fn free_memory(&self) -> Result<(u64, u64), CudaError> {
        let context = self.device_context()?.cu_ctx().cast();
        Ok(query::free_memory_in(Driver::get()?, context)?)
    }

    /// `batch` with `bytes_per_item` bytes of workspace for each item, within nine tenths of the
    /// free memory of the device. The rest is left for other allocations and the driver's rounding.
    ///
    /// # Errors
    ///
    /// As [`Self::free_memory`].
    pub fn workspace(&self, batch: BatchAxis, bytes_per_item: u64) -> Result<BatchAxis, CudaError> {
        let (free, _) = self.free_memory()?;
        Ok(batch.workspace(bytes_per_item, free - free.div_ceil(10)))
    }

    /// Loads an image into the guard's context.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the image is for another architecture, newer than the driver, or
    /// rejected; and as in [`Self::fallback`] if the guard runs on the host.
    pub fn load(&self, image: &Image) -> Result<Module, CudaError> {
        Module::load(self.device_context()?, image)
    }

    /// Compiles `source` with NVRTC for the guard's device and loads it.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if there is no NVRTC or the source does not compile, and as
    /// [`Self::load`].
    pub fn compile(&self, name: &str, source: &str) -> Result<Module, CudaError> {
        let options = CompileOptions::new(name, self.limits().compute_capability);
        self.load(&Compiler::find()?.compile(source, &options)?.image)
    }

    /// The context that the guard launches in, or why it runs on the host.
    pub(crate) fn device_context(&self) -> Result<&Arc<CudaContext>, CudaError> {
        self.context().ok_or_else(|| match self.fallback() {
            Some(FallbackReason::Cuda(reason)) => reason.clone(),
            _ => CudaErrorKind::OnHost.into(),
        })
    }

    /// The handle of the context that the guard launches in.
    pub(crate) fn context_handle(&self) -> Result<Handle, CudaError> {
        match &self.cuda {
            Some(cuda) => Ok(core::ptr::without_provenance_mut(cuda.handle)),
            None => Ok(self.device_context()?.cu_ctx().cast()),
        }
    }

    /// The plan that the profile chooses; `None` where it has no entry for the shape, or its choice is
    /// not legal here, which is counted. Allocates nothing, and takes no lock but the miss log's.
    #[cfg(feature = "profile")]
    pub(crate) fn tuned_plan(
        &self,
        tuning: &KernelTuning<'_>,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        limits: &LaunchLimits,
    ) -> Option<Plan> {
        let items = match batch {
            Some(batch) => batch.items(),
            // Without a batch, only a rewritten kernel has a choice.
            None if limits.forms().is_none() || check(request, limits).is_ok() => return None,
            None => saturated(request.grid.volume()),
        };
        let mut sizes = ArrayVec::<u64, MAX_SIZES>::new();
        // No entry has more sizes, so the lookup of a longer shape finds none.
        let sizes = match sizes.try_extend_from_slice(&tuning.sizes) {
            Ok(()) => sizes.as_mut_slice(),
            Err(_) => &mut tuning.sizes.clone(),
        };
        if let Some(first) = sizes.first_mut() {
            *first = items;
        }
        let tuned = self.tuned(&tuning.key, &tuning.names, sizes);
        tuned.entry?;
        let plan = Plan::new(request, batch, limits, tuned.choice());
        if plan.is_err() {
            tuned.refused();
        }
        plan.ok()
    }

    #[inline]
    pub(crate) const fn watch(&self, call_site: &'static Location<'static>) -> Watch {
        let checked = matches!(&self.cuda, Some(GuardContext { checked: true, .. }));
        Watch { call_site, checked }
    }
}

/// Waits for all launches on `stream`, without a report to observers.
pub(crate) fn synchronize(driver: &Driver, stream: &CudaStream) -> Result<(), DriverError> {
    let context = stream.context().cu_ctx().cast();
    driver.bind(context)?;
    let history = ContextHistory::of(context);
    // SAFETY: `stream` holds the stream, whose context is current.
    unsafe { driver.synchronize(&history.0, stream.cu_stream().cast()) }
}
