//! Benchmarks of profiles: reading 10,000 entries, and looking one of them up.

use core::hint::black_box;
use core::num::NonZeroU64;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use gridguard::DeviceLimits;
use gridguard::profile::{
    DecisionList, DecisionRow, DeviceIdentity, Document, Entry, Environment, Key, MatchKind,
    MissLog, Profile, Provenance, StoredChoice, Summary,
};

/// Number of kernels, each with two element types.
const KERNELS: u64 = 50;
/// Number of shapes of each kernel and type.
const SHAPES: u64 = 100;

fn device() -> DeviceIdentity {
    DeviceIdentity::new(&DeviceLimits::any_device())
}

fn key(number: u64) -> Key {
    Key {
        kernel: format!("kernel_{}", number / 2),
        source: format!("{:064x}", u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c)),
        variant: "registers".into(),
        dtypes: if number.is_multiple_of(2) { "f16" } else { "bf16 i64" }.into(),
        ..Key::default()
    }
}

/// Ten row counts with ten column counts each, an octave and a half apart.
fn sizes(number: u64) -> [u64; 2] {
    let size = |step: u64| (16 << (step * 3 / 2)) + (step % 2) * (8 << (step * 3 / 2));
    [size(number / 10), size(number % 10)]
}

fn entry(kernel: u64, shape: u64) -> Entry {
    let [rows, columns] = sizes(shape);
    let time = |scale| Summary {
        median_ns: scale * rows,
        low_ns: scale * rows - 3,
        high_ns: scale * rows + 5,
        samples: 60,
    };
    Entry {
        key: key(kernel),
        shape: vec![("rows".into(), rows), ("columns".into(), columns)],
        choice: StoredChoice::Chunked { max_items: NonZeroU64::MIN.saturating_add(rows / 2) },
        parameters: vec![("warps".into(), 4), ("rows_per_block".into(), 2)],
        launches: 2,
        chosen: time(17),
        default: time(19),
        found: Provenance {
            date: "2026-11-20T12:00:00Z".into(),
            driver: "13.0".into(),
            compiler: "13.0".into(),
            tuner: "0.1.0".into(),
            candidates: 48,
            samples: 2304,
            ..Provenance::default()
        },
    }
}

fn document() -> Document {
    let environment =
        Environment { driver: "13.0".into(), compiler: "13.0".into(), tuner: "0.1.0".into() };
    let mut document = Document::new(device(), environment);
    for kernel in 0..2 * KERNELS {
        for shape in 0..SHAPES {
            assert!(document.insert(entry(kernel, shape)).is_ok_and(|old| old.is_none()));
        }
    }
    document
}

/// A list of three rows for each key, for 49 to 127 rows, where no entry is.
fn decide(document: &mut Document) {
    for kernel in 0..2 * KERNELS {
        let row = |most, shape| {
            let Entry { choice, parameters, .. } = entry(kernel, shape);
            DecisionRow { when: vec![("columns".into(), (0, most))], choice, parameters }
        };
        let within = vec![("rows".into(), (49, 127)), ("columns".into(), (0, 1 << 40))];
        let rows = vec![row(200, 20), row(5000, 40), row(1 << 40, 60)];
        assert!(document.decide(DecisionList { key: key(kernel), within, rows }).is_ok());
    }
}

fn indexed(document: Document) -> Profile {
    let (profile, notices) = Profile::from_document(document, &device(), &Environment::default());
    assert!(notices.is_empty());
    profile
}

fn files(criterion: &mut Criterion) {
    let document = document();
    let text = document.to_string();
    // An invalid entry costs no second reading of the others.
    let damaged = text.replacen("launches: 2", "launches: -2", 1);
    let parse = |text: &str| Document::parse(text).map_or(0, |read| read.document.entries().len());
    assert_eq!((parse(&text), parse(&damaged)), (10_000, 9999));
    println!("10,000 entries are {} bytes", text.len());
    criterion.bench_function("parse 10,000 entries", |bencher| {
        bencher.iter(|| Document::parse(black_box(&text)).is_ok());
    });
    criterion.bench_function("parse and index 10,000 entries", |bencher| {
        bencher
            .iter(|| Document::parse(black_box(&text)).map(|read| indexed(read.document)).is_ok());
    });
    criterion.bench_function("parse 10,000 entries, one of them invalid", |bencher| {
        bencher.iter(|| Document::parse(black_box(&damaged)).is_ok());
    });
    criterion.bench_function("write 10,000 entries", |bencher| {
        bencher.iter(|| black_box(&document).to_string().len());
    });
    criterion.bench_function("merge 10,000 entries with themselves", |bencher| {
        let merge = |mut one: Document| one.merge(&document).is_ok_and(|lost| lost.is_empty());
        bencher.iter_batched(|| document.clone(), merge, BatchSize::LargeInput);
    });
}

/// What is looked up, how its sizes differ from a tuned shape's, and how an entry matches them.
type Lookup = (&'static str, fn([u64; 2]) -> [u64; 2], MatchKind);

/// Lookups of every kind, each over all kernels and the same 70 shapes of each.
fn lookups(criterion: &mut Criterion) {
    let mut document = document();
    decide(&mut document);
    let profile = indexed(document);
    let keys: Vec<Key> = (0..2 * KERNELS).map(key).collect();
    let kinds: [Lookup; 5] = [
        ("an exact shape", |sizes| sizes, MatchKind::Exact),
        ("a shape that a row decides", |[_, columns]| [100, columns + 1], MatchKind::Row),
        ("a shape of a bucket", |[rows, columns]| [rows + 1, columns + 1], MatchKind::Bucket),
        ("a neighbour", |[rows, columns]| [between(rows), columns], MatchKind::Neighbour),
        (
            "a shape that no entry matches",
            |[rows, columns]| [rows << 32, columns],
            MatchKind::Default,
        ),
    ];
    for (what, change, kind) in kinds {
        criterion.bench_function(&format!("look up {what}"), |bencher| {
            let mut turns = turns();
            bencher.iter(|| {
                let (place, asked) = turns();
                let found = keys.get(place).map(|key| profile.lookup(key, &change(asked)));
                assert!(found.is_some_and(|found| found.matched.kind() == kind));
            });
        });
    }
    let unknown = Key { kernel: "never tuned".into(), ..Key::default() };
    criterion.bench_function("look up a kernel that was not tuned", |bencher| {
        bencher.iter(|| profile.lookup(black_box(&unknown), &[5, 5]).entry.is_none());
    });
    criterion.bench_function("log a miss that was seen before", |bencher| {
        let misses = MissLog::new(1000);
        let names = ["rows", "columns"];
        bencher.iter(|| misses.record(&unknown, &names, black_box(&[5, 5]), MatchKind::Default));
    });
}

/// A kernel and a shape that it was tuned for, another each time and far from the one before. The rows are
/// neither the fewest nor the most.
fn turns() -> impl FnMut() -> (usize, [u64; 2]) {
    let mut number = 0;
    move || {
        number = (number + 7_919) % (2 * KERNELS * SHAPES);
        let place = usize::try_from(number / SHAPES).unwrap_or(usize::MAX);
        (place, sizes(20 + number % SHAPES % 70))
    }
}

/// A size between the same powers of two as no tuned one, and within an octave of one.
const fn between(size: u64) -> u64 {
    if size.is_power_of_two() { size / 4 * 3 } else { size / 2 * 3 }
}

criterion_group!(benches, files, lookups);
criterion_main!(benches);
