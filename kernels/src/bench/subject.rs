//! What an exercise must know of a kernel.

use core::ops::Range;

use gridguard::Plan;

use super::BenchError;
use super::synthetic::scattered;
use crate::compare::Compared;
use crate::deviation::Deviation;
use crate::element::Element;
use crate::tunable::Tunable;

/// A type that lies in memory of host and device.
#[cfg(feature = "cuda")]
pub(super) trait Plain:
    Compared + cudarc::driver::DeviceRepr + cudarc::driver::ValidAsZeroBits
{
}
#[cfg(feature = "cuda")]
impl<T: Compared + cudarc::driver::DeviceRepr + cudarc::driver::ValidAsZeroBits> Plain for T {}

/// A type that lies in memory of the host.
#[cfg(not(feature = "cuda"))]
pub(super) trait Plain: Compared {}
#[cfg(not(feature = "cuda"))]
impl<T: Compared> Plain for T {}

/// An element of the tensors that a kernel reads.
pub(super) trait Tensorial: Element + Plain {}
impl<T: Element + Plain> Tensorial for T {}

/// An element of the tensor that a kernel writes.
pub(super) trait Output: Plain {
    /// What no kernel writes: NaN, or the greatest integers. One for the default and another for all
    /// else, so that what neither has written differs.
    fn poisons() -> [Self; 2];

    /// The nearest value.
    #[cfg(feature = "host")]
    fn of(value: f64) -> Self;
}

impl<T: Tensorial> Output for T {
    fn poisons() -> [Self; 2] {
        [Self::narrow(f32::NAN), Self::narrow(-f32::NAN)]
    }

    #[cfg(feature = "host")]
    #[allow(clippy::as_conversions, reason = "rounds where it must")]
    fn of(value: f64) -> Self {
        Self::narrow(value as f32)
    }
}

impl Output for u32 {
    fn poisons() -> [Self; 2] {
        [Self::MAX, Self::MAX - 1]
    }

    #[cfg(feature = "host")]
    #[allow(clippy::as_conversions, reason = "references in f64 hold every u32")]
    fn of(value: f64) -> Self {
        value as Self
    }
}

/// A tensor that a kernel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// So many elements for each item, item after item.
    Items(u64),
    /// So many elements, all of which every item reads.
    Whole(u64),
    /// A table, of which each item reads one row.
    Table {
        /// How many rows there are.
        rows: u64,
        /// Elements of a row.
        columns: u64,
    },
}

impl Input {
    /// All its elements.
    pub(super) const fn elements(self, items: u64) -> u64 {
        match self {
            Self::Items(elements) => items * elements,
            Self::Whole(elements) => elements,
            Self::Table { rows, columns } => rows * columns,
        }
    }

    /// The elements that `item` reads.
    pub(super) fn part(self, item: u64) -> Range<usize> {
        let (start, elements) = match self {
            Self::Items(elements) => (item * elements, elements),
            Self::Whole(elements) => (0, elements),
            Self::Table { rows, columns } => (scattered(item, rows) * columns, columns),
        };
        place(start)..place(start + elements)
    }
}

/// A number of elements that lie in memory.
pub(super) fn place(elements: u64) -> usize {
    usize::try_from(elements).unwrap_or(usize::MAX)
}

/// What a kernel reads and writes, and how well.
pub(super) struct Specification<const N: usize> {
    /// The tensors that it reads.
    pub(super) inputs: [Input; N],
    /// Elements that it writes for each item.
    pub(super) output_per_item: u64,
    /// Bytes that must move at least.
    pub(super) least_bytes: u128,
    /// The largest relative error of a correct kernel.
    pub(super) tolerance: f64,
}

impl<const N: usize> Specification<N> {
    /// Elements that it writes for so many items.
    pub(super) fn output(&self, items: u64) -> usize {
        place(items * self.output_per_item)
    }
}

