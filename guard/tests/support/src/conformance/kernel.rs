//! A kernel under test: its handle, and its limits as the guard queried them.

use core::fmt;
use std::cell::RefCell;
use std::collections::BTreeMap;

use gridguard::{
    LaunchLimits, LaunchRequest, OccupancyLimits, ValidLaunch, Violations, validate_co_resident,
};

use super::raw::{Handle, RawDriver};

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
/// `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`.
pub const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: i32 = 14;

/// The guard's occupancy query, with the driver's error as text.
type Occupancy = dyn Fn(&LaunchRequest) -> Result<OccupancyLimits, String>;

/// A loaded function and its limits.
pub struct KernelUnderTest {
    /// The name in reports.
    pub name: String,
    /// The function.
    pub function: Handle,
    /// The limits that the guard queried, with the function's present opt-in to dynamic shared
    /// memory: raw launches do not opt in by themselves.
    pub limits: LaunchLimits,
    /// Bytes of parameters that the kernel takes.
    pub parameter_bytes: u64,
    /// Failed occupancy queries, counted by the driver's error.
    pub failed_queries: RefCell<BTreeMap<String, u64>>,
    occupancy: Box<Occupancy>,
}

impl KernelUnderTest {
    /// The kernel of `function`, with the `limits` and the `occupancy` query that the guard has for
    /// it. `function` stays loaded for as long as this lives.
    ///
    /// # Panics
    ///
    /// If the driver does not report the function's dynamic shared memory.
    pub fn new(
        driver: &RawDriver,
        name: &str,
        function: Handle,
        limits: &LaunchLimits,
        parameter_bytes: u64,
        occupancy: impl Fn(&LaunchRequest) -> Result<OccupancyLimits, String> + 'static,
    ) -> Self {
        let mut kernel = limits.kernel().clone();
        let opted_in = driver.attribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES).expect("known");
        kernel.max_dynamic_shared_bytes = Some(u64::try_from(opted_in).expect("bytes"));
        Self {
            name: name.to_owned(),
            function,
            limits: LaunchLimits::new(limits.device().clone(), kernel),
            parameter_bytes,
            failed_queries: RefCell::default(),
            occupancy: Box::new(occupancy),
        }
    }

    /// The guard's occupancy limits for such blocks.
    pub fn occupancy(&self, request: &LaunchRequest) -> OccupancyLimits {
        // The guard would opt in to more shared memory, and so change what is tested.
        if request.dynamic_shared_bytes > self.limits.max_dynamic_shared_bytes() {
            return OccupancyLimits::UNKNOWN;
        }
        (self.occupancy)(request).unwrap_or_else(|error| {
            *self.failed_queries.borrow_mut().entry(error).or_default() += 1;
            OccupancyLimits::UNKNOWN
        })
    }

    /// The guard's verdict on `request`.
    ///
    /// # Errors
    ///
    /// The rules that it breaks.
    pub fn verdict(&self, request: &LaunchRequest) -> Result<ValidLaunch, Violations> {
        validate_co_resident(request, &self.limits, &self.occupancy(request))
    }
}

impl fmt::Debug for KernelUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelUnderTest").field("name", &self.name).finish_non_exhaustive()
    }
}
