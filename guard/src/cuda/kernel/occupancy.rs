//! How many blocks of a kernel can be co-resident, asked of the driver, and the opt-in to shared memory
//! that the answer depends on.

use core::ffi::c_int;

use once_cell::sync::OnceCell;
use parking_lot::RwLock;

use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::log::{self, LogPosition};
use crate::cuda::driver::query;
use crate::cuda::driver::symbols::{Driver, Handle, INVALID_CLUSTER_SIZE, Status};
use crate::cuda::error::LaunchError;
use crate::dim::Dim3;
use crate::launch::abi::{CLUSTER_DIMENSION, LaunchAttribute, LaunchConfig};
use crate::launch::request::LaunchRequest;
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::{validate, validate_co_resident};
use crate::limits::attributes::function_attribute;
use crate::limits::{LaunchLimits, OccupancyLimits};

/// What the driver reported of a function's occupancy. Each method takes the limits of its kernel.
#[repr(C)]
pub(crate) struct Occupancy {
    /// Dynamic shared memory that the function may use without opt-in.
    dynamic_shared_bytes: u64,
    driver: &'static Driver,
    function: Handle,
    /// Multiprocessors that a launch in the context can use.
    multiprocessors: u64,
    /// Set when the kernel was opted in to the device's limit.
    opt_in: OnceCell<()>,
    /// The occupancy of the last [`KEPT`] configurations that were queried, the newest last.
    known: RwLock<Vec<(Configuration, OccupancyLimits)>>,
}

impl Occupancy {
    /// The occupancy of `function` on `multiprocessors`, with `dynamic_shared_bytes` available without opt-in.
    ///
    /// # Safety
    ///
    /// Whoever calls a method keeps `function` loaded, with its context current.
    pub(crate) unsafe fn new(
        driver: &'static Driver,
        function: Handle,
        multiprocessors: u64,
        dynamic_shared_bytes: u64,
    ) -> Self {
        let (opt_in, known) = (OnceCell::new(), RwLock::default());
        Self { driver, function, multiprocessors, dynamic_shared_bytes, opt_in, known }
    }

    /// Opts in to large dynamic shared memory if a launch needs it. The context is current.
    #[inline]
    pub(crate) fn opt_in(
        &self,
        limits: &LaunchLimits,
        dynamic_shared_bytes: u32,
    ) -> Result<(), DriverError> {
        if u64::from(dynamic_shared_bytes) > self.dynamic_shared_bytes {
            // After an error the next launch tries again.
            self.opt_in.get_or_try_init(|| self.raise_limit(limits))?;
        }
        Ok(())
    }

    /// How many blocks of `request` can be co-resident on the multiprocessors of the context, or on fewer. The context is
    /// current.
    pub(crate) fn of(
        &self,
        limits: &LaunchLimits,
        request: &LaunchRequest,
        multiprocessors: Option<u64>,
    ) -> Result<OccupancyLimits, DriverError> {
        let multiprocessors = multiprocessors.unwrap_or(self.multiprocessors);
        let Some(configuration) = Configuration::of(request, limits, multiprocessors) else {
            return Ok(OccupancyLimits::UNKNOWN);
        };
        // Before opt-in the driver reports that no such block fits.
        self.opt_in(limits, configuration.dynamic_shared_bytes)?;
        let find = |known: &[(Configuration, OccupancyLimits)]| {
            known.iter().find(|(other, _)| *other == configuration).map(|(_, occupancy)| *occupancy)
        };
        if let Some(known) = find(&self.known.read()) {
            return Ok(known);
        }
        let occupancy = self.query(limits, &configuration)?;
        let mut known = self.known.write();
        // Another thread may have added it meanwhile.
        if find(&known).is_none() {
            if known.len() == KEPT {
                known.remove(0);
            }
            known.push((configuration, occupancy));
        }
        Ok(occupancy)
    }

    /// Checks that the blocks of a valid launch on `stream` can be co-resident.
    ///
    /// # Safety
    ///
    /// The context is current, and `stream` a live stream of it or null.
    pub(crate) unsafe fn check(
        &self,
        limits: &LaunchLimits,
        stream: Handle,
        launch: &ValidLaunch,
    ) -> Result<(), LaunchError> {
        let (driver, of_context, request) = (self.driver, self.multiprocessors, launch.request());
        // SAFETY: this function's contract.
        let of_stream = || unsafe { query::multiprocessors_of_stream(driver, stream, of_context) };
        let multiprocessors = launch.is_cooperative().then(of_stream);
        let occupancy = self.of(limits, &request, multiprocessors)?;
        let _still_valid = validate_co_resident(&request, limits, &occupancy)?;
        Ok(())
    }

    #[cold]
    fn raise_limit(&self, limits: &LaunchLimits) -> Result<(), DriverError> {
        let most = limits.max_dynamic_shared_bytes();
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        let attribute = function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded in the current context, by the contract of `new`.
        let status = unsafe { (self.driver.func_set_attribute)(self.function, attribute, most) };
        self.driver.check("cuFuncSetAttribute", status)
    }

