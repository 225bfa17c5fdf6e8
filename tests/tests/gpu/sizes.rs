//! Sizes around the limit of an axis, shared memory above 48 KiB, clusters.

use gridguard::cuda::Args;
use gridguard::{Axis, BatchAxis, Choice, Dim3, LaunchRequest, Parameter, Rule, Violations};

use super::support::{count, guard, is_counting, kernel, module, stream};

#[test]
#[ignore = "needs a CUDA GPU"]
fn every_item_is_written_in_its_place_at_sizes_around_the_limit() {
    let cases = [(1, 1), (65_534, 1), (65_535, 1), (65_536, 2), (131_071, 3), (196_606, 4)];
    for axis in [Axis::Y, Axis::Z] {
        for (items, launches) in cases {
            let (launched, out) = count(axis, items, Choice::AUTOMATIC);
            assert_eq!(launched, launches, "{items} on {axis}");
            assert!(is_counting(&out), "{items} on {axis}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn large_shared_memory_is_opted_in_to_and_more_than_the_device_has_is_not() {
    let kernel = kernel("large_shared");
    let stream = stream();
    let most = guard().limits().max_shared_bytes_per_block_opt_in;
    for bytes in [49_152, 49_156, most] {
        let request = LaunchRequest::new(Dim3::new(3, 1, 1), Dim3::ONE).dynamic_shared_bytes(bytes);
        let mut out = stream.alloc_zeros::<u32>(3).expect("memory");
        let mut args = Args::new(&stream);
        args.write(&mut out).value(u32::try_from(bytes / 4).expect("words"));
        assert_eq!(guard().launch(&kernel, &request, args), Ok(1), "{bytes}");
        assert_eq!(stream.clone_dtoh(&out).expect("copies back"), [7, 8, 9]);
    }
    let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE).dynamic_shared_bytes(most + 1);
    let refused = guard().launch(&kernel, &request, Args::new(&stream));
    let refused = refused.expect_err("too much shared memory");
    let violations = refused.violations().expect("a rule");
    assert!(violations.contains(Rule::SharedMemoryTotal));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn clusters_stay_whole_when_a_launch_is_split() {
    if !guard().limits().cluster_launch {
        // Without clusters the rule is the answer.
        let request = LaunchRequest::new(Dim3::new(1, 8, 1), Dim3::ONE).cluster(Dim3::new(1, 4, 1));
        let refused = guard().validate(&request, kernel("cluster_rank").limits());
        assert!(refused.expect_err("no clusters").contains(Rule::ClusterUnsupported));
        return;
    }
    let kernel = kernel("cluster_rank");
    let stream = stream();
    let items = 131_072_u64;
    let request = LaunchRequest::new(Dim3::new(1, items, 1), Dim3::ONE).cluster(Dim3::new(1, 4, 1));
    let batch = BatchAxis::new(Axis::Y, items);
    let poison = vec![u32::MAX; 131_072];
    let mut out = stream.clone_htod(&poison).expect("memory");
    let mut args = Args::new(&stream);
    args.write_items(&mut out, 1);
    assert_eq!(guard().launch(&kernel, (&request, &batch), args), Ok(3));
    let ranks = stream.clone_dtoh(&out).expect("copies back");
    assert!(ranks.chunks(4).all(|cluster| cluster == [0, 1, 2, 3]));
}

#[test]
#[ignore = "needs a CUDA GPU"]
#[allow(unsafe_code, reason = "the promise for the kernel")]
fn clusters_above_the_portable_size_run_where_there_is_room_for_them() {
    let request = LaunchRequest::new(Dim3::new(1, 64, 1), Dim3::ONE).cluster(Dim3::new(1, 16, 1));
    // SAFETY: it writes one element an item.
    let wide = unsafe { module().kernel_in_wide_clusters("cluster_rank", &[Parameter::Memory]) };
    if !guard().limits().cluster_launch {
        // The driver may refuse it at once; else the rule is the answer.
        let allowed = wide.is_ok_and(|wide| guard().validate(&request, wide.limits()).is_ok());
        assert!(!allowed, "a device without clusters");
        return;
    }
    let (wide, stream) = (wide.expect("a kernel"), stream());
    let room = wide.occupancy(&request).expect("answers").cluster_blocks.expect("it can tell");
    let mut out = stream.clone_htod(&[u32::MAX; 64]).expect("memory");
    let mut args = Args::new(&stream);
    args.write(&mut out);
    match guard().launch(&wide, &request, args) {
        Ok(_) => {
            assert!(room >= 16, "room for {room}");
            let ranks = stream.clone_dtoh(&out).expect("copies back");
            assert!(ranks.chunks(16).all(|ranks| ranks.iter().copied().eq(0..16)), "{ranks:?}");
        }
        Err(error) => {
            let is_full = |violations: &Violations| violations.contains(Rule::ClusterResidency);
            assert!(room < 16 && error.violations().is_some_and(is_full), "{error}");
        }
    }
}
