//! Messages about profiles.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use gridguard::ComputeCapability;
use gridguard::pipeline::EntryRefusal;
use gridguard::profile::{
    Backend, Component, DefaultReason, DeviceMismatch, EntryError, FileFault, Key, Layer,
    LayerNotice, Match, Objective, Processor, ProfileError, ProfileNotice, StoredChoice,
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
            "schema 2, this version reads 1: use a matching version or re-tune",
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
    let mismatch = DeviceMismatch::Multiprocessors { profile: 132, device: 66 };
    let other = ProfileError::OtherDevice { document: 1, mismatch };
    let not_replaced =
        |reason| ProfileError::NotReplaced { path: path(), reason: Box::new(reason) };
    read_as(&[
        (
            &not_replaced(ProfileError::Schema { found: 2 }),
            "profiles/nvidia-h200.ron was not overwritten: schema 2, this version reads 1: \
             use a matching version or re-tune",
        ),
        (
            &not_replaced(other),
            "profiles/nvidia-h200.ron was not overwritten: the profiles cannot be merged: the \
             profile is for 132 multiprocessors, the device has 66: tune here",
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
            "refusing to write profiles/nvidia-h200.ron, it would not parse back: the file has more \
             than 200000 entries: split it by kernel",
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
    let name = DeviceMismatch::Name { profile: "NVIDIA H200".into(), device: "NVIDIA H100".into() };
    let (profile, device) = (ComputeCapability::new(9, 0), ComputeCapability::new(10, 0));
    read_as(&[
        (
            &DeviceMismatch::Backend { profile: Backend::Cuda, device: Backend::Host },
            "the profile was measured on backend cuda, this is host: tune here",
        ),
        (
            &name,
            "the profile is for \"NVIDIA H200\", the device is \"NVIDIA H100\": tune here or \
             add an alias",
        ),
        (
            &ProfileError::OtherDevice { document: 1, mismatch: name.clone() },
            "the profiles cannot be merged: the profile is for \"NVIDIA H200\", the device is \"NVIDIA \
             H100\": tune here or add an alias",
        ),
        (
            &DeviceMismatch::ComputeCapability { profile, device },
            "the profile is for compute capability 9.0, the device has 10.0: tune here",
        ),
        (
            &DeviceMismatch::L2Bytes { profile: 62_914_560, device: 1 },
            "the profile is for 62914560 bytes of L2 cache, the device has 1: tune here",
        ),
        (
            &DeviceMismatch::MemoryBytes { profile: 1600, device: 1499 },
            "the profile is for 1600 bytes of memory, the device has 1499: tune here",
        ),
        (
            &DeviceMismatch::Processor {
                profile: None,
                device: Some(Processor { name: "AMD EPYC 9654".into(), threads: 192 }),
            },
            "the profile is for an unnamed processor, this is AMD EPYC 9654 with 192 threads: \
             tune here",
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
            "the profile has 200000 entries, which is the limit: split it by kernel",
        ),
        (&EntryError::NoKernel, "kernel is empty: give the kernel's name"),
        (
            &EntryError::TooMany { field: "parameters", count: 17 },
            "parameters has 17 values, the limit is 16: remove some",
        ),
        (
            &EntryError::InvalidDate { date: "zzz".into() },
            "date \"zzz\" is not a date such as 2026-11-20T12:00:00Z: correct or empty it",
        ),
        (
            &EntryError::FutureDate { date: "2099-11-20T12:00:00Z".into() },
            "date 2099-11-20T12:00:00Z is in the future: check the clock, correct the date or empty \
             it",
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
        "reject: user profile /profiles/nvidia-h200.ron: there is no such file: give another path, \
         or tune",
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
        version(Component::Driver, "13.0"),
        "degrade: user profile /profiles/nvidia-h200.ron: 3 entries were measured with driver 12.9, \
         this is 13.0: re-tune",
    );
    reads(
        version(Component::Driver, "12.8"),
        "note: user profile /profiles/nvidia-h200.ron: 3 entries were measured with driver 12.9, \
         this is 12.8: they are still used",
    );
    reads(
        version(Component::Compiler, "13.0"),
        "note: user profile /profiles/nvidia-h200.ron: 3 entries were measured with compiler 12.9, \
         this is 13.0: they are still used",
    );
    reads(
        version(Component::Tuner, "13.0"),
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
    assert_eq!(default(DefaultReason::NoProfile), "default, no profile is loaded: load one");
    assert_eq!(default(DefaultReason::NoEntries), "default, the kernel was not tuned: tune it");
    assert_eq!(
        default(DefaultReason::OtherSource),
        "default, the kernel was edited since it was tuned: re-tune it"
    );
    assert_eq!(
        default(DefaultReason::SizeCount { expected: 2, given: 3 }),
        "default, 3 sizes were given, the entries have 2: give as many"
    );
    assert_eq!(
        default(DefaultReason::ZeroSize),
        "default, there are no items: nothing is launched"
    );
    assert_eq!(
        default(DefaultReason::OutOfRange { size: 1 }),
        "default, size 1 is outside the tuned range: tune this shape"
    );
    assert_eq!(
        default(DefaultReason::NoNeighbour),
        "default, no tuned shape is within an octave of each size: tune this shape"
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
