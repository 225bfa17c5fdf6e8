//! Loads profiles from several layers, including empty ones.

use core::num::NonZeroU64;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use gridguard::profile::{
    Document, Entry, Environment, Layer, Layers, LoadedProfile, MAX_FILE_BYTES, Match, MatchKind,
    NoticeLevel, ProfileErrorKind, ProfileNotice, StoredChoice, load,
};

use crate::profiles::{device, document, entry, key};

/// A profile of one kernel for these rows, with chunks of `max_items`.
fn text(rows: &[u64], max_items: u64) -> String {
    let choice = StoredChoice::Chunked { max_items: NonZeroU64::new(max_items).expect("some") };
    let entry = |rows: &u64| Entry { choice, ..entry("copy", *rows) };
    document(rows.iter().map(entry)).to_string()
}

fn write(folder: &Path, text: impl AsRef<[u8]>) -> PathBuf {
    fs::create_dir_all(folder).expect("a folder");
    let path = folder.join(device().file_name());
    fs::write(&path, text).expect("writes");
    path
}

fn loaded(layers: &Layers) -> LoadedProfile {
    layers.load(&device(), &Environment::default())
}

/// How `rows` match, and the layer of the matching entry.
fn found(loaded: &LoadedProfile, rows: u64) -> (MatchKind, Option<Layer>) {
    let tuned = loaded.profile.lookup(&key("copy"), &[rows]);
    (tuned.matched.kind(), tuned.layer)
}

/// An explicit folder, a user's and a shipped one.
fn three(folder: &Path) -> (Layers, [PathBuf; 3]) {
    let places = ["explicit", "user", "shipped"].map(|name| folder.join(name));
    let [explicit, user, shipped] = places.clone();
    (Layers::new().shipped(shipped).user_at(user).explicit(explicit), places)
}

#[test]
fn of_equal_matches_the_higher_layer_is_used_in_any_order_of_layers() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, user, shipped]) = three(folder.path());
    write(&shipped, text(&[64, 4096], 3));
    write(&user, text(&[64, 4096], 2));
    assert_eq!(found(&loaded(&layers), 64), (MatchKind::Exact, Some(Layer::User)));
    write(&explicit, text(&[64], 1));
    let loaded = loaded(&layers);
    assert_eq!(loaded.notices, []);
    assert_eq!(found(&loaded, 64), (MatchKind::Exact, Some(Layer::Explicit)));
    assert_eq!(found(&loaded, 70), (MatchKind::Bucket, Some(Layer::Explicit)));
    assert_eq!(found(&loaded, 4096), (MatchKind::Exact, Some(Layer::User)));
    assert_eq!(loaded.profile.entries().len(), 5);
}

#[test]
fn a_better_match_of_a_lower_layer_is_preferred() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, user, _]) = three(folder.path());
    write(&explicit, text(&[64, 1024], 1));
    write(&user, text(&[70, 100, 300], 2));
    let loaded = loaded(&layers);
    assert_eq!(found(&loaded, 70), (MatchKind::Exact, Some(Layer::User)));
    assert_eq!(found(&loaded, 65), (MatchKind::Bucket, Some(Layer::Explicit)));
    assert_eq!(found(&loaded, 99), (MatchKind::Bucket, Some(Layer::User)));
    assert_eq!(found(&loaded, 200), (MatchKind::Neighbour, Some(Layer::User)));
}

#[test]
fn at_equal_distances_the_higher_layer_is_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, user, _]) = three(folder.path());
    write(&user, text(&[64], 2));
    write(&explicit, text(&[256], 1));
    let loaded = loaded(&layers);
    let tuned = loaded.profile.lookup(&key("copy"), &[128]);
    assert_eq!(tuned.matched, Match::Neighbour { distance_millioctaves: 1000 });
    assert_eq!(tuned.layer, Some(Layer::Explicit));
}

#[test]
fn only_a_missing_explicit_layer_gives_a_notice() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, ..]) = three(folder.path());
    let loaded = loaded(&layers);
    assert!(loaded.profile.is_empty());
    assert_eq!(loaded.notices.len(), 1);
    let notice = &loaded.notices[0];
    assert_eq!((notice.layer, &notice.notice), (Layer::Explicit, &ProfileNotice::Missing));
    assert_eq!(notice.path.as_deref(), Some(&*explicit));
}

