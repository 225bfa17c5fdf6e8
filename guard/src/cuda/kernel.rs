//! A function on a device together with what it allows.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction};
use once_cell::sync::OnceCell;

use super::checked::{self, Watch};
use super::driver::{Driver, Handle};
use super::error::{DriverError, LaunchError};
use super::history::{ContextHistory, History};
use super::module::Loaded;
use super::occupancy::{Configuration, Occupancy};
use super::query::{self, function_attribute};
use super::suspects::FaultSuspects;
use crate::launch::co_resident::{OccupancyLimits, validate_co_resident};
use crate::launch::request::LaunchRequest;
use crate::launch::validate::ValidLaunch;
use crate::limits::{DeviceLimits, LaunchLimits};
use crate::plan::chunk::Chunk;
use crate::plan::signature::Signature;

/// CUDA 12.3, the first driver that also captures such launches into graphs.
const OVERLAP_DRIVER: i32 = 12_030;

/// A kernel, ready to be planned for and launched. Cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct Kernel {
    inner: Arc<Inner>,
    #[allow(dead_code, reason = "held, not looked at")]
    keep: Arc<(Keep, Arc<ContextHistory>)>,
    /// Whether a chunk may begin before the one before it has ended.
    overlap: bool,
    /// Whether a launch may begin before the one before it has ended.
    dependent: bool,
}

/// All that a launch looks at. Holds neither the function of a launch builder nor its context.
pub(super) struct Inner {
    driver: &'static Driver,
    function: Handle,
    context: Handle,
    /// The context of a kernel that the guard loaded, here where launches look.
    owned: Option<Arc<CudaContext>>,
    limits: LaunchLimits,
    signature: Signature,
    /// Dynamic shared memory that the function has without opt-in.
    dynamic_shared_bytes: u64,
    /// Set once the kernel is opted in to all that the device allows.
    opt_in: OnceCell<()>,
    occupancy: Occupancy,
    /// The launches of the context.
    history: Arc<History>,
    /// The kernel's number there.
    number: u32,
}

/// What keeps the function loaded.
pub(super) enum Keep {
    /// A module of the guard.
    Module(Arc<Loaded>),
    /// A function of cudarc, whose module it holds, and the context that it is launched in, which
    /// need not be the module's.
    #[allow(dead_code, reason = "holds the module and the context")]
    Cudarc(CudaFunction, Arc<CudaContext>),
    /// The owner of raw handles, by promise.
    Caller,
}

