//! What counting and recording add to a launch on the host.
//!
//! The recorder is taken in by its source: it is no part of the public interface.
#![allow(dead_code, unused_imports, reason = "only recording is measured")]

use core::hint::black_box;
use core::panic::Location;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};

#[path = "../src/record/alone.rs"]
mod alone;
#[path = "../src/cuda/clock.rs"]
#[allow(unsafe_code, reason = "the system's clock")]
mod clock;
#[path = "../src/record/flight/mod.rs"]
mod flight;

use alone::Tally;
use flight::{Entry, Recorder};

/// What a launch is, where the guard has it: in memory.
const LAUNCH: Entry = Entry {
    stream: 0,
    kernel: 7,
    grid: [1, 38_400, 1],
    block: [128, 1, 1],
    items: [0, 7680],
    place: [0, 1],
    at_ns: 0,
    call_site: core::ptr::null(),
};

/// A few hundred nanoseconds of other work, as between launches.
fn other_work(seed: u64) -> u64 {
    (0..200).fold(seed, |x, _| x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7) ^ 3)
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "as on the way of a launch, where it stands once")]
fn record_on(recorder: &Recorder, stream: usize) {
    let (at_ns, launch) = (clock::now_ns(), black_box(&LAUNCH));
    recorder.record(&Entry { stream, at_ns, call_site: Location::caller(), ..*launch });
}

type Case<'a> = (&'static str, Box<dyn Fn(u64) -> Duration + 'a>);

/// A case that says how long so many times take.
fn case<'a, T>(name: &'static str, once: impl Fn() -> T + 'a) -> Case<'a> {
    let times = move |times| {
        let begun = Instant::now();
        for _ in 0..times {
            black_box(once());
        }
        begun.elapsed()
    };
    (name, Box::new(times))
}

fn record(criterion: &mut Criterion) {
    let (tally, recorder) = (Tally::new(), Recorder::new());
    let count = || black_box(&tally).add_one();
    let record = |stream| record_on(&recorder, stream);
    let work = || black_box(other_work(black_box(1)));
    (1..16).for_each(record);
    let cases = [
        case("read the clock", clock::now_ns),
        case("count a launch", count),
        case("count and record a launch, back to back", || (record_on(&recorder, 1), count())),
        case("the same on the fifteenth stream", || (record(15), count())),
        case("other work", work),
        case("other work, then count and record a launch", || {
            (work(), record_on(&recorder, 1), count())
        }),
    ];
    interleaved(&cases);
    for (name, times) in cases {
        criterion.bench_function(name, |bencher| bencher.iter_custom(&times));
    }
    // The words of the first thread are taken.
    criterion.bench_function("count and record a launch as another thread", |bencher| {
        let times = |times| case("", || (record(1), count())).1(times);
        bencher.iter_custom(|iterations| on_another_thread(|| times(iterations)));
    });
}

fn on_another_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    let joined = std::thread::scope(|scope| scope.spawn(body).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The cases in turn, many times over, so that whatever else the machine does is shared by all; the
/// median of each.
fn interleaved(cases: &[Case<'_>]) {
    const ROUNDS: usize = 301;
    const TIMES: u32 = 2000;
    let mut samples = vec![Vec::with_capacity(ROUNDS); cases.len()];
    for _ in 0..ROUNDS {
        for ((_, times), samples) in cases.iter().zip(&mut samples) {
            samples.push(times(TIMES.into()));
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
