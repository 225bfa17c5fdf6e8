//! Tests of the cache, and of other files in its folder.

mod corrupt;
mod keys;

use std::fs::{self, File};
use std::time::SystemTime;

use gridguard::ComputeCapability;
use tempfile::TempDir;

use super::*;

/// A minimal CUDA ELF: header, one section with `content`, its table.
fn cubin(content: &[u8]) -> Image {
    let table = 64 + content.len();
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(&ELF_MAGIC);
    bytes[4..6].copy_from_slice(&[2, 1]);
    bytes[18] = 190;
    bytes[40..48].copy_from_slice(&to_u64(table).to_le_bytes());
    bytes[58] = 64; // bytes a section header
    bytes[60] = 1; // sections
    bytes.extend_from_slice(content);
    bytes.resize(table + 64, 0);
    bytes[table + 4] = 1; // a section with bytes
    bytes[table + 24] = 64; // its offset
    bytes[table + 32..][..8].copy_from_slice(&to_u64(content.len()).to_le_bytes());
    Image::new(bytes).expect("a whole ELF")
}

fn key(source: &str) -> CubinKey {
    CubinKey::new(source, &CompileOptions::new("a.cu", ComputeCapability::new(9, 0)), (12, 8))
}

fn cache() -> (TempDir, CubinCache) {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = CubinCache::at(folder.path());
    (folder, cache)
}

/// A cache with one entry, its path and its bytes.
fn stored() -> (TempDir, CubinCache, PathBuf, Vec<u8>) {
    let (folder, cache) = cache();
    cache.put(&key("a"), &cubin(b"machine code")).expect("stored");
    let path = cache.entry(&key("a"));
    let bytes = fs::read(&path).expect("an entry");
    (folder, cache, path, bytes)
}

fn names_in(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).expect("a folder");
    files.map(|file| file.expect("a file").file_name().into_string().expect("text")).collect()
}

#[test]
fn the_oldest_entries_are_deleted_if_there_are_too_many() {
    let (folder, cache) = cache();
    let names: Vec<String> = (0..9).map(|number| format!("source {number}")).collect();
    for (age, name) in (0..).zip(names.iter().rev()) {
        cache.put(&key(name), &cubin(b"machine code")).expect("stored");
        let file = File::options().write(true).open(cache.entry(&key(name))).expect("an entry");
        file.set_modified(SystemTime::now() - Duration::from_secs(60 * age)).expect("set");
    }
    let other = folder.path().join("notes.cubin");
    fs::write(&other, "of someone else").expect("written");
    let left = || names.iter().filter(|name| cache.get(&key(name)).expect("whole").is_some());
    cache.delete_oldest(9);
    assert_eq!(left().count(), 9);
    cache.delete_oldest(8);
    // Three quarters of eight, those stored last.
    assert!(left().eq(&names[3..]), "{:?}", left().collect::<Vec<_>>());
    assert!(other.exists());
}

#[test]
fn a_stored_image_is_read_back() {
    let (folder, cache) = cache();
    let cache = CubinCache::at(cache.folder().join("made").join("at need"));
    assert_eq!(cache.get(&key("a")), Ok(None), "the folder is missing");
    let images = [cubin(b""), cubin(b"a"), cubin(&vec![7; 1 << 20])];
    for (source, image) in ["a", "b", "c"].iter().zip(&images) {
        cache.put(&key(source), image).expect("stored");
    }
    for (source, image) in ["a", "b", "c"].iter().zip(&images) {
        assert_eq!(cache.get(&key(source)).expect("whole").as_ref(), Some(image));
    }
    assert_eq!(cache.get(&key("d")), Ok(None));
    cache.put(&key("a"), &images[1]).expect("stored again");
    assert_eq!(cache.get(&key("a")).expect("whole").as_ref(), Some(&images[1]));
    let mut names = names_in(cache.folder());
    names.sort();
    let mut expected = ["a", "b", "c"].map(|source| format!("{}.cubin", key(source)));
    expected.sort();
    assert_eq!(names, expected, "entries and nothing else");
    drop(folder);
}

