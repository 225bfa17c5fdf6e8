//! Files of captured launches, whole and hostile.
#![cfg(all(unix, feature = "capture"))]
#![allow(clippy::expect_used, reason = "tests")]

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use gridguard::{DeviceLimits, Dim3, LaunchRequest};
use gridguard_report::{
    CAPTURE_FORMAT, Capture, CaptureWriter, CapturedLaunch, CapturedMemory, MemoryKind,
};
use tar::{Builder, Header};
use tempfile::TempDir;

fn launch() -> CapturedLaunch {
    let memory = |address, bytes, variable: Option<&str>| CapturedMemory {
        address,
        bytes,
        kind: MemoryKind::Device,
        variable: variable.map(str::to_owned),
    };
    CapturedLaunch {
        format: CAPTURE_FORMAT,
        program: "/bin/program".to_owned(),
        kernel: "touch".to_owned(),
        number: 3,
        device: DeviceLimits::any_device(),
        request: LaunchRequest::new(Dim3::ONE, Dim3::ONE),
        other_attributes: vec![1],
        carveout: Some(50),
        arguments: vec![vec![1, 2], Vec::new()],
        image_bytes: 5,
        memory: vec![memory(512, 600, None), memory(2048, 8, None), memory(64, 8, Some("v"))],
        pointers: 1,
    }
}

/// A whole capture, whose second allocation is changed.
fn written(launch: &CapturedLaunch) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("capture.tar");
    let mut writer = CaptureWriter::new(&path, launch, b"image").expect("begun");
    for (place, one) in launch.memory.iter().enumerate() {
        writer.memory(place, false, one.bytes, io::repeat(1).take(one.bytes)).expect("written");
    }
    writer.memory(1, true, 8, &[1, 1, 7, 1, 1, 9, 1, 1][..]).expect("written");
    assert!(writer.finish().expect("named"));
    (folder, path)
}

fn contents(capture: &Capture, place: usize, is_after: bool) -> Vec<u8> {
    let parts = capture.parts(place);
    parts.flat_map(|part| capture.read(place, is_after, &part).expect("read")).collect()
}

#[test]
fn a_capture_is_read_as_it_was_written() {
    let (_folder, path) = written(&launch());
    let capture = Capture::open(&path).expect("a capture");
    assert_eq!(capture.launch(), &launch());
    assert_eq!(capture.image().expect("read"), b"image");
    assert_eq!(contents(&capture, 0, true), [1; 600]);
    assert_eq!(contents(&capture, 1, false), [1; 8]);
    assert_eq!(contents(&capture, 1, true), [1, 1, 7, 1, 1, 9, 1, 1]);
    assert_eq!([0, 1, 2].map(|place| capture.is_changed(place)), [false, true, false]);
    assert_eq!(capture.changed(1).expect("read"), 2..6);
    assert_eq!(capture.changed(0).expect("read"), 0..0);
}

#[test]
fn a_cut_or_changed_capture_is_refused() {
    let (_folder, path) = written(&launch());
    let whole = fs::read(&path).expect("read");
    // The archive ends with blocks of zeros.
    let end = whole.iter().rposition(|byte| *byte != 0).expect("any");
    for length in (0..end).step_by(97) {
        fs::write(&path, &whole[..length]).expect("written");
        assert!(Capture::open(&path).is_err(), "{length} of {} bytes", whole.len());
    }
    // Sizes, names and kinds of entries are in headers with checksums.
    for at in (0..end).step_by(31) {
        let mut changed = whole.clone();
        changed[at] ^= 0x41;
        fs::write(&path, &changed).expect("written");
        if let Ok(capture) = Capture::open(&path) {
            (0..3).for_each(|place| drop(contents(&capture, place, true)));
        }
    }
}

/// An archive of these entries.
fn archive(path: &Path, entries: &[(&str, tar::EntryType, u64, &[u8])]) {
    let mut archive = Builder::new(File::create(path).expect("created"));
    for (name, kind, bytes, contents) in entries {
        let mut header = Header::new_gnu();
        header.set_path(name).expect("a name");
        header.set_entry_type(*kind);
        header.set_size(*bytes);
        header.set_cksum();
        archive.append(&header, *contents).expect("written");
    }
    archive.finish().expect("ended");
}

#[test]
fn archives_of_others_are_refused_with_a_reason() {
    use tar::EntryType;

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("capture.tar");
    let bytes = |text: &[u8]| size(text.len());
    let (file, text) =
        (EntryType::Regular, |launch: &CapturedLaunch| serde_json::to_vec(launch).expect("JSON"));
    let with = |change: fn(&mut CapturedLaunch)| {
        let mut launch = launch();
        change(&mut launch);
        text(&launch)
    };
    let [newer, zero, crossed, wrapped, huge] = [
        with(|launch| launch.format = 2),
        with(|launch| launch.memory[0].bytes = 0),
        with(|launch| launch.memory[1].address = 1000),
        with(|launch| launch.memory[1].address = u64::MAX),
        with(|launch| launch.image_bytes = 80 << 30),
    ];
    let own = text(&launch());
    for (entries, why) in [
        (vec![], "it ends before \"launch.json\""),
        (vec![("other", file, 1, &b"x"[..])], "\"other\" is in the place of \"launch.json\""),
        (vec![("launch.json", EntryType::Symlink, 0, b"")], "\"launch.json\" is no file"),
        (vec![("launch.json", EntryType::GNUSparse, 0, b"")], "\"launch.json\" is no file"),
        (vec![("launch.json", EntryType::GNULongName, 0, b"")], "\"launch.json\" is no file"),
        (vec![("launch.json", file, 2, b"{}")], "missing field `format`"),
        (vec![("launch.json", file, u64::MAX >> 1, b"{}")], "it ends within \"launch.json\""),
        (vec![("launch.json", file, bytes(&newer), &newer)], "its format is 2"),
        (vec![("launch.json", file, bytes(&zero), &zero)], "memory at 0x200 with 0 bytes"),
        (vec![("launch.json", file, bytes(&crossed), &crossed)], "memory at 0x3e8 with 8 bytes"),
        (vec![("launch.json", file, bytes(&wrapped), &wrapped)], "memory at 0xffffffffffffffff"),
        (vec![("launch.json", file, bytes(&own), &own)], "it ends before \"image\""),
        (
            vec![("launch.json", file, bytes(&huge), &huge), ("image", file, 5, b"image")],
            "\"image\" has 5 bytes, not 85899345920",
        ),
        (
            vec![
                ("launch.json", file, bytes(&own), &own),
                ("image", file, 5, b"image"),
                ("before/1", file, 8, b"12345678"),
            ],
            "\"before/1\" is in the place of \"before/0\"",
        ),
    ] {
        archive(&path, &entries);
        let error = Capture::open(&path).expect_err(why).to_string();
        assert!(error.contains(why), "{error}: {why}");
    }
    let error = Capture::open(folder.path()).expect_err("a folder").to_string();
    assert!(!error.is_empty());
    Capture::open(&folder.path().join("missing")).expect_err("no file");
}

fn size(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a size")
}
