//! [`Guard`]: validates, plans, launches and counts for one device.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use crate::cuda::{driver::history::GuardContext, error::CudaError};
use crate::launch::request::LaunchRequest;
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::validate;
use crate::launch::violation::Violations;
use crate::limits::{DeviceLimits, KernelLimits, LaunchLimits};
use crate::observe;
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::launches::Plan;
#[cfg(feature = "profile")]
use crate::profile::{
    device::{DeviceIdentity, Environment},
    error::ProfileError,
    lookup::{Profile, TunedChoice},
    matching::DefaultReason,
    misses::MissLog,
    model::Key,
    notice::ProfileNotice,
};
use crate::record::counters::{Counters, Counts};

/// Validates, plans, launches and counts for one device, or for the host.
///
/// A guard may be shared by any number of threads.
///
/// ```
/// use gridguard::{
///     Axis, BatchAxis, Choice, DeviceLimits, Dim3, Guard, KernelLimits, LaunchRequest,
/// };
///
/// let guard = Guard::host(DeviceLimits::any_device());
/// let limits = guard.limits_for(KernelLimits::unknown("attention"));
/// let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
/// assert!(guard.validate(&request, &limits).is_err());
///
/// let batch = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5);
/// let plan = guard.plan(&request, Some(&batch), &limits, Choice::AUTOMATIC)?;
/// assert_eq!(plan.len(), 2);
/// assert_eq!(guard.counts().rejections.len(), 1);
/// # Ok::<(), gridguard::Violations>(())
/// ```
#[derive(Debug)]
pub struct Guard {
    limits: Arc<DeviceLimits>,
    /// Where it launches; `None` on the host.
    #[cfg(feature = "cuda")]
    pub(crate) cuda: Option<GuardContext>,
    fallback: Option<FallbackReason>,
    pub(crate) counters: Counters,
    #[cfg(feature = "profile")]
    profile: Option<Arc<Profile>>,
    #[cfg(feature = "profile")]
    misses: Option<Arc<MissLog>>,
}

/// Why a guard runs on the host instead of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FallbackReason {
    /// No device can be used.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The crate was built without its feature `cuda`.
    #[error("built without the feature `cuda`")]
    BuiltWithoutCuda,
}

impl Guard {
    /// A guard of the host, under the limits of `device`, queried or from the catalogue.
    pub fn host(device: impl Into<Arc<DeviceLimits>>) -> Self {
        Self {
            limits: device.into(),
            #[cfg(feature = "cuda")]
            cuda: None,
            fallback: None,
            counters: Counters::new(),
            #[cfg(feature = "profile")]
            profile: None,
            #[cfg(feature = "profile")]
            misses: None,
        }
    }

    /// A guard of the CUDA device with the most free memory.
    ///
    /// If there are several devices, each is initialised to query its free memory.
    ///
    /// # Errors
    ///
    /// [`FallbackReason`] if no device can be used.
    pub fn best() -> Result<Self, FallbackReason> {
        #[cfg(feature = "cuda")]
        let guard = Self::with_most_free_memory()?;
        #[cfg(not(feature = "cuda"))]
        let guard = Err(FallbackReason::BuiltWithoutCuda)?;
        Ok(guard)
    }

    /// As [`Self::best`]; without a usable device a guard of the host, with the reason in [`Self::fallback`].
    ///
    /// The host has the limits of an NVIDIA H200 if the catalogue is built in (feature `catalog`), else
    /// [`DeviceLimits::any_device`].
    #[must_use]
    pub fn best_or_host() -> Self {
        Self::best().unwrap_or_else(|reason| {
            observe::fell_back(&reason);
            Self { fallback: Some(reason), ..Self::host(default_limits()) }
        })
    }

    /// The limits of the guard's device.
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// The limits of a kernel on the guard's device.
    pub fn limits_for(&self, kernel: KernelLimits) -> LaunchLimits {
        LaunchLimits::new(Arc::clone(&self.limits), kernel)
    }

    /// Whether the guard launches on a CUDA device.
    pub const fn is_cuda(&self) -> bool {
        #[cfg(feature = "cuda")]
        let is_cuda = self.cuda.is_some();
        #[cfg(not(feature = "cuda"))]
        let is_cuda = false;
        is_cuda
    }

    /// Why the guard runs on the host, if a device was wanted.
    pub const fn fallback(&self) -> Option<&FallbackReason> {
        self.fallback.as_ref()
    }

    /// Validates one launch and counts a rejection.
    ///
    /// # Errors
    ///
    /// As [`validate`].
    #[inline]
    pub fn validate(
        &self,
        request: &LaunchRequest,
        limits: &LaunchLimits,
    ) -> Result<ValidLaunch, Violations> {
        let launch = validate(request, limits);
        if let Err(violations) = &launch {
            self.counters.rejected(violations);
        }
        launch
    }

