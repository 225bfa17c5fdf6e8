//! A kernel under test: its handle, and its limits as the guard queries them.
#![allow(unsafe_code, reason = "handles of functions that the tests keep loaded")]

use std::cell::RefCell;
use std::collections::BTreeMap;

use gridguard::cuda::RawKernel;
use gridguard::validate_co_resident;
use gridguard::{LaunchLimits, LaunchRequest, OccupancyLimits, ValidLaunch, Violations};

use super::raw::{Handle, RawDriver};

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub(crate) const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
/// `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`.
pub(crate) const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: i32 = 14;

/// A loaded function with what the guard knows of it.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) function: Handle,
    /// Those that the guard queried, with the dynamic shared memory that the function has now: raw
    /// launches do not opt in by themselves.
    pub(crate) limits: LaunchLimits,
    pub(crate) parameter_bytes: u64,
    /// Questions about residency that were not answered, by the driver's error.
    pub(crate) unanswered: RefCell<BTreeMap<String, u64>>,
    kernel: RawKernel,
}

impl Subject {
    /// Asks for the limits of `function` in `context`, both alive for as long as this is.
    pub(crate) fn new(
        driver: &RawDriver,
        name: &str,
        context: Handle,
        function: Handle,
        parameter_bytes: u64,
    ) -> Self {
        // SAFETY: the caller keeps both alive.
        let kernel = unsafe { RawKernel::from_handles(context, function, name) }.expect("limits");
        let mut own = kernel.limits().kernel().clone();
        let opted_in = driver.attribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES).expect("known");
        own.max_dynamic_shared_bytes = u64::try_from(opted_in).expect("bytes");
        let limits = LaunchLimits::new(kernel.limits().device().clone(), own);
        let unanswered = RefCell::default();
        Self { name: name.to_owned(), function, limits, parameter_bytes, unanswered, kernel }
    }

    /// What the guard knows of the residency of such blocks.
    pub(crate) fn occupancy(&self, request: &LaunchRequest) -> OccupancyLimits {
        // The guard would opt in to more, and so change what is tested.
        if request.dynamic_shared_bytes > self.limits.kernel().max_dynamic_shared_bytes {
            return OccupancyLimits::UNKNOWN;
        }
        self.kernel.occupancy(request).unwrap_or_else(|error| {
            *self.unanswered.borrow_mut().entry(error.to_string()).or_default() += 1;
            OccupancyLimits::UNKNOWN
        })
    }

    /// The guard's verdict.
    pub(crate) fn verdict(&self, request: &LaunchRequest) -> Result<ValidLaunch, Violations> {
        validate_co_resident(request, &self.limits, &self.occupancy(request))
    }
}
