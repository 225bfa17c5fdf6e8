//! Attention on the host against PyTorch's golden tensors, whole and split.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use gridguard::{Choice, Guard, KernelLimits, Plan, catalog};
use gridguard_examples::uniform;
use gridguard_kernels::temporal_attention::{
    Layout, Shape, TemporalAttention, reference, run_on_host, tolerance,
};
use gridguard_kernels::{Deviation, Element, Operation};
use gridguard_tests::golden::{self, Golden};
use half::f16;

fn guard() -> Guard {
    Guard::host(catalog::gpu("h200").expect("in the catalogue").limits.clone())
}

fn attention<T: Element>(guard: &Guard, shape: Shape) -> TemporalAttention {
    let attention = TemporalAttention::new(shape, T::TYPE, guard.limits()).expect("served");
    attention.with_layout(Layout::FoldedY)
}

fn plan(guard: &Guard, attention: &TemporalAttention, choice: Choice) -> Plan {
    let limits = guard.limits_for(KernelLimits::unknown("host")).with_automatic_opt_in();
    let batch = attention.batch();
    guard.plan(&attention.request(), Some(&batch), &limits, choice).expect("a plan")
}

fn reference_meets<T: Element>(golden: &Golden<T>) {
    let attention = attention::<T>(&guard(), golden.shape);
    let size = usize::try_from(golden.shape.elements_per_problem()).expect("elements");
    let (mut error, mut norm) = (0.0, 0.0);
    for (problem, expected) in golden.out.chunks(size).enumerate() {
        let part = problem * size..(problem + 1) * size;
        let qkv = [&golden.q, &golden.k, &golden.v].map(|tensor| &tensor[part.clone()]);
        let out = reference(&attention, golden.shape.scale(), qkv, None);
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
    let attention = attention::<T>(&guard, golden.shape);
    // The smallest chunk: items whose problems fill whole blocks.
    let unit = attention.batch().unit().expect("a few items").min(golden.shape.items());
    for (max_items, launches) in [(0, 1), (unit, golden.shape.items().div_ceil(unit))] {
        let plan = plan(&guard, &attention, Choice::at_most(max_items));
        let mut out = vec![T::narrow(f32::NAN); golden.q.len()];
        let qkv = [&golden.q[..], &golden.k, &golden.v];
        let scale = golden.shape.scale();
        let ran = run_on_host(&guard, &plan, &attention, scale, qkv, None, &mut out, || {});
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
fn the_host_backend_hides_keys_as_the_reference_does() {
    [9, 5, 14].into_iter().for_each(hides_keys);
}

/// Six problems of 9 queries and so many keys, of 16 elements each.
fn hides_keys(keys: usize) {
    let guard = guard();
    let shape = Shape::new(3, 2, 9, 16).expect("legal");
    let shape = shape.with_keys(u64::try_from(keys).expect("keys")).expect("legal");
    let [len, of_keys] = [6 * 9 * 16, 6 * keys * 16];
    let [q, k, v] =
        [(len, 1), (of_keys, 2), (of_keys, 3)].map(|(len, seed)| uniform::<f16>(len, seed));
    let mut bias = uniform::<f16>(9 * keys, 4);
    // The fourth query sees no key.
    bias[3 * keys..4 * keys].fill(f16::NEG_INFINITY);
    let attention = attention::<f16>(&guard, shape).causal().with_bias();
    let plan = plan(&guard, &attention, Choice::at_most(1));
    let mut out = vec![f16::NAN; len];
    let (qkv, scale) = ([&q[..], &k, &v], shape.scale());
    run_on_host(&guard, &plan, &attention, scale, qkv, Some(&bias), &mut out, || {}).expect("runs");
    let mut deviation = Deviation::new();
    for (problem, out) in out.chunks(144).enumerate() {
        let part = |tensor: usize, rows: usize| {
            &qkv[tensor][problem * rows * 16..(problem + 1) * rows * 16]
        };
        let qkv = [part(0, 9), part(1, keys), part(2, keys)];
        deviation.add(out, &reference(&attention, scale, qkv, Some(&bias)));
        assert!(out[48..64].iter().all(|x| *x == f16::ZERO));
    }
    assert!(deviation.within(tolerance(f16::TYPE)), "{:e}", deviation.relative());

    let refused = run_on_host(&guard, &plan, &attention, scale, qkv, None, &mut out, || {});
    let refused = refused.expect_err("prepared with a bias").to_string();
    assert_eq!(refused, "bias was not given, the kernel was prepared with it");
}

#[test]
fn a_tensor_of_another_length_is_refused_before_anything_runs() {
    let guard = guard();
    let golden = &golden::f32()[0];
    let attention = attention::<f32>(&guard, golden.shape);
    let plan = plan(&guard, &attention, Choice::AUTOMATIC);
    let mut out = vec![f32::NAN; golden.q.len()];
    let qkv = [&golden.q[..], &golden.k[1..], &golden.v];
    let error = run_on_host(&guard, &plan, &attention, 1.0, qkv, None, &mut out, || {})
        .expect_err("k is short");
    assert_eq!(error.to_string(), "k has 30719 elements, shape [6, 5, 16, 64] has 30720");
    assert!(out.iter().all(|x| x.is_nan()));
}
