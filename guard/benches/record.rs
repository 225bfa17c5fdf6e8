//! What counting and recording add to a launch on the host.
//!
//! The recorder is taken in by its source: it is no part of the public interface.
#![allow(dead_code, unused_imports, reason = "only recording is measured")]

use core::hint::black_box;
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};

use criterion::{Criterion, criterion_group, criterion_main};

#[path = "../src/cuda/clock.rs"]
#[allow(unsafe_code, reason = "the system's clock")]
mod clock;
#[path = "../src/record/flight/mod.rs"]
mod flight;

use flight::{Entry, Recorder};

fn entry(stream: usize, at_ns: u64) -> Entry {
    Entry {
        stream: black_box(stream),
        kernel: black_box(7),
        grid: black_box([1, 38_400, 1]),
        block: black_box([128, 1, 1]),
        chunk: black_box([0, 0, 7680]),
        launches: black_box(1),
        at_ns,
        call_site: Location::caller(),
    }
}

/// A few hundred nanoseconds of other work: launches are not recorded back to back, where each
/// locked addition waits for the stores of the one before.
fn other_work(seed: u64) -> u64 {
    (0..200).fold(seed, |x, _| x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7) ^ 3)
}

fn record(criterion: &mut Criterion) {
    let (counter, recorder) = (AtomicU64::new(0), Recorder::new());
    let count = || counter.fetch_add(1, Ordering::Relaxed);
    let record = |stream| recorder.record(&entry(stream, clock::now_ns()));
    criterion.bench_function("count a launch", |bencher| bencher.iter(count));
    criterion.bench_function("read the clock", |bencher| bencher.iter(clock::now_ns));
    criterion.bench_function("count and record a launch, back to back", |bencher| {
        bencher.iter(|| (record(1), count()));
    });
    criterion.bench_function("other work", |bencher| bencher.iter(|| other_work(black_box(1))));
    criterion.bench_function("other work, then count and record a launch", |bencher| {
        bencher.iter(|| (black_box(other_work(black_box(1))), record(1), count()));
    });
    (2..16).for_each(record);
    criterion.bench_function("count and record a launch on the fifteenth stream", |bencher| {
        bencher.iter(|| (record(15), count()));
    });
}

criterion_group!(benches, record);
criterion_main!(benches);
