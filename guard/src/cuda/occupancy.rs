//! How many blocks of a kernel can be co-resident, queried once for each launch configuration.

use core::ffi::c_int;

use parking_lot::RwLock;

use super::driver_log::{self, LogPosition};
use super::error::DriverError;
use super::symbols::{
    ATTRIBUTE_CLUSTER_DIMENSION, Driver, Handle, INVALID_CLUSTER_SIZE, LaunchAttribute,
    LaunchConfigEx,
};
use crate::dim::Dim3;

use crate::launch::request::LaunchRequest;
use crate::launch::validate::validate;
use crate::limits::{LaunchLimits, OccupancyLimits};

/// Configurations kept of a kernel, far more than a program uses; the oldest is dropped first.
const KEPT: usize = 64;

/// The query results so far.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    known: RwLock<Vec<(Configuration, OccupancyLimits)>>,
}

/// All of a launch that its occupancy depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Configuration {
    block: [u32; 3],
    dynamic_shared_bytes: u32,
    cluster: Option<[u32; 3]>,
}

impl Configuration {
    /// Of a cooperative launch or one in clusters that breaks no rule but those of the grid.
    pub(super) fn of(request: &LaunchRequest, limits: &LaunchLimits) -> Option<Self> {
        let cluster = request.cluster_with(limits.kernel());
        if !request.cooperative && cluster.is_none() {
            return None;
        }
        let smallest = LaunchRequest { grid: cluster.unwrap_or(Dim3::ONE), ..*request };
        let valid = validate(&smallest, limits).ok()?;
        let cluster = cluster.map(|_| valid.grid());
        let dynamic_shared_bytes = valid.dynamic_shared_bytes();
        Some(Self { block: valid.block(), dynamic_shared_bytes, cluster })
    }

    pub(super) const fn dynamic_shared_bytes(&self) -> u32 {
        self.dynamic_shared_bytes
    }

    fn threads(&self) -> u32 {
        self.block.iter().product()
    }
}

impl Occupancy {
    /// The occupancy of `function` in `configuration`, which is legal. The function is loaded in the
    /// current context.
    pub(super) fn of(
        &self,
        driver: &Driver,
        function: Handle,
        limits: &LaunchLimits,
        configuration: Configuration,
    ) -> Result<OccupancyLimits, DriverError> {
        let find = |known: &[(Configuration, OccupancyLimits)]| {
            known.iter().find(|(other, _)| *other == configuration).map(|(_, limits)| *limits)
        };
        if let Some(known) = find(&self.known.read()) {
            return Ok(known);
        }
        let limits = query(driver, function, limits, configuration)?;
        let mut known = self.known.write();
        // Another thread may have added it meanwhile.
        if find(&known).is_none() {
            if known.len() == KEPT {
                known.remove(0);
            }
            known.push((configuration, limits));
        }
        Ok(limits)
    }
}

#[cold]
fn query(
    driver: &Driver,
    function: Handle,
    limits: &LaunchLimits,
    configuration: Configuration,
) -> Result<OccupancyLimits, DriverError> {
    let each = blocks_per_multiprocessor(driver, function, configuration)?;
    let blocks = each.saturating_mul(limits.device().multiprocessors);
    let Some(cluster) = configuration.cluster else {
        return Ok(OccupancyLimits { blocks: Some(blocks), cluster_blocks: None });
    };
    let blocks_of_one: u64 = cluster.iter().map(|blocks| u64::from(*blocks)).product();
    let kernel = limits.kernel();
    let explicit = kernel.cluster_must_be_set && kernel.required_cluster.is_none();
    let largest = largest_cluster(driver, function, configuration, cluster, explicit)?;
    let Some(clusters) = active_clusters(driver, function, configuration, cluster)? else {
        return Ok(OccupancyLimits { blocks: Some(blocks), cluster_blocks: largest });
    };
    // A cluster does not span parts of the device, so some multiprocessors may stay empty.
    let blocks = blocks.min(clusters.saturating_mul(blocks_of_one));
    let none = (clusters == 0).then(|| blocks_of_one.saturating_sub(1));
    let cluster_blocks = largest.into_iter().chain(none).min();
    Ok(OccupancyLimits { blocks: Some(blocks), cluster_blocks })
}

