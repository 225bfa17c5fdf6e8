//! The limits of one kernel on one device, prepared for validation.

use core::sync::atomic::{AtomicU64, Ordering};
use std::borrow::Cow;
use std::sync::Arc;

use super::device::DeviceLimits;
use super::index::IndexLimit;
use super::kernel::KernelLimits;
use crate::dim::{Axis, Dim3};

/// The limits of one kernel on one device. Launches are validated against them.
///
/// Cheap to clone. Validated launches carry the identity of their limits, so that a launch validated for one
/// kernel cannot be used for another.
// What a plain launch reads is in front.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct LaunchLimits {
    id: u64,
    plain: PlainThresholds,
    kernel: Arc<KernelLimits>,
    forms: Option<Arc<Forms>>,
    device: Arc<DeviceLimits>,
    thresholds: Thresholds,
}

/// The forms of a rewritten kernel. The planner launches them if the kernel's own grid is too large. See the
/// feature `ptx`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormLimits<L = KernelLimits> {
    /// The form for parts of the grid.
    pub shifted: L,
    /// The form for all blocks flat on x.
    pub folded: L,
    /// The axes x, y and z whose block index the kernel reads.
    pub reads_block_index: [bool; 3],
    /// The axes x, y and z whose grid size the kernel reads.
    pub reads_grid_size: [bool; 3],
}

/// Forms with their own identities. A chunk is launched with the form whose identity is in its plan, so only this crate
/// may pair an identity with a form.
pub(crate) type Forms = FormLimits<LaunchLimits>;

impl<L> FormLimits<L> {
    fn map<M>(&self, limits: impl Fn(&L) -> M) -> FormLimits<M> {
        let Self { shifted, folded, reads_block_index, reads_grid_size } = self;
        FormLimits {
            shifted: limits(shifted),
            folded: limits(folded),
            reads_block_index: *reads_block_index,
            reads_grid_size: *reads_grid_size,
        }
    }
}

impl Forms {
    /// Whether the kernel's code contradicts a batch along `axis`: it never reads the block index there, or
    /// it reads the grid size, which differs in a chunk.
    pub(crate) fn contradict_batch_along(&self, axis: Axis) -> bool {
        let [index, size] = [self.reads_block_index, self.reads_grid_size]
            .map(|on| Axis::ALL.into_iter().zip(on).any(|(one, reads)| one == axis && reads));
        !index || size
    }
}

/// The thresholds of a plain launch: without a cluster, cooperation, dependence or a priority. They fit in
/// one cache line, because the driver evicts the caches between two launches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainThresholds {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// The lowest limit of device, launch bounds and registers; 0 if no plain launch is legal.
    pub(crate) threads: u32,
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) parameter_bytes: u32,
    /// Whether the kernel's indices set `grid`.
    pub(crate) is_indexed: bool,
}

/// The numbers that the rules compare a launch with and that neither device nor kernel states, computed once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thresholds {
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    /// The most threads of a block whose registers fit, if registers are known.
    pub(crate) register_threads: Option<u128>,
    /// Whether the kernel needs more local memory than any launch can have.
    pub(crate) too_much_local_memory: bool,
    pub(crate) dynamic_shared_bytes: u64,
    /// Dynamic bytes that fit beside the static bytes after opt-in; `None` if the static bytes alone do not
    /// fit.
    pub(crate) opt_in_dynamic_bytes: Option<u64>,
    pub(crate) cluster_blocks: u64,
    /// Whether validation estimates how many blocks can be co-resident.
    pub(crate) estimates_occupancy: bool,
}

/// The largest cluster of a kernel that allows non-portable sizes (an H200 accepts 16, never 32).
pub(crate) const NON_PORTABLE_CLUSTER_BLOCKS: u64 = 16;

