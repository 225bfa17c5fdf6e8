//! What counting and recording add to a launch on the host.

use core::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use gridguard::cuda::bench::{LaunchRecords, now_ns};
use gridguard::{
    Chunk, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, ValidLaunch, validate,
};

const CHUNK: Chunk = Chunk { index: 0, start: 0, items: 7680 };

fn launch() -> ValidLaunch {
    let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("attention"));
    let request = LaunchRequest::new(Dim3::new(1, 38_400, 1), Dim3::new(128, 1, 1));
    validate(&request, &limits).unwrap_or_else(|violations| unreachable!("{violations}"))
}

/// A few hundred nanoseconds of other work, as between launches.
fn other_work(seed: u64) -> u64 {
    (0..200).fold(seed, |x, _| x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7) ^ 3)
}

type Case<'a> = (&'static str, Box<dyn Fn(u64) -> Duration + 'a>);

/// A case that measures how long a number of repetitions take.
fn case<'a, T>(name: &'static str, once: impl Fn() -> T + 'a) -> Case<'a> {
    let repeat = move |repetitions| {
        let begun = Instant::now();
        for _ in 0..repetitions {
            black_box(once());
        }
        begun.elapsed()
    };
    (name, Box::new(repeat))
}

fn record(criterion: &mut Criterion) {
    let (records, launch) = (LaunchRecords::default(), launch());
    let record = |stream| records.record(stream, black_box(&CHUNK), black_box(&launch));
    let count = || black_box(&records).count();
    let work = || black_box(other_work(black_box(1)));
    (1..16).for_each(record);
    let cases = [
        case("read the clock", now_ns),
        case("count a launch", count),
        case("count and record a launch, back to back", || (record(1), count())),
        case("the same on the fifteenth stream", || (record(15), count())),
        case("other work", work),
        case("other work, then count and record a launch", || (work(), record(1), count())),
    ];
    interleaved(&cases);
    for (name, repeat) in cases {
        criterion.bench_function(name, |bencher| bencher.iter_custom(&repeat));
    }
    // This thread owns the counter's fast path.
    criterion.bench_function("count and record a launch as another thread", |bencher| {
        let repeat = |repetitions| case("", || (record(1), count())).1(repetitions);
        bencher.iter_custom(|repetitions| on_another_thread(|| repeat(repetitions)));
    });
}

fn on_another_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    let joined = std::thread::scope(|scope| scope.spawn(body).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Measures the cases in turn, many times over, so that other load of the machine affects all alike,
/// and prints the median of each.
fn interleaved(cases: &[Case<'_>]) {
    const ROUNDS: usize = 301;
    const TIMES: u32 = 2000;
    let mut samples = vec![Vec::with_capacity(ROUNDS); cases.len()];
    for _ in 0..ROUNDS {
        for ((_, repeat), samples) in cases.iter().zip(&mut samples) {
            samples.push(repeat(TIMES.into()));
        }
    }
    println!("medians of {ROUNDS} interleaved rounds:");
    for ((name, _), samples) in cases.iter().zip(&mut samples) {
        samples.sort_unstable();
        let median = samples.get(ROUNDS / 2).copied().unwrap_or_default();
        println!("{:8.2} ns  {name}", median.as_secs_f64() * 1e9 / f64::from(TIMES));
    }
}

criterion_group!(benches, record);
criterion_main!(benches);
