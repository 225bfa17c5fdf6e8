//! Messages about profiles.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use gridguard::pipeline::EntryRefusal;
use gridguard::profile::{
    DefaultReason, DeviceMismatch, EntryError, FileFault, Key, Layer, LayerNotice, Match,
    MatchKind, Objective, ProfileError, ProfileNotice, StoredChoice,
};

use crate::read_as;

fn fault() -> FileFault {
    FileFault { line: 7, column: 5, message: "unexpected field".into() }
}

fn path() -> PathBuf {
    "profiles/nvidia-h200.ron".into()
}

#[test]
fn errors_of_reading_a_profile() {
    let reason = || "permission denied".to_owned();
    let read =
        ProfileError::Read { path: path(), kind: ErrorKind::PermissionDenied, reason: reason() };
    read_as(&[
        (
            &ProfileError::Schema { found: 2 },
            "the file has schema 2, this version reads schema 1: use a matching version, or re-tune",
        ),
        (&ProfileError::Header(fault()), "the header does not parse: 7:5: unexpected field"),
        (
            &ProfileError::TooManyEntries,
            "the file has more than 200000 entries: split it by kernel",
        ),
        (
            &ProfileError::TooLarge { bytes: 1 << 30 },
            "the file has 1073741824 bytes, the limit is 67108864: split it by kernel",
        ),
        (
            &ProfileError::NotText { offset: 3 },
            "the file is not UTF-8 at byte 3: restore it from a copy",
        ),
        (
            &ProfileError::NotAFile { path: path() },
            "profiles/nvidia-h200.ron is not a regular file: give the path of a file",
        ),
        (&read, "cannot read profiles/nvidia-h200.ron: permission denied"),
        (&gridguard::Error::from(read.clone()), &read.to_string()),
    ]);
}

#[test]
fn errors_of_merging_and_writing_a_profile() {
    let mismatch = DeviceMismatch {
        property: "the number of multiprocessors",
        profile: "132".into(),
        device: "66".into(),
    };
    let other = ProfileError::OtherDevice { document: 1, mismatch };
    let not_replaced =
        |reason| ProfileError::NotReplaced { path: path(), reason: Box::new(reason) };
    read_as(&[
        (
            &not_replaced(ProfileError::Schema { found: 2 }),
            "profiles/nvidia-h200.ron was not overwritten: the file has schema 2, this version \
             reads schema 1: use a matching version, or re-tune",
        ),
        (
            &not_replaced(other),
            "profiles/nvidia-h200.ron was not overwritten: the profiles cannot be merged: the number \
             of multiprocessors is 132 in the profile and 66 on this device: tune on this device",
        ),
        (
            &ProfileError::MergedEntries { entries: 200_001 },
            "the merged profile would have 200001 entries, the limit is 200000: split the profiles \
             by kernel",
        ),
        (
            &ProfileError::MergedAliases { aliases: 65 },
            "the merged profile would have 65 aliases, the limit is 64: remove some",
        ),
        (
            &ProfileError::Unreadable {
                path: path(),
                reason: Box::new(ProfileError::TooManyEntries),
            },
            "profiles/nvidia-h200.ron was not written, because the new text does not parse: the file \
             has more than 200000 entries: split it by kernel",
        ),
        (
            &ProfileError::Locked {
                path: path(),
                holder: "process 4711 on node7 since 2026-11-20T12:00:00Z".into(),
                waited: Duration::from_millis(30_040),
            },
            "profiles/nvidia-h200.ron is locked by process 4711 on node7 since \
             2026-11-20T12:00:00Z, waited 30.0 s: end that process, or try again later",
        ),
        (
            &ProfileError::Write {
                path: path(),
                step: "flushing to disk",
                kind: ErrorKind::StorageFull,
                reason: "no space left on device".into(),
            },
            "cannot write profiles/nvidia-h200.ron (flushing to disk): no space left on device",
        ),
    ]);
}

