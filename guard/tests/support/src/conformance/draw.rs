//! Draws launches: legal ones, and ones that break one rule or several, most of them close to a
//! limit. Needs no driver.

use gridguard::{Axis, Dim3, KernelLimits, LaunchLimits, LaunchRequest};

use crate::Random;

/// The most blocks of a grid: above 65,535, and few enough for launches to stay cheap.
pub const MOST_BLOCKS: u64 = 70_000;
/// The most blocks of one grid in a thousand.
pub const MOST_BLOCKS_OF_FEW: u64 = 1_000_000;
/// The first number that the driver's 32 bits do not hold.
const BEYOND: u64 = 1 << 32;
/// Shared memory that every kernel has without opt-in.
const WITHOUT_OPT_IN: u64 = 48 * 1024;

/// Draws launches of one kernel.
#[derive(Debug)]
pub struct Generator {
    limits: LaunchLimits,
    parameter_bytes: u64,
    /// Threads of a block around every limit.
    threads: Vec<u64>,
    /// Dynamic shared memory around every limit.
    shared: Vec<u64>,
}

impl Generator {
    /// For a kernel with these limits.
    #[must_use]
    pub fn new(limits: &LaunchLimits, parameter_bytes: u64) -> Self {
        let threads = thread_edges(limits);
        let shared = shared_edges(limits);
        Self { limits: limits.clone(), parameter_bytes, threads, shared }
    }

    /// A launch. `residency` gives the most co-resident blocks of a cooperative one.
    pub fn draw(
        &self,
        random: &mut Random,
        residency: impl Fn(&LaunchRequest) -> Option<u64>,
    ) -> LaunchRequest {
        let mut request = self.legal(random);
        for _ in 0..random.pick(&[0, 0, 1, 1, 1, 1, 1, 2, 2, 3, 4]) {
            self.change(&mut request, random);
        }
        if request.cooperative
            && random.percent(60)
            && let Some(most) = residency(&request)
        {
            request.grid = self.around(most, &request, random);
        }
        self.keep_small(&mut request, random);
        request
    }

    /// A small launch that breaks no rule but, seldom, that of residency.
    fn legal(&self, random: &mut Random) -> LaunchRequest {
        let (kernel, device) = (self.limits.kernel(), self.limits.device());
        let most_threads = max_threads(kernel).min(device.max_threads_per_block);
        let threads = match random.pick(&self.threads) {
            threads if threads > 0 && threads <= most_threads => threads,
            _ => 1 + random.below(most_threads),
        };
        let most_shared = self.limits.max_dynamic_shared_bytes();
        let shared = random.pick(&self.shared);
        let cluster = match (kernel.required_cluster, kernel.cluster_must_be_set) {
            (Some(own), false) => random.percent(50).then_some(own),
            (own, true) => Some(own.unwrap_or_else(|| self.cluster(random))),
            (None, false) if device.cluster_launch && random.percent(25) => {
                Some(self.cluster(random))
            }
            (None, false) => None,
        };
        let grid = Dim3::new(
            random.pick(&[1, 1, 2, 3, 7, 16, 64]),
            random.pick(&[1, 1, 1, 2, 5]),
            random.pick(&[1, 1, 1, 2, 3]),
        );
        let mut request = LaunchRequest::new(times(grid, unit(cluster, &self.limits)), Dim3::ONE)
            .dynamic_shared_bytes(if shared <= most_shared { shared } else { 0 })
            .parameter_bytes(self.parameter_bytes);
        request.block = shape(threads, random);
        request.cluster = cluster;
        request.cooperative = device.cooperative_launch && random.percent(15);
        request
    }

    /// A cluster of a size that the kernel may have, of any shape.
    fn cluster(&self, random: &mut Random) -> Dim3 {
        let wide = self.limits.kernel().non_portable_cluster_allowed;
        let blocks = if wide { 1 + random.below(16) } else { 1 + random.below(8) };
        shape(blocks, random)
    }

