//! Torn, damaged and foreign entries.

use super::*;

#[track_caller]
fn corrupt(cache: &CubinCache, key: &CubinKey) -> CubinFault {
    match cache.get(key).expect_err("a corrupt entry") {
        CubinCacheError::Corrupt { path, what } => {
            assert_eq!(path, cache.entry(key));
            what
        }
        error => panic!("not corrupt: {error}"),
    }
}

#[test]
fn an_entry_with_a_byte_changed_or_with_fewer_or_more_bytes_is_rejected() {
    let (_folder, cache, path, whole) = stored();
    let changed = |at: usize, flip: u8| {
        let mut bytes = whole.clone();
        bytes[at] ^= flip;
        bytes
    };
    let changed = (0..whole.len()).flat_map(|at| [0x01, 0x80, 0xff].map(|flip| changed(at, flip)));
    let cut = (0..whole.len()).map(|len| whole[..len].to_vec());
    let longer = [1, 84, 4096].map(|surplus| [whole.clone(), vec![0; surplus]].concat());
    for (case, bytes) in changed.chain(cut).chain(longer).enumerate() {
        fs::write(&path, bytes).expect("written");
        assert_eq!(corrupt(&cache, &key("a")), CubinFault::Checksum, "case {case}");
    }
    fs::write(&path, &whole).expect("written");
    assert_eq!(cache.get(&key("a")), Ok(Some(cubin(b"machine code"))));
}

#[test]
fn a_file_larger_than_any_entry_is_not_read() {
    let (_folder, cache, path, _) = stored();
    // A sparse file of one gibibyte.
    let file = File::options().write(true).open(&path).expect("the entry");
    file.set_len(1 << 30).expect("a sparse file");
    assert_eq!(corrupt(&cache, &key("a")), CubinFault::TooLarge(1 << 30));
}

#[test]
fn an_entry_under_another_name_is_rejected() {
    let (_folder, cache, path, _) = stored();
    fs::rename(path, cache.entry(&key("b"))).expect("renamed");
    assert_eq!(corrupt(&cache, &key("b")), CubinFault::Checksum);
    assert_eq!(cache.get(&key("a")), Ok(None));
}

#[test]
fn a_truncated_image_is_rejected_despite_its_checksum() {
    let (_folder, cache, path, _) = stored();
    let image = cubin(b"machine code");
    let cut = &image.bytes()[..100];
    fs::write(&path, [checksum(&key("a"), cut).as_slice(), cut].concat()).expect("written");
    let fault = corrupt(&cache, &key("a"));
    assert!(matches!(fault, CubinFault::Image(ImageError::Truncated { .. })), "{fault}");
    fs::write(&path, checksum(&key("a"), b"")).expect("written");
    assert_eq!(corrupt(&cache, &key("a")), CubinFault::Image(ImageError::Empty));
}

#[test]
fn a_corrupt_entry_is_replaced() {
    let (_folder, cache, path, _) = stored();
    fs::write(&path, "").expect("written");
    assert_eq!(corrupt(&cache, &key("a")), CubinFault::Checksum);
    cache.put(&key("a"), &cubin(b"new")).expect("stored again");
    assert_eq!(cache.get(&key("a")), Ok(Some(cubin(b"new"))));
}
