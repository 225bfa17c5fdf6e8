//! The part of [`Guard`] that talks to a device.

use core::ops::RangeInclusive;
use core::panic::Location;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use super::args::Args;
use super::checked::{self, Watch};
use super::driver::{Driver, Handle};
use super::error::{CudaError, DriverError, LaunchError, LoadError};
use super::history::{ContextHistory, LaunchRecord};
use super::image::Image;
use super::kernel::Kernel;
use super::launch::{plan_and_submit, submit};
use super::memory::free_memory;
use super::module::Module;
use super::nvrtc::{CompileOptions, Compiler};
use super::query;
use crate::guard::{Backend, FallbackReason, Guard};
use crate::launch::request::LaunchRequest;
use crate::plan::batch::BatchAxis;
use crate::plan::launches::Plan;
use crate::record::Counts;

/// A device that a guard serves.
#[derive(Clone, Debug)]
pub(crate) struct CudaBackend {
    context: Arc<CudaContext>,
    history: Arc<ContextHistory>,
    /// Whether each launch is waited for.
    checked: bool,
}

impl CudaBackend {
    /// `counts` with what is counted for the context.
    pub(crate) fn counted(&self, counts: Counts) -> Counts {
        self.history.counted(counts)
    }
}

impl Guard {
    /// A guard of device `ordinal`, in its primary context.
    ///
    /// # Errors
    ///
    /// [`CudaError`] where there is no driver, no such device, or the context cannot be made.
    pub fn cuda(ordinal: usize) -> Result<Self, CudaError> {
        let count = query::device_count()?;
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal)
            .map_err(|error| DriverError::from_cudarc(None, "cuDevicePrimaryCtxRetain", error))?;
        Self::with_context(context)
    }

    /// A guard in a context of the caller's.
    ///
    /// # Errors
    ///
    /// [`CudaError`] where the device cannot be queried.
    pub fn with_context(context: Arc<CudaContext>) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let limits = query::limits_of_context(driver, &context)?;
        let history = ContextHistory::of(context.cu_ctx().cast());
        let checked = checked::by_environment();
        Ok(Self::new(limits, Backend::Cuda(CudaBackend { context, history, checked }), None))
    }

    /// The same guard, which waits for each launch, so that an error names the launch at fault and
    /// not those that can be. Slow: for the search, not for serving. Where other processes fault the
    /// same device at the same time the driver may tell of a fault one launch late (seen once in some
    /// hundreds, H200, driver 580.159.04).
    ///
    /// Without this call the variable `GRIDGUARD_SYNC` decides, read once: `1` asks for it, also in
    /// launches without a guard. A launch that a stream capture takes up is not waited for, and
    /// counted: [`Counts::unchecked_in_capture`](crate::Counts::unchecked_in_capture).
    #[must_use]
    pub fn with_checked_launches(mut self, checked: bool) -> Self {
        if let Backend::Cuda(cuda) = self.backend_mut() {
            cuda.checked = checked;
        }
        self
    }

    /// Waits for all that was launched on `stream`, and notes that it has run without an error: an
    /// error that surfaces later is not blamed on it.
    ///
    /// # Errors
    ///
    /// [`CudaError::Driver`] with the launches that can be to blame, where one of them failed.
    pub fn synchronize(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let (driver, context) = (Driver::get()?, stream.context().cu_ctx().cast());
        driver.bind(context)?;
        let history = ContextHistory::of(context);
        Ok(checked::synchronize(driver, &history, stream.cu_stream().cast())?)
    }

    /// The launches on record, the newest first: of each stream of the guard's context up to 64 by
    /// the thread that used it first, and 64 by all others; also those through launch builders and
    /// raw handles. The order between streams and threads is that of a clock that ticks every 1 to
    /// 10 ms.
    #[must_use]
    pub fn recent_launches(&self) -> Vec<LaunchRecord> {
        match self.backend() {
            Backend::Cuda(cuda) => cuda.history.launches(),
            Backend::Host => Vec::new(),
        }
    }

    /// The device with the most free memory, or why there is none.
    pub(crate) fn freest_device() -> Result<Self, CudaError> {
        let count = query::device_count()?;
        if count == 1 {
            return Self::cuda(0);
        }
        // A device that cannot be asked is passed over as long as another can.
        let mut freest = Err(CudaError::NoSuchDevice { ordinal: 0, count });
        for ordinal in 0..count {
            freest = match (free_memory(ordinal), freest) {
                (Ok((free, _)), Ok((most, other))) if most >= free => Ok((most, other)),
                (Ok((free, _)), _) => Ok((free, ordinal)),
                (Err(_), Ok(other)) => Ok(other),
                (Err(error), Err(_)) => Err(error),
            };
        }
        freest.and_then(|(_, ordinal)| Self::cuda(ordinal))
    }

    /// The context of the device, where the guard serves one.
    #[must_use]
    pub fn context(&self) -> Option<&Arc<CudaContext>> {
        match self.backend() {
            Backend::Cuda(cuda) => Some(&cuda.context),
            Backend::Host => None,
        }
    }

    /// The priorities that launches on the device can have, the first one first; `0..=0` where it
    /// knows none. `None` where the driver cannot tell.
    ///
    /// # Errors
    ///
    /// [`CudaError`] where the driver does not answer, or the guard serves the host.
    pub fn priorities(&self) -> Result<Option<RangeInclusive<i32>>, CudaError> {
        let context = self.context().ok_or_else(|| self.why_host())?;
        query::priorities_of(context)
    }

    /// Loads an image into the guard's context.
    ///
    /// # Errors
    ///
    /// [`CudaError::Load`] where the image is for another architecture, newer than the driver, or
    /// refused; [`CudaError::Unavailable`] where the guard serves the host.
    pub fn load(&self, image: &Image) -> Result<Module, CudaError> {
        match self.context() {
            Some(context) => Module::load(context, image),
            None => Err(self.why_host()),
        }
    }

    /// Compiles `source` with NVRTC for the guard's device and loads it.
    ///
    /// # Errors
    ///
    /// [`CudaError::Compile`] where there is no NVRTC or the source is refused, and as
    /// [`Self::load`].
    pub fn compile(&self, name: &str, source: &str) -> Result<Module, CudaError> {
        let options = CompileOptions::new(name, self.limits().compute_capability);
        let compiler = Compiler::find().map_err(super::error::NvrtcError::from)?;
        self.load(&compiler.compile(source, &options)?.image)
    }

    pub(super) fn why_host(&self) -> CudaError {
        match self.fallback() {
            Some(FallbackReason::Cuda(reason)) => reason.clone(),
            _ => LoadError::NoDevice.into(),
        }
    }

    /// Submits every launch of `plan` to the stream of `args` and answers how many there were.
    /// Returns before they have run.
    ///
    /// Under stream capture the launches become nodes of the graph: nothing here synchronizes or
    /// allocates. The graph holds neither kernel nor memory: keep both for as long as it is launched,
    /// as with cudarc's own copies. cudarc's own events cannot be waited for there: capture in a context whose event
    /// tracking is disabled, as with cudarc's own launches.
    ///
    /// # Errors
    ///
    /// [`LaunchError`] where plan, arguments, stream and kernel do not belong together, or the
    /// device does not hold a cooperative grid or a cluster at once, all before anything is
    /// launched; or where the driver refuses a launch.
    #[track_caller]
    pub fn launch(&self, kernel: &Kernel, plan: &Plan, args: Args<'_>) -> Result<u64, LaunchError> {
        let (stream, watch) = (self.bind(kernel, &args)?, self.watch(Location::caller()));
        // SAFETY: the stream is of the kernel's context, which `bind` checked. Whoever loaded the
        // kernel promised that it keeps its contract for arguments of the declared kind, which
        // `submit` holds them against: memory is cudarc's slices, of this context, of the length
        // that the items need, alive until their events are recorded.
        self.count(unsafe { submit(kernel, stream, plan, args.values(), watch) })
    }

    /// Plans `request` for `kernel` and launches it: [`Self::plan`] and [`Self::launch`] in one.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Invalid`] where no plan is legal, and as [`Self::launch`].
    #[inline]
    #[track_caller]
    pub fn plan_and_launch(
        &self,
        kernel: &Kernel,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        args: Args<'_>,
    ) -> Result<u64, LaunchError> {
        let (stream, watch) = (self.bind(kernel, &args)?, self.watch(Location::caller()));
        // SAFETY: as in `launch`.
        self.count(unsafe { plan_and_submit(kernel, stream, request, batch, args.values(), watch) })
    }

    #[inline]
    pub(super) const fn watch(&self, call_site: &'static Location<'static>) -> Watch {
        let checked = matches!(self.backend(), Backend::Cuda(CudaBackend { checked: true, .. }));
        Watch { call_site, checked }
    }

    /// Makes the kernel's context current and gives the stream of `args`, where all belong together.
    #[inline]
    pub(super) fn bind(&self, kernel: &Kernel, args: &Args<'_>) -> Result<Handle, LaunchError> {
        if let Some(what) = self.foreign_to(kernel, args) {
            return Err(other_context(what, kernel));
        }
        if args.has_uses() {
            // What cudarc could not say while the arguments waited for other streams.
            query::recorded_failure(args.stream().context())?;
        }
        let kernel = kernel.inner();
        kernel.driver().bind(kernel.context())?;
        Ok(args.stream().cu_stream().cast())
    }

    /// What does not belong to the context of `kernel`, if anything.
    #[inline]
    fn foreign_to(&self, kernel: &Kernel, args: &Args<'_>) -> Option<&'static str> {
        let own = kernel.owned_context();
        let is_own = |context: Option<&Arc<CudaContext>>| match (own, context) {
            (Some(own), Some(context)) => Arc::ptr_eq(own, context) || own == context,
            _ => false,
        };
        if !is_own(self.context()) {
            return Some("the guard");
        }
        if !is_own(Some(args.stream().context())) {
            return Some("the stream");
        }
        args.has_foreign_memory().then_some("an argument's memory")
    }

    #[inline]
    fn count(&self, launched: Result<u64, LaunchError>) -> Result<u64, LaunchError> {
        match &launched {
            Ok(launches) => self.counters().ran(*launches),
            Err(LaunchError::Stopped(stopped)) => self.counters().stopped(stopped.chunk),
            Err(LaunchError::Invalid(violations)) => self.counters().rejected(violations),
            Err(_) => {}
        }
        launched
    }
}

#[cold]
fn other_context(what: &'static str, kernel: &Kernel) -> LaunchError {
    let name = kernel.name().to_owned();
    match kernel.owned_context() {
        Some(_) => LaunchError::OtherContext { what, kernel: name },
        None => LaunchError::Undeclared { kernel: name },
    }
}
