//! Benchmarks of profiles: reading 10,000 entries, and looking one of them up.

use core::hint::black_box;
use core::num::NonZeroU64;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use gridguard::DeviceLimits;
use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, Key, Match, MatchKind, MissLog, Profile,
    Provenance, StoredChoice, Summary,
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

fn indexed(document: Document) -> Profile {
    let (profile, notices) = Profile::from_document(document, &device(), &Environment::default());
    assert!(notices.is_empty());
    profile
}

fn files(criterion: &mut Criterion) {
    let document = document();
    let text = document.to_ron();
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
        bencher.iter(|| black_box(&document).to_ron().len());
    });
    criterion.bench_function("merge 10,000 entries with themselves", |bencher| {
        let merge = |mut one: Document| one.merge(&document).is_ok_and(|lost| lost.is_empty());
        bencher.iter_batched(|| document.clone(), merge, BatchSize::LargeInput);
    });
}

fn lookups(criterion: &mut Criterion) {
    let profile = indexed(document());
    let keys: Vec<Key> = (0..2 * KERNELS).map(key).collect();
    let ask = |name: &str, criterion: &mut Criterion, change: fn([u64; 2]) -> [u64; 2], kind| {
        criterion.bench_function(name, |bencher| {
            let mut number = 0;
            bencher.iter(|| {
                number = (number + 7_919) % (2 * KERNELS * SHAPES);
                let key = usize::try_from(number / SHAPES).ok().and_then(|place| keys.get(place));
                let asked = change(sizes(number % SHAPES));
                let tuned = key.map(|key| profile.lookup(key, &asked));
                assert!(tuned.is_some_and(|tuned| tuned.matched.kind() == kind));
            });
        });
    };
    ask("look up an exact shape", criterion, |sizes| sizes, MatchKind::Exact);
    ask("look up a shape of a bucket", criterion, |[r, c]| [r + 1, c + 1], MatchKind::Bucket);
    let below = |[rows, columns]: [u64; 2]| [rows.max(24) * 3 / 4 - 1, columns];
    let neighbour = below(sizes(55));
    let one = keys.first().cloned().unwrap_or_default();
    criterion.bench_function("look up a neighbour", |bencher| {
        bencher.iter(|| {
            let tuned = profile.lookup(black_box(&one), black_box(&neighbour));
            assert!(matches!(tuned.matched, Match::Neighbour { .. } | Match::Bucket));
        });
    });
    criterion.bench_function("look up an exact shape of a resolved kernel", |bencher| {
        let kernel = profile.tuned(&one);
        let asked = sizes(55);
        bencher.iter(|| {
            let tuned = kernel.map(|kernel| kernel.lookup(black_box(&asked)));
            assert!(tuned.is_some_and(|tuned| tuned.matched == Match::Exact));
        });
    });
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

criterion_group!(benches, files, lookups);
criterion_main!(benches);