/// A kernel that reads `N` tensors of `T` and writes one.
pub(super) trait KernelSpec<T: Tensorial, const N: usize>:
    Tunable + Send + Sync + 'static
{
    /// The elements that it writes.
    type Output: Output;

    fn specification(&self) -> Specification<N>;

    /// What an item must be, by its part of each tensor.
    fn expected(&self, parts: [&[T]; N]) -> Vec<f64>;

    /// Runs a plan on the host, in the arithmetic of the reference.
    #[cfg(feature = "host")]
    fn run_on_host(
        &self,
        guard: &gridguard::Guard,
        plan: &Plan,
        inputs: [&[T]; N],
        out: &mut [Self::Output],
    ) -> Result<u64, crate::error::KernelError> {
        let specified = self.specification();
        let kernel = |item: u64, out: &mut [Self::Output]| {
            let part = |n: usize| {
                let part = specified.inputs[n].part(item);
                inputs[n].get(part).unwrap_or_default()
            };
            let expected = self.expected(core::array::from_fn(part));
            for (out, value) in out.iter_mut().zip(expected) {
                *out = Self::Output::of(value);
            }
        };
        let per_item = specified.output(1);
        Ok(guard.run(plan, &mut gridguard::HostLauncher::new(out, per_item, kernel))?)
    }
}

/// Items whose output is held against the reference: the first and the last, those in the middle, and
/// those around the first ends of chunks.
pub(super) fn looked_at(plan: &Plan) -> Vec<u64> {
    let items = plan.items();
    let ends = plan.chunks().take(MOST_CHUNKS).flat_map(|chunk| [chunk.start, chunk.end() - 1]);
    let mut looked_at: Vec<u64> =
        ends.chain([items / 2, items.saturating_sub(1)]).filter(|item| *item < items).collect();
    looked_at.sort_unstable();
    looked_at.dedup();
    looked_at
}

/// Chunks whose ends are looked at: the reference takes its time.
const MOST_CHUNKS: usize = 4;

/// The relative error of outputs that were held against the reference, where it is allowed.
pub(super) fn within(deviation: &Deviation, tolerance: f64) -> Result<f64, BenchError> {
    let error = deviation.relative();
    if deviation.within(tolerance) {
        return Ok(error);
    }
    Err(BenchError::Reference { error, tolerance })
}

/// Whether the output is the default's.
pub(super) fn same(
    difference: &crate::compare::Difference,
    tolerance: f64,
) -> Result<(), BenchError> {
    if difference.within(tolerance) {
        return Ok(());
    }
    Err(BenchError::Mismatch {
        error: difference.relative(),
        tolerance,
        differing: difference.differing(),
        not_finite: difference.not_finite(),
        elements: difference.compared(),
    })
}

#[cfg(test)]
mod tests {
    use gridguard::{
        Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest,
    };

    use super::*;

    #[test]
    fn the_items_around_every_boundary_are_looked_at_once() {
        let plan = |items, most| {
            let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("k"));
            let request = LaunchRequest::new(Dim3::new(1, items, 1), Dim3::ONE);
            let batch = BatchAxis::new(Axis::Y, items);
            Plan::new(&request, Some(&batch), &limits, Choice::at_most(most)).expect("splits")
        };
        assert_eq!(looked_at(&plan(10, 5)), [0, 4, 5, 9]);
        assert_eq!(looked_at(&plan(100, 10)), [0, 9, 10, 19, 20, 29, 30, 39, 50, 99]);
        assert_eq!(looked_at(&plan(1, 1)), [0]);
        assert!(looked_at(&plan(0, 1)).is_empty());
    }

    #[test]
    fn an_item_reads_its_own_elements_all_of_them_or_a_row() {
        assert_eq!((Input::Items(8).elements(3), Input::Items(8).part(2)), (24, 16..24));
        assert_eq!((Input::Whole(8).elements(3), Input::Whole(8).part(2)), (8, 0..8));
        let table = Input::Table { rows: 5, columns: 8 };
        assert_eq!(table.elements(3), 40);
        let row = table.part(2);
        assert!(row.start.is_multiple_of(8) && row.len() == 8 && row.end <= 40);
    }
}