fn blocks_per_multiprocessor(
    driver: &Driver,
    function: Handle,
    configuration: Configuration,
) -> Result<u64, DriverError> {
    let threads = c_int::try_from(configuration.threads()).unwrap_or(c_int::MAX);
    let bytes = usize::try_from(configuration.dynamic_shared_bytes).unwrap_or(usize::MAX);
    let mut blocks = 0;
    let start = LogPosition::now(driver);
    // SAFETY: the function is loaded in the current context; the pointer is to a live integer.
    let status = unsafe { (driver.max_active_blocks)(&raw mut blocks, function, threads, bytes) };
    driver.check_since(start, "cuOccupancyMaxActiveBlocksPerMultiprocessor", status)?;
    Ok(u64::try_from(blocks).unwrap_or(0))
}

/// Blocks of the largest possible cluster; `None` if the driver has no such query.
///
/// The query gets a cluster only for a kernel with `.explicitcluster`, for which the driver returns
/// 912 otherwise (H200). If it returns that even so, only [`active_clusters`] knows.
fn largest_cluster(
    driver: &Driver,
    function: Handle,
    configuration: Configuration,
    cluster: [u32; 3],
    explicit: bool,
) -> Result<Option<u64>, DriverError> {
    let Some(look_up) = driver.max_cluster_size else {
        return Ok(None);
    };
    let mut attributes = [LaunchAttribute::new(ATTRIBUTE_CLUSTER_DIMENSION, cluster)];
    let attributes = if explicit { attributes.as_mut_slice() } else { &mut [] };
    let config = launch_config(configuration, cluster, attributes);
    let mut blocks = 0;
    let start = LogPosition::now(driver);
    // SAFETY: the function is loaded in the current context; both pointers are to live values, and
    // the configuration's attributes outlive the call.
    let status = unsafe { look_up(&raw mut blocks, function, &raw const config) };
    if explicit && status == INVALID_CLUSTER_SIZE {
        driver_log::discard(driver);
        return Ok(None);
    }
    driver.check_since(start, "cuOccupancyMaxPotentialClusterSize", status)?;
    Ok(Some(u64::try_from(blocks).unwrap_or(0)))
}

/// Clusters that can be co-resident; `None` if the driver has no such query.
fn active_clusters(
    driver: &Driver,
    function: Handle,
    configuration: Configuration,
    cluster: [u32; 3],
) -> Result<Option<u64>, DriverError> {
    let Some(look_up) = driver.max_active_clusters else {
        return Ok(None);
    };
    let mut attributes = [LaunchAttribute::new(ATTRIBUTE_CLUSTER_DIMENSION, cluster)];
    let config = launch_config(configuration, cluster, &mut attributes);
    let mut clusters = 0;
    let start = LogPosition::now(driver);
    // SAFETY: as in `largest_cluster`.
    let status = unsafe { look_up(&raw mut clusters, function, &raw const config) };
    if status == INVALID_CLUSTER_SIZE {
        driver_log::discard(driver);
        return Ok(Some(0));
    }
    driver.check_since(start, "cuOccupancyMaxActiveClusters", status)?;
    Ok(Some(u64::try_from(clusters).unwrap_or(0)))
}

/// A launch of 16 clusters along each axis, so that the grid does not bound the result.
fn launch_config(
    configuration: Configuration,
    cluster: [u32; 3],
    attributes: &mut [LaunchAttribute],
) -> LaunchConfigEx {
    LaunchConfigEx {
        grid: cluster.map(|blocks| blocks.saturating_mul(16)),
        block: configuration.block,
        shared_bytes: configuration.dynamic_shared_bytes,
        stream: core::ptr::null_mut(),
        attributes: attributes.as_mut_ptr(),
        attribute_count: u32::try_from(attributes.len()).unwrap_or(0),
    }
}
