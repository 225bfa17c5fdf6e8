//! Launches with a priority of their own, and ones that begin before the one before them has ended.

use gridguard::cuda::Args;
use gridguard::{Axis, BatchAxis, Choice, Dim3, LaunchRequest, Rule};

use super::support::{guard, kernel, plan, stream};

/// Past the y axis, so that it takes three chunks.
const ITEMS: u64 = 131_071;

fn on_y() -> (LaunchRequest, BatchAxis) {
    (LaunchRequest::new(Dim3::new(1, ITEMS, 1), Dim3::ONE), BatchAxis::new(Axis::Y, ITEMS))
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_driver_takes_any_priority_and_every_chunk_runs() {
    let range = guard().priorities().expect("answers").expect("every driver tells");
    assert!(range.contains(&0), "{range:?}");
    let (kernel, stream) = (kernel("count_y"), stream());
    let (request, batch) = on_y();
    for priority in [*range.start(), *range.end(), -1000, 1000, i32::MIN, i32::MAX] {
        let poison = vec![u64::MAX; 131_071];
        let mut out = stream.clone_htod(&poison).expect("memory");
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length();
        let request = request.priority(priority);
        let launched = guard().launch(&kernel, (&request, &batch), args);
        assert_eq!(launched, Ok(3), "priority {priority} in {range:?}");
        let out = stream.clone_dtoh(&out).expect("copies back");
        assert!(super::support::is_counting(&out), "priority {priority}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
#[allow(unsafe_code, reason = "the promise for the kernel")]
fn a_dependent_launch_waits_for_what_it_reads_whole_and_split() {
    // SAFETY: its first instruction waits.
    let add = unsafe { kernel("add_one_after").with_dependent_launches() };
    let (fill, stream) = (kernel("fill_before"), stream());
    let mut x = stream.alloc_zeros::<u64>(131_071).expect("memory");
    for items in [64, ITEMS] {
        let request = LaunchRequest::new(Dim3::new(1, items, 1), Dim3::ONE).dependent();
        let batch = BatchAxis::new(Axis::Y, items);
        let fill_plan = plan(&fill, Axis::Y, items, Choice::AUTOMATIC);
        for round in 1..=20_u64 {
            let mut args = Args::new(&stream);
            args.write_items(&mut x, 1).value(round * 10).value(20_000_u64);
            guard().launch(&fill, &fill_plan, args).expect("fills");
            let mut args = Args::new(&stream);
            args.write_items(&mut x, 1);
            let added = guard().launch(&add, (&request, &batch), args);
            if !guard().limits().dependent_launch() {
                let error = added.expect_err("the device cannot");
                let violations = error.violations().expect("a rule");
                assert!(violations.contains(Rule::DependentUnsupported));
                return;
            }
            added.expect("adds");
            let values = stream.clone_dtoh(&x).expect("copies back");
            let written = &values[..usize::try_from(items).expect("items")];
            assert!(written.iter().all(|value| *value == round * 10 + 1), "round {round}");
        }
    }
}
