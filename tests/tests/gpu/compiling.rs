//! Device code comes from memory, from disk, or from the compiler, and is the same from all three.

use std::sync::Arc;

use gridguard::cuda::Args;
use gridguard::{Axis, Choice};
use gridguard_kernels::rms_norm::RmsNorm;
use gridguard_kernels::{CubinCache, ElementType, Kernels, Tensor, TensorMut};

use super::support::{SOURCE, guard, kernel_of, plan, stream};

fn with_cache(folder: &std::path::Path) -> Kernels {
    Kernels::with_cache(Arc::clone(guard()), Some(CubinCache::at(folder)))
}

/// The norm of four rows of ones.
fn norm(kernels: &Kernels) -> Vec<f32> {
    let stream = stream();
    let x = stream.clone_htod(&[1.0_f32; 32]).expect("x");
    let weight = stream.clone_htod(&[3.0_f32; 8]).expect("weight");
    let mut out = stream.alloc_zeros::<f32>(32).expect("out");
    let operation = RmsNorm::new(4, 8, ElementType::F32).expect("legal");
    let prepared = kernels.prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let (x, weight) = (Tensor::new(&x, [4, 8]), Tensor::new(&weight, [8]));
    prepared.launch(&stream, x, weight, 0.0, TensorMut::new(&mut out, [4, 8])).expect("launches");
    stream.clone_dtoh(&out).expect("out")
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn code_is_compiled_once_then_read_from_disk_and_a_broken_entry_is_compiled_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let counts = |kernels: &Kernels| {
        let counts = kernels.counts();
        (counts.compiled, counts.read, counts.failed)
    };
    let first = with_cache(folder.path());
    let right = norm(&first);
    assert!(right.iter().all(|x| (x - 3.0).abs() < 1e-6));
    assert_eq!(norm(&first), right);
    assert_eq!(counts(&first), (1, 0, 0));

    let second = with_cache(folder.path());
    assert_eq!(norm(&second), right);
    assert_eq!(counts(&second), (0, 1, 0));

    let entries: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder").collect();
    let [Ok(entry)] = &entries[..] else { panic!("{entries:?}") };
    let mut bytes = std::fs::read(entry.path()).expect("the entry");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(entry.path(), bytes).expect("written");
    let third = with_cache(folder.path());
    assert_eq!(norm(&third), right);
    assert_eq!(counts(&third), (1, 0, 1));
    assert!(third.counts().last_failure.is_some());
    let fourth = with_cache(folder.path());
    assert_eq!(norm(&fourth), right);
    assert_eq!(counts(&fourth), (0, 1, 0));

    // A cache that cannot be written changes nothing but the counts.
    let blocked = with_cache(&entry.path().join("below a file"));
    assert_eq!(norm(&blocked), right);
    assert_eq!(blocked.counts().compiled, 1);
    assert!(blocked.counts().failed > 0);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_kernel_that_is_dropped_while_it_runs_runs_to_its_end() {
    let (stream, items) = (stream(), 70_000);
    for round in 1..=5_u64 {
        let module = guard().compile("support.cu", SOURCE).expect("compiles");
        let slow = kernel_of(&module, "slow_fill");
        let slow_plan = plan(&slow, Axis::Y, items, Choice::AUTOMATIC);
        let mut x = stream.alloc_zeros::<u64>(70_000).expect("memory");
        let mut args = Args::new(&stream);
        // Some tens of milliseconds in all.
        args.write_items(&mut x, 1).value(round).value(1_000_000_u64);
        assert_eq!(guard().launch(&slow, &slow_plan, args), Ok(2));
        drop((module, slow));
        // Loads other code where the old one may have been.
        let again = guard().compile("support.cu", SOURCE).expect("compiles");
        let values = stream.clone_dtoh(&x).expect("copies back");
        assert!(values.iter().all(|x| *x == round), "round {round}");
        drop(again);
    }
}
