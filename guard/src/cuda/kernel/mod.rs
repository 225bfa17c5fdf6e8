//! Kernels: images and functions enter, a [`Kernel`] with its limits and occupancy leaves.

pub(crate) mod functions;
#[cfg(feature = "ptx")]
pub(crate) mod index;
pub(crate) mod module;
pub(crate) mod occupancy;
pub(crate) mod tuning;

use core::any::Any;
use core::fmt;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::history::{ContextHistory, History};
use crate::cuda::driver::library::CurrentContext;
use crate::cuda::driver::query;
use crate::cuda::driver::symbols::{Driver, Handle};
use crate::cuda::error::{LaunchError, LaunchErrorKind};
use crate::cuda::kernel::occupancy::Occupancy;
use crate::cuda::kernel::tuning::Tuning;
use crate::launch::request::LaunchRequest;
use crate::launch::violation::Violations;
use crate::limits::attributes::function_attribute;
use crate::limits::{LaunchLimits, OccupancyLimits};
use crate::plan::signature::{Parameter, Signature};
#[cfg(feature = "ptx")]
use gridguard_ptx::Refusal;
#[cfg(feature = "profile")]
use {crate::cuda::kernel::tuning::KernelTuning, crate::profile::model::Key, std::borrow::Cow};

/// A kernel, ready to be planned for and launched. Cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) inner: Arc<Inner>,
    #[allow(dead_code, reason = "keeps the function loaded and the history known")]
    keep: Option<Arc<dyn Any + Send + Sync>>,
    /// Whether a chunk may begin before the one before it has ended.
    pub(crate) overlap: bool,
    /// Whether requests may be dependent.
    pub(crate) dependent: bool,
    #[cfg(feature = "ptx")]
    pub(crate) rewriting: Option<Arc<Rewriting>>,
    #[cfg(feature = "profile")]
    tuning: Option<Arc<KernelTuning<'static>>>,
}

/// What rewriting made of a kernel.
#[cfg(feature = "ptx")]
pub(crate) enum Rewriting {
    /// The forms, which take one more argument.
    Forms { shifted: Kernel, folded: Kernel },
    /// No forms, for this reason.
    Refused(Refusal),
}

/// All that a launch reads, in few cache lines, of which the driver's call leaves none. Holds neither the function of a
/// launch builder nor its context.
#[repr(C, align(64))]
pub(crate) struct Inner {
    pub(crate) driver: &'static Driver,
    pub(crate) function: Handle,
    pub(crate) context: Handle,
    /// The context of a kernel that the guard loaded.
    pub(crate) owned: Option<Arc<CudaContext>>,
    /// The launches of the context.
    pub(crate) history: Arc<History>,
    /// The kernel's number in `history`.
    pub(crate) number: u32,
    /// Whether the driver captures launches that overlap the one before.
    pub(crate) captures_overlap: bool,
    #[allow(dead_code, reason = "keeps the number")]
    recorded_name: Arc<str>,
    pub(crate) limits: LaunchLimits,
    pub(crate) signature: Signature,
    pub(crate) occupancy: Occupancy,
}

// SAFETY: the handles are plain numbers. The driver accepts them on any thread whose current context is
// theirs, and every call makes it current first.
unsafe impl Send for Inner {}
// SAFETY: shared access calls the driver with the same handles, and the driver locks contexts and functions in
// concurrent calls.
unsafe impl Sync for Inner {}

impl Kernel {
    /// Lets the chunks of a split launch overlap if device and driver support it: a chunk starts as soon as
    /// the one before it leaves multiprocessors free.
    ///
    /// On devices before compute capability 9.0, and with drivers before CUDA 12.3, chunks run one
    /// after another.
    ///
    /// # Safety
    ///
    /// From `sm_90` on:
    /// - in every grid some thread executes `griddepcontrol.wait` before it exits. A chunk then ends only
    ///   after the one before it, so that the end of the last one is the end of all;
    /// - no chunk writes memory that another one reads or writes, unless both do so by atomic operations
    ///   alone: any chunks of a launch may run at the same time.
    ///
    /// Code without `griddepcontrol.launch_dependents` gains nothing.
    #[must_use]
    pub unsafe fn with_overlapping_chunks(mut self) -> Self {
        self.overlap = self.limits().device().dependent_launch()
            && self.inner.driver.launch_kernel_ex.is_some()
            && self.inner.captures_overlap;
        self
    }

