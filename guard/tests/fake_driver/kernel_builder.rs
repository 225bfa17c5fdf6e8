//! The launch builder for kernels of a guard.

use gridguard_test_support::allocator::allocations_of;

use crate::kernels::{iota, on_y, poisoned, read, with_kernel};

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