#[test]
fn a_device_mismatch_names_the_first_difference() {
    let mismatch = |property, profile: &str, device: &str| DeviceMismatch {
        property,
        profile: profile.into(),
        device: device.into(),
    };
    let name = mismatch("the device name", "NVIDIA H200", "NVIDIA H100");
    read_as(&[
        (
            &mismatch("the compute capability", "9.0", "10.0"),
            "the compute capability is 9.0 in the profile and 10.0 on this device: tune on this \
             device",
        ),
        (
            &ProfileError::OtherDevice { document: 1, mismatch: name },
            "the profiles cannot be merged: the device name is NVIDIA H200 in the profile and NVIDIA \
             H100 on this device: tune on this device, or add its name to the profile's aliases",
        ),
    ]);
}

#[test]
fn an_invalid_entry_names_the_limit_that_it_exceeds() {
    let name = || "rows".to_owned();
    read_as(&[
        (
            &EntryError::LongName { field: "kernel", bytes: 65 },
            "kernel has 65 bytes, the limit is 64: shorten it",
        ),
        (
            &EntryError::ProfileFull,
            "the profile has 200000 entries, the limit of a profile: split it by kernel",
        ),
        (&EntryError::NoKernel, "kernel is empty: give the kernel's name"),
        (
            &EntryError::TooMany { field: "parameters", count: 17 },
            "parameters has 17 values, the limit is 16: remove some",
        ),
        (
            &EntryError::InvalidDate { date: "zzz".into() },
            "date \"zzz\" is not a valid date of the form 2026-11-20T12:00:00Z: correct it, or leave it empty",
        ),
        (
            &EntryError::FutureDate { date: "2099-11-20T12:00:00Z".into() },
            "date 2099-11-20T12:00:00Z is more than a day in the future: check the clock, and correct \
             the date or leave it empty",
        ),
        (&EntryError::NoSizes, "shape has no sizes: give at least one"),
        (
            &EntryError::ZeroSize { name: name() },
            "size \"rows\" is 0: the first size counts the items and must be at least 1",
        ),
        (
            &EntryError::NamedTwice { field: "shape", name: name() },
            "shape has \"rows\" twice: remove one",
        ),
        (
            &EntryError::TooLarge { bytes: 2 << 20 },
            "the entry has 2097152 bytes, the limit is 1048576: shorten it",
        ),
        (&EntryError::Duplicate, "an earlier entry has the same kernel and shape: remove one"),
    ]);
}

#[test]
fn a_notice_gives_its_level_layer_and_remedy() {
    let reads = |notice, text: &str| {
        let path = Some("/profiles/nvidia-h200.ron".into());
        let notice = LayerNotice { layer: Layer::User, path, notice };
        assert_eq!(notice.to_string(), text);
    };
    reads(
        ProfileNotice::Missing,
        "reject: user profile /profiles/nvidia-h200.ron: the file does not exist: give another \
         path, or tune",
    );
    reads(
        ProfileNotice::InvalidEntry(fault()),
        "reject: user profile /profiles/nvidia-h200.ron: 7:5: unexpected field; the entry is ignored",
    );
    let version = |component, running: &str| ProfileNotice::OtherVersion {
        component,
        measured: "12.9".into(),
        running: running.into(),
        entries: 3,
    };
    reads(
        version("driver", "13.0"),
        "degrade: user profile /profiles/nvidia-h200.ron: 3 entries were measured with driver 12.9, \
         this is 13.0: re-tune",
    );
    reads(
        version("driver", "12.8"),
        "note: user profile /profiles/nvidia-h200.ron: 3 entries were measured with driver 12.9, \
         this is 12.8: they are still used",
    );
    reads(
        version("compiler", "13.0"),
        "note: user profile /profiles/nvidia-h200.ron: 3 entries were measured with compiler 12.9, \
         this is 13.0: they are still used",
    );
    reads(
        version("tuner", "13.0"),
        "note: user profile /profiles/nvidia-h200.ron: 3 entries were measured with tuner 12.9, \
         this is 13.0: they are still used",
    );
    let other_sizes = ProfileNotice::OtherSizes {
        key: "copy f16, cold-eager, throughput".into(),
        given: vec!["columns".into(), "rows".into()],
        expected: vec!["rows".into(), "columns".into()],
        entries: 2,
    };
    let notice = LayerNotice { layer: Layer::Embedded, path: None, notice: other_sizes };
    assert_eq!(
        notice.to_string(),
        "reject: embedded profile: 2 entries of copy f16, cold-eager, throughput have sizes columns \
         rows, others rows columns; they are ignored: re-tune"
    );
}