    /// The same kernel, which accepts requests that are
    /// [`dependent`](crate::LaunchRequest::dependent) (programmatic dependent launch).
    ///
    /// Drivers before CUDA 12.3 cannot capture such launches: during stream capture they are ordinary ones
    /// there.
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

    /// The same kernel, which [`Guard::launch`](crate::Guard::launch) plans as the
    /// guard's profile says.
    ///
    /// The profile stores the kernel's choices under `key`. The first size of the shape is called `items`: the
    /// items of the batch, or the blocks of the grid if a rewritten kernel is launched without one. `sizes` are
    /// the others, in the order of the profile's entries. Launch parameters of an entry are not applied, since
    /// the kernel is compiled already.
    ///
    /// ```no_run
    /// # fn load() -> gridguard::cuda::Kernel { unreachable!() }
    /// use gridguard::profile::Key;
    ///
    /// let key = Key { kernel: "rms_norm".into(), dtypes: "f16".into(), ..Key::default() };
    /// let kernel = load().with_tuning(key, "rows", &[("columns", 4096)]);
    /// ```
    #[cfg(feature = "profile")]
    pub fn with_tuning(
        mut self,
        key: Key,
        items: &'static str,
        sizes: &[(&'static str, u64)],
    ) -> Self {
        self.tuning = Some(Arc::new(KernelTuning::new(Cow::Owned(key), items, sizes)));
        self
    }

    /// A copy for a thread's own table, which does not keep the function loaded.
    pub(crate) fn unheld(&self) -> Self {
        Self { keep: None, ..self.clone() }
    }

    /// The sizes of the parameters in bytes, as declared or as the driver reports them; `None` if they are not
    /// known (drivers before CUDA 12.4).
    pub fn parameter_sizes(&self) -> Option<Vec<usize>> {
        let signature = &self.inner.signature;
        (0..signature.len()?).map(|index| signature.bytes_of(index)).collect()
    }

    /// What the kernel allows on its device, including the shared memory that needs opt-in: the
    /// guard opts in at the first launch that needs it.
    pub fn limits(&self) -> &LaunchLimits {
        &self.inner.limits
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.limits().kernel().name
    }

    /// How many blocks of `request` can be co-resident on the multiprocessors that the context can use, queried from
    /// the driver once for each launch configuration. The guard checks cooperative launches and those in clusters
    /// against it; for other launches, and for a block that breaks a rule, it is unknown.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the query fails.
    pub fn occupancy(&self, request: &LaunchRequest) -> Result<OccupancyLimits, DriverError> {
        let Inner { driver, context, occupancy, limits, .. } = &*self.inner;
        let current = CurrentContext::new(driver, *context);
        let queried = current.and_then(|_current| occupancy.of(limits, request, None));
        queried.inspect_err(|error| error.report())
    }

    /// Asks the driver for `percent` of a multiprocessor's L1 cache as shared memory, in all launches of the
    /// function; the rest stays cache. By default the driver reserves enough shared memory for the
    /// occupancy that registers and threads allow. It rounds up to a size that the device has, and reserves
    /// more if one block needs it. `None` leaves the share to the driver again.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the driver refuses, such as more than 100 percent.
    pub fn prefer_shared_memory(&self, percent: Option<u8>) -> Result<(), DriverError> {
        let percent = percent.map_or(-1, i32::from);
        let Inner { driver, context, function, .. } = *self.inner;
        let attribute = function_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT;
        let set = CurrentContext::new(driver, context).and_then(|_current| {
            // SAFETY: `self` keeps the function loaded, in the context that is current.
            let status = unsafe { (driver.func_set_attribute)(function, attribute, percent) };
            driver.check("cuFuncSetAttribute", status)
        });
        set.inspect_err(|error| error.report())
    }

    /// Queries `function`, whose parameters are not declared. Messages use `name`.
    ///
    /// # Safety
    ///
    /// As [`LoadedFunction::query`].
    pub(crate) unsafe fn undeclared(
        driver: &'static Driver,
        function: Handle,
        context: Handle,
        name: String,
        keep: impl Any + Send + Sync,
    ) -> Result<Self, DriverError> {
        // SAFETY: this function's contract.
        unsafe { LoadedFunction::query(driver, function, context, name, None, None, keep) }
            .map(Into::into)
    }

    /// The error of a launch that breaks these rules, with the reason why the kernel was not rewritten if
    /// its grid alone is too large.
    #[cold]
    pub(crate) fn refusal(&self, violations: Violations) -> LaunchError {
        #[cfg(feature = "ptx")]
        if let Some(Rewriting::Refused(refusal)) = self.rewriting.as_deref()
            && violations.iter().all(|violation| violation.rule.is_grid_dim())
        {
            let refusal = Box::new(refusal.clone());
            return LaunchErrorKind::NotRewritten { violations, refusal }.into();
        }
        violations.into()
    }

    /// Why the kernel is not launched on a stream that is being captured.
    #[cold]
    pub(crate) fn captured(&self) -> LaunchError {
        LaunchErrorKind::Captured { kernel: self.name().to_owned() }.into()
    }

    /// The key of the kernel's entries in profiles, if it is a kernel [`Self::with_tuning`].
    #[cfg(feature = "profile")]
    pub fn tuning_key(&self) -> Option<&Key> {
        self.tuning().map(|tuning| &*tuning.key)
    }

    #[inline]
    pub(crate) fn tuning(&self) -> Tuning<'_> {
        #[cfg(feature = "profile")]
        let tuning = self.tuning.as_deref();
        #[cfg(not(feature = "profile"))]
        let tuning = core::marker::PhantomData;
        tuning
    }
}

/// A kernel that is not shared yet, so that its limits can still change.
pub(crate) struct LoadedFunction {
    pub(crate) inner: Inner,
    keep: Arc<dyn Any + Send + Sync>,
}

impl LoadedFunction {
    /// Queries the limits of `function`, and its parameters unless they are `declared`.
    ///
    /// # Safety
    ///
    /// `function` is loaded, `context` is current, and both live as long as `keep`. If `function` was
    /// loaded in `context` for launches by a guard, `owned` is the context.
    pub(crate) unsafe fn query(
        driver: &'static Driver,
        function: Handle,
        context: Handle,
        name: String,
        declared: Option<&[Parameter]>,
        owned: Option<Arc<CudaContext>>,
        keep: impl Any + Send + Sync,
    ) -> Result<Self, DriverError> {
        let device = query::limits_of_current_device(driver)?;
        let multiprocessors =
            query::multiprocessors_of_context(driver, context, device.multiprocessors);
        // SAFETY: loaded, and a context is current, by this function's contract.
        let limits = unsafe { query::kernel_limits(driver, function, name) }?;
        let signature = match declared {
            Some(parameters) => Signature::Declared(parameters.to_vec()),
            // SAFETY: the function is loaded and a context is current, by this function's contract.
            None => unsafe { query::parameter_sizes(driver, function) }?
                .map_or(Signature::Unknown, Signature::Sizes),
        };
        let limits = LaunchLimits::new(device, limits);
        // SAFETY: the kernel keeps the function loaded, by this function's contract, or the code that
        // launches it through a launch builder does; both make its context current before they ask.
        let occupancy = unsafe {
            Occupancy::new(driver, function, multiprocessors, limits.max_dynamic_shared_bytes())
        };
        // The driver is asked for the occupancy of each launch that needs it.
        let limits = limits.with_automatic_opt_in().without_occupancy_estimate();
        let history = ContextHistory::of(context);
        let (number, recorded_name) = history.0.number_of(&limits.kernel().name);
        let inner = Inner {
            driver,
            function,
            context,
            owned,
            limits,
            signature,
            occupancy,
            captures_overlap: driver.version().is_ok_and(|version| version >= OVERLAP_DRIVER),
            history: Arc::clone(&history.0),
            number,
            recorded_name,
        };
        Ok(Self { inner, keep: Arc::new((keep, history)) })
    }
}

impl From<LoadedFunction> for Kernel {
    fn from(LoadedFunction { inner, keep }: LoadedFunction) -> Self {
        Self {
            inner: Arc::new(inner),
            keep: Some(keep),
            overlap: false,
            dependent: false,
            #[cfg(feature = "ptx")]
            rewriting: None,
            #[cfg(feature = "profile")]
            tuning: None,
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("limits", self.limits()).finish_non_exhaustive()
    }
}

/// CUDA 12.3, the first driver that captures overlapping launches into graphs.
const OVERLAP_DRIVER: i32 = 12_030;
