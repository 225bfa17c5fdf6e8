//! A kernel on a device with its limits, ready to be launched.

use core::fmt;
use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction};
use once_cell::sync::OnceCell;

use super::context::{self, Watch};
use super::error::{DriverError, LaunchError, LoadError};
use super::faults::FaultSuspects;
use super::history::{ContextHistory, History};
use super::module::{LoadedModule, Module};
use super::occupancy::{Configuration, Occupancy};
use super::query::{self, function_attribute};
use super::symbols::{Driver, Handle, NOT_FOUND};
#[cfg(feature = "profile")]
use super::tuning::KernelTuning;
use crate::launch::request::LaunchRequest;
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::validate_co_resident;
use crate::limits::{DeviceLimits, LaunchLimits, OccupancyLimits};
use crate::plan::chunks::Chunk;
use crate::plan::signature::{Parameter, Signature};
#[cfg(feature = "profile")]
use crate::profile::model::Key;

/// CUDA 12.3, the first driver that captures overlapping launches into graphs.
const OVERLAP_DRIVER: i32 = 12_030;

/// A kernel, ready to be planned for and launched. Cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct Kernel {
    inner: Arc<Inner>,
    #[allow(dead_code, reason = "keeps the function loaded and the history known")]
    keep: Arc<(Keep, Arc<ContextHistory>)>,
    /// Whether a chunk may begin before the one before it has ended.
    overlap: bool,
    /// Whether requests may be dependent.
    dependent: bool,
    #[cfg(feature = "profile")]
    tuning: Option<Arc<KernelTuning>>,
}

/// All that a launch reads. Holds neither the function of a launch builder nor its context.
pub(super) struct Inner {
    driver: &'static Driver,
    function: Handle,
    context: Handle,
    /// The context of a kernel that the guard loaded.
    owned: Option<Arc<CudaContext>>,
    limits: LaunchLimits,
    signature: Signature,
    /// Dynamic shared memory that the function may use without opt-in.
    dynamic_shared_bytes: u64,
    /// Set once the kernel is opted in to all that the device allows.
    opt_in: OnceCell<()>,
    occupancy: Occupancy,
    /// The launches of the context.
    history: Arc<History>,
    /// The kernel's number in `history`.
    number: u32,
}

/// What keeps a function loaded.
#[allow(dead_code, reason = "held until dropped, not read")]
pub(super) enum Keep {
    /// A module of the guard.
    Module(Arc<LoadedModule>),
    /// A function of cudarc, which holds its module, and the context that it is launched in, which
    /// need not be the module's.
    Cudarc(CudaFunction, Arc<CudaContext>),
    /// The owner of raw handles, by contract.
    Caller,
}

// SAFETY: the handles are plain numbers to this process; the driver may be called with them from any
// thread on which the context is current, and every call makes it current first.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver locks contexts and functions in concurrent calls.
unsafe impl Sync for Inner {}

impl Module {
    /// The kernel `name`, which takes `parameters`, with its limits.
    ///
    /// Launching it is safe from here on, because its contract is vouched for here: arguments are
    /// checked against `parameters` at every launch.
    ///
    /// # Safety
    ///
    /// The device code called `name` takes `parameters`. On every launch of the kernel or a clone of
    /// it, it accesses only memory that its [`Parameter::Memory`] arguments reach, and writes only
    /// what was passed to be written: whole slices, or from each item on as many elements as an item
    /// is declared to have; of a workspace, as much as the batch declares for the items of a chunk.
    ///
    /// Few kernels can guarantee that by themselves, since they do not receive the length of their
    /// memory. Then keep the kernel private to code that passes enough memory to each launch.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoSuchKernel`] if the module has none of this name, [`LoadError::Parameters`]
    /// if the driver knows other parameters, [`LoadError::Driver`] if a query fails.
    pub unsafe fn kernel(&self, name: &str, parameters: &[Parameter]) -> Result<Kernel, LoadError> {
        let function = self.function(name, parameters)?;
        self.kernel_of(function, name, parameters)
    }

    /// As [`Self::kernel`], for launches in clusters of up to 16 blocks, above the portable 8. How
    /// many fit a device is in [`Kernel::occupancy`].
    ///
    /// # Safety
    ///
    /// As [`Self::kernel`].
    ///
    /// # Errors
    ///
    /// As [`Self::kernel`]; [`LoadError::Driver`] also if the driver refuses such clusters.
    pub unsafe fn kernel_in_wide_clusters(
        &self,
        name: &str,
        parameters: &[Parameter],
    ) -> Result<Kernel, LoadError> {
        let function = self.function(name, parameters)?;
        let attribute = function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        let driver = self.0.driver;
        // SAFETY: `self` keeps the function loaded, in the context that is current.
        let status = unsafe { (driver.func_set_attribute)(function, attribute, 1) };
        driver.check("cuFuncSetAttribute", status)?;
        self.kernel_of(function, name, parameters)
    }

