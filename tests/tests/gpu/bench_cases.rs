//! Bench cases of every kernel, and the comparison that their checks rely on.

use gridguard::Choice;
use gridguard::profile::Named;
use gridguard_kernels::Tensor;
use gridguard_kernels::compare::{Compare, Compared, reference};
use gridguard_problems::Problem;
use half::{bf16, f16};

use super::small_problems::is_right_in_every_setup;
use super::support::{Tensorial, kernels, stream};

#[test]
#[ignore = "needs a CUDA GPU"]
fn every_setup_of_every_kernel_gives_correct_output_whole_and_split() {
    // At most some hundred launches.
    Problem::small().into_iter().for_each(|problem| is_right_in_every_setup(problem, 100));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_first_items_alone_are_launched_and_checked() {
    for problem in Problem::small() {
        let mut case = problem.on_device(kernels(), &stream()).expect("memory");
        let (_, items) = problem.shape()[0].clone();
        let part = case.prepare(&Named::new(), Choice::AUTOMATIC, Some(items / 3));
        let part = part.expect("a plan");
        assert_eq!(case.launch(part), Ok(1), "{problem}");
        case.check(part).unwrap_or_else(|error| panic!("{problem}: {error}"));
    }
}

/// The comparison on the device and on the host of outputs that differ here and there.
fn compares<T: Compared>(golden: Vec<T>, other: &[(usize, T)]) {
    let stream = stream();
    let mut output = golden.clone();
    for (place, element) in other {
        output[*place] = *element;
    }
    let elements = u64::try_from(golden.len()).expect("few");
    let compare = Compare::<T>::new(elements).expect("few");
    let prepared = kernels().prepare(compare, Choice::AUTOMATIC).expect("a plan");
    let (on_device, kept) = (stream.clone_htod(&output), stream.clone_htod(&golden));
    let (on_device, kept) = (on_device.expect("memory"), kept.expect("memory"));
    let (x, y) = (Tensor::new(&on_device, [elements]), Tensor::new(&kept, [elements]));
    let found = prepared.run(&stream, x, y).expect("runs");
    let expected = reference(&output, &golden);
    assert_eq!(found.differing, expected.differing);
    assert_eq!(found.deviation.wrong, expected.deviation.wrong);
    assert_eq!(found.deviation.compared, elements);
    let (found, expected) = (found.deviation.relative(), expected.deviation.relative());
    assert!(found == expected || (found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
}

fn compares_floats<T: Tensorial>() {
    // Some blocks, and a part of one.
    let golden: Vec<T> = gridguard_examples::uniform(100_003, 1);
    let (small, infinite) = (T::narrow(0.25), T::narrow(f32::INFINITY));
    compares(golden.clone(), &[]);
    compares(golden.clone(), &[(0, small), (63, small), (50_000, small), (100_002, small)]);
    compares(golden.clone(), &[(100_002, T::narrow(f32::NAN)), (7, infinite)]);
    let mut unwritten = golden;
    unwritten[16_384] = T::narrow(f32::NAN);
    compares(unwritten, &[(16_384, T::narrow(-f32::NAN))]);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_device_finds_the_differences_that_the_host_finds() {
    compares_floats::<f16>();
    compares_floats::<bf16>();
    compares_floats::<f32>();
    compares::<u32>((0..20_000).collect(), &[(0, 1), (16_384, u32::MAX), (19_999, 0)]);
}