#[test]
fn a_match_gives_its_distance_or_why_there_is_none() {
    let default = |reason| Match::Default(reason).to_string();
    assert_eq!(Match::Exact.to_string(), "exact");
    assert_eq!(Match::Bucket.to_string(), "bucket");
    let neighbour = Match::Neighbour { distance_millioctaves: 1085 };
    assert_eq!(neighbour.to_string(), "neighbour at 1.085 octaves");
    assert_eq!(
        default(DefaultReason::NoProfile),
        "default, because no profile is loaded: load one"
    );
    assert_eq!(
        default(DefaultReason::NoEntries),
        "default, because the kernel was not tuned: tune it"
    );
    assert_eq!(
        default(DefaultReason::OtherSource),
        "default, because the kernel was edited since it was tuned: re-tune it"
    );
    assert_eq!(
        default(DefaultReason::SizeCount { expected: 2, given: 3 }),
        "default, because 3 sizes were given, the entries have 2: pass 2 sizes"
    );
    assert_eq!(
        default(DefaultReason::ZeroSize),
        "default, because there are no items: nothing is launched"
    );
    assert_eq!(
        default(DefaultReason::OutOfRange { index: 1, size: 64, bits: (10, 16) }),
        "default, because size 1 is 64, outside the tuned range of 512 to 65535: tune this shape"
    );
    assert_eq!(
        default(DefaultReason::Confirmed { kind: MatchKind::Exact }),
        "default, because it is confirmed on this device (exact)"
    );
    assert_eq!(
        default(DefaultReason::NoNeighbour),
        "default, because no tuned shape is within an octave of each size: tune this shape"
    );
}

#[test]
fn a_key_is_displayed_without_its_source() {
    let key = Key {
        kernel: "attention".into(),
        variant: "registers".into(),
        dtypes: "f16".into(),
        objective: Objective::Latency { max_launch_us: 200 },
        ..Key::default()
    };
    assert_eq!(key.to_string(), "attention registers f16, cold-eager, latency 200us");
    assert_eq!(StoredChoice::Folded.to_string(), "folded");
}

#[test]
fn an_objective_has_its_bound() {
    let memory = |bytes_per_item| Objective::Memory { bytes_per_item, bytes: 1 << 20 };
    assert_eq!(memory(64).to_string(), "memory 1048576 bytes, 64 an item");
    assert_eq!(memory(0).to_string(), "memory 1048576 bytes");
}

#[test]
fn an_entry_that_a_pipeline_refuses_is_told_with_what_differs() {
    let parameter = |entry, pipeline| {
        EntryRefusal::Parameter { name: "attention.block".into(), entry, pipeline }.to_string()
    };
    assert_eq!(
        parameter(Some(128), Some(64)),
        "parameter attention.block is 128 in the entry and 64 in the pipeline: build the pipeline \
         with the parameters of the entry, or re-tune"
    );
    assert_eq!(
        parameter(Some(128), None),
        "parameter attention.block is 128 in the entry and missing in the pipeline: build the \
         pipeline with the parameters of the entry, or re-tune"
    );
    assert_eq!(
        EntryRefusal::InFlight.to_string(),
        "parameter in_flight of the entry is missing or 0: re-tune"
    );
    assert_eq!(
        EntryRefusal::Choice { choice: StoredChoice::Folded }.to_string(),
        "the pipeline cannot run as the entry says: folded"
    );
    let (what, needed, allowed) = ("bytes of scratch", 4096, 1024);
    assert_eq!(
        EntryRefusal::OverBudget { what, needed, allowed }.to_string(),
        "the entry takes 4096 bytes of scratch, the budget allows 1024"
    );
}