    /// Puts one number at a limit, past it, or elsewhere.
    fn change(&self, request: &mut LaunchRequest, random: &mut Random) {
        let device = self.limits.device();
        match random.below(12) {
            0..=2 => {
                let axis = random.pick(&Axis::ALL);
                let size = edge(device.max_grid.along(axis), random);
                request.grid = request.grid.with(axis, size);
            }
            3 => {
                let axis = random.pick(&Axis::ALL);
                let size = edge(device.max_block.along(axis), random);
                request.block = request.block.with(axis, size);
            }
            4 | 5 => request.block = shape(random.pick(&self.threads), random),
            6 | 7 => request.dynamic_shared_bytes = random.pick(&self.shared),
            8 if device.cluster_launch => {
                let mut size = || random.pick(&[0, 1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17]);
                request.cluster = Some(Dim3::new(size(), size(), size()));
            }
            9 if device.cluster_launch => request.cluster = None,
            10 => {
                let axis = random.pick(&Axis::ALL);
                let more = request.grid.along(axis).saturating_add(1);
                request.grid = request.grid.with(axis, more);
            }
            11 if random.percent(20) => {
                let most = device.max_parameter_bytes;
                request.parameter_bytes = random.pick(&[most + 1, 2 * most, u64::MAX]);
            }
            _ => request.cooperative = device.cooperative_launch && !request.cooperative,
        }
    }

    /// A grid of whole clusters with about as many blocks as are resident at once.
    fn around(&self, most: u64, request: &LaunchRequest, random: &mut Random) -> Dim3 {
        let unit = unit(request.cluster, &self.limits);
        let each = (unit.x * unit.y * unit.z).max(1);
        let count = (most / each + random.pick(&[0, 1, 1, 2])).saturating_sub(1).max(1);
        let folds = [1, 2, 3, 4, 8].into_iter().filter(|fold| count.is_multiple_of(*fold));
        let fold = random.pick(&folds.collect::<Vec<_>>());
        let [long, short] = random.pick(&[
            [Axis::X, Axis::Y],
            [Axis::X, Axis::Z],
            [Axis::Y, Axis::X],
            [Axis::Z, Axis::Y],
        ]);
        times(Dim3::ONE.with(long, count / fold).with(short, fold), unit)
    }

    /// Shortens a grid whose axes are all within their limits, until it is cheap to run.
    fn keep_small(&self, request: &mut LaunchRequest, random: &mut Random) {
        let most = if random.below(1000) == 0 { MOST_BLOCKS_OF_FEW } else { MOST_BLOCKS };
        let unit = unit(request.cluster, &self.limits);
        let limit = self.limits.device().max_grid;
        let mut axes = Axis::ALL;
        axes.sort_by_key(|axis| request.grid.along(*axis));
        for axis in axes {
            let blocks = request.grid.along(axis);
            let runs = |axis: &Axis| request.grid.along(*axis) <= limit.along(*axis);
            let others: u64 = Axis::ALL
                .into_iter()
                .filter(|other| *other != axis && runs(other))
                .map(|other| request.grid.along(other).max(1))
                .fold(1, u64::saturating_mul);
            if !runs(&axis) || blocks.saturating_mul(others) <= most {
                continue;
            }
            let unit = unit.along(axis).clamp(1, blocks);
            let rest = blocks % unit;
            let shorter = (most / others).saturating_sub(rest) / unit * unit + rest;
            let shorter = if shorter == 0 { unit } else { shorter };
            request.grid = request.grid.with(axis, shorter);
        }
    }
}

/// Adds a priority or programmatic dependent launch to some launches. The kernels of the tests touch
/// no memory, so they need not wait for the launch before them.
///
/// Takes a generator of its own, so that a seed still draws the launches it drew before these
/// attributes existed.
pub fn attributes(
    mut request: LaunchRequest,
    limits: &LaunchLimits,
    random: &mut Random,
) -> LaunchRequest {
    if random.percent(10) {
        request.priority = Some(random.pick(&[-5, -1, 0, 1, 1000, i32::MIN, i32::MAX]));
    }
    request.dependent = limits.device().dependent_launch() && random.percent(10);
    request
}

