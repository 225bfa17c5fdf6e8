//! What a device holds at once of a kernel's blocks, asked of the driver once for each kind of block.

use core::ffi::c_int;

use parking_lot::RwLock;

use super::driver::{
    ATTRIBUTE_CLUSTER_DIMENSION, Driver, Handle, LaunchAttribute, LaunchConfigEx, Status,
};
use super::driver_log::{self, Mark};
use super::error::DriverError;
use crate::dim::Dim3;
use crate::launch::co_resident::OccupancyLimits;
use crate::launch::request::LaunchRequest;
use crate::launch::validate::validate;
use crate::limits::LaunchLimits;

/// Configurations that are kept of a kernel, far more than a program uses; the oldest goes first.
const KEPT: usize = 64;
/// `CUDA_ERROR_INVALID_CLUSTER_SIZE`.
const INVALID_CLUSTER_SIZE: Status = 912;

/// The answers so far.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    known: RwLock<Vec<(Configuration, OccupancyLimits)>>,
}

/// All of a launch that its residency depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Configuration {
    block: [u32; 3],
    dynamic_shared_bytes: u32,
    cluster: Option<[u32; 3]>,
}

impl Configuration {
    /// That of a launch whose blocks run together, where no rule but one of the grid is broken.
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
    /// The residency of `function` in `configuration`, which is legal. The context is current.
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
        let answer = ask(driver, function, limits, configuration)?;
        let mut known = self.known.write();
        // Another thread may have asked meanwhile.
        if find(&known).is_none() {
            if known.len() == KEPT {
                known.remove(0);
            }
            known.push((configuration, answer));
        }
        Ok(answer)
    }
}

#[cold]
fn ask(
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
    let must_be_named = kernel.cluster_must_be_set && kernel.required_cluster.is_none();
    let largest = largest_cluster(driver, function, configuration, cluster, must_be_named)?;
    let Some(clusters) = active_clusters(driver, function, configuration, cluster)? else {
        return Ok(OccupancyLimits { blocks: Some(blocks), cluster_blocks: largest });
    };
    // Clusters do not spread over parts of the device, so some multiprocessors may stay empty.
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
    let mark = Mark::here(driver);
    // SAFETY: the function is loaded in the context that is current; the pointer is to a live
    // integer.
    let status = unsafe { (driver.max_active_blocks)(&raw mut blocks, function, threads, bytes) };
    driver.check_since(mark, "cuOccupancyMaxActiveBlocksPerMultiprocessor", status)?;
    Ok(u64::try_from(blocks).unwrap_or(0))
}

/// Blocks of the largest cluster of such blocks, where the driver can tell (CUDA 11.8 and later).
///
/// The cluster is named only where it must be: without one the driver answers 912 for a kernel with
/// `.explicitcluster` (H200). Where it does so even then, [`active_clusters`] alone has to tell.
fn largest_cluster(
    driver: &Driver,
    function: Handle,
    configuration: Configuration,
    cluster: [u32; 3],
    must_be_named: bool,
) -> Result<Option<u64>, DriverError> {
    let Some(look_up) = driver.max_cluster_size else {
        return Ok(None);
    };
    let mut attributes = [LaunchAttribute::new(ATTRIBUTE_CLUSTER_DIMENSION, cluster)];
    let named = if must_be_named { attributes.as_mut_slice() } else { &mut [] };
    let config = launch_config(configuration, cluster, named);
    let mut blocks = 0;
    let mark = Mark::here(driver);
    // SAFETY: the function is loaded in the context that is current; both pointers are to live
    // values, and the configuration's attribute outlives the call.
    let status = unsafe { look_up(&raw mut blocks, function, &raw const config) };
    if must_be_named && status == INVALID_CLUSTER_SIZE {
        driver_log::drop_own(driver);
        return Ok(None);
    }
    driver.check_since(mark, "cuOccupancyMaxPotentialClusterSize", status)?;
    Ok(Some(u64::try_from(blocks).unwrap_or(0)))
}

/// Clusters of such blocks that the device holds at once, where the driver can tell.
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
    let mark = Mark::here(driver);
    // SAFETY: as above; the configuration's attribute outlives the call.
    let status = unsafe { look_up(&raw mut clusters, function, &raw const config) };
    if status == INVALID_CLUSTER_SIZE {
        driver_log::drop_own(driver);
        return Ok(Some(0));
    }
    driver.check_since(mark, "cuOccupancyMaxActiveClusters", status)?;
    Ok(Some(u64::try_from(clusters).unwrap_or(0)))
}

/// A grid of 16 clusters along each axis, so that the grid bounds no answer.
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
