//! Holds a request against limits. Pure: no query, no allocation while the launch is legal.

use crate::dim::{Axis, Dim3};
use crate::limits::{Ceilings, LaunchLimits, NON_PORTABLE_CLUSTER_BLOCKS};
use crate::request::LaunchRequest;
use crate::rule::{Rule, RuleSet};
use crate::violation::{Owner, Remedy, Violation, Violations};

/// A launch that obeys every rule that limits alone can decide, for one kernel on one device.
///
/// Made by [`validate`] and by plans only, so whoever holds one need not check again.
///
/// ```compile_fail
/// use gridguard::{Dim3, ValidLaunch};
/// // There is no way to a `ValidLaunch` around validation.
/// let launch = ValidLaunch { grid: [1, 1, 1], block: [1, 1, 1] };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct ValidLaunch {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared_bytes: u32,
    cluster: Option<[u32; 3]>,
    cooperative: bool,
    dependent: bool,
    priority: Option<i32>,
    /// Whether blocks run together, all of them or those of a cluster.
    together: bool,
    /// Runs none together, waits, and has no priority of its own: one look instead of five on the
    /// way of a launch.
    plain: bool,
    limits: u64,
}

impl ValidLaunch {
    /// Blocks of the grid along x, y, z.
    #[must_use]
    pub const fn grid(&self) -> [u32; 3] {
        self.grid
    }

    /// Threads of a block along x, y, z.
    #[must_use]
    pub const fn block(&self) -> [u32; 3] {
        self.block
    }

    /// Dynamic shared memory of a block in bytes.
    #[must_use]
    pub const fn dynamic_shared_bytes(&self) -> u32 {
        self.dynamic_shared_bytes
    }

    /// Blocks of a cluster along x, y, z, where the launch names one and the device has clusters.
    #[must_use]
    pub const fn cluster(&self) -> Option<[u32; 3]> {
        self.cluster
    }

    /// Whether the launch is cooperative.
    #[must_use]
    pub const fn is_cooperative(&self) -> bool {
        self.cooperative
    }

    /// The launch's own priority, where it has one.
    #[must_use]
    pub const fn priority(&self) -> Option<i32> {
        self.priority
    }

    /// Whether the launch may begin before the one before it in its stream has ended.
    #[must_use]
    pub const fn is_dependent(&self) -> bool {
        self.dependent
    }

    /// Whether nothing but grid, block and shared memory is to be looked at on the way.
    #[cfg(feature = "cuda")]
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        self.plain
    }

    /// Whether blocks run together: all of a cooperative launch, or those of a cluster, also of one
    /// that the kernel was compiled with.
    #[cfg(feature = "cuda")]
    pub(crate) const fn runs_together(&self) -> bool {
        self.together
    }

    /// The same launch, which waits for the one before it.
    pub(crate) const fn independent(mut self) -> Self {
        self.dependent = false;
        self.plain = !self.together && self.priority.is_none();
        self
    }

    /// Whether the launch was validated against `limits`, or a clone of them.
    #[must_use]
    pub const fn is_for(&self, limits: &LaunchLimits) -> bool {
        self.limits == limits.id()
    }

    /// The request again, with all that validation looks at but the bytes of parameters.
    #[cfg(feature = "cuda")]
    pub(crate) fn request(&self) -> LaunchRequest {
        LaunchRequest {
            grid: self.grid.into(),
            block: self.block.into(),
            dynamic_shared_bytes: self.dynamic_shared_bytes.into(),
            cluster: self.cluster.map(Dim3::from),
            cooperative: self.cooperative,
            parameter_bytes: 0,
            priority: self.priority,
            dependent: self.dependent,
        }
    }

    /// The same launch with fewer or as many blocks along `axis`: what is legal for a grid is
    /// legal for each part of it, clusters aside, which the planner keeps whole.
    pub(crate) const fn shortened(mut self, axis: Axis, blocks: u32) -> Self {
        match axis {
            Axis::X => self.grid[0] = blocks,
            Axis::Y => self.grid[1] = blocks,
            Axis::Z => self.grid[2] = blocks,
        }
        self
    }

    /// The launch, where it is plain and plainly legal: a short way for nearly all. Where it answers
    /// none the rules decide.
    #[inline]
    fn plain(request: &LaunchRequest, limits: &LaunchLimits) -> Option<Self> {
        let most = limits.plain();
        let block = within(request.block, most.block)?;
        let [bx, by, bz] = block;
        // Two numbers of 32 bits never overflow one of 64.
        let threads = (u64::from(bx) * u64::from(by)).checked_mul(bz.into())?;
        let dynamic_shared_bytes = u32::try_from(request.dynamic_shared_bytes).ok()?;
        let legal = threads <= most.threads.into()
            && dynamic_shared_bytes <= most.dynamic_shared_bytes
            && request.parameter_bytes <= most.parameter_bytes.into()
            && request.cluster.is_none()
            && request.priority.is_none()
            && !request.cooperative
            && !request.dependent;
        legal.then_some(Self {
            grid: within(request.grid, most.grid)?,
            block,
            dynamic_shared_bytes,
            cluster: None,
            cooperative: false,
            dependent: false,
            priority: None,
            together: false,
            plain: true,
            limits: limits.id(),
        })
    }

    /// Only for requests that broke no rule.
    #[inline]
    pub(crate) fn unchecked(request: &LaunchRequest, limits: &LaunchLimits) -> Option<Self> {
        let cluster = match request.named_cluster() {
            // One block on a device without clusters: a launch like any other.
            Some(Dim3::ONE) if !limits.ceilings().cluster_launch => None,
            None => None,
            Some(cluster) => Some(cluster.narrow()?),
        };
        let LaunchRequest { cooperative, dependent, priority, .. } = *request;
        let own = limits.ceilings().required_cluster.is_some();
        let together = cooperative || cluster.is_some() || own;
        Some(Self {
            grid: request.grid.narrow()?,
            block: request.block.narrow()?,
            dynamic_shared_bytes: u32::try_from(request.dynamic_shared_bytes).ok()?,
            cluster,
            cooperative,
            dependent,
            priority,
            together,
            plain: !together && !dependent && priority.is_none(),
            limits: limits.id(),
        })
    }
}

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

