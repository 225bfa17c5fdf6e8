//! The methods of [`Guard`] for CUDA devices.

use core::ops::RangeInclusive;
use core::panic::Location;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use super::arguments::Args;
use super::context::{self, CudaBackend, Watch};
use super::driver;
use super::error::{CudaError, LaunchError, LoadError, NvrtcError};
use super::history::{ContextHistory, LaunchRecord};
use super::image::Image;
use super::kernel::Kernel;
use super::launch::{count, plan_and_submit, submit};
use super::module::Module;
use super::nvrtc::{CompileOptions, Compiler};
use super::query;
use super::symbols::{Driver, Handle};
use crate::guard::{Backend, FallbackReason, Guard};
use crate::launch::request::LaunchRequest;
use crate::plan::batch::BatchAxis;
use crate::plan::launches::Plan;

impl Guard {
    /// A guard of device `ordinal`, in its primary context.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if there is no driver, no such device, or the context cannot be created.
    pub fn cuda(ordinal: usize) -> Result<Self, CudaError> {
        let (backend, limits) = CudaBackend::primary(ordinal)?;
        Ok(Self::new(limits, Backend::Cuda(backend), None))
    }

    /// A guard in the caller's context.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the device cannot be queried.
    pub fn with_context(context: Arc<CudaContext>) -> Result<Self, CudaError> {
        let (backend, limits) = CudaBackend::new(context)?;
        Ok(Self::new(limits, Backend::Cuda(backend), None))
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
        if let Backend::Cuda(cuda) = self.backend_mut() {
            cuda.checked = checked;
        }
        self
    }

    /// Waits for all launches on `stream`. They are no longer suspects of an error that surfaces
    /// later.
    ///
    /// # Errors
    ///
    /// [`CudaError::Driver`] with its suspects, if an earlier launch failed.
    pub fn synchronize(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let (driver, context) = (Driver::get()?, stream.context().cu_ctx().cast());
        driver.bind(context)?;
        let history = ContextHistory::of(context);
        // SAFETY: `stream` holds the stream, whose context is current.
        Ok(unsafe { context::synchronize(driver, &history, stream.cu_stream().cast()) }?)
    }

    /// The recent launches in the guard's context, the newest first: up to 64 of each of 15 streams,
    /// and 64 of all others; including those through launch builders and raw handles.
    #[must_use]
    pub fn recent_launches(&self) -> Vec<LaunchRecord> {
        match self.backend() {
            Backend::Cuda(cuda) => cuda.history.launches(),
            Backend::Host => Vec::new(),
        }
    }

    /// The context that the guard launches in; `None` on the host.
    #[must_use]
    pub fn context(&self) -> Option<&Arc<CudaContext>> {
        match self.backend() {
            Backend::Cuda(cuda) => Some(&cuda.context),
            Backend::Host => None,
        }
    }

    /// The priorities that launches on the device can have, from the highest (the lowest number) to
    /// the lowest; `0..=0` if the device has none, `None` if the driver has no such query.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the query fails, or the guard runs on the host.
    pub fn priorities(&self) -> Result<Option<RangeInclusive<i32>>, CudaError> {
        let context = self.context().ok_or_else(|| self.why_host())?;
        query::priorities_of(context)
    }

    /// Loads an image into the guard's context.
    ///
    /// # Errors
    ///
    /// [`CudaError::Load`] if the image is for another architecture, newer than the driver, or
    /// rejected; and as in [`Self::fallback`] if the guard runs on the host.
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
    /// [`CudaError::Compile`] if there is no NVRTC or the source does not compile, and as
    /// [`Self::load`].
    pub fn compile(&self, name: &str, source: &str) -> Result<Module, CudaError> {
        let options = CompileOptions::new(name, self.limits().compute_capability);
        let compiler = Compiler::find().map_err(NvrtcError::from)?;
        self.load(&compiler.compile(source, &options)?.image)
    }

    pub(super) fn why_host(&self) -> CudaError {
        match self.fallback() {
            Some(FallbackReason::Cuda(reason)) => reason.clone(),
            _ => LoadError::NoDevice.into(),
        }
    }

    /// Submits every launch of `plan` to the stream of `args` and returns their number, before they
    /// have run.
    ///
    /// During stream capture the launches become nodes of the graph: nothing here synchronises or
    /// allocates. The graph holds neither kernel nor memory: keep both for as long as it is launched.
    /// As with cudarc's own launches, capture in a context whose event tracking is disabled: cudarc's
    /// events cannot be waited for there.
    ///
    /// # Errors
    ///
    /// Before anything is launched, [`LaunchError`] if plan, arguments, stream and kernel do not
    /// belong together, or a cooperative grid or a cluster does not fit the device;
    /// [`LaunchError::Stopped`] if the driver refuses a launch.
    #[track_caller]
    pub fn launch(&self, kernel: &Kernel, plan: &Plan, args: Args<'_>) -> Result<u64, LaunchError> {
        let (stream, watch) = (self.bind(kernel, &args)?, self.watch(Location::caller()));
        // SAFETY: `bind` checked that the stream is of the kernel's context. `Module::kernel`'s caller
        // vouches for every launch with arguments of the declared kinds, which `submit` checks: memory
        // is cudarc's slices, of this context, long enough for the items, and alive until `args` is
        // dropped, which records the events that later uses and the slices' deallocation wait for.
        let launched = unsafe { submit(kernel, stream, plan, args.values(), watch) };
        count(self.counters(), launched)
    }

    /// Plans `request` for `kernel` and launches it: [`Self::plan`] and [`Self::launch`] in one.
    ///
    /// A kernel `with_tuning` (feature `profile`) is planned as the guard's profile says, if the
    /// request has a batch. If the profile has no entry for its shape, or the stored choice is not
    /// legal here, the planner chooses: see the profile's counts and the miss log.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Invalid`] if no plan is legal, and as [`Self::launch`].
    #[inline]
    #[track_caller]
    pub fn plan_and_launch(
        &self,
        kernel: &Kernel,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        args: Args<'_>,
    ) -> Result<u64, LaunchError> {
        #[cfg(feature = "profile")]
        if let (Some(tuning), Some(batch)) = (kernel.tuning(), batch)
            && let Some(plan) = tuning.plan(self, request, batch, kernel.limits())
        {
            return self.launch(kernel, &plan, args);
        }
        let (stream, watch) = (self.bind(kernel, &args)?, self.watch(Location::caller()));
        // SAFETY: as in `launch`.
        let launched =
            unsafe { plan_and_submit(kernel, stream, request, batch, args.values(), watch) };
        count(self.counters(), launched)
    }

    #[inline]
    pub(super) const fn watch(&self, call_site: &'static Location<'static>) -> Watch {
        let checked = matches!(self.backend(), Backend::Cuda(CudaBackend { checked: true, .. }));
        Watch { call_site, checked }
    }

    /// Makes the kernel's context current and returns the stream of `args`, if all belong together.
    #[inline]
    pub(super) fn bind(&self, kernel: &Kernel, args: &Args<'_>) -> Result<Handle, LaunchError> {
        if let Some(what) = self.foreign_to(kernel, args) {
            return Err(other_context(what, kernel));
        }
        if args.has_uses() {
            // cudarc records failures of making the stream wait for others, and returns them here.
            driver::recorded_failure(args.stream().context())?;
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
}

#[cold]
fn other_context(what: &'static str, kernel: &Kernel) -> LaunchError {
    let name = kernel.name().to_owned();
    match kernel.owned_context() {
        Some(_) => LaunchError::OtherContext { what, kernel: name },
        None => LaunchError::Undeclared { kernel: name },
    }
}
