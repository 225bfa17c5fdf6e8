//! The motivating case on both layouts, against golden tensors and the f64 reference.

use std::collections::BTreeSet;

use cudarc::driver::DeviceRepr;
use gridguard::{Choice, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::Element;
use gridguard_kernels::temporal_attention::{
    Deviation, Layout, Shape, TemporalAttention, reference, tolerance,
};
use gridguard_tests::golden::{self, Golden};
use half::{bf16, f16};

use super::support::{guard, stream};

fn attention() -> TemporalAttention {
    TemporalAttention::new(guard()).expect("compiles")
}

/// Runs attention over poisoned memory; gives the launches and the result.
fn run<T: Element + DeviceRepr>(
    shape: &Shape,
    layout: Layout,
    choice: Choice,
    [q, k, v]: [&[T]; 3],
) -> (u64, Vec<T>) {
    let attention = attention();
    let stream = stream();
    let plan = attention.plan(guard(), shape, T::TYPE, layout, choice).expect("a plan");
    let [q, k, v] = [q, k, v].map(|tensor| stream.clone_htod(tensor).expect("memory"));
    let poison = vec![T::narrow(f32::NAN); q.len()];
    let mut out = stream.clone_htod(&poison).expect("memory");
    let scale = shape.scale();
    let launches = attention
        .launch(guard(), &stream, &plan, shape, layout, scale, [&q, &k, &v], &mut out)
        .expect("launches");
    (launches, stream.clone_dtoh(&out).expect("copies back"))
}

fn against_golden<T: Element + DeviceRepr>(golden: &Golden<T>) {
    for layout in Layout::ALL {
        for choice in [Choice::AUTOMATIC, Choice::at_most(1)] {
            let tensors = [&golden.q[..], &golden.k, &golden.v];
            let (_, out) = run(&golden.shape, layout, choice, tensors);
            let mut deviation = Deviation::new();
            deviation.add(&out, &golden.out);
            let within = deviation.within(tolerance(T::TYPE));
            assert!(within, "{} {layout:?}: {:e}", golden.name, deviation.relative());
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn golden_tensors_of_pytorch_are_met_on_both_layouts() {
    golden::f16().iter().for_each(against_golden);
    golden::f32().iter().for_each(against_golden);
}

/// Compares the first and last item of each half and problems all over with the reference.
fn motivating_case<T: Element + DeviceRepr>() {
    let shape = Shape::new(15_360, 5, 16, 64).expect("legal");
    let len = usize::try_from(shape.elements()).expect("elements");
    let [q, k, v] = [1, 2, 3].map(|seed| uniform::<T>(len, seed));
    let tensors = [&q[..], &k, &v];
    let (launches, split) = run(&shape, Layout::FoldedY, Choice::AUTOMATIC, tensors);
    assert_eq!(launches, 2);
    let (launches, flat) = run(&shape, Layout::FlatX, Choice::AUTOMATIC, tensors);
    assert_eq!(launches, 1);
    let bits = |out: &[T]| out.iter().map(|x| x.widen().to_bits()).collect::<Vec<_>>();
    assert!(bits(&split) == bits(&flat), "split and flat differ");
    assert!(split.iter().all(|x| x.widen().is_finite()));

    let boundaries = [0, 7679, 7680, 15_359].into_iter().flat_map(|item| item * 5..item * 5 + 5);
    let sample = (0..512).map(|n: usize| n * 149_993 % 76_800);
    let problems: BTreeSet<usize> = boundaries.chain(sample).collect();
    let mut deviation = Deviation::new();
    for problem in problems {
        let part = problem * 1024..(problem + 1) * 1024;
        let [q, k, v] = tensors.map(|tensor| &tensor[part.clone()]);
        deviation.add(&split[part.clone()], &reference(&shape, shape.scale(), q, k, v));
    }
    println!("{}: relative error {:.2e}", T::TYPE, deviation.relative());
    assert!(deviation.within(tolerance(T::TYPE)), "{:e}", deviation.relative());
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_motivating_case_is_right_on_both_layouts_and_bit_for_bit_the_same() {
    motivating_case::<f16>();
    motivating_case::<bf16>();
    motivating_case::<f32>();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_launch_that_needs_no_split_is_one_launch_of_one_problem_too() {
    let shape = Shape::new(1, 1, 16, 64).expect("legal");
    let ones = vec![1.0_f32; 1024];
    for layout in Layout::ALL {
        let plan = attention().plan(guard(), &shape, f32::TYPE, layout, Choice::AUTOMATIC);
        assert_eq!(plan.expect("a plan").strategy(), Strategy::Whole);
        let (launches, out) = run(&shape, layout, Choice::AUTOMATIC, [&ones[..]; 3]);
        assert_eq!(launches, 1);
        // Every key weighs the same, and every value is one.
        assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-6));
    }
}
