//! The launch builder for kernels of a guard.

use cudarc::driver::LaunchConfig;
use gridguard::cuda::{Kernel, LaunchBuilder, LaunchError, Launched};
use gridguard::{ArgsError, Rule};
use gridguard_test_support::allocator::allocations_of;
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{context, guard, iota, kernel, poisoned, read};

const fn config(grid_y: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (1, grid_y, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 }
}

/// The number of launches.
fn number(launched: Result<Launched, LaunchError>) -> Result<u64, LaunchError> {
    launched.map(|launched| launched.launches)
}

#[test]
fn slices_views_and_numbers_reach_the_kernel_and_a_legal_launch_allocates_nothing() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let stream = context(&guard).default_stream();
        let mut out = poisoned(&stream, 20);
        let mut builder = guard.builder(&stream, &kernel);
        builder.arg(&mut out).arg(&3_u64).arg(&8_u64);
        assert_eq!(number(builder.launch(config(8))), Ok(1));
        assert_eq!(read(&stream, &out)[..8], iota(11)[3..]);
        let (launched, allocations) = allocations_of(|| {
            let (mut half, first) = (out.slice_mut(10..), 0_u64);
            let mut builder = guard.builder(&stream, &kernel);
            builder.arg(&mut half).arg(&first).arg(&10_u64);
            number(builder.launch(config(10)))
        });
        assert_eq!((launched, allocations), (Ok(1), 0));
        assert_eq!(read(&stream, &out)[10..], iota(10));
        assert_eq!(guard.counts().launches, 2);
    });
}

#[test]
fn arguments_of_other_kinds_sizes_and_numbers_are_refused() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let stream = context(&guard).default_stream();
        let mut out = poisoned(&stream, 8);
        let refused = |mut builder: LaunchBuilder<'_, Kernel>| match builder.launch(config(8)) {
            Err(LaunchError::Args(error)) => error,
            other => panic!("{other:?}"),
        };
        let builder = || guard.builder(&stream, &kernel);
        let name = || "fake_iota_y".to_owned();
        let none = ArgsError::WrongCount { kernel: name(), expected: 3, given: 0 };
        assert_eq!(refused(builder()), none);
        let mut narrow = builder();
        narrow.arg(&mut out).arg(&0_u64).arg(&8_u32);
        let wrong = ArgsError::WrongSize { kernel: name(), index: 2, expected: 8, given: 4 };
        assert_eq!(refused(narrow), wrong);
        let mut no_memory = builder();
        no_memory.arg(&0_u64).arg(&0_u64).bytes(&[0; 8]);
        let error = refused(no_memory);
        assert!(matches!(error, ArgsError::WrongKind { index: 0, .. }), "{error}");
        assert!(launches().is_empty());
    });
}

#[test]
fn a_kernel_that_was_not_rewritten_is_refused_where_its_grid_is_too_large() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let stream = context(&guard).default_stream();
        let mut out = poisoned(&stream, 70_000);
        let mut builder = guard.builder(&stream, &kernel);
        builder.arg(&mut out).arg(&0_u64).arg(&70_000_u64);
        let error = builder.launch(config(70_000)).expect_err("too large");
        let LaunchError::Invalid(violations) = &error else { panic!("{error}") };
        assert!(violations.iter().any(|one| one.rule == Rule::GridDimY), "{error}");
        let mut builder = guard.builder(&stream, &kernel);
        builder.arg(&mut out).arg(&0_u64).arg(&8_u64);
        assert_eq!(number(builder.launch_cooperative(config(8))), Ok(1));
        assert!(launches()[0].contains("cooperative=1"), "{:?}", launches());
    });
}

/// Kernels that were rewritten.
#[cfg(feature = "ptx")]
mod rewritten {
    use gridguard::ptx::Fold;

    use super::*;
    use crate::rewritten::{FILL, Logged, load, logged};

    #[test]
    fn a_grid_that_is_too_large_is_launched_folded_with_the_argument_that_rewriting_added() {
        with_fake(&[], || {
            let guard = guard();
            let kernel = load(&guard, "fill", &FILL);
            let stream = context(&guard).default_stream();
            let mut out = poisoned(&stream, 8);
            for (blocks, words) in [
                (65_535, Vec::new()),
                (76_800, Fold::new([1, 76_800, 1]).expect("few blocks").words(0).to_vec()),
            ] {
                let mut builder = guard.builder(&stream, &kernel);
                builder.arg(&mut out).arg(&7_u32);
                assert_eq!(number(builder.launch(config(blocks))), Ok(1));
                let is_folded = !words.is_empty();
                let entry = if is_folded { "fill__gridguard_folded" } else { "fill" }.to_owned();
                let grid = if is_folded { [blocks, 1, 1] } else { [1, blocks, 1] };
                assert_eq!(
                    logged(usize::from(is_folded)),
                    [Logged { entry, grid, items: 7, words }]
                );
            }
        });
    }
}
