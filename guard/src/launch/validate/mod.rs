//! Holds a request against limits. Pure: no query, no allocation while the launch is legal.

mod explain;
mod valid;

pub(crate) use explain::explain;
pub use valid::ValidLaunch;

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::violation::Violations;
use crate::limits::{Ceilings, LaunchLimits};

/// Validates `request` against `limits`.
///
/// Allocates nothing while the launch is legal.
///
/// # Errors
///
/// All [`Violations`] of the launch, each with what was asked for, the limit, whose limit it is
/// and the way out.
///
/// ```
/// use gridguard::{DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, validate};
///
/// let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("attention"));
/// let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
/// let violations = validate(&request, &limits).expect_err("y takes 65,535 blocks");
/// assert_eq!(
///     violations.to_string(),
///     "grid.y is 76800 blocks, the limit is 65535 (any CUDA device): \
///      split axis y into 2 launches of 38400, or fold it into x",
/// );
/// ```
#[inline]
pub fn validate(request: &LaunchRequest, limits: &LaunchLimits) -> Result<ValidLaunch, Violations> {
    match ValidLaunch::plain(request, limits) {
        Some(launch) => Ok(launch),
        None => validate_by_rules(request, limits),
    }
}

#[inline(never)]
fn validate_by_rules(
    request: &LaunchRequest,
    limits: &LaunchLimits,
) -> Result<ValidLaunch, Violations> {
    judge_by_rules(request, limits).map_err(|broken| explain(request, limits, broken))
}

/// The launch, or the rules that `request` breaks.
#[inline]
pub(crate) fn judge(
    request: &LaunchRequest,
    limits: &LaunchLimits,
) -> Result<ValidLaunch, RuleSet> {
    match ValidLaunch::plain(request, limits) {
        Some(launch) => Ok(launch),
        None => judge_by_rules(request, limits),
    }
}

#[inline(never)]
fn judge_by_rules(request: &LaunchRequest, limits: &LaunchLimits) -> Result<ValidLaunch, RuleSet> {
    let broken = broken_rules(request, limits);
    let legal = if broken.is_empty() { ValidLaunch::unchecked(request, limits) } else { None };
    legal.ok_or(broken)
}

/// The rules that `request` breaks.
#[inline]
pub(crate) fn broken_rules(request: &LaunchRequest, limits: &LaunchLimits) -> RuleSet {
    let &LaunchRequest {
        grid,
        block,
        dynamic_shared_bytes,
        // As `named_cluster` has it.
        cluster: _,
        cooperative,
        parameter_bytes,
        // The driver takes any.
        priority: _,
        dependent,
    } = request;
    let ceilings = limits.ceilings();
    let threads = block.volume();

    let mut broken = RuleSet::EMPTY;
    broken.add(Rule::GridDimX, grid.x > ceilings.grid.x);
    broken.add(Rule::GridDimY, grid.y > ceilings.grid.y);
    broken.add(Rule::GridDimZ, grid.z > ceilings.grid.z);
    broken.add(Rule::GridDimZero, grid.has_zero());
    broken.add(Rule::BlockDimX, block.x > ceilings.block.x);
    broken.add(Rule::BlockDimY, block.y > ceilings.block.y);
    broken.add(Rule::BlockDimZ, block.z > ceilings.block.z);
    broken.add(Rule::BlockDimZero, block.has_zero());
    broken.add(Rule::ThreadsPerBlock, threads > ceilings.device_threads.into());
    let more_than = |most: Option<u128>| most.is_some_and(|most| threads > most);
    let of_kernel = ceilings.kernel_threads.map(u128::from);
    broken.add(Rule::KernelThreadsPerBlock, more_than(of_kernel));
    broken.add(Rule::RegistersPerBlock, more_than(ceilings.register_threads));
    let too_much_shared = ceilings.shared_room_bytes.is_none_or(|room| dynamic_shared_bytes > room);
    broken.add(Rule::SharedMemoryTotal, too_much_shared);
    // Opting in is the way out only where the device has the room.
    let needs_opt_in = dynamic_shared_bytes > ceilings.dynamic_shared_bytes;
    broken.add(Rule::DynamicSharedMemoryOptIn, needs_opt_in && !too_much_shared);
    broken.add(Rule::CooperativeUnsupported, cooperative && !ceilings.cooperative_launch);
    let overlaps = || limits.device().overlapping_launches();
    broken.add(Rule::DependentUnsupported, dependent && !overlaps());
    broken.add(Rule::ParameterBytes, parameter_bytes > ceilings.parameter_bytes);
    // A kernel compiled with a cluster runs with its own when launched plainly (H200).
    match request.named_cluster().or(ceilings.required_cluster) {
        Some(cluster) => cluster_rules(&mut broken, grid, cluster, ceilings),
        None => broken.add(Rule::ClusterRequired, ceilings.cluster_must_be_set),
    }
    broken
}

#[cold]
fn cluster_rules(broken: &mut RuleSet, grid: Dim3, cluster: Dim3, ceilings: &Ceilings) {
    if !ceilings.cluster_launch {
        broken.add(Rule::ClusterUnsupported, cluster != Dim3::ONE);
        return;
    }
    let required = ceilings.required_cluster;
    broken.add(Rule::ClusterRequired, required.is_some_and(|required| required != cluster));
    // Also where the kernel was compiled with it: compilers take 9 and 17 blocks (H200).
    let too_large = cluster.volume() > ceilings.cluster_blocks.into();
    broken.add(Rule::ClusterSize, cluster.has_zero() || too_large);
    let divides = Axis::ALL.iter().all(|axis| {
        grid.along(*axis).checked_rem(cluster.along(*axis)).is_none_or(|rest| rest == 0)
    });
    broken.add(Rule::ClusterDividesGrid, !divides);
}

#[cfg(test)]
mod tests;
