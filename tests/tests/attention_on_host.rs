//! Attention on the host against PyTorch's golden tensors, whole and split.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use gridguard::{Choice, Guard, KernelLimits, catalog};
use gridguard_kernels::Element;
use gridguard_kernels::temporal_attention::{Deviation, Layout, reference, run_on_host, tolerance};
use gridguard_tests::golden::{self, Golden};

fn guard() -> Guard {
    Guard::host(catalog::gpu("h200").expect("in the catalogue").limits.clone())
}

fn reference_meets<T: Element>(golden: &Golden<T>) {
    let size = usize::try_from(golden.shape.elements_per_problem()).expect("elements");
    let (mut error, mut norm) = (0.0, 0.0);
    for (problem, expected) in golden.out.chunks(size).enumerate() {
        let part = problem * size..(problem + 1) * size;
        let [q, k, v] = [&golden.q, &golden.k, &golden.v].map(|tensor| &tensor[part.clone()]);
        let out = reference(&golden.shape, golden.shape.scale(), q, k, v);
        assert_eq!(out.len(), expected.len());
        for (ours, theirs) in out.iter().zip(expected) {
            error += (ours - theirs).powi(2);
            norm += theirs.powi(2);
        }
    }
    // The golden tensors are rounded to f32 once.
    let relative = (error / norm).sqrt();
    assert!(relative < 1e-7, "{}: {relative:e}", golden.name);
}

fn host_meets<T: Element>(golden: &Golden<T>) {
    let guard = guard();
    let limits = guard.limits_for(KernelLimits::unknown("host")).with_automatic_opt_in();
    let request = golden.shape.request(Layout::FoldedY);
    let batch = golden.shape.batch(Layout::FoldedY);
    for (max_items, launches) in [(0, 1), (1, golden.shape.items)] {
        let choice = Choice::at_most(max_items);
        let plan = guard.plan(&request, Some(&batch), &limits, choice).expect("a plan");
        let mut out = vec![T::narrow(f32::NAN); golden.q.len()];
        let scale = golden.shape.scale();
        let Golden { q, k, v, shape, .. } = golden;
        let ran = run_on_host(&guard, &plan, shape, scale, q, k, v, &mut out, || {});
        assert_eq!(ran.expect("runs"), launches);
        let mut deviation = Deviation::new();
        deviation.add(&out, &golden.out);
        let within = deviation.within(tolerance(T::TYPE));
        assert!(within, "{}: {:e}", golden.name, deviation.relative());
    }
}

#[test]
fn the_reference_meets_pytorch() {
    golden::f16().iter().for_each(reference_meets);
    golden::f32().iter().for_each(reference_meets);
}

#[test]
fn the_host_backend_meets_pytorch_whole_and_split() {
    golden::f16().iter().for_each(host_meets);
    golden::f32().iter().for_each(host_meets);
}

#[test]
fn a_tensor_of_another_length_is_refused_before_anything_runs() {
    let guard = guard();
    let golden = &golden::f32()[0];
    let limits = guard.limits_for(KernelLimits::unknown("host")).with_automatic_opt_in();
    let (request, batch) =
        (golden.shape.request(Layout::FoldedY), golden.shape.batch(Layout::FoldedY));
    let plan = guard.plan(&request, Some(&batch), &limits, Choice::AUTOMATIC).expect("a plan");
    let mut out = vec![f32::NAN; golden.q.len()];
    let Golden { q, k, v, shape, .. } = golden;
    let error = run_on_host(&guard, &plan, shape, 1.0, q, &k[1..], v, &mut out, || {})
        .expect_err("k is short");
    assert_eq!(error.to_string(), "k has 30719 elements, shape [6, 5, 16, 64] has 30720");
    assert!(out.iter().all(|x| x.is_nan()));
}
