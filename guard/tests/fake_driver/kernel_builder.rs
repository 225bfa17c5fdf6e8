//! The launch builder for kernels of a guard.

use gridguard::ArgsError;
use gridguard::cuda::{Kernel, LaunchBuilder, LaunchErrorKind};
use gridguard_test_support::allocator::allocations_of;
use gridguard_test_support::fake_driver::launches;

use crate::kernels::{context, iota, on_y, poisoned, read, with_guard, with_kernel};

#[test]
fn slices_views_and_numbers_reach_the_kernel_and_a_legal_launch_allocates_nothing() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, stream| {
        let mut out = poisoned(&stream, 20);
        let mut builder = guard.builder(&stream, &kernel);
        builder.arg(&mut out).arg(&3_u64).arg(&8_u64);
        assert_eq!(builder.launch(on_y(8)), Ok(1));
        assert_eq!(read(&stream, &out)[..8], iota(11)[3..]);
        let (launched, allocations) = allocations_of(|| {
            let (mut half, first) = (out.slice_mut(10..), 0_u64);
            let mut builder = guard.builder(&stream, &kernel);
            builder.arg(&mut half).arg(&first).arg(&10_u64);
            builder.launch(on_y(10))
        });
        assert_eq!((launched, allocations), (Ok(1), 0));
        assert_eq!(read(&stream, &out)[10..], iota(10));
        assert_eq!(guard.counts().launches, 2);
    });
}

#[test]
fn arguments_of_other_kinds_sizes_and_numbers_are_refused() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, stream| {
        let mut out = poisoned(&stream, 8);
        let refused = |mut builder: LaunchBuilder<'_, Kernel>| match builder
            .launch(on_y(8))
            .expect_err("refused")
            .kind()
        {
            LaunchErrorKind::Args(error) => error.clone(),
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

/// Kernels that were rewritten.
#[cfg(feature = "ptx")]
mod rewritten {
    use gridguard::ptx::Fold;

    use super::*;
    use crate::rewritten::{FILL, Logged, load, logged};

    #[test]
    fn a_grid_that_is_too_large_is_launched_folded_with_the_argument_that_rewriting_added() {
        with_guard(&[], |guard| {
            let kernel = load(&guard, "fill", &FILL);
            let stream = context(&guard).default_stream();
            let mut out = poisoned(&stream, 8);
            for (blocks, words) in [
                (65_535, Vec::new()),
                (76_800, Fold::new([1, 76_800, 1]).expect("few blocks").words(0).to_vec()),
            ] {
                let mut builder = guard.builder(&stream, &kernel);
                builder.arg(&mut out).arg(&7_u32);
                assert_eq!(builder.launch(on_y(blocks.into())), Ok(1));
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