#[test]
fn an_embedded_text_is_the_lowest_layer() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, user, _]) = three(folder.path());
    write(&explicit, text(&[8], 1));
    write(&user, text(&[64], 2));
    let embedded: &'static str = text(&[64, 4096], 4).leak();
    let layers = layers.embedded(embedded);
    let loaded = loaded(&layers);
    assert_eq!(loaded.notices, []);
    assert_eq!(found(&loaded, 64), (MatchKind::Exact, Some(Layer::User)));
    assert_eq!(found(&loaded, 4096), (MatchKind::Exact, Some(Layer::Embedded)));
    // One for another device gives a notice.
    let host = device().on_host();
    let notices = Layers::new().embedded(embedded).load(&host, &Environment::default()).notices;
    assert!(matches!(notices[0].notice, ProfileNotice::OtherDevice(_)), "{notices:?}");
    assert_eq!(notices[0].path, None);
}

#[test]
fn broken_files_give_notices_and_the_other_layers_are_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, user, shipped]) = three(folder.path());
    write(&shipped, text(&[64], 3));
    let host = Document::new(device().on_host(), Environment::default());
    let newer = text(&[64], 1).replace("schema: 1", "schema: 9");
    for bad in [&b""[..], b"\x7fELF\x02\xff\xfe", newer.as_bytes(), host.to_string().as_bytes()] {
        write(&explicit, bad);
        write(&user, text(&[64], 2).replace("launches: 1", "launches: -1"));
        let loaded = loaded(&layers);
        assert_eq!(found(&loaded, 64), (MatchKind::Exact, Some(Layer::Shipped)));
        let found: Vec<_> =
            loaded.notices.iter().map(|one| (one.layer, one.notice.level())).collect();
        assert_eq!(
            found,
            [(Layer::User, NoticeLevel::Reject), (Layer::Explicit, NoticeLevel::Reject)]
        );
        assert!(matches!(loaded.notices[0].notice, ProfileNotice::InvalidEntry(_)));
    }
}

#[test]
fn a_huge_file_is_rejected_without_reading_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("huge.ron");
    let bytes = 1 << 30;
    File::create(&path).expect("creates").set_len(bytes).expect("sparse");
    let refused = load(&path).expect_err("huge");
    assert_eq!(*refused.kind(), ProfileErrorKind::TooLarge);
    assert!(refused.to_string().contains(&format!("has {bytes} bytes")), "{refused}");
    let file = File::options().write(true).open(&path).expect("opens");
    file.set_len(MAX_FILE_BYTES).expect("sparse");
    // A file of zeros within the limit has no header.
    let refused = load(&path).expect_err("zeros");
    assert!(matches!(refused.kind(), ProfileErrorKind::Header(_)), "{refused}");
}

#[test]
fn an_entry_of_a_mebibyte_is_left_out_and_the_others_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("any.ron");
    let problem = |parameters: usize| {
        let parameters = format!("parameters: [{}]", "(\"\", 1),".repeat(parameters));
        let text = text(&[8, 64], 1).replacen("parameters: []", &parameters, 1);
        fs::write(&path, text).expect("writes");
        let read = load(&path).expect("reads").expect("is there");
        assert_eq!(read.document.entries().len(), 1);
        assert_eq!(read.faults.len(), 1);
        read.faults[0].to_string()
    };
    let many = "7:9: parameters has 17 values, the limit is 16: remove some";
    assert_eq!(problem(17), many);
    let large = "7:9: the entry has 2097610 bytes, the limit is 1048576: shorten it";
    assert_eq!(problem(1 << 18), large);
}

#[test]
fn only_regular_files_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    let refused = load(&path).expect_err("a folder");
    assert_eq!(*refused.kind(), ProfileErrorKind::NotAFile, "{refused}");
    assert_eq!(load(&path.join("none")), Ok(None));
    #[cfg(unix)]
    {
        let endless = PathBuf::from("/dev/zero");
        let refused = load(&endless).expect_err("a device");
        assert_eq!(*refused.kind(), ProfileErrorKind::NotAFile, "{refused}");
    }
}
