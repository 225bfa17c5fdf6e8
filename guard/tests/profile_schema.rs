//! Profiles of earlier versions are parsed, and written byte for byte.

use core::num::NonZeroU64;

use gridguard::ComputeCapability;
use gridguard::profile::{
    Backend, DeviceIdentity, Document, Entry, Environment, Key, L2, Objective, Policy, Processor,
    Provenance, StopReason, StoredChoice, Submission, Summary,
};

/// Never changed: a change of the schema adds a file.
const SCHEMA_1: &str = include_str!("../../bench-data/golden/profiles/schema-1.ron");
/// A profile of a host.
const SCHEMA_1_HOST: &str = include_str!("../../bench-data/golden/profiles/schema-1-host.ron");

fn summary(median_ns: u64, low_ns: u64, high_ns: u64, samples: u64) -> Summary {
    Summary { median_ns, low_ns, high_ns, samples }
}

fn named(values: &[(&str, u64)]) -> Vec<(String, u64)> {
    values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

fn found(date: &str, numbers: [u64; 3], stopped: StopReason) -> Provenance {
    let [candidates, failed, samples] = numbers;
    let (driver, compiler, tuner) = ("13.0".into(), "13.0".into(), "0.1.0".into());
    let (date, tolerance) = (date.into(), String::new());
    Provenance { date, driver, compiler, tuner, candidates, failed, samples, stopped, tolerance }
}

fn rms_norm() -> Entry {
    let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    Entry {
        key: Key {
            kernel: "rms_norm".into(),
            source: digest.into(),
            dtypes: "f16".into(),
            ..Key::default()
        },
        shape: named(&[("rows", 32_768), ("columns", 4096)]),
        choice: StoredChoice::Chunked { max_items: NonZeroU64::new(8192).expect("some") },
        parameters: named(&[("warps", 4)]),
        launches: 4,
        chosen: summary(123_456, 123_000, 124_000, 41),
        default: summary(130_000, 129_500, 130_700, 41),
        found: found("2026-11-20T12:00:00Z", [48, 2, 1310], StopReason::Precise),
    }
}

fn attention() -> [Entry; 2] {
    let digest = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752";
    let key = Key {
        kernel: "temporal_attention".into(),
        source: digest.into(),
        variant: "registers".into(),
        dtypes: "f16 i64".into(),
        policy: Policy { l2: L2::Hot, submission: Submission::Graph },
        objective: Objective::Latency { max_launch_us: 200 },
    };
    let memory = Key {
        variant: "tensor \"cores\"".into(),
        dtypes: "bf16".into(),
        policy: Policy::default(),
        objective: Objective::Memory { bytes_per_item: 65_536, bytes: 1 << 30 },
        ..key.clone()
    };
    let latency = Entry {
        key,
        shape: named(&[("items", 15_360), ("heads", 5)]),
        choice: StoredChoice::Folded,
        parameters: Vec::new(),
        launches: 1,
        chosen: summary(88_000, 87_500, 88_100, 20),
        default: summary(90_000, 89_900, 90_100, 20),
        found: found("2026-11-20T12:05:00Z", [6, 0, 120], StopReason::Timeout),
    };
    let memory = Entry {
        key: memory,
        shape: named(&[("items", 76_800)]),
        choice: StoredChoice::Automatic,
        parameters: named(&[("block", 256), ("stages", 0)]),
        launches: 2,
        chosen: summary(1, 0, u64::MAX, 0),
        default: Summary::default(),
        found: Provenance { stopped: StopReason::Noise, ..Provenance::default() },
    };
    [latency, memory]
}

#[test]
fn schema_1_is_parsed_completely() {
    let device = DeviceIdentity {
        backend: Backend::Cuda,
        name: "NVIDIA H200".into(),
        compute_capability: ComputeCapability::new(9, 0),
        multiprocessors: 132,
        memory_bytes: 150_110_011_392,
        l2_bytes: 62_914_560,
        processor: None,
    };
    let (driver, compiler, tuner) = ("13.0".into(), "13.0".into(), "0.1.0".into());
    let environment = Environment { driver, compiler, tuner };
    let mut expected =
        Document::new(device, environment).with_aliases(["NVIDIA H200 NVL".to_owned()]);
    for entry in attention().into_iter().chain([rms_norm()]) {
        expected.insert(entry).expect("within the limits");
    }
    let read = Document::parse(SCHEMA_1).expect("golden");
    assert_eq!(read.faults, []);
    assert_eq!(read.document, expected);
}

#[test]
fn schema_1_is_written_byte_for_byte() {
    let read = Document::parse(SCHEMA_1).expect("golden");
    assert_eq!(read.document.to_ron(), SCHEMA_1);
}

#[test]
fn a_host_profile_names_its_processor_and_one_without_it_still_parses() {
    let read = Document::parse(SCHEMA_1_HOST).expect("golden");
    let processor = Processor { name: "AMD EPYC 9654 96-Core Processor".into(), threads: 192 };
    let device = read.document.device();
    assert_eq!((device.backend, &device.processor), (Backend::Host, &Some(processor.clone())));
    assert_eq!(read.document.to_ron(), SCHEMA_1_HOST);

    let written = ", processor: Some((name: \"AMD EPYC 9654 96-Core Processor\", threads: 192))";
    assert!(SCHEMA_1_HOST.contains(written));
    let before = SCHEMA_1_HOST.replace(written, "");
    let nameless = Document::parse(&before).expect("the earlier form");
    assert_eq!(nameless.faults, []);
    assert_eq!(nameless.document.to_ron(), before);
    assert_eq!(nameless.document.entries(), read.document.entries());
    let serves = nameless.document.device().serves(&[], read.document.device());
    let mismatch = serves.expect_err("the processor is unknown");
    assert_eq!(mismatch.profile, "unnamed");
    assert_eq!(mismatch.device, processor.to_string());
}
