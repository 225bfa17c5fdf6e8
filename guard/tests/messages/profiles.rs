//! What is said of profiles.

use std::io::ErrorKind;
use std::path::PathBuf;

use gridguard::ComputeCapability;
use gridguard::profile::{
    Backend, EntryFault, Fault, Finding, InsertError, Key, Layer, LayerFinding, Match, MergeError,
    Mismatch, Objective, Processor, ProfileError, Reason, StoreError, StoredChoice,
};

use crate::read_as;

fn fault() -> Fault {
    Fault { line: 7, column: 5, message: "unexpected field".into() }
}

fn path() -> PathBuf {
    "profiles/nvidia-h200.ron".into()
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let reason = || "permission denied".to_owned();
    let read =
        ProfileError::Read { path: path(), kind: ErrorKind::PermissionDenied, reason: reason() };
    read_as(&[
        (
            &ProfileError::Schema { found: 2 },
            "schema 2, this version reads 1: use a matching version, or tune anew",
        ),
        (&ProfileError::Header(fault()), "the header does not parse: 7:5: unexpected field"),
        (&ProfileError::Structure(fault()), "the file does not parse: 7:5: unexpected field"),
        (
            &ProfileError::TooManyEntries,
            "the file has more than 200000 entries: split it by kernel",
        ),
        (
            &ProfileError::TooLarge { bytes: 1 << 30 },
            "the file has 1073741824 bytes, at most 67108864 are read: split it by kernel",
        ),
        (
            &ProfileError::NotText { offset: 3 },
            "the file is not UTF-8 from byte 3 on: restore it from a copy",
        ),
        (
            &ProfileError::NotAFile { path: path() },
            "profiles/nvidia-h200.ron is not a regular file: name a file",
        ),
        (&read, "profiles/nvidia-h200.ron cannot be read: permission denied"),
        (&gridguard::Error::from(read.clone()), &read.to_string()),
    ]);
}

#[test]
fn a_file_that_is_not_written_says_why() {
    let mismatch = Mismatch::Multiprocessors { profile: 132, device: 66 };
    let other = StoreError::OtherDevice { path: path(), mismatch };
    read_as(&[
        (
            &StoreError::Existing { path: path(), error: ProfileError::Schema { found: 2 } },
            "profiles/nvidia-h200.ron is not overwritten: schema 2, this version reads 1: use a \
             matching version, or tune anew",
        ),
        (
            &other,
            "profiles/nvidia-h200.ron is not overwritten: the profile is of 132 multiprocessors, \
             the device has 66: tune here",
        ),
        (&gridguard::Error::from(other.clone()), &other.to_string()),
        (
            &StoreError::Full {
                path: path(),
                error: MergeError::TooManyEntries { entries: 200_001 },
            },
            "profiles/nvidia-h200.ron is not overwritten: the profiles have 200001 entries together, \
             at most 200000 are taken: split them by kernel",
        ),
        (
            &StoreError::Full { path: path(), error: MergeError::TooManyAliases { aliases: 65 } },
            "profiles/nvidia-h200.ron is not overwritten: the profiles have 65 aliases together, at \
             most 64 are taken: remove some",
        ),
        (
            &StoreError::Unreadable { path: path(), error: ProfileError::TooManyEntries },
            "profiles/nvidia-h200.ron is not written, nobody could read it: the file has more than \
             200000 entries: split it by kernel",
        ),
        (
            &StoreError::Write {
                path: path(),
                step: "putting it on disk",
                kind: ErrorKind::StorageFull,
                reason: "no space left on device".into(),
            },
            "profiles/nvidia-h200.ron cannot be written, putting it on disk: no space left on device",
        ),
    ]);
}

#[test]
fn another_device_is_told_by_the_first_thing_that_differs() {
    let name = Mismatch::Name { profile: "NVIDIA H200".into(), device: "NVIDIA H100".into() };
    let (profile, device) = (ComputeCapability::new(9, 0), ComputeCapability::new(10, 0));
    read_as(&[
        (
            &Mismatch::Backend { profile: Backend::Cuda, device: Backend::Host },
            "the profile was measured on backend cuda, this is host: tune here",
        ),
        (
            &name,
            "the profile is of \"NVIDIA H200\", the device is \"NVIDIA H100\": tune here, or \
             declare an alias",
        ),
        (
            &MergeError::OtherDevice { document: 1, mismatch: name.clone() },
            "the profiles do not merge: the profile is of \"NVIDIA H200\", the device is \"NVIDIA \
             H100\": tune here, or declare an alias",
        ),
        (
            &Mismatch::ComputeCapability { profile, device },
            "the profile is of compute capability 9.0, the device has 10.0: tune here",
        ),
        (
            &Mismatch::L2Bytes { profile: 62_914_560, device: 1 },
            "the profile is of 62914560 bytes of L2 cache, the device has 1: tune here",
        ),
        (
            &Mismatch::MemoryBytes { profile: 1600, device: 1499 },
            "the profile is of 1600 bytes of memory, the device has 1499: tune here",
        ),
        (
            &Mismatch::Processor {
                profile: None,
                device: Some(Processor { name: "AMD EPYC 9654".into(), threads: 192 }),
            },
            "the profile is of a processor without a name, this is AMD EPYC 9654 with 192 threads: \
             tune here",
        ),
    ]);
}