// SAFETY: function and context handles may be used from any thread; every launch binds the
// context first. The driver locks its own tables.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Kernel {
    /// Queries the limits of `function`; its `context` must be current.
    pub(super) fn from_parts(
        driver: &'static Driver,
        function: Handle,
        context: Handle,
        device: Arc<DeviceLimits>,
        name: String,
        signature: Signature,
        keep: Keep,
    ) -> Result<Self, DriverError> {
        let limits = query::kernel_limits(driver, function, name)?;
        let dynamic_shared_bytes = limits.max_dynamic_shared_bytes;
        let limits = LaunchLimits::new(device, limits).with_automatic_opt_in();
        let opt_in = OnceCell::new();
        let history = ContextHistory::of(context);
        let number = history.number_of(&limits.kernel().name);
        let owned = match &keep {
            Keep::Module(module) => Some(Arc::clone(module.context())),
            Keep::Cudarc(..) | Keep::Caller => None,
        };
        let inner = Arc::new(Inner {
            driver,
            function,
            context,
            owned,
            limits,
            signature,
            dynamic_shared_bytes,
            opt_in,
            occupancy: Occupancy::default(),
            history: history.share(),
            number,
        });
        let keep = Arc::new((keep, history));
        Ok(Self { inner, keep, overlap: false, dependent: false })
    }

    /// The same kernel, whose chunks overlap where the device and the driver can: a chunk of a split
    /// launch begins as soon as the one before it leaves room, instead of when it has ended.
    ///
    /// On devices before compute capability 9.0, and with drivers before CUDA 12.3, chunks follow
    /// one another as ever.
    ///
    /// # Safety
    ///
    /// From `sm_90` on, every thread of the device code executes `griddepcontrol.wait` as its last
    /// instruction, after all that it writes, so that a chunk ends only after those before it; and
    /// chunks do not write what others read or write. Code without
    /// `griddepcontrol.launch_dependents` gains nothing.
    #[must_use]
    pub unsafe fn with_overlapping_chunks(mut self) -> Self {
        let driver = self.inner.driver;
        self.overlap = self.limits().device().overlapping_launches()
            && driver.launch_kernel_ex.is_some()
            && driver.version().is_ok_and(|version| version >= OVERLAP_DRIVER);
        self
    }

    /// The same kernel, which takes requests that are
    /// [`dependent`](crate::LaunchRequest::dependent).
    ///
    /// # Safety
    ///
    /// Every thread of the device code executes `griddepcontrol.wait` before it touches memory
    /// that a launch before it may use, and in any case before it ends.
    #[must_use]
    pub const unsafe fn with_dependent_launches(mut self) -> Self {
        self.dependent = true;
        self
    }

    /// Whether the kernel takes requests that are dependent.
    #[must_use]
    pub const fn takes_dependent_launches(&self) -> bool {
        self.dependent
    }

    /// Whether chunks of a split launch overlap.
    #[must_use]
    pub const fn overlaps_chunks(&self) -> bool {
        self.overlap
    }

    /// What the kernel allows on its device, with the shared memory that it can opt in to: the
    /// guard does that at the first launch that needs it.
    #[must_use]
    pub fn limits(&self) -> &LaunchLimits {
        &self.inner.limits
    }

    /// The kernel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.limits().kernel().name
    }

    /// What the device holds at once of the blocks that `request` asks for: asked of the driver at
    /// the first use of such blocks, and kept. The guard holds each cooperative launch against it and
    /// each in clusters, also in those that the kernel was compiled with; for others, and where the
    /// block itself breaks a rule, nothing is asked or known.
    ///
    /// # Errors
    ///
    /// [`DriverError`] where the driver does not answer.
    pub fn occupancy(&self, request: &LaunchRequest) -> Result<OccupancyLimits, DriverError> {
        self.inner.driver.bind(self.inner.context)?;
        self.inner.occupancy(request)
    }

    pub(super) fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    /// The context of a kernel that the guard loaded.
    pub(super) fn owned_context(&self) -> Option<&Arc<CudaContext>> {
        self.inner.owned.as_ref()
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Inner {
    pub(super) const fn driver(&self) -> &'static Driver {
        self.driver
    }

    pub(super) const fn function(&self) -> Handle {
        self.function
    }

    pub(super) const fn context(&self) -> Handle {
        self.context
    }

    pub(super) const fn limits(&self) -> &LaunchLimits {
        &self.limits
    }

    pub(super) const fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Records a launch that the driver accepted, one of so many `launches`, and waits for it where
    /// that is asked for.
    #[inline]
    pub(super) fn accepted(
        &self,
        stream: Handle,
        chunk: &Chunk,
        launch: &ValidLaunch,
        launches: u64,
        watch: Watch,
    ) -> Result<(), DriverError> {
        self.history.record(self.number, stream, chunk, launch, launches, watch.call_site);
        if watch.checked { checked::wait(self.driver, &self.history, stream) } else { Ok(()) }
    }

    /// The `error` of a call that does more than launch, such as to record events afterwards: a
    /// quick fault of the launch itself surfaces there, so that it is among those to blame.
    #[cold]
    pub(super) fn may_be_at_fault(
        &self,
        stream: Handle,
        chunk: &Chunk,
        launch: &ValidLaunch,
        watch: Watch,
        error: DriverError,
    ) -> DriverError {
        let name = &self.limits.kernel().name;
        // Who goes on launching in a lost context does not crowd out the others.
        let is_named = |blame: &FaultSuspects| {
            let mut launches = blame.launches().iter();
            launches.any(|one| *one.kernel == **name && one.call_site == watch.call_site)
        };
        match error.suspects() {
            Some(blame) if !is_named(blame) => {
                self.history.record(self.number, stream, chunk, launch, 1, watch.call_site);
                error.blamed_anew(self.driver, self.context)
            }
            _ => error,
        }
    }

    /// Whether a launch with so much dynamic shared memory must be opted in to.
    #[inline]
    pub(super) fn needs_opt_in(&self, dynamic_shared_bytes: u32) -> bool {
        u64::from(dynamic_shared_bytes) > self.dynamic_shared_bytes
    }

    /// Opts in to large dynamic shared memory where a launch needs it. The context is current.
    #[inline]
    pub(super) fn opt_in(&self, dynamic_shared_bytes: u32) -> Result<(), DriverError> {
        if self.needs_opt_in(dynamic_shared_bytes) {
            // A refusal is not kept: the next launch asks again.
            self.opt_in.get_or_try_init(|| self.raise_limit())?;
        }
        Ok(())
    }

    /// [`Kernel::occupancy`] with the context current.
    pub(super) fn occupancy(
        &self,
        request: &LaunchRequest,
    ) -> Result<OccupancyLimits, DriverError> {
        match Configuration::of(request, &self.limits) {
            Some(configuration) => self.residency_of(configuration),
            None => Ok(OccupancyLimits::UNKNOWN),
        }
    }

    fn residency_of(&self, configuration: Configuration) -> Result<OccupancyLimits, DriverError> {
        // Until then the driver sees no room for blocks with so much.
        self.opt_in(configuration.dynamic_shared_bytes())?;
        self.occupancy.of(self.driver, self.function, &self.limits, configuration)
    }

    /// Holds a valid launch against what the device holds at once. The context is current.
    pub(super) fn check_occupancy(&self, launch: &ValidLaunch) -> Result<(), LaunchError> {
        let request = launch.request();
        let residency = self.occupancy(&request)?;
        let _still_valid = validate_co_resident(&request, &self.limits, &residency)?;
        Ok(())
    }

    #[cold]
    fn raise_limit(&self) -> Result<(), DriverError> {
        let most = self.limits.kernel().max_dynamic_shared_bytes;
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        let attribute = function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded in the context that is current.
        let status = unsafe { (self.driver.func_set_attribute)(self.function, attribute, most) };
        self.driver.check("cuFuncSetAttribute", status)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("limits", self.limits()).finish_non_exhaustive()
    }
}