    #[cold]
    fn query(
        &self,
        limits: &LaunchLimits,
        configuration: &Configuration,
    ) -> Result<OccupancyLimits, DriverError> {
        let each = self.blocks_per_multiprocessor(configuration)?;
        let blocks = each.saturating_mul(configuration.multiprocessors);
        let Some(cluster) = configuration.cluster else {
            return Ok(OccupancyLimits { blocks: Some(blocks), cluster_blocks: None });
        };
        // Blocks of the largest possible cluster. Only a kernel with `.explicitcluster` passes its cluster: the
        // driver returns 912 without it (H200).
        let kernel = limits.kernel();
        let explicit = kernel.cluster_must_be_set && kernel.required_cluster.is_none();
        let call = ("cuOccupancyMaxPotentialClusterSize", self.driver.max_cluster_size);
        let largest = self.query_clusters(call, configuration, cluster, explicit, None)?;
        // Clusters that can be co-resident.
        let call = ("cuOccupancyMaxActiveClusters", self.driver.max_active_clusters);
        let clusters = self.query_clusters(call, configuration, cluster, true, Some(0))?;
        let Some(clusters) = clusters else {
            return Ok(OccupancyLimits { blocks: Some(blocks), cluster_blocks: largest });
        };
        let blocks_of_one: u64 = cluster.iter().map(|blocks| u64::from(*blocks)).product();
        // A cluster does not span parts of the device, so some multiprocessors may stay empty.
        let blocks = blocks.min(clusters.saturating_mul(blocks_of_one));
        let none = (clusters == 0).then(|| blocks_of_one.saturating_sub(1));
        let cluster_blocks = largest.into_iter().chain(none).min();
        Ok(OccupancyLimits { blocks: Some(blocks), cluster_blocks })
    }

    fn blocks_per_multiprocessor(&self, configuration: &Configuration) -> Result<u64, DriverError> {
        let Configuration { block, dynamic_shared_bytes, .. } = *configuration;
        let threads = c_int::try_from(block.iter().product::<u32>()).unwrap_or(c_int::MAX);
        let bytes = usize::try_from(dynamic_shared_bytes).unwrap_or(usize::MAX);
        let mut blocks = 0;
        let start = LogPosition::now(self.driver);
        let look_up = self.driver.max_active_blocks;
        // SAFETY: the function is loaded in the current context, by the contract of `new`; the pointer is to a live integer.
        let status = unsafe { look_up(&raw mut blocks, self.function, threads, bytes) };
        let call = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
        self.driver.check_since(start, call, status)?;
        Ok(u64::try_from(blocks).unwrap_or(0))
    }

    /// What `call` returns for a launch of 16 clusters along each axis, so that the grid does not bound
    /// the result; `None` if the driver has no such query. With `cluster` as an attribute, a cluster
    /// that the driver refuses counts as `refused`.
    fn query_clusters(
        &self,
        (call, look_up): (&'static str, Option<ClusterQuery>),
        configuration: &Configuration,
        cluster: [u32; 3],
        as_attribute: bool,
        refused: Option<u64>,
    ) -> Result<Option<u64>, DriverError> {
        let Some(look_up) = look_up else { return Ok(None) };
        let attribute = LaunchAttribute::new(CLUSTER_DIMENSION, cluster);
        let config = LaunchConfig {
            grid: cluster.map(|blocks| blocks.saturating_mul(16)),
            block: configuration.block,
            shared_bytes: configuration.dynamic_shared_bytes,
            stream: core::ptr::null_mut(),
            attributes: &raw const attribute,
            attribute_count: as_attribute.into(),
        };
        let mut count = 0;
        let start = LogPosition::now(self.driver);
        // SAFETY: the function is loaded in the current context, by the contract of `new`; both pointers are to live values, and
        // the configuration's attribute outlives the call.
        let status = unsafe { look_up(&raw mut count, self.function, &raw const config) };
        if as_attribute && status == INVALID_CLUSTER_SIZE {
            log::discard(self.driver);
            return Ok(refused);
        }
        self.driver.check_since(start, call, status)?;
        Ok(Some(u64::try_from(count).unwrap_or(0)))
    }
}

/// A query of the driver about the clusters of a launch.
type ClusterQuery = unsafe extern "C" fn(*mut c_int, Handle, *const LaunchConfig) -> Status;

/// The parts of a launch that its occupancy depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Configuration {
    block: [u32; 3],
    dynamic_shared_bytes: u32,
    cluster: Option<[u32; 3]>,
    /// Multiprocessors that the launch can use.
    multiprocessors: u64,
}

impl Configuration {
    /// The configuration of a cooperative or clustered launch; `None` if its block breaks a rule.
    fn of(request: &LaunchRequest, limits: &LaunchLimits, multiprocessors: u64) -> Option<Self> {
        let cluster = request.cluster_with(limits.kernel());
        if !request.cooperative && cluster.is_none() {
            return None;
        }
        let smallest = LaunchRequest { grid: cluster.unwrap_or(Dim3::ONE), ..*request };
        let valid = validate(&smallest, limits).ok()?;
        let cluster = cluster.map(|_| valid.grid());
        let dynamic_shared_bytes = valid.dynamic_shared_bytes();
        Some(Self { block: valid.block(), dynamic_shared_bytes, cluster, multiprocessors })
    }
}

/// Configurations of a kernel whose occupancy is kept, far more than a program uses; the oldest is dropped first.
const KEPT: usize = 64;