#[test]
fn a_bad_entry_says_which_bound_it_breaks() {
    let long = EntryFault::LongName { field: "kernel", bytes: 65 };
    let name = || "rows".to_owned();
    read_as(&[
        (&long, "kernel has 65 bytes, at most 64 are taken: shorten it"),
        (&InsertError::from(long.clone()), &long.to_string()),
        (
            &InsertError::Full,
            "the profile has 200000 entries, which is all it takes: split it by kernel",
        ),
        (&EntryFault::NoKernel, "kernel is empty: name it"),
        (
            &EntryFault::TooMany { field: "parameters", count: 17 },
            "parameters has 17 values, at most 16 are taken: leave some out",
        ),
        (&EntryFault::NoSizes, "shape has no sizes: name at least one"),
        (
            &EntryFault::ZeroSize { name: name() },
            "size \"rows\" is 0: the first size counts the items, which begin at 1",
        ),
        (
            &EntryFault::NamedTwice { field: "shape", name: name() },
            "shape names \"rows\" twice: remove one",
        ),
        (&EntryFault::Duplicate, "an entry of this kernel and shape stands before it: remove one"),
    ]);
}

#[test]
fn a_finding_says_its_level_its_layer_and_what_to_do() {
    let versions = || ("12.9".to_owned(), "13.0".to_owned());
    let found = |finding, text: &str| {
        let path = Some("/profiles/nvidia-h200.ron".into());
        let finding = LayerFinding { layer: Layer::User, path, finding };
        assert_eq!(finding.to_string(), text);
    };
    found(
        Finding::Missing,
        "reject: user profile /profiles/nvidia-h200.ron: there is no such file: name another, or tune",
    );
    found(
        Finding::Entry(fault()),
        "reject: user profile /profiles/nvidia-h200.ron: 7:5: unexpected field, the entry is left out",
    );
    let (measured, running) = versions();
    found(
        Finding::DriverMajor { measured, running, entries: 3 },
        "degrade: user profile /profiles/nvidia-h200.ron: 3 entries are from driver 12.9, this is \
         13.0: tune anew",
    );
    let (measured, running) = versions();
    found(
        Finding::DriverMinor { measured, running, entries: 3 },
        "note: user profile /profiles/nvidia-h200.ron: 3 entries are from driver 12.9, this is \
         13.0: they serve",
    );
    let (measured, running) = versions();
    found(
        Finding::Compiler { measured, running, entries: 3 },
        "note: user profile /profiles/nvidia-h200.ron: 3 entries are from compiler 12.9, this is \
         13.0: they serve",
    );
    let (measured, running) = versions();
    found(
        Finding::Tuner { measured, running, entries: 3 },
        "note: user profile /profiles/nvidia-h200.ron: 3 entries are from tuner 12.9, this is 13.0: \
         they serve",
    );
    let other_sizes = Finding::OtherSizes {
        key: "copy f16, cold-eager, throughput".into(),
        given: vec!["columns".into(), "rows".into()],
        expected: vec!["rows".into(), "columns".into()],
        entries: 2,
    };
    let finding = LayerFinding { layer: Layer::Embedded, path: None, finding: other_sizes };
    assert_eq!(
        finding.to_string(),
        "reject: embedded profile: 2 entries of copy f16, cold-eager, throughput have sizes columns \
         rows, others rows columns: tune anew"
    );
}

#[test]
fn a_match_says_how_near_it_is_or_why_there_is_none() {
    let default = |reason| Match::Default(reason).to_string();
    assert_eq!(Match::Exact.to_string(), "exact");
    assert_eq!(Match::Bucket.to_string(), "bucket");
    let neighbour = Match::Neighbour { distance_millioctaves: 1085 };
    assert_eq!(neighbour.to_string(), "neighbour at 1.085 octaves");
    assert_eq!(default(Reason::NoProfile), "default, there is no profile: load one");
    assert_eq!(default(Reason::NoEntries), "default, the kernel was not tuned: tune it");
    assert_eq!(
        default(Reason::OtherSource),
        "default, the kernel was edited since it was tuned: tune it anew"
    );
    assert_eq!(
        default(Reason::SizeCount { expected: 2, given: 3 }),
        "default, 3 sizes were given, the entries have 2: give as many"
    );
    assert_eq!(default(Reason::ZeroSize), "default, there are no items: nothing is launched");
    assert_eq!(
        default(Reason::OutOfRange { size: 1 }),
        "default, size 1 is out of the tuned range: tune this shape"
    );
    assert_eq!(
        default(Reason::NoNeighbour),
        "default, no tuned shape is within an octave of each size: tune this shape"
    );
}

#[test]
fn a_key_reads_as_what_it_is_about() {
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
