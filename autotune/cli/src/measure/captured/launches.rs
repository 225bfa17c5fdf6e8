//! The launches of a captured kernel that may be faster: other blocks, shares of shared memory, clusters, and parts.

use gridguard::cuda::Kernel;
use gridguard::{Dim3, KernelLimits, LaunchLimits, LaunchRequest};
use gridguard_autotune::LaunchConfig;
use gridguard_report::CapturedLaunch;

/// The captured launch, then others, each with its parameters. The planner drops illegal ones.
pub(super) fn configurations(launch: &CapturedLaunch, kernel: &Kernel) -> Vec<LaunchConfig> {
    let limits = kernel.limits();
    // The guard opts in to shared memory.
    let own = KernelLimits {
        max_dynamic_shared_bytes: Some(limits.max_dynamic_shared_bytes()),
        ..limits.kernel().clone()
    };
    let device = limits.device();
    // A rewritten kernel is split as it was launched alone.
    let split = match limits.form_limits() {
        Some(forms) => LaunchLimits::rewritten(device.clone(), own.clone(), forms),
        None => LaunchLimits::new(device.clone(), own.clone()),
    };
    let whole = LaunchLimits::new(device.clone(), own);
    let captured = request(&launch.request, &[]);
    let mut all: Vec<_> =
        captured.map(|request| LaunchConfig::new(request, None, split)).into_iter().collect();
    let carveouts = CARVEOUTS.into_iter().filter(|percent| launch.carveout != Some(*percent));
    let carveouts = carveouts.map(|percent| (CARVEOUT, u64::from(percent)));
    let clusters = CLUSTERS.into_iter().map(|blocks| (CLUSTER, blocks));
    let extras: Vec<_> = [None].into_iter().chain(carveouts.chain(clusters).map(Some)).collect();
    for block in blocks(&launch.request, whole.kernel()) {
        for extra in &extras {
            let parameters = block.map(|threads| (BLOCK, threads)).into_iter().chain(*extra);
            let parameters: Vec<_> =
                parameters.map(|(name, value)| (name.to_owned(), value)).collect();
            let request = request(&launch.request, &parameters);
            if let Some(request) = request.filter(|_| !parameters.is_empty()) {
                let config = LaunchConfig::new(request, None, whole.clone());
                all.push(LaunchConfig { parameters, ..config });
            }
        }
    }
    all
}

/// The captured block, and others of one dimension with as many threads in all, or some more. A block with dynamic shared
/// memory may have a size for it.
fn blocks(request: &LaunchRequest, kernel: &KernelLimits) -> Vec<Option<u64>> {
    let is_bound = (request.block.y, request.block.z) != (1, 1)
        || request.dynamic_shared_bytes > 0
        || request.cooperative
        || request.named_cluster().is_some()
        || kernel.required_cluster.is_some()
        || kernel.required_block.is_some();
    let others = BLOCKS.into_iter().filter(|threads| !is_bound && *threads != request.block.x);
    [None].into_iter().chain(others.map(Some)).collect()
}

/// The launch with these parameters; `None` if it cannot have them.
pub(super) fn request(
    captured: &LaunchRequest,
    parameters: &[(String, u64)],
) -> Option<LaunchRequest> {
    // No earlier launch is replayed.
    let mut request = *captured;
    request.dependent = false;
    for (name, value) in parameters {
        match name.as_str() {
            BLOCK => {
                let threads = request.grid.x.checked_mul(request.block.x)?;
                request.grid.x = threads.div_ceil(*value);
                request.block.x = *value;
            }
            CLUSTER if captured.named_cluster().is_none() && !captured.cooperative => {
                request.cluster = Some(Dim3::new(*value, 1, 1));
            }
            CLUSTER => return None,
            _ => {}
        }
    }
    Some(request)
}

pub(super) const BLOCK: &str = "block";
pub(super) const CARVEOUT: &str = "carveout";
pub(super) const CLUSTER: &str = "cluster";
/// Threads of a block.
const BLOCKS: [u64; 6] = [32, 64, 128, 256, 512, 1024];
/// Shares of the L1 cache as shared memory in percent.
const CARVEOUTS: [u8; 3] = [0, 50, 100];
/// Blocks of a cluster along x, up to the portable size.
const CLUSTERS: [u64; 3] = [2, 4, 8];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_blocks_cover_as_many_threads() {
        let captured = LaunchRequest::new(Dim3::new(100, 3, 1), Dim3::new(96, 1, 1));
        let with = |name: &str, value| request(&captured, &[(name.to_owned(), value)]);
        let of = |request: LaunchRequest| (request.grid.x, request.grid.y, request.block.x);
        assert_eq!(with(BLOCK, 64).map(of), Some((150, 3, 64)));
        assert_eq!(with(BLOCK, 128).map(of), Some((75, 3, 128)));
        assert_eq!(with(BLOCK, 1024).map(of), Some((10, 3, 1024)));
        assert_eq!(with(CARVEOUT, 50), Some(captured));
        assert_eq!(with(CLUSTER, 2).and_then(|one| one.cluster), Some(Dim3::new(2, 1, 1)));
        let cooperative = captured.cooperative();
        assert_eq!(request(&cooperative, &[(CLUSTER.to_owned(), 2)]), None);
        let kernel = KernelLimits::unknown("k");
        assert_eq!(blocks(&captured, &kernel).len(), 7);
        assert_eq!(blocks(&cooperative, &kernel), [None]);
        assert_eq!(blocks(&captured.dynamic_shared_bytes(4), &kernel), [None]);
        let flat = LaunchRequest::new(Dim3::ONE, Dim3::new(32, 4, 1));
        assert_eq!(blocks(&flat, &kernel), [None]);
        // A file may state any size.
        let huge = LaunchRequest::new(Dim3::ONE, Dim3::new(32, u64::MAX, 2));
        assert_eq!(blocks(&huge, &kernel), [None]);
    }
}