    /// The function `name`, which takes `parameters`. Its context is current afterwards.
    fn function(&self, name: &str, parameters: &[Parameter]) -> Result<Handle, LoadError> {
        let LoadedModule { driver, context, kernels, .. } = &*self.0;
        let missing = || LoadError::NoSuchKernel { name: name.to_owned(), known: kernels.clone() };
        let symbol = CString::new(name).map_err(|_| missing())?;
        if name.is_empty() {
            // Drivers return another error than for a name that does not exist.
            return Err(missing());
        }
        driver.bind_cudarc(context)?;
        let mut function = core::ptr::null_mut();
        // SAFETY: `self` keeps the module loaded; the name is zero-terminated and outlives the call.
        let status = unsafe {
            (driver.module_get_function)(&raw mut function, self.0.handle, symbol.as_ptr())
        };
        match driver.check("cuModuleGetFunction", status) {
            Err(error) if error.code == NOT_FOUND => return Err(missing()),
            found => found?,
        }
        let declared: Vec<usize> = parameters.iter().map(|parameter| parameter.bytes()).collect();
        // SAFETY: the function is loaded in the context that is current.
        if let Some(known) = unsafe { query::parameter_sizes(driver, function) }?
            && known != declared
        {
            return Err(LoadError::Parameters { name: name.to_owned(), known, declared });
        }
        Ok(function)
    }

    fn kernel_of(
        &self,
        function: Handle,
        name: &str,
        parameters: &[Parameter],
    ) -> Result<Kernel, LoadError> {
        let LoadedModule { driver, context, device, .. } = &*self.0;
        let (context, device) = (context.cu_ctx().cast(), Arc::clone(device));
        let signature = Signature::Declared(parameters.to_vec());
        let keep = Keep::Module(Arc::clone(&self.0));
        // SAFETY: `keep` keeps the function loaded, and `function` made its context current.
        let kernel = unsafe {
            Kernel::from_parts(driver, function, context, device, name.to_owned(), signature, keep)
        };
        Ok(kernel?)
    }
}

