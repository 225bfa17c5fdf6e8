//! Plans of several launches on a device: every item is written once, in its place.

use gridguard::{Axis, Choice, Plan, Strategy};
use gridguard_test_support::fake_driver::{Driver, launches, with_driver};

use crate::kernels::{
    context, guard, iota, iota_launches, items_along, kernel, launch_iota, plan_along, poisoned,
    read, with_kernel, with_stream,
};

/// The kernel `fake_iota_y`, whose chunks may overlap.
fn overlapping(guard: &gridguard::Guard) -> gridguard::cuda::Kernel {
    // SAFETY: the fake driver runs one launch after another.
    #[allow(unsafe_code, reason = "the promise is what is tested")]
    unsafe {
        kernel(guard, "fake_iota_y").with_overlapping_chunks()
    }
}

#[test]
fn chunks_overlap_those_before_them_where_the_kernel_allows_it() {
    with_stream(&[], |guard, stream| {
        let kernel = overlapping(&guard);
        let plan = plan_along(&kernel, Axis::Y, 131_071);
        assert_eq!(iota_launches(&guard, &kernel, &plan, &stream, 131_071), 3);
        let overlap: Vec<bool> = launches().iter().map(|line| line.contains("overlap=1")).collect();
        // The first waits for earlier work on the stream.
        assert_eq!(overlap, [false, true, true]);
        let plan = plan_along(&kernel, Axis::Y, 8);
        assert_eq!(iota_launches(&guard, &kernel, &plan, &stream, 8), 1);
        assert!(!launches()[3].contains("overlap"));
    });
}

#[test]
fn chunks_do_not_overlap_with_a_driver_that_does_not_support_it() {
    with_driver(Driver::Old, &[], || {
        let guard = guard();
        let kernel = overlapping(&guard);
        let stream = context(&guard).default_stream();
        let plan = plan_along(&kernel, Axis::Y, 76_800);
        assert_eq!(iota_launches(&guard, &kernel, &plan, &stream, 76_800), 2);
    });
}

#[test]
fn on_x_the_same_launch_is_whole_and_a_chosen_cap_splits_it() {
    with_kernel(&[], "fake_iota_x", |guard, kernel, stream| {
        let plan = plan_along(&kernel, Axis::X, 76_800);
        assert_eq!(plan.strategy(), Strategy::Whole);
        assert_eq!(iota_launches(&guard, &kernel, &plan, &stream, 76_800), 1);

        let (request, batch) = items_along(Axis::X, 76_800);
        let choice = Choice::at_most(65_535);
        let plan = Plan::new(&request, Some(&batch), kernel.limits(), choice).expect("it splits");
        assert_eq!(iota_launches(&guard, &kernel, &plan, &stream, 76_800), 2);
    });
}

#[test]
fn batches_at_the_limit_of_the_axis_take_the_fewest_launches_and_miss_no_item() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, stream| {
        for (items, expected) in [
            (1, 1),
            (65_534, 1),
            (65_535, 1),
            (65_536, 2),
            (131_070, 2),
            (131_071, 3),
            (196_605, 3),
            (196_606, 4),
        ] {
            let plan = plan_along(&kernel, Axis::Y, items);
            let launched = iota_launches(&guard, &kernel, &plan, &stream, items);
            assert_eq!(launched, expected, "{items} items");
        }
        let counts = guard.counts();
        assert_eq!((counts.plans, counts.launches, counts.split), (8, 17, 5));
    });
}

#[test]
fn nothing_outside_the_items_is_written() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, stream| {
        let mut out = poisoned(&stream, 70_002);
        let plan = plan_along(&kernel, Axis::Y, 70_000);
        let mut inner = out.slice_mut(1..70_001);
        assert_eq!(launch_iota(&guard, &kernel, &plan, &stream, &mut inner), Ok(2));
        let written = read(&stream, &out);
        assert_eq!(written[1..70_001], iota(70_000));
        assert_eq!(
            [written[0], written[70_001]],
            [crate::kernels::POISON; 2],
            "the frame is untouched"
        );
    });
}
