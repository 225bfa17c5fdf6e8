//! What the guard adds to a launch on the host: validating, planning, walking a plan, packing
//! arguments.

use core::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gridguard::{
    Axis, BatchAxis, Choice, DeviceLimits, Dim3, Guard, KernelLimits, LaunchLimits, LaunchRequest,
    Plan, RawArgs, validate,
};

fn limits() -> LaunchLimits {
    let mut kernel = KernelLimits::unknown("attention");
    kernel.max_threads_per_block = Some(128);
    kernel.registers_per_thread = 64;
    LaunchLimits::new(DeviceLimits::any_device(), kernel)
}

fn on_y(blocks: u64) -> LaunchRequest {
    LaunchRequest::new(Dim3::new(1, blocks, 1), Dim3::new(128, 1, 1)).dynamic_shared_bytes(24_832)
}

fn legal(criterion: &mut Criterion) {
    let limits = limits();
    let request = on_y(38_400);
    criterion.bench_function("validate a legal launch", |bencher| {
        bencher.iter(|| validate(black_box(&request), black_box(&limits)).is_ok());
    });
    let batch = BatchAxis::new(Axis::Y, 7680).blocks_per_item(5);
    criterion.bench_function("plan a whole launch", |bencher| {
        let plan =
            || Plan::new(black_box(&request), Some(black_box(&batch)), &limits, Choice::AUTOMATIC);
        bencher.iter(|| plan().is_ok_and(|plan| plan.len() == 1));
    });
}

fn overflowing(criterion: &mut Criterion) {
    let limits = limits();
    let request = on_y(76_800);
    let batch = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5);
    criterion.bench_function("plan a two-chunk launch", |bencher| {
        let plan =
            || Plan::new(black_box(&request), Some(black_box(&batch)), &limits, Choice::AUTOMATIC);
        bencher.iter(|| plan().is_ok_and(|plan| plan.len() == 2));
    });
    criterion.bench_function("plan a two-chunk launch and walk it", |bencher| {
        bencher.iter(|| {
            let plan =
                Plan::new(black_box(&request), Some(black_box(&batch)), &limits, Choice::AUTOMATIC);
            plan.map_or(0, |plan| plan.launches().map(|one| one.launch.grid()[1]).sum::<u32>())
        });
    });
    criterion.bench_function("refuse an overflow and say why", |bencher| {
        bencher.iter(|| validate(black_box(&request), &limits).is_err());
    });
}

fn around(criterion: &mut Criterion) {
    let guard = Guard::host(DeviceLimits::any_device());
    let limits = limits();
    let request = on_y(38_400);
    criterion.bench_function("plan a legal launch through a guard", |bencher| {
        bencher.iter(|| guard.plan(black_box(&request), None, &limits, Choice::AUTOMATIC).is_ok());
    });
    criterion.bench_function("gather seven arguments", |bencher| {
        bencher.iter(|| {
            let mut args = RawArgs::new();
            for base in 1..=4 {
                args.items_at(black_box(base << 32), 10_240);
            }
            args.value(0.125_f32).value(16_u32).value(64_u32);
            black_box(&args).len()
        });
    });
}

criterion_group!(benches, legal, overflowing, around);
criterion_main!(benches);