impl Kernel {
    /// Queries the limits of `function`.
    ///
    /// # Safety
    ///
    /// `function` was loaded in `context`, which is current, and both live as long as `keep`.
    pub(super) unsafe fn from_parts(
        driver: &'static Driver,
        function: Handle,
        context: Handle,
        device: Arc<DeviceLimits>,
        name: String,
        signature: Signature,
        keep: Keep,
    ) -> Result<Self, DriverError> {
        // SAFETY: loaded in the current context, by this function's contract.
        let limits = unsafe { query::kernel_limits(driver, function, name) }?;
        let limits = LaunchLimits::new(device, limits);
        let dynamic_shared_bytes = limits.max_dynamic_shared_bytes();
        // The driver is asked for the occupancy of each launch that needs it.
        let limits = limits.with_automatic_opt_in().without_occupancy_estimate();
        let history = ContextHistory::of(context);
        let number = history.number_of(&limits.kernel().name);
        let owned = match &keep {
            Keep::Module(module) => Some(Arc::clone(&module.context)),
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
            opt_in: OnceCell::new(),
            occupancy: Occupancy::default(),
            history: history.share(),
            number,
        });
        Ok(Self {
            inner,
            keep: Arc::new((keep, history)),
            overlap: false,
            dependent: false,
            #[cfg(feature = "profile")]
            tuning: None,
        })
    }

    /// The same kernel, whose chunks overlap where device and driver support it: a chunk of a split
    /// launch begins as soon as the one before it leaves multiprocessors free, not only when it ends.
    ///
    /// On devices before compute capability 9.0, and with drivers before CUDA 12.3, chunks run one
    /// after another.
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
        self.overlap = self.limits().device().dependent_launch()
            && driver.launch_kernel_ex.is_some()
            && driver.version().is_ok_and(|version| version >= OVERLAP_DRIVER);
        self
    }

    /// The same kernel, which accepts requests that are
    /// [`dependent`](crate::LaunchRequest::dependent) (programmatic dependent launch).
    ///
    /// # Safety
    ///
    /// Every thread of the device code executes `griddepcontrol.wait` before it accesses memory
    /// that a launch before it may access, and in any case before it ends.
    #[must_use]
    pub const unsafe fn with_dependent_launches(mut self) -> Self {
        self.dependent = true;
        self
    }

    /// The same kernel, which [`Guard::plan_and_launch`](crate::Guard::plan_and_launch) plans as the
    /// guard's profile says.
    ///
    /// `key` is what the profile stores the kernel's choices under. The shape that is looked up has
    /// as its first size, called `items`, the items of the launch's batch; `sizes` are the others, in
    /// the order of the profile's entries. Launch parameters of an entry are not applied: the kernel
    /// is compiled already.
    ///
    /// ```no_run
    /// # fn load() -> gridguard::cuda::Kernel { unreachable!() }
    /// use gridguard::profile::Key;
    ///
    /// let key = Key { kernel: "rms_norm".into(), dtypes: "f16".into(), ..Key::default() };
    /// let kernel = load().with_tuning(key, "rows", &[("columns", 4096)]);
    /// ```
    #[cfg(feature = "profile")]
    #[must_use]
    pub fn with_tuning(
        mut self,
        key: Key,
        items: &'static str,
        sizes: &[(&'static str, u64)],
    ) -> Self {
        self.tuning = Some(Arc::new(KernelTuning::new(key, items, sizes)));
        self
    }

    /// Whether the kernel accepts dependent requests.
    #[must_use]
    pub const fn takes_dependent_launches(&self) -> bool {
        self.dependent
    }

    /// Whether chunks of a split launch overlap.
    #[must_use]
    pub const fn overlaps_chunks(&self) -> bool {
        self.overlap
    }

    /// What the kernel allows on its device, including the shared memory that needs opt-in: the
    /// guard opts in at the first launch that needs it.
    #[must_use]
    pub fn limits(&self) -> &LaunchLimits {
        &self.inner.limits
    }

    /// The kernel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.limits().kernel().name
    }

    /// How many blocks of `request` can be co-resident on the device, queried from the driver once
    /// for each launch configuration. The guard checks cooperative launches and those in clusters
    /// against it; for other launches, and where the block itself breaks a rule, it is unknown.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the query fails.
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

    #[cfg(feature = "profile")]
    pub(super) fn tuning(&self) -> Option<&KernelTuning> {
        self.tuning.as_deref()
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

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    /// Records a launch that the driver accepted, one of `launches`, and synchronises it if it is
    /// to be checked.
    ///
    /// # Safety
    ///
    /// `stream` is a live stream of the kernel's context, or null; the context is current.
    #[inline]
    pub(super) unsafe fn accepted(
        &self,
        stream: Handle,
        chunk: &Chunk,
        launch: &ValidLaunch,
        launches: u64,
        watch: Watch,
    ) -> Result<(), DriverError> {
        self.history.record(self.number, stream, chunk, launch, launches, watch.call_site);
        if !watch.checked {
            return Ok(());
        }
        // SAFETY: this function's contract.
        unsafe { context::check_launch(self.driver, &self.history, stream) }
    }

    /// Adds the launch to the suspects of `error`, which a call returned that does more than launch,
    /// such as record events afterwards: a quick fault of the launch itself surfaces there.
    #[cold]
    pub(super) fn add_to_suspects(
        &self,
        stream: Handle,
        chunk: &Chunk,
        launch: &ValidLaunch,
        watch: Watch,
        error: DriverError,
    ) -> DriverError {
        let name = &self.limits.kernel().name;
        // Repeated launches in a broken context must not crowd out the other suspects.
        let is_listed = |suspects: &FaultSuspects| {
            let mut launches = suspects.launches().iter();
            launches.any(|one| *one.kernel == **name && one.call_site == watch.call_site)
        };
        match error.suspects() {
            Some(suspects) if !is_listed(suspects) => {
                self.history.record(self.number, stream, chunk, launch, 1, watch.call_site);
                error.with_current_suspects(self.driver, self.context)
            }
            _ => error,
        }
    }

    /// Whether a launch with so much dynamic shared memory needs opt-in.
    #[inline]
    pub(super) fn needs_opt_in(&self, dynamic_shared_bytes: u32) -> bool {
        u64::from(dynamic_shared_bytes) > self.dynamic_shared_bytes
    }

    /// Opts in to large dynamic shared memory if a launch needs it. The context is current.
    #[inline]
    pub(super) fn opt_in(&self, dynamic_shared_bytes: u32) -> Result<(), DriverError> {
        if self.needs_opt_in(dynamic_shared_bytes) {
            // After an error the next launch tries again.
            self.opt_in.get_or_try_init(|| self.raise_limit())?;
        }
        Ok(())
    }

    /// [`Kernel::occupancy`] with the context current.
    pub(super) fn occupancy(
        &self,
        request: &LaunchRequest,
    ) -> Result<OccupancyLimits, DriverError> {
        let Some(configuration) = Configuration::of(request, &self.limits) else {
            return Ok(OccupancyLimits::UNKNOWN);
        };
        // Before opt-in the driver reports that no such block fits.
        self.opt_in(configuration.dynamic_shared_bytes())?;
        self.occupancy.of(self.driver, self.function, &self.limits, configuration)
    }

    /// Checks that the blocks of a valid launch fit the device at once. The context is current.
    pub(super) fn check_occupancy(&self, launch: &ValidLaunch) -> Result<(), LaunchError> {
        let request = launch.request();
        let _still_valid =
            validate_co_resident(&request, &self.limits, &self.occupancy(&request)?)?;
        Ok(())
    }

    #[cold]
    fn raise_limit(&self) -> Result<(), DriverError> {
        let most = self.limits.max_dynamic_shared_bytes();
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        let attribute = function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded for as long as the kernel lives, in the current context.
        let status = unsafe { (self.driver.func_set_attribute)(self.function, attribute, most) };
        self.driver.check("cuFuncSetAttribute", status)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("limits", self.limits()).finish_non_exhaustive()
    }
}
