//! Messages about profiles.

use gridguard::profile::{
    DefaultReason, DeviceMismatch, FileFault, Key, Layer, LayerNotice, Match, MatchKind, Objective,
    ProfileNotice, StoredChoice,
};
use gridguard_test_support::{Section, texts};

fn fault() -> FileFault {
    FileFault { line: 7, column: 5, message: "unexpected field".into() }
}

pub(crate) fn sections() -> Vec<Section> {
    vec![
        ("profiles of other devices", profiles_of_other_devices()),
        ("notices", notices()),
        ("matches", matches()),
        ("keys and objectives", keys()),
    ]
}

fn profiles_of_other_devices() -> Vec<String> {
    let mismatch = DeviceMismatch {
        property: "the compute capability",
        profile: "9.0".into(),
        device: "10.0".into(),
    };
    texts(&[&mismatch])
}

fn notices() -> Vec<String> {
    let version = |component, running: &str| ProfileNotice::OtherVersion {
        component,
        measured: "12.9".into(),
        running: running.into(),
        entries: 3,
    };
    let other_sizes = ProfileNotice::OtherSizes {
        key: "copy f16, cold-eager, throughput".into(),
        given: vec!["columns".into(), "rows".into()],
        expected: vec!["rows".into(), "columns".into()],
        entries: 2,
    };
    let notices = [
        ProfileNotice::Missing,
        ProfileNotice::InvalidEntry(fault()),
        version("driver", "13.0"),
        version("driver", "12.8"),
        version("compiler", "13.0"),
        version("tuner", "13.0"),
    ];
    let path = || Some("/profiles/nvidia-h200.ron".into());
    let mut texts: Vec<String> = notices
        .map(|notice| LayerNotice { layer: Layer::User, path: path(), notice }.to_string())
        .into();
    let notice = LayerNotice { layer: Layer::Embedded, path: None, notice: other_sizes };
    texts.push(notice.to_string());
    texts
}

fn matches() -> Vec<String> {
    let mut texts = vec![
        Match::Exact.to_string(),
        Match::Bucket.to_string(),
        Match::Neighbour { distance_millioctaves: 1085 }.to_string(),
    ];
    let reasons = [
        DefaultReason::NoProfile,
        DefaultReason::NoEntries,
        DefaultReason::OtherSource,
        DefaultReason::SizeCount { expected: 2, given: 3 },
        DefaultReason::ZeroSize,
        DefaultReason::OutOfRange { index: 1, size: 64, bits: (10, 16) },
        DefaultReason::Confirmed { kind: MatchKind::Exact },
        DefaultReason::NoNeighbour,
    ];
    texts.extend(reasons.map(|reason| Match::Default(reason).to_string()));
    texts
}

/// A key is shown without its source, an objective with its bound.
fn keys() -> Vec<String> {
    let key = Key {
        kernel: "attention".into(),
        variant: "registers".into(),
        dtypes: "f16".into(),
        objective: Objective::Latency { max_launch_us: 200 },
        ..Key::default()
    };
    let memory = |bytes_per_item| Objective::Memory { bytes_per_item, bytes: 1 << 20 }.to_string();
    vec![key.to_string(), StoredChoice::Folded.to_string(), memory(64), memory(0)]
}