impl LaunchLimits {
    /// The limits of `kernel` on `device`.
    pub fn new(device: impl Into<Arc<DeviceLimits>>, kernel: KernelLimits) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let device = device.into();
        let thresholds = Thresholds::new(&device, &kernel);
        let plain = PlainThresholds::new(&device, &kernel, &thresholds);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, device, kernel: Arc::new(kernel), plain, thresholds, forms: None }
    }

    /// The limits of a rewritten kernel with these forms, to plan its launches without loading it.
    ///
    /// A loaded kernel rejects such plans: it only accepts plans for the limits that it returns itself.
    pub fn rewritten(
        device: impl Into<Arc<DeviceLimits>>,
        kernel: KernelLimits,
        forms: FormLimits,
    ) -> Self {
        let device = device.into();
        let forms = forms.map(|form| Self::new(Arc::clone(&device), form.clone()));
        Self::new(device, kernel).with_forms(forms)
    }

    /// The same limits, for a kernel with these forms.
    pub(crate) fn with_forms(self, forms: Forms) -> Self {
        Self { forms: Some(Arc::new(forms)), ..self }
    }

    /// The limits of the kernel's forms, if it was rewritten.
    pub fn form_limits(&self) -> Option<FormLimits> {
        Some(self.forms()?.map(|form| form.kernel().clone()))
    }

    pub(crate) fn forms(&self) -> Option<&Forms> {
        self.forms.as_deref()
    }

    /// The same limits, for a kernel with these index limits. Nothing was validated against them yet.
    #[cfg(all(feature = "cuda", feature = "ptx"))]
    pub(crate) fn with_index(self, index: Vec<IndexLimit>) -> Self {
        let kernel = Arc::new(KernelLimits { index, ..KernelLimits::clone(&self.kernel) });
        let plain = PlainThresholds::new(&self.device, &kernel, &self.thresholds);
        Self { kernel, plain, ..self }
    }

    /// The most blocks along `axis` of a launch before an index wraps.
    pub(crate) fn index_blocks(&self, axis: Axis, grid: Dim3, block: Dim3) -> u64 {
        let blocks = |index: &IndexLimit| index.most_blocks(axis, grid, block);
        self.kernel.index.iter().map(blocks).min().unwrap_or(u64::MAX)
    }

    /// The same limits for callers whose launches work on items, so that the grid is not split into parts.
    pub fn without_forms(&self) -> Cow<'_, Self> {
        match self.forms {
            None => Cow::Borrowed(self),
            Some(_) => Cow::Owned(Self { forms: None, ..self.clone() }),
        }
    }

    /// The same limits for a launcher that opts in to large dynamic shared memory. The limit is then the
    /// device's opt-in limit less the static shared memory.
    #[must_use]
    pub fn with_automatic_opt_in(self) -> Self {
        let mut kernel = KernelLimits::clone(&self.kernel);
        let opt_in = self.thresholds.opt_in_dynamic_bytes.unwrap_or(0);
        kernel.max_dynamic_shared_bytes = Some(self.thresholds.dynamic_shared_bytes.max(opt_in));
        let with_opt_in = |form: &Self| form.clone().with_automatic_opt_in();
        let forms = self.forms.map(|forms| Arc::new(forms.map(with_opt_in)));
        Self { forms, ..Self::new(self.device, kernel) }
    }

    /// The same limits for a launcher that queries the driver for co-resident blocks.
    pub(crate) const fn without_occupancy_estimate(mut self) -> Self {
        self.thresholds.estimates_occupancy = false;
        self
    }

    /// The device's limits.
    pub fn device(&self) -> &DeviceLimits {
        &self.device
    }

    /// The kernel's limits.
    pub fn kernel(&self) -> &KernelLimits {
        &self.kernel
    }

    /// Dynamic shared memory in bytes that a launch may request without further opt-in.
    pub const fn max_dynamic_shared_bytes(&self) -> u64 {
        self.thresholds.dynamic_shared_bytes
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// The most blocks of the device along `axis`.
    #[inline]
    pub(crate) fn grid_along(&self, axis: Axis) -> u64 {
        self.thresholds.grid.along(axis)
    }

    pub(crate) const fn plain(&self) -> &PlainThresholds {
        &self.plain
    }

    pub(crate) const fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Registers that a block of `threads` needs. The driver's launch check assumes an allocation in every
    /// partition of the register file, so warps are rounded up to a multiple of the partitions.
    pub(crate) fn registers_per_block(&self, threads: u128) -> u128 {
        let warps = threads.div_ceil(self.device.warp_size.max(1).into());
        let partitions = u128::from(self.device.warp_allocation_granularity.max(1));
        let warps = warps.div_ceil(partitions).saturating_mul(partitions);
        warps.saturating_mul(registers_per_warp(&self.device, &self.kernel))
    }
}

impl Thresholds {
    fn new(device: &DeviceLimits, kernel: &KernelLimits) -> Self {
        let fixed = kernel.static_shared_bytes;
        let default_dynamic = device.max_shared_bytes_per_block.saturating_sub(fixed);
        let dynamic = kernel.max_dynamic_shared_bytes.unwrap_or(default_dynamic);
        let non_portable = match kernel.non_portable_cluster_allowed {
            true => NON_PORTABLE_CLUSTER_BLOCKS,
            false => 0,
        };
        Self {
            grid: at_most_32_bits(device.max_grid),
            block: at_most_32_bits(device.max_block),
            register_threads: register_threads(device, kernel),
            too_much_local_memory: kernel.local_bytes_per_thread
                > device.max_local_bytes_per_thread(),
            dynamic_shared_bytes: dynamic.min(u32::MAX.into()),
            opt_in_dynamic_bytes: device.shared_bytes_limit().checked_sub(fixed),
            cluster_blocks: device.max_portable_cluster_blocks.max(non_portable),
            estimates_occupancy: true,
        }
    }
}

impl PlainThresholds {
    /// The most blocks along `axis`.
    #[inline]
    pub(crate) fn grid_along(&self, axis: Axis) -> u64 {
        Dim3::from(self.grid).along(axis)
    }

