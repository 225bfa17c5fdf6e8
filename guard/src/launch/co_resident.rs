//! What a device holds at once of a kernel's blocks, and the rules about it. Pure: whoever can ask
//! the driver brings the numbers.

use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::validate::{ValidLaunch, broken_rules, explain, validate};
use crate::launch::violation::{Owner, Remedy, Violation, Violations};
use crate::limits::LaunchLimits;

/// How many blocks of a kernel, of one shape and with so much shared memory, a device holds at once.
///
/// Only the driver knows, and only for a loaded kernel (`Kernel::occupancy` of the feature `cuda`).
/// It matters to cooperative launches and to those with a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OccupancyLimits {
    /// Blocks on the whole device, also of a launch with a cluster: all that a cooperative launch
    /// may have. `None` where not known.
    pub blocks: Option<u64>,
    /// Blocks of the largest cluster. `None` where not known, or without a cluster.
    pub cluster_blocks: Option<u64>,
}

impl OccupancyLimits {
    /// Nothing is known, and nothing refused.
    pub const UNKNOWN: Self = Self { blocks: None, cluster_blocks: None };

    fn broken(&self, request: &LaunchRequest, limits: &LaunchLimits) -> RuleSet {
        let more_than = |most: Option<u64>, blocks: u128| most.is_some_and(|m| blocks > m.into());
        let mut broken = RuleSet::EMPTY;
        let too_large = request.cooperative && more_than(self.blocks, request.grid.volume());
        broken.add(Rule::CooperativeResidency, too_large);
        let cluster = request.cluster_with(limits.kernel());
        let too_wide = cluster.is_some_and(|c| more_than(self.cluster_blocks, c.volume()));
        broken.add(Rule::ClusterResidency, too_wide);
        broken
    }
}

/// [`validate`], and the rules about what the device holds at once.
///
/// Allocates nothing while the launch is legal.
///
/// # Errors
///
/// As [`validate`].
///
/// ```
/// use gridguard::{DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest};
/// use gridguard::{OccupancyLimits, validate_co_resident};
///
/// let mut device = DeviceLimits::any_device();
/// device.cooperative_launch = true;
/// let limits = LaunchLimits::new(device, KernelLimits::unknown("reduce"));
/// let request = LaunchRequest::new(Dim3::new(265, 1, 1), Dim3::new(1024, 1, 1)).cooperative();
/// let residency = OccupancyLimits { blocks: Some(264), cluster_blocks: None };
/// let violations = validate_co_resident(&request, &limits, &residency).expect_err("264 at once");
/// assert_eq!(
///     violations.to_string(),
///     "a cooperative grid is 265 such blocks, at once there is room for 264 (any CUDA device): \
///      its barrier spans the whole grid, so use fewer blocks with a loop over the items",
/// );
/// ```
pub fn validate_co_resident(
    request: &LaunchRequest,
    limits: &LaunchLimits,
    residency: &OccupancyLimits,
) -> Result<ValidLaunch, Violations> {
    let broken = residency.broken(request, limits);
    if broken.is_empty() {
        return validate(request, limits);
    }
    let others = broken_rules(request, limits);
    let mut violations = explain(request, limits, others);
    let mut report = |rule, requested, limit: Option<u64>, remedy| {
        let owner = Owner::Device(limits.device().name.clone());
        let limit = limit.unwrap_or(0);
        violations.push(Violation { rule, axis: None, requested, limit, owner, remedy });
    };
    if broken.contains(Rule::CooperativeResidency) {
        let (blocks, remedy) = (request.grid.volume(), Remedy::ShrinkGrid);
        report(Rule::CooperativeResidency, blocks, residency.blocks, remedy);
    }
    // A cluster that is too large for any block is told so already.
    if broken.contains(Rule::ClusterResidency) && !others.contains(Rule::ClusterSize) {
        let cluster = request.cluster_with(limits.kernel());
        let blocks = cluster.map_or(0, crate::dim::Dim3::volume);
        report(Rule::ClusterResidency, blocks, residency.cluster_blocks, Remedy::LighterCluster);
    }
    Err(violations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Dim3;
    use crate::limits::{DeviceLimits, KernelLimits};

    fn limits() -> LaunchLimits {
        let mut device = DeviceLimits::any_device();
        device.cooperative_launch = true;
        device.cluster_launch = true;
        device.max_portable_cluster_blocks = 8;
        LaunchLimits::new(device, KernelLimits::unknown("k"))
    }

    fn rules(request: &LaunchRequest, residency: OccupancyLimits) -> Vec<Rule> {
        match validate_co_resident(request, &limits(), &residency) {
            Ok(_) => Vec::new(),
            Err(violations) => violations.iter().map(|violation| violation.rule).collect(),
        }
    }

    #[test]
    fn blocks_at_once_bound_cooperative_launches_alone() {
        let request = LaunchRequest::new(Dim3::new(3, 3, 1), Dim3::ONE);
        let eight = OccupancyLimits { blocks: Some(8), cluster_blocks: None };
        assert_eq!(rules(&request, eight), []);
        assert_eq!(rules(&request.cooperative(), eight), [Rule::CooperativeResidency]);
        assert_eq!(rules(&request.cooperative(), OccupancyLimits::UNKNOWN), []);
        let nine = OccupancyLimits { blocks: Some(9), ..eight };
        assert_eq!(rules(&request.cooperative(), nine), []);
    }

    #[test]
    fn a_cluster_is_told_once_why_it_is_too_large() {
        let of = |blocks| {
            let cluster = Dim3::new(blocks, 1, 1);
            LaunchRequest::new(Dim3::new(64, 1, 1), Dim3::ONE).cluster(cluster)
        };
        let four = OccupancyLimits { blocks: None, cluster_blocks: Some(4) };
        assert_eq!(rules(&of(4), four), []);
        assert_eq!(rules(&of(8), four), [Rule::ClusterResidency]);
        assert_eq!(rules(&of(16), four), [Rule::ClusterSize]);
    }

    #[test]
    fn what_is_wrong_besides_is_told_as_well() {
        let request = LaunchRequest::new(Dim3::new(1, 65_536, 1), Dim3::ONE).cooperative();
        let eight = OccupancyLimits { blocks: Some(8), cluster_blocks: None };
        assert_eq!(rules(&request, eight), [Rule::GridDimY, Rule::CooperativeResidency]);
    }
}
