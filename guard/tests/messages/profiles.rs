//! Messages about profiles.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use gridguard::profile::{
    DefaultReason, DeviceMismatch, EntryError, FileFault, Key, Layer, LayerNotice, Match,
    MatchKind, Objective, ProfileError, ProfileNotice, StoredChoice,
};
use gridguard_test_support::{Section, texts};

fn fault() -> FileFault {
    FileFault { line: 7, column: 5, message: "unexpected field".into() }
}

fn path() -> PathBuf {
    "profiles/nvidia-h200.ron".into()
}

pub(crate) fn sections() -> Vec<Section> {
    vec![
        ("reading a profile", reading_a_profile()),
        ("merging and writing a profile", merging_and_writing_a_profile()),
        ("profiles of other devices", profiles_of_other_devices()),
        ("invalid entries", invalid_entries()),
        ("notices", notices()),
        ("matches", matches()),
        ("keys and objectives", keys()),
    ]
}

fn reading_a_profile() -> Vec<String> {
    let reason = || "permission denied".to_owned();
    let read =
        ProfileError::Read { path: path(), kind: ErrorKind::PermissionDenied, reason: reason() };
    texts(&[
        &ProfileError::Schema { found: 2 },
        &ProfileError::Header(fault()),
        &ProfileError::TooManyEntries,
        &ProfileError::TooLarge { bytes: 1 << 30 },
        &ProfileError::NotText { offset: 3 },
        &ProfileError::NotAFile { path: path() },
        &read,
        &gridguard::Error::from(read.clone()),
    ])
}

fn merging_and_writing_a_profile() -> Vec<String> {
    let mismatch = DeviceMismatch {
        property: "the number of multiprocessors",
        profile: "132".into(),
        device: "66".into(),
    };
    let other = ProfileError::OtherDevice { document: 1, mismatch };
    let not_replaced =
        |reason| ProfileError::NotReplaced { path: path(), reason: Box::new(reason) };
    texts(&[
        &not_replaced(ProfileError::Schema { found: 2 }),
        &not_replaced(other),
        &ProfileError::MergedEntries { entries: 200_001 },
        &ProfileError::MergedAliases { aliases: 65 },
        &ProfileError::Unreadable { path: path(), reason: Box::new(ProfileError::TooManyEntries) },
        &ProfileError::Locked {
            path: path(),
            holder: "process 4711 on node7 since 2026-11-20T12:00:00Z".into(),
            waited: Duration::from_millis(30_040),
        },
        &ProfileError::Write {
            path: path(),
            step: "flushing to disk",
            kind: ErrorKind::StorageFull,
            reason: "no space left on device".into(),
        },
    ])
}

fn profiles_of_other_devices() -> Vec<String> {
    let mismatch = |property, profile: &str, device: &str| DeviceMismatch {
        property,
        profile: profile.into(),
        device: device.into(),
    };
    let name = mismatch("the device name", "NVIDIA H200", "NVIDIA H100");
    texts(&[
        &mismatch("the compute capability", "9.0", "10.0"),
        &ProfileError::OtherDevice { document: 1, mismatch: name },
    ])
}

fn invalid_entries() -> Vec<String> {
    let name = || "rows".to_owned();
    texts(&[
        &EntryError::LongName { field: "kernel", bytes: 65 },
        &EntryError::ProfileFull,
        &EntryError::NoKernel,
        &EntryError::TooMany { field: "parameters", count: 17 },
        &EntryError::InvalidDate { date: "zzz".into() },
        &EntryError::FutureDate { date: "2099-11-20T12:00:00Z".into() },
        &EntryError::NoSizes,
        &EntryError::ZeroSize { name: name() },
        &EntryError::NamedTwice { field: "shape", name: name() },
        &EntryError::TooLarge { bytes: 2 << 20 },
        &EntryError::Duplicate,
    ])
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
