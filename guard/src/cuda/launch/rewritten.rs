//! Kernels whose PTX was rewritten: launches of their forms, each with the parameter that rewriting added.

use gridguard_ptx::{FOLDED_WORDS, Fold, shifted_words};

use crate::cuda::error::CudaError;
use crate::cuda::kernel::module::Module;
use crate::cuda::kernel::{Kernel, Rewriting};
use crate::guard::Guard;
use crate::plan::choice::Strategy;
use crate::plan::launches::Plan;
use crate::plan::rewritten::MOST_FOLDED_BLOCKS;

impl Guard {
    /// Rewrites PTX and loads it into the guard's context. A kernel whose grid is too large is launched in
    /// parts along any axes, or flat on x. Each block reads the block index and grid size of the whole launch,
    /// so no batch has to be declared. Legal launches run the original kernel, unmodified.
    ///
    /// A declared batch is launched in chunks, as for other kernels. If the kernel reads the grid size along
    /// the batch's axis, or never its block index, the planner launches parts of the grid instead.
    ///
    /// With NVRTC, get the PTX from
    /// [`Compiler::compile_to_ptx`](crate::cuda::Compiler::compile_to_ptx). A rewritten kernel costs three
    /// compiled entries.
    ///
    /// ```no_run
    /// # use gridguard::{Dim3, Guard, LaunchRequest, Parameter};
    /// # fn run(guard: &Guard, ptx: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// let module = guard.load_ptx(ptx)?;
    /// // SAFETY: `fill` takes a pointer, and writes an element for each block of its grid.
    /// let kernel = unsafe { module.kernel("fill", &[Parameter::Memory])? };
    /// let request = LaunchRequest::new(Dim3::new(1, 76_800, 70_000), Dim3::new(128, 1, 1));
    /// let plan = guard.plan(&request, None, kernel.limits(), gridguard::Choice::AUTOMATIC)?;
    /// println!("{}, {} launches", plan.strategy(), plan.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`CudaErrorKind::Rewrite`](crate::cuda::CudaErrorKind::Rewrite) if the text cannot be read as PTX, and as
    /// [`Self::load`]. A kernel that cannot have forms is no error: a launch of it whose grid is too large
    /// is [`LaunchErrorKind::NotRewritten`](crate::cuda::LaunchErrorKind::NotRewritten), with the reason.
    pub fn load_ptx(&self, ptx: impl AsRef<[u8]>) -> Result<Module, CudaError> {
        Module::load_ptx(self.device_context()?, ptx.as_ref())
    }
}

impl Kernel {
    /// The form that `plan` was made for and its words, if it is one of this kernel.
    #[cold]
    pub(crate) fn form_of(&self, plan: &Plan) -> Option<(&Self, GridWords)> {
        let Some(Rewriting::Forms { shifted, folded }) = self.rewriting.as_deref() else {
            return None;
        };
        // The words decide between the shifted and the folded form, so a form never receives the other's words.
        let words = GridWords::of(plan)?;
        let form = match words {
            GridWords::Shifted(_) => shifted,
            GridWords::Folded(_) => folded,
        };
        plan.largest_launch().is_for(form.limits()).then_some((form, words))
    }
}

/// The words that a form takes as its extra parameter: where its blocks are in the whole grid.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GridWords {
    Shifted([u32; 3]),
    Folded(Fold),
}

impl GridWords {
    /// The words of a plan for a form.
    pub(crate) fn of(plan: &Plan) -> Option<Self> {
        let grid = plan.whole?.grid;
        match plan.strategy() {
            Strategy::Folded => Fold::new(grid).map(Self::Folded),
            _ => Some(Self::Shifted(grid)),
        }
    }

    /// The words of the part that begins at this block.
    pub(crate) fn at(&self, first_block: [u32; 3]) -> [u32; FOLDED_WORDS] {
        match self {
            Self::Folded(fold) => fold.words(first_block[0]),
            Self::Shifted(grid) => {
                let mut words = [0; FOLDED_WORDS];
                let shifted = shifted_words(*grid, first_block);
                words.iter_mut().zip(shifted).for_each(|(to, word)| *to = word);
                words
            }
        }
    }
}

