//! Profiles out of several places, some of them no profiles.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use core::num::NonZeroU64;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use gridguard::DeviceLimits;
use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, Finding, Key, Layer, Layers, Level, Loaded,
    MAX_FILE_BYTES, Match, MatchKind, ProfileError, Provenance, StoredChoice, Summary, load,
};

fn device() -> DeviceIdentity {
    DeviceIdentity::of(&DeviceLimits::any_device())
}

fn key() -> Key {
    Key { kernel: "copy".into(), dtypes: "f16".into(), ..Key::default() }
}

/// A profile of one kernel, for these rows, that chooses chunks of so many items.
fn text(rows: &[u64], max_items: u64) -> String {
    let mut document = Document::new(device(), Environment::default());
    for rows in rows {
        let entry = Entry {
            key: key(),
            shape: vec![("rows".into(), *rows)],
            choice: StoredChoice::Chunked { max_items: NonZeroU64::new(max_items).expect("some") },
            parameters: Vec::new(),
            launches: 1,
            chosen: Summary::default(),
            default: Summary::default(),
            found: Provenance::default(),
        };
        document.insert(entry).expect("within bounds");
    }
    document.to_ron()
}

fn write(folder: &Path, text: impl AsRef<[u8]>) -> PathBuf {
    fs::create_dir_all(folder).expect("a folder");
    let path = folder.join(device().file_name());
    fs::write(&path, text).expect("writes");
    path
}

fn loaded(layers: &Layers) -> Loaded {
    layers.load(&device(), &Environment::default())
}

/// The kind of the match for `rows`, and the layer that serves.
fn served(loaded: &Loaded, rows: u64) -> (MatchKind, Option<Layer>) {
    let answer = loaded.profile.lookup(&key(), &[rows]);
    (answer.matched.kind(), answer.layer)
}

/// An explicit file, a user's folder and a shipped one.
fn three(folder: &Path) -> (Layers, [PathBuf; 3]) {
    let places = ["explicit", "user", "shipped"].map(|name| folder.join(name));
    let [explicit, user, shipped] = places.clone();
    (Layers::new().shipped(shipped).user_at(user).explicit(explicit), places)
}

#[test]
fn at_an_equal_match_the_higher_layer_serves_in_whatever_order_they_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, user, shipped]) = three(folder.path());
    write(&shipped, text(&[64, 4096], 3));
    write(&user, text(&[64, 4096], 2));
    assert_eq!(served(&loaded(&layers), 64), (MatchKind::Exact, Some(Layer::User)));
    write(&explicit, text(&[64], 1));
    let loaded = loaded(&layers);
    assert_eq!(loaded.findings, []);
    assert_eq!(served(&loaded, 64), (MatchKind::Exact, Some(Layer::Explicit)));
    assert_eq!(served(&loaded, 70), (MatchKind::Bucket, Some(Layer::Explicit)));
    assert_eq!(served(&loaded, 4096), (MatchKind::Exact, Some(Layer::User)));
    assert_eq!(loaded.profile.entries().len(), 5);
}

#[test]
fn a_better_match_of_a_lower_layer_goes_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, user, _]) = three(folder.path());
    write(&explicit, text(&[64, 1024], 1));
    write(&user, text(&[70, 100, 300], 2));
    let loaded = loaded(&layers);
    assert_eq!(served(&loaded, 70), (MatchKind::Exact, Some(Layer::User)));
    assert_eq!(served(&loaded, 65), (MatchKind::Bucket, Some(Layer::Explicit)));
    assert_eq!(served(&loaded, 99), (MatchKind::Bucket, Some(Layer::User)));
    assert_eq!(served(&loaded, 200), (MatchKind::Neighbour, Some(Layer::User)));
}

#[test]
fn at_equal_distances_the_higher_layer_serves() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, user, _]) = three(folder.path());
    write(&user, text(&[64], 2));
    write(&explicit, text(&[256], 1));
    let loaded = loaded(&layers);
    let answer = loaded.profile.lookup(&key(), &[128]);
    assert_eq!(answer.matched, Match::Neighbour { distance_millioctaves: 1000 });
    assert_eq!(answer.layer, Some(Layer::Explicit));
}

#[test]
fn only_the_explicit_layer_has_to_be_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, ..]) = three(folder.path());
    let loaded = loaded(&layers);
    assert!(loaded.profile.is_empty());
    assert_eq!(loaded.findings.len(), 1);
    let finding = &loaded.findings[0];
    assert_eq!((finding.layer, &finding.finding), (Layer::Explicit, &Finding::Missing));
    assert_eq!(finding.path.as_deref(), Some(&*explicit));
}

#[test]
fn an_embedded_text_serves_below_all_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, user, _]) = three(folder.path());
    write(&explicit, text(&[8], 1));
    write(&user, text(&[64], 2));
    let embedded: &'static str = text(&[64, 4096], 4).leak();
    let layers = layers.embedded(embedded);
    let loaded = loaded(&layers);
    assert_eq!(loaded.findings, []);
    assert_eq!(served(&loaded, 64), (MatchKind::Exact, Some(Layer::User)));
    assert_eq!(served(&loaded, 4096), (MatchKind::Exact, Some(Layer::Embedded)));
    // Of another device it is a finding.
    let host = device().on_host();
    let findings = Layers::new().embedded(embedded).load(&host, &Environment::default()).findings;
    assert!(matches!(findings[0].finding, Finding::OtherDevice(_)), "{findings:?}");
    assert_eq!(findings[0].path, None);
}

#[test]
fn broken_files_are_findings_and_the_other_layers_serve() {
    let folder = tempfile::tempdir().expect("a folder");
    let (layers, [explicit, user, shipped]) = three(folder.path());
    write(&shipped, text(&[64], 3));
    let host = Document::new(device().on_host(), Environment::default());
    let newer = text(&[64], 1).replace("schema: 1", "schema: 9");
    for bad in [&b""[..], b"\x7fELF\x02\xff\xfe", newer.as_bytes(), host.to_ron().as_bytes()] {
        write(&explicit, bad);
        write(&user, text(&[64], 2).replace("launches: 1", "launches: -1"));
        let loaded = loaded(&layers);
        assert_eq!(served(&loaded, 64), (MatchKind::Exact, Some(Layer::Shipped)));
        let found: Vec<_> = loaded.findings.iter().map(|one| (one.layer, one.level())).collect();
        assert_eq!(found, [(Layer::User, Level::Reject), (Layer::Explicit, Level::Reject)]);
        assert!(matches!(loaded.findings[0].finding, Finding::Entry(_)));
    }
}

#[test]
fn a_huge_file_is_refused_unread() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("huge.ron");
    let bytes = 1 << 30;
    File::create(&path).expect("creates").set_len(bytes).expect("sparse");
    assert_eq!(load(&path), Err(ProfileError::TooLarge { bytes }));
    let file = File::options().write(true).open(&path).expect("opens");
    file.set_len(MAX_FILE_BYTES).expect("sparse");
    // Of zeros, within the limit: no header.
    assert!(matches!(load(&path), Err(ProfileError::Header(_))));
}

#[test]
fn what_is_no_file_is_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    assert_eq!(load(&path), Err(ProfileError::NotAFile { path: path.clone() }));
    assert_eq!(load(&path.join("none")), Ok(None));
    #[cfg(unix)]
    {
        let endless = PathBuf::from("/dev/zero");
        assert_eq!(load(&endless), Err(ProfileError::NotAFile { path: endless.clone() }));
    }
}