/// The cluster that the grid must be a multiple of.
fn unit(cluster: Option<Dim3>, limits: &LaunchLimits) -> Dim3 {
    let cluster = cluster.or(limits.kernel().required_cluster).unwrap_or(Dim3::ONE);
    let at_least_one = |size: u64| size.max(1);
    Dim3::new(at_least_one(cluster.x), at_least_one(cluster.y), at_least_one(cluster.z))
}

fn times(a: Dim3, b: Dim3) -> Dim3 {
    Dim3::new(a.x * b.x, a.y * b.y, a.z * b.z)
}

/// A number around `limit`, small, or far away.
fn edge(limit: u64, random: &mut Random) -> u64 {
    match random.below(20) {
        0..=3 => limit + 1,
        4..=7 => limit,
        8..=10 => limit - 1,
        11 | 12 => 0,
        13 => 1,
        14 | 15 => 2 + random.below(40),
        16 => 2 * limit,
        17 => limit + 1 + random.below(1 << 16),
        18 => BEYOND - 1,
        _ => random.pick(&[BEYOND, BEYOND + 1, u64::MAX]),
    }
}

/// `count` as a product along three axes, of any shape.
fn shape(count: u64, random: &mut Random) -> Dim3 {
    let divisor = |of: u64, random: &mut Random| {
        let divisor = random.pick(&[1, 1, 1, 2, 3, 4, 8, 16, 32, 64]);
        if of.is_multiple_of(divisor) { divisor } else { 1 }
    };
    let z = divisor(count, random);
    let y = divisor(count / z, random);
    let x = count / z / y;
    let [a, b, c] = random.pick(&[[x, y, z], [x, y, z], [y, x, z], [x, z, y], [z, y, x]]);
    Dim3::new(a, b, c)
}

fn around_each(limits: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let near = |limit: u64| [limit.saturating_sub(1), limit, limit.saturating_add(1)];
    limits.into_iter().flat_map(near).collect()
}

/// Threads by launch bounds, which the driver reports of every kernel.
fn max_threads(kernel: &KernelLimits) -> u64 {
    kernel.max_threads_per_block.expect("known")
}

/// Threads by launch bounds and by registers, and around multiples of a warp.
fn thread_edges(limits: &LaunchLimits) -> Vec<u64> {
    let (kernel, device) = (limits.kernel(), limits.device());
    let a_warp = (kernel.registers_per_thread * device.warp_size).max(1);
    let a_warp = a_warp.div_ceil(device.register_allocation_unit) * device.register_allocation_unit;
    let warps = device.max_registers_per_block / a_warp;
    let whole = warps / device.warp_allocation_granularity * device.warp_allocation_granularity;
    let own = max_threads(kernel);
    let by_registers = [warps, whole, whole + 1].map(|warps| warps * device.warp_size);
    let mut edges = around_each([own, own, own + 32, device.max_threads_per_block]);
    edges.extend(around_each(by_registers));
    edges.extend([0, 1, 31, 32, 33, 64, 96, 128, 192, 256, 384, 512, 768, 960, 992, 1056, 2048]);
    edges
}

/// Shared memory by opt-in, by what the device has, and around what a multiprocessor divides into.
fn shared_edges(limits: &LaunchLimits) -> Vec<u64> {
    let (kernel, device) = (limits.kernel(), limits.device());
    let room = device.max_shared_bytes_per_block_opt_in.saturating_sub(kernel.static_shared_bytes);
    let plain = WITHOUT_OPT_IN.saturating_sub(kernel.static_shared_bytes);
    let own = limits.max_dynamic_shared_bytes();
    let reserved = device.reserved_shared_bytes_per_block;
    let half = device.shared_bytes_per_multiprocessor / 2;
    let mut edges = around_each([own, own, own, plain, room, room, WITHOUT_OPT_IN]);
    edges.extend(around_each([room.saturating_sub(reserved), room + reserved, half - reserved]));
    edges.extend([0, 0, 0, 0, 0, 1, 1024, 16_384, 100_000]);
    edges.extend([BEYOND - 1, BEYOND, u64::MAX]);
    edges
}