/// The planner folds no larger grid.
const _: () = assert!(Fold::MAX_BLOCKS.ilog2() == MOST_FOLDED_BLOCKS.ilog2());

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::{
        Just, ProptestConfig, prop_assert, prop_assert_eq, prop_oneof, proptest,
    };
    use proptest::strategy::Strategy as Generator;

    use super::*;
    use crate::limits::{DeviceLimits, FormLimits, KernelLimits, LaunchLimits};
    use crate::plan::choice::Choice;
    use crate::{Dim3, LaunchRequest};

    /// The block index and the grid size that a block of a launch with these words sees.
    fn seen(strategy: Strategy, words: &[u32; FOLDED_WORDS], block: [u32; 3]) -> [[u32; 3]; 2] {
        if strategy == Strategy::Shifted {
            let [x, y, z] = [0, 1, 2].map(|axis| block[axis] + words[axis]);
            return [[x, y, z], [words[3], words[4], words[5]]];
        }
        // One multiplication and one shift stand for each division.
        let divide = |number: u32, multiplier: u32, shift: u32| {
            let product = u64::from(number) * u64::from(multiplier);
            u32::try_from(product >> shift).expect("32 bits")
        };
        let [first, minus_x, x_multiplier, x_shift, y_multiplier, y_shift, minus_y, x, y, z] =
            *words;
        assert_eq!([minus_x, minus_y], [x.wrapping_neg(), y.wrapping_neg()]);
        let flat = first + block[0];
        let rest = divide(flat, x_multiplier, x_shift);
        let last = divide(rest, y_multiplier, y_shift);
        [[flat - rest * x, rest - last * y, last], [x, y, z]]
    }

    /// All block indices of `grid`.
    fn indices(grid: [u32; 3]) -> impl Iterator<Item = [u32; 3]> {
        let [x, y, z] = grid;
        (0..x * y * z).map(move |at| [at % x, at / x % y, at / x / y])
    }

    fn limits(max_grid: Dim3) -> LaunchLimits {
        let device = DeviceLimits { max_grid, ..DeviceLimits::any_device() };
        let kernel = KernelLimits::unknown("k");
        let forms = FormLimits {
            shifted: kernel.clone(),
            folded: kernel.clone(),
            reads_block_index: [true; 3],
            reads_grid_size: [true; 3],
        };
        LaunchLimits::rewritten(device, kernel, forms)
    }

    fn choices() -> impl Generator<Value = Choice> {
        let strategy =
            prop_oneof![Just(None), Just(Some(Strategy::Shifted)), Just(Some(Strategy::Folded)),];
        (strategy, 0_u64..40).prop_map(|(strategy, most)| match strategy {
            Some(strategy) => Choice::at_most(most).strategy(strategy),
            None => Choice::at_most(most),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn launches_see_every_block_of_the_grid_once(
            grid in [1_u32..13, 1..13, 1..13], most in [1_u64..9, 1..7, 1..5], choice in choices(),
        ) {
            let limits = limits(Dim3::new(most[0], most[1], most[2]));
            let request = LaunchRequest::new(grid.into(), Dim3::new(32, 1, 1));
            let plan = Plan::new(&request, None, &limits, choice).expect("any grid");
            let mut all = BTreeSet::new();
            for planned in plan.launches() {
                let legal = planned.launch.grid().into_iter().zip(most);
                prop_assert!(legal.clone().all(|(blocks, most)| u64::from(blocks) <= most));
                let words = GridWords::of(&plan).map(|words| words.at(planned.first_block));
                for block in indices(planned.launch.grid()) {
                    let [index, size] = match &words {
                        Some(words) => seen(plan.strategy(), words, block),
                        None => [block, planned.launch.grid()],
                    };
                    prop_assert_eq!(size, grid);
                    prop_assert!(all.insert(index), "{:?} twice", index);
                }
            }
            prop_assert_eq!(all, indices(grid).collect::<BTreeSet<_>>());
        }
    }
}