    /// A plain launch within these is legal. Other launches are checked rule by rule.
    fn new(device: &DeviceLimits, kernel: &KernelLimits, thresholds: &Thresholds) -> Self {
        let needs_cluster = kernel.required_cluster.is_some() || kernel.cluster_must_be_set;
        let register_threads =
            thresholds.register_threads.map(|most| u64::try_from(most).unwrap_or(u64::MAX));
        let threads = [kernel.max_threads_per_block, register_threads]
            .into_iter()
            .flatten()
            .fold(device.max_threads_per_block, u64::min);
        let none = needs_cluster
            || kernel.required_block.is_some()
            || thresholds.too_much_local_memory
            || thresholds.opt_in_dynamic_bytes.is_none();
        let opt_in_dynamic = thresholds.opt_in_dynamic_bytes.unwrap_or(0);
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let widest =
            |axis: Dim3| Dim3::new(axis.x.min(threads), axis.y.min(threads), axis.z.min(threads));
        let within = |grid, index: &IndexLimit| index.safe_grid(grid, widest(thresholds.block));
        Self {
            grid: kernel.index.iter().fold(thresholds.grid, within).narrow().unwrap_or_default(),
            block: thresholds.block.narrow().unwrap_or_default(),
            threads: if none { 0 } else { narrow(threads) },
            dynamic_shared_bytes: narrow(thresholds.dynamic_shared_bytes.min(opt_in_dynamic)),
            parameter_bytes: narrow(device.max_parameter_bytes),
            is_indexed: !kernel.index.is_empty(),
        }
    }
}

/// The driver takes 32-bit dimensions, even if the limits are higher.
fn at_most_32_bits(dim: Dim3) -> Dim3 {
    let most = u64::from(u32::MAX);
    Dim3::new(dim.x.min(most), dim.y.min(most), dim.z.min(most))
}

/// Registers allocated to a warp; 0 if unknown.
pub(super) fn registers_per_warp(device: &DeviceLimits, kernel: &KernelLimits) -> u128 {
    let unit = u128::from(device.register_allocation_unit.max(1));
    let exact = u128::from(kernel.registers_per_thread) * u128::from(device.warp_size);
    exact.div_ceil(unit).saturating_mul(unit)
}

/// The most threads of a block whose registers fit, if registers are known.
fn register_threads(device: &DeviceLimits, kernel: &KernelLimits) -> Option<u128> {
    let partitions = u128::from(device.warp_allocation_granularity.max(1));
    let per_warp = registers_per_warp(device, kernel);
    let warps = u128::from(device.max_registers_per_block).checked_div(per_warp)?;
    Some(warps / partitions * partitions * u128::from(device.warp_size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_with_opt_in_share_no_identity_with_those_without() {
        let kernel = || KernelLimits::unknown("k");
        let forms = FormLimits {
            shifted: kernel(),
            folded: kernel(),
            reads_block_index: [true; 3],
            reads_grid_size: [false; 3],
        };
        let limits = LaunchLimits::rewritten(DeviceLimits::any_device(), kernel(), forms.clone());
        assert_eq!(limits.form_limits(), Some(forms));
        let with_opt_in = limits.clone().with_automatic_opt_in();
        let ids = |limits: &LaunchLimits| {
            let forms = limits.forms().expect("a rewritten kernel");
            [limits.id(), forms.shifted.id(), forms.folded.id()]
        };
        let all = [ids(&limits), ids(&with_opt_in)].concat();
        let unique: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(unique.len(), all.len(), "{all:?}");
    }

    #[test]
    fn register_threads_round_warps_down_to_the_granularity() {
        let mut device = DeviceLimits::any_device();
        device.max_registers_per_block = 65_536;
        let mut kernel = KernelLimits::unknown("k");
        kernel.registers_per_thread = 210;
        let limits = LaunchLimits::new(device, kernel);
        // 6,912 registers per warp: nine warps fit, but warps are allocated in fours.
        assert_eq!(limits.thresholds().register_threads, Some(256));
        assert_eq!(limits.registers_per_block(256), 8 * 6912);
        assert_eq!(limits.registers_per_block(257), 12 * 6912);
    }

    #[test]
    fn static_shared_memory_above_the_limit_leaves_no_dynamic_shared_memory() {
        let mut kernel = KernelLimits::unknown("k");
        kernel.static_shared_bytes = 1 << 20;
        let limits = LaunchLimits::new(DeviceLimits::any_device(), kernel);
        assert_eq!(limits.thresholds().opt_in_dynamic_bytes, None);
        assert_eq!(limits.max_dynamic_shared_bytes(), 0);
    }

    #[test]
    fn without_opt_in_static_shared_memory_counts_against_48_kib() {
        let mut kernel = KernelLimits::unknown("k");
        kernel.static_shared_bytes = 48_000;
        let limits = LaunchLimits::new(DeviceLimits::any_device(), kernel);
        assert_eq!(limits.max_dynamic_shared_bytes(), 1152);
    }
}