    /// Plans a request and counts a rejection.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`].
    #[inline]
    pub fn plan(
        &self,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        limits: &LaunchLimits,
        choice: Choice,
    ) -> Result<Plan, Violations> {
        // By reference, because moving a plan costs as much as making one.
        let plan = observe::planning(|| Plan::new(request, batch, limits, choice));
        if let Err(violations) = &plan {
            self.counters.rejected(violations);
        }
        plan
    }

    /// What the guard has counted so far.
    pub fn counts(&self) -> Counts {
        let counts = self.counters.snapshot();
        #[cfg(feature = "cuda")]
        if let Some(cuda) = &self.cuda {
            return cuda.history.0.add_context_counts(counts);
        }
        counts
    }
}

#[cfg(feature = "profile")]
impl Guard {
    /// The guard with the tuned choices of a profile, loaded for [`Self::identity`].
    #[must_use]
    pub fn with_profile(mut self, profile: Arc<Profile>) -> Self {
        self.profile = Some(profile);
        self
    }

    /// The guard with a log of the shapes that its profile lacks.
    #[must_use]
    pub fn with_miss_log(mut self, misses: Arc<MissLog>) -> Self {
        self.misses = Some(misses);
        self
    }

    /// The device whose profiles apply to this guard: its own, or the host.
    pub fn identity(&self) -> DeviceIdentity {
        let identity = DeviceIdentity::new(&self.limits);
        if self.is_cuda() { identity } else { identity.on_host() }
    }

    /// The versions that decide whether a profile's measurements are stale; empty where unknown.
    pub fn environment(&self) -> Environment {
        #[cfg(feature = "cuda")]
        if self.is_cuda() {
            return Environment::cuda().unwrap_or_default();
        }
        Environment::host()
    }

    /// The profile.
    pub const fn profile(&self) -> Option<&Arc<Profile>> {
        self.profile.as_ref()
    }

    /// The log of shapes that the profile lacks.
    pub const fn misses(&self) -> Option<&Arc<MissLog>> {
        self.misses.as_ref()
    }

    /// Looks up the profile's choice for a shape with `sizes`, called `names`. Anything but an exact
    /// match is recorded in the miss log.
    ///
    /// The choice may be illegal for the launch. If planning with it fails, call [`TunedChoice::refused`] and plan
    /// again with [`Choice::AUTOMATIC`].
    pub fn tuned(&self, key: &Key, names: &[&str], sizes: &[u64]) -> TunedChoice<'_> {
        let tuned = match &self.profile {
            Some(profile) => profile.lookup(key, sizes),
            None => TunedChoice::default_for(DefaultReason::NoProfile),
        };
        observe::looked_up(&key.kernel, names, sizes, tuned.matched.kind());
        if let Some(misses) = &self.misses {
            misses.record(key, names, sizes, tuned.matched.kind());
        }
        tuned
    }
}

#[cfg(feature = "profile")]
impl Profile {
    /// The profile of one file, for the guard's device, with notices about it. It is empty if the file is for another
    /// device. For a user's file before the shipped one, see [`Layers`](crate::profile::Layers).
    ///
    /// ```no_run
    /// use gridguard::Guard;
    /// use gridguard::profile::Profile;
    ///
    /// let guard = Guard::best_or_host();
    /// let (profile, notices) = Profile::load("profiles/h200.ron", &guard)?;
    /// for notice in notices {
    ///     eprintln!("{notice}");
    /// }
    /// let guard = guard.with_profile(profile.into());
    /// # Ok::<(), gridguard::profile::ProfileError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Document::parse`](crate::profile::Document::parse), and if there is no such file, or it cannot be read.
    pub fn load(
        path: impl AsRef<std::path::Path>,
        guard: &Guard,
    ) -> Result<(Self, Vec<ProfileNotice>), ProfileError> {
        Self::read(path.as_ref(), &guard.identity(), &guard.environment())
    }
}

fn default_limits() -> Arc<DeviceLimits> {
    #[cfg(feature = "catalog")]
    if let Ok(gpu) = crate::catalog::gpu("h200") {
        return Arc::clone(&gpu.limits);
    }
    Arc::new(DeviceLimits::any_device())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_and_kernels_can_be_shared_between_threads() {
        fn shared<T: Send + Sync + 'static>() {}
        shared::<Guard>();
        shared::<Plan>();
        shared::<LaunchLimits>();
        #[cfg(feature = "cuda")]
        {
            shared::<crate::cuda::Kernel>();
            shared::<crate::cuda::Module>();
            shared::<crate::cuda::Compiler>();
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn without_cuda_the_host_is_used_for_a_reason() {
        let guard = Guard::best_or_host();
        assert_eq!(guard.fallback(), Some(&FallbackReason::BuiltWithoutCuda));
        assert!(!guard.is_cuda());
    }

    #[test]
    fn every_error_is_send_sync_and_static() {
        fn error<T: core::error::Error + Send + Sync + 'static>() {}
        error::<crate::Error>();
        error::<Violations>();
        error::<crate::ArgsError>();
        error::<FallbackReason>();
        #[cfg(feature = "cuda")]
        {
            error::<crate::cuda::LaunchError>();
            error::<crate::WorkspaceError<crate::cuda::DriverError>>();
        }
    }
}