/// `size` as the driver takes it, where it is at least 1 and at most `most` along each axis.
#[inline]
fn within(size: Dim3, most: [u32; 3]) -> Option<[u32; 3]> {
    let [x, y, z] = most.map(u64::from);
    let fits = |size: u64, most: u64| size.wrapping_sub(1) < most;
    let all = fits(size.x, x) & fits(size.y, y) & fits(size.z, z);
    if all { size.narrow() } else { None }
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
    let more_than = |most: Option<u64>| most.is_some_and(|most| threads > most.into());
    broken.add(Rule::KernelThreadsPerBlock, more_than(ceilings.kernel_threads));
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

/// Every broken rule in words and numbers.
#[cold]
pub(crate) fn explain(
    request: &LaunchRequest,
    limits: &LaunchLimits,
    broken: RuleSet,
) -> Violations {
    let mut violations = Violations::default();
    for rule in Rule::ALL {
        if broken.contains(*rule) {
            explain_rule(*rule, request, limits, &mut violations);
        }
    }
    violations
}

fn explain_rule(rule: Rule, request: &LaunchRequest, limits: &LaunchLimits, out: &mut Violations) {
    let LaunchRequest { grid, block, .. } = *request;
    let device = limits.device();
    let kernel = limits.kernel();
    let ceilings = limits.ceilings();
    let of_device = || Owner::Device(device.name.clone());
    let of_kernel = || Owner::Kernel(kernel.name.clone());
    let threads = block.volume();
    let mut report = |axis, requested: u128, limit, owner, remedy| {
        out.push(Violation { rule, axis, requested, limit, owner, remedy });
    };
    match rule {
        Rule::GridDimX | Rule::GridDimY | Rule::GridDimZ => {
            for axis in Axis::ALL.into_iter().filter(|axis| Rule::grid_dim(*axis) == rule) {
                let (blocks, limit) = (grid.along(axis), ceilings.grid.along(axis));
                let remedy = match request.cooperative {
                    true => Remedy::ShrinkGrid,
                    false => split_axis(axis, grid, ceilings.grid),
                };
                report(Some(axis), blocks.into(), limit, of_device(), remedy);
            }
        }
        Rule::GridDimZero => {
            for axis in Axis::ALL.into_iter().filter(|axis| grid.along(*axis) == 0) {
                report(Some(axis), 0, 1, Owner::Cuda, Remedy::SkipLaunch);
            }
        }
        Rule::BlockDimX | Rule::BlockDimY | Rule::BlockDimZ => {
            for axis in Axis::ALL.into_iter().filter(|axis| Rule::block_dim(*axis) == rule) {
                let (threads, limit) = (block.along(axis), ceilings.block.along(axis));
                report(Some(axis), threads.into(), limit, of_device(), Remedy::MoveThreads);
            }
        }
        Rule::BlockDimZero => {
            for axis in Axis::ALL.into_iter().filter(|axis| block.along(*axis) == 0) {
                report(Some(axis), 0, 1, Owner::Cuda, Remedy::AtLeastOne);
            }
        }
        Rule::ThreadsPerBlock => {
            let limit = ceilings.device_threads;
            report(None, threads, limit, of_device(), Remedy::SmallerBlocks { threads: limit });
        }
        Rule::KernelThreadsPerBlock => {
            let limit = ceilings.kernel_threads.unwrap_or(u64::MAX);
            report(None, threads, limit, of_kernel(), Remedy::SmallerBlocks { threads: limit });
        }
        Rule::RegistersPerBlock => {
            let remedy = Remedy::FewerRegisters { threads: ceilings.register_threads.unwrap_or(0) };
            let registers = limits.registers_per_block(threads);
            report(None, registers, device.max_registers_per_block, of_device(), remedy);
        }
        Rule::SharedMemoryTotal => {
            let static_bytes = kernel.static_shared_bytes;
            let dynamic_bytes = ceilings.shared_room_bytes.unwrap_or(0);
            let total = u128::from(static_bytes) + u128::from(request.dynamic_shared_bytes);
            let limit =
                device.max_shared_bytes_per_block_opt_in.max(device.max_shared_bytes_per_block);
            let remedy = Remedy::LessSharedMemory { dynamic_bytes, static_bytes };
            report(None, total, limit, of_device(), remedy);
        }
        Rule::DynamicSharedMemoryOptIn => {
            let requested = request.dynamic_shared_bytes.into();
            let device_bytes = ceilings.shared_room_bytes.unwrap_or(0);
            let limit = ceilings.dynamic_shared_bytes;
            report(None, requested, limit, of_kernel(), Remedy::OptIn { device_bytes });
        }
        Rule::CooperativeUnsupported => report(None, 1, 0, of_device(), Remedy::NotCooperative),
        Rule::DependentUnsupported => report(None, 1, 0, of_device(), Remedy::NotDependent),
        Rule::ParameterBytes => {
            let limit = device.max_parameter_bytes;
            let requested = request.parameter_bytes.into();
            report(None, requested, limit, of_device(), Remedy::PassByPointer);
        }
        Rule::ClusterUnsupported
        | Rule::ClusterSize
        | Rule::ClusterDividesGrid
        | Rule::ClusterRequired => explain_cluster_rule(rule, request, limits, out),
        // Explained where what the device holds at once is known.
        Rule::ClusterResidency | Rule::CooperativeResidency => {}
        // Broken by plans, not by a single request; the planner explains them.
        Rule::IndexWidth
        | Rule::WorkspaceMemory
        | Rule::BatchCoversGrid
        | Rule::SplitCooperative
        | Rule::SplitCluster
        | Rule::SplitAlignment
        | Rule::SplitItem
        | Rule::FoldUnavailable => {}
    }
}

fn explain_cluster_rule(
    rule: Rule,
    request: &LaunchRequest,
    limits: &LaunchLimits,
    out: &mut Violations,
) {
    let kernel = limits.kernel();
    let of_device = || Owner::Device(limits.device().name.clone());
    let of_kernel = || Owner::Kernel(kernel.name.clone());
    let mut report = |axis, requested: u128, limit, owner, remedy| {
        out.push(Violation { rule, axis, requested, limit, owner, remedy });
    };
    let use_cluster = Remedy::UseCluster { cluster: kernel.required_cluster };
    let Some(cluster) = request.cluster_with(kernel) else {
        report(None, 0, 1, of_kernel(), use_cluster);
        return;
    };
    match rule {
        Rule::ClusterUnsupported => {
            report(None, cluster.volume(), 0, of_device(), Remedy::NoCluster);
        }
        Rule::ClusterSize if cluster.has_zero() => {
            for axis in Axis::ALL.into_iter().filter(|axis| cluster.along(*axis) == 0) {
                report(Some(axis), 0, 1, Owner::Cuda, Remedy::AtLeastOne);
            }
        }
        Rule::ClusterSize => {
            let limit = limits.ceilings().cluster_blocks;
            let non_portable = !kernel.non_portable_cluster_allowed
                && cluster.volume() <= NON_PORTABLE_CLUSTER_BLOCKS.into();
            let remedy = Remedy::SmallerCluster { non_portable };
            report(None, cluster.volume(), limit, of_device(), remedy);
        }
        Rule::ClusterDividesGrid => {
            for axis in Axis::ALL {
                let (blocks, unit) = (request.grid.along(axis), cluster.along(axis));
                if blocks.checked_rem(unit).is_some_and(|rest| rest != 0) {
                    let padded = blocks.div_ceil(unit).saturating_mul(unit);
                    let remedy = Remedy::PadGrid { blocks: padded };
                    report(Some(axis), blocks.into(), unit, Owner::Cluster(cluster), remedy);
                }
            }
        }
        Rule::ClusterRequired => match (request.named_cluster(), kernel.required_cluster) {
            (Some(cluster), Some(required)) => {
                let differs = |axis: &Axis| cluster.along(*axis) != required.along(*axis);
                for axis in Axis::ALL.into_iter().filter(differs) {
                    let (blocks, limit) = (cluster.along(axis), required.along(axis));
                    report(Some(axis), blocks.into(), limit, of_kernel(), use_cluster.clone());
                }
            }
            _ => report(None, 0, 1, of_kernel(), use_cluster),
        },
        _ => {}
    }
}

fn split_axis(axis: Axis, grid: Dim3, limit: Dim3) -> Remedy {
    let blocks = grid.along(axis);
    let launches = blocks.div_ceil(limit.along(axis).max(1)).max(1);
    let folded = grid.x.checked_mul(blocks).is_some_and(|x| x <= limit.x);
    Remedy::SplitAxis {
        axis,
        launches,
        blocks: blocks.div_ceil(launches),
        fold: axis != Axis::X && folded,
    }
}

#[cfg(test)]
mod tests {
    use proptest::array::uniform3;
    use proptest::bool::weighted;

    use super::*;
    use crate::limits::{DeviceLimits, KernelLimits};

    fn limits(change: impl FnOnce(&mut KernelLimits)) -> LaunchLimits {
        let mut kernel = KernelLimits::unknown("k");
        change(&mut kernel);
        LaunchLimits::new(DeviceLimits::any_device(), kernel)
    }

    #[test]
    fn all_violations_are_reported_at_once() {
        let request = LaunchRequest::new(Dim3::new(0, 65_536, 65_536), Dim3::new(1025, 1, 65));
        let violations = validate(&request, &limits(|_| {})).expect_err("five rules are broken");
        let rules: Vec<_> = violations.iter().map(|violation| violation.rule.id()).collect();
        assert_eq!(
            rules,
            [
                "grid-dim-y",
                "grid-dim-z",
                "grid-dim-zero",
                "block-dim-x",
                "block-dim-z",
                "threads-per-block"
            ]
        );
    }

    /// Kernels of which nothing is known, that know all their limits, or that need a cluster.
    fn kernels() -> Vec<LaunchLimits> {
        let known = |kernel: &mut KernelLimits| {
            kernel.max_threads_per_block = 700;
            kernel.registers_per_thread = 100;
            kernel.static_shared_bytes = 4096;
            kernel.max_dynamic_shared_bytes = 8192;
        };
        let crowded = |kernel: &mut KernelLimits| kernel.static_shared_bytes = u64::MAX;
        let mut generous = DeviceLimits::any_device();
        let most = u64::MAX;
        (generous.max_grid, generous.max_block) = (Dim3::new(most, most, most), generous.max_grid);
        generous.max_threads_per_block = most;
        vec![
            limits(|_| {}),
            limits(known),
            limits(crowded),
            limits(|kernel| kernel.cluster_must_be_set = true),
            limits(|kernel| kernel.required_cluster = Some(Dim3::ONE)),
            LaunchLimits::new(generous, KernelLimits::unknown("k")),
        ]
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(if cfg!(miri) { 50 } else { 20_000 }))]
        #[test]
        fn the_short_way_and_the_rules_agree_on_every_plain_launch(
            grid in uniform3(near(&[0, 1, 65_535, (1 << 31) - 1, 0xffff_ffff, u64::MAX])),
            block in uniform3(near(&[0, 1, 24, 64, 600, 1024, 65_535, 0xffff_ffff, u64::MAX])),
            shared in near(&[0, 8192, 48 << 10, 0xffff_ffff, u64::MAX]),
            parameters in near(&[0, 4096, 32_764, u64::MAX]),
            cluster in proptest::option::weighted(0.1, near(&[0, 1, 8])),
            [cooperative, dependent, prior] in uniform3(weighted(0.1)),
        ) {
            let request = LaunchRequest {
                grid: Dim3::new(grid[0], grid[1], grid[2]),
                block: Dim3::new(block[0], block[1], block[2]),
                dynamic_shared_bytes: shared,
                cluster: cluster.map(|blocks| Dim3::new(blocks, blocks, blocks)),
                cooperative,
                parameter_bytes: parameters,
                priority: prior.then_some(-1),
                dependent,
            };
            let plain = cluster.is_none() && !cooperative && !dependent && !prior;
            for limits in kernels() {
                let by_rules = judge_by_rules(&request, &limits).ok();
                let short = ValidLaunch::plain(&request, &limits);
                // With clusters, and limits of 64 bits, it leaves more to the rules than it must.
                let ceilings = limits.ceilings();
                let all = ceilings.required_cluster.is_none() && ceilings.device_threads < u64::MAX;
                if short.is_some() || all {
                    proptest::prop_assert_eq!(short, by_rules.filter(|_| plain));
                }
            }
        }
    }

    /// Small numbers, and all around `limits`.
    fn near(limits: &'static [u64]) -> impl proptest::strategy::Strategy<Value = u64> {
        use proptest::strategy::Strategy as _;
        let around = (proptest::sample::select(limits), -2_i64..=2);
        proptest::prop_oneof![
            1_u64..40,
            around.prop_map(|(limit, off)| limit.saturating_add_signed(off)),
        ]
    }

    #[test]
    fn a_grid_past_32_bits_is_reported_whole() {
        let request = LaunchRequest::new(Dim3::new(1, 4_294_967_301, 1), Dim3::ONE);
        let violations = validate(&request, &limits(|_| {})).expect_err("too large");
        assert_eq!(violations.iter().next().map(|v| v.requested), Some(4_294_967_301));
    }

    #[test]
    fn absurd_sizes_are_violations_and_never_wrap() {
        let huge = Dim3::new(u64::MAX, u64::MAX, u64::MAX);
        let request = LaunchRequest::new(huge, huge).dynamic_shared_bytes(u64::MAX);
        let violations = validate(&request, &limits(|_| {})).expect_err("absurd");
        assert!(violations.contains(Rule::SharedMemoryTotal));
        assert!(violations.iter().any(|v| v.requested == u128::MAX));
        assert!(!violations.to_string().is_empty());
    }

    #[test]
    fn limits_that_promise_more_than_32_bits_are_capped() {
        let mut device = DeviceLimits::any_device();
        device.max_grid = Dim3::new(u64::MAX, u64::MAX, u64::MAX);
        let limits = LaunchLimits::new(device, KernelLimits::unknown("k"));
        let request = LaunchRequest::new(Dim3::new(1 << 32, 1, 1), Dim3::ONE);
        let violations = validate(&request, &limits).expect_err("the driver takes 32 bits");
        assert_eq!(violations.iter().next().map(|v| v.limit), Some(u64::from(u32::MAX)));
    }

    #[test]
    fn a_cluster_of_one_block_is_none_on_a_device_without_clusters() {
        let one = LaunchRequest::new(Dim3::ONE, Dim3::ONE).cluster(Dim3::ONE);
        let cluster = |cluster_launch| {
            let device = DeviceLimits {
                cluster_launch,
                max_portable_cluster_blocks: 8,
                ..DeviceLimits::any_device()
            };
            let limits = LaunchLimits::new(device, KernelLimits::unknown("k"));
            validate(&one, &limits).expect("legal").cluster()
        };
        assert_eq!((cluster(false), cluster(true)), (None, Some([1, 1, 1])));
    }

    #[test]
    fn a_launch_knows_the_limits_it_was_validated_against() {
        let (ours, theirs) = (limits(|_| {}), limits(|_| {}));
        let launch = validate(&LaunchRequest::new(Dim3::ONE, Dim3::ONE), &ours).expect("legal");
        assert!(launch.is_for(&ours.clone()));
        assert!(!launch.is_for(&theirs));
    }
}