#[test]
fn only_cubins_within_the_size_limit_are_stored() {
    let (folder, cache) = cache();
    let ptx = Image::new(".version 8.0\n.target sm_90\n").expect("PTX");
    assert_eq!(cache.put(&key("a"), &ptx), Err(CubinCacheError::NotCubin));
    let most = usize::try_from(MAX_IMAGE_BYTES).expect("small");
    let large = cubin(&vec![0; most - 127]);
    assert_eq!(cache.put(&key("a"), &large), Err(CubinCacheError::TooLarge(MAX_IMAGE_BYTES + 1)));
    assert_eq!(names_in(folder.path()), [""; 0]);
}

#[track_caller]
fn distrusted<T>(result: Result<T, CubinCacheError>) -> Distrust {
    match result.err().expect("not to be trusted") {
        CubinCacheError::Untrusted(why) => why,
        error => panic!("trusted: {error}"),
    }
}

#[cfg(unix)]
#[test]
fn an_entry_that_others_may_have_written_is_neither_used_nor_stored() {
    use std::os::unix::fs::PermissionsExt as _;

    let (folder, cache, path, _) = stored();
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    };
    set_mode(&path, 0o620);
    let writable = |path: &Path, mode| Distrust::Writable { path: path.to_owned(), mode };
    assert_eq!(distrusted(cache.get(&key("a"))), writable(&path, 0o620));
    cache.put(&key("a"), &cubin(b"new")).expect("the folder is trusted");
    assert_eq!(cache.get(&key("a")), Ok(Some(cubin(b"new"))));
    for mode in [0o777, 0o1777, 0o770] {
        set_mode(folder.path(), mode);
        let expected = writable(folder.path(), mode);
        assert_eq!(distrusted(cache.check()), expected);
        assert_eq!(distrusted(cache.get(&key("a"))), expected);
        assert_eq!(distrusted(cache.get(&key("none"))), expected);
        assert_eq!(distrusted(cache.put(&key("b"), &cubin(b"new"))), expected);
    }
    set_mode(folder.path(), 0o700);
    assert_eq!(cache.get(&key("a")), Ok(Some(cubin(b"new"))));
    assert_eq!(cache.get(&key("b")), Ok(None));
    CubinCache::at(folder.path().join("missing")).check().expect("it will be the user's");
}

#[test]
fn errors_name_the_entry_and_the_reason() {
    let (path, reason) = (PathBuf::from("/c/0f.cubin"), "No space left".to_owned());
    let corrupt = |what| CubinCacheError::Corrupt { path: path.clone(), what }.to_string();
    let anew = "the cached image /c/0f.cubin is corrupt and must be stored again: ";
    let shown = [
        (
            CubinCacheError::Read { path: path.clone(), reason: reason.clone() }.to_string(),
            "the cached image /c/0f.cubin cannot be read: No space left".to_owned(),
        ),
        (
            CubinCacheError::Write { path: path.clone(), reason }.to_string(),
            "the cached image /c/0f.cubin cannot be written: No space left".to_owned(),
        ),
        (
            CubinCacheError::from(Distrust::Writable { path: "/c".into(), mode: 0o1777 })
                .to_string(),
            "compiled kernels are not cached: /c has the mode 1777, so that others can write to it: \
             run chmod go-w on it"
                .to_owned(),
        ),
        (
            CubinCacheError::from(Distrust::Owner { path: "/c".into(), owner: 7, user: 8 })
                .to_string(),
            "compiled kernels are not cached: /c belongs to user 7: only files of root and of \
             user 8, who runs this, are trusted"
                .to_owned(),
        ),
        (corrupt(CubinFault::TooLarge(70_000_000)), format!("{anew}it has 70000000 bytes, the limit is 67108896")),
        (
            CubinCacheError::NotCubin.to_string(),
            "the cache stores cubins only, the image is PTX or a fatbin".to_owned(),
        ),
        (
            CubinCacheError::TooLarge(70_000_000).to_string(),
            "the image has 70000000 bytes, the limit of the cache is 67108864".to_owned(),
        ),
        (corrupt(CubinFault::Checksum), format!("{anew}its checksum is wrong")),
        (corrupt(ImageError::Empty.into()), format!("{anew}the image is empty")),
    ];
    for (shown, expected) in shown {
        assert_eq!(shown, expected);
    }
}
