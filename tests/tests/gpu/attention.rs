//! The motivating case on both layouts, against golden tensors and the f64 reference.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use cudarc::driver::DeviceRepr;
use gridguard::cuda::LaunchError;
use gridguard::{ArgsError, Choice, Plan, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::temporal_attention::{
    Deviation, Layout, Shape, TemporalAttention, Variant, reference, tolerance,
};
use gridguard_kernels::{Element, KernelError};
use gridguard_tests::golden::{self, Golden};
use half::{bf16, f16};

use super::support::{guard, stream};

/// Compiled once for the tests of this process.
fn attention() -> &'static TemporalAttention {
    static ATTENTION: OnceLock<TemporalAttention> = OnceLock::new();
    ATTENTION.get_or_init(|| TemporalAttention::new(guard()).expect("compiles"))
}

/// A plan of the kernel that serves the shape best, or of the general one.
fn plan<T: Element>(
    attention: &TemporalAttention,
    shape: &Shape,
    layout: Layout,
    choice: Choice,
    variant: Option<Variant>,
) -> Plan {
    match variant {
        None | Some(Variant::Short) => {
            attention.plan(guard(), shape, T::TYPE, layout, choice).expect("a plan")
        }
        Some(Variant::General) => {
            let limits = attention.general(T::TYPE, layout).limits();
            let batch = shape.batch(layout);
            guard().plan(&shape.request(layout), Some(&batch), limits, choice).expect("a plan")
        }
    }
}

/// Runs attention over poisoned memory; gives the launches and the result.
fn run<T: Element + DeviceRepr>(
    shape: &Shape,
    layout: Layout,
    choice: Choice,
    variant: Option<Variant>,
    [q, k, v]: [&[T]; 3],
) -> (u64, Vec<T>) {
    let attention = attention();
    let stream = stream();
    let plan = plan::<T>(attention, shape, layout, choice, variant);
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
            for variant in [None, Some(Variant::General)] {
                let tensors = [&golden.q[..], &golden.k, &golden.v];
                let (_, out) = run(&golden.shape, layout, choice, variant, tensors);
                let mut deviation = Deviation::new();
                deviation.add(&out, &golden.out);
                let within = deviation.within(tolerance(T::TYPE));
                let (name, relative) = (golden.name, deviation.relative());
                assert!(within, "{name} {layout:?} {variant:?}: {relative:e}");
            }
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
    let (launches, split) = run(&shape, Layout::FoldedY, Choice::AUTOMATIC, None, tensors);
    assert_eq!(launches, 2);
    let (launches, flat) = run(&shape, Layout::FlatX, Choice::AUTOMATIC, None, tensors);
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
        let (launches, out) = run(&shape, layout, Choice::AUTOMATIC, None, [&ones[..]; 3]);
        assert_eq!(launches, 1);
        // Every key weighs the same, and every value is one.
        assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-6));
    }
}

/// Every shape of the short kernel's paths against the reference, on made-up tensors.
fn short_shapes<T: Element + DeviceRepr>() {
    for head_dim in (8..=128).step_by(8) {
        for frames in [1, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32] {
            let shape = Shape::new(3, 2, frames, head_dim).expect("legal");
            let capability = guard().limits().compute_capability;
            assert_eq!(shape.variant(T::TYPE, capability), Variant::Short);
            let len = usize::try_from(shape.elements()).expect("elements");
            let [q, k, v] = [frames, 100 + head_dim, 300].map(|seed| uniform::<T>(len, seed));
            let tensors = [&q[..], &k, &v];
            let (_, out) = run(&shape, Layout::FoldedY, Choice::at_most(2), None, tensors);
            let size = usize::try_from(shape.elements_per_problem()).expect("elements");
            let mut deviation = Deviation::new();
            for (place, out) in out.chunks(size).enumerate() {
                let part = place * size..(place + 1) * size;
                let [q, k, v] = tensors.map(|tensor| &tensor[part.clone()]);
                deviation.add(out, &reference(&shape, shape.scale(), q, k, v));
            }
            let relative = deviation.relative();
            assert!(deviation.within(tolerance(T::TYPE)), "{frames} x {head_dim}: {relative:e}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn every_short_shape_meets_the_reference() {
    short_shapes::<f16>();
    short_shapes::<bf16>();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn memory_between_multiples_of_16_bytes_is_refused_by_the_short_kernel_only() {
    let shape = Shape::new(4, 2, 16, 64).expect("legal");
    let (attention, stream) = (attention(), stream());
    let len = usize::try_from(shape.elements()).expect("elements");
    let [q, k, v] = [1, 2, 3].map(|seed| uniform::<f16>(len + 1, seed));
    let device = [&q, &k, &v].map(|tensor| stream.clone_htod(tensor).expect("memory"));
    let views = [0, 1, 2].map(|place: usize| device[place].slice(1..));
    let [q_view, k_view, v_view] = &views;
    let mut out = stream.clone_htod(&vec![f16::NAN; len]).expect("memory");
    let mut launch = |variant| {
        let plan =
            plan::<f16>(attention, &shape, Layout::FoldedY, Choice::AUTOMATIC, Some(variant));
        let (scale, tensors) = (shape.scale(), [q_view, k_view, v_view]);
        let layout = Layout::FoldedY;
        attention.launch(guard(), &stream, &plan, &shape, layout, scale, tensors, &mut out)
    };
    let refused = launch(Variant::Short).expect_err("two bytes past a multiple");
    let KernelError::Launch(LaunchError::Args(args)) = refused else {
        panic!("{refused}");
    };
    assert!(matches!(args, ArgsError::Misaligned { index: 0, alignment: 16, .. }), "{args}");
    assert_eq!(launch(Variant::General), Ok(1));
    let out = stream.clone_dtoh(&out).expect("copies back");
    assert!(out.iter().all(|x| x.to_f32().is_finite()));
}
