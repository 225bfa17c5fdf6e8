//! Torn, damaged and foreign entries.

use std::io::{Seek, Write};

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
fn any_changed_byte_is_detected() {
    let (_folder, cache, path, whole) = stored();
    for at in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            fs::write(&path, bytes).expect("written");
            let fault = corrupt(&cache, &key("a"));
            let as_expected = match at {
                0..8 => fault == CubinFault::Magic,
                8..12 => matches!(fault, CubinFault::Version(found) if found != FORMAT),
                12..44 => {
                    matches!(&fault, CubinFault::Key(found) if *found != key("a").to_string())
                }
                44..52 => matches!(fault, CubinFault::Length { .. }),
                _ => fault == CubinFault::Digest,
            };
            assert!(as_expected, "byte {at}: {fault}");
        }
    }
    fs::write(&path, whole).expect("written");
    assert_eq!(cache.get(&key("a")), Ok(Some(cubin(b"machine code"))));
}

#[test]
fn a_truncated_entry_is_rejected() {
    let (_folder, cache, path, whole) = stored();
    let header = usize::try_from(HEADER_BYTES).expect("small");
    let announced = to_u64(whole.len()) - HEADER_BYTES;
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).expect("written");
        let expected = if len < header {
            CubinFault::Header(to_u64(len))
        } else {
            CubinFault::Length { announced, found: to_u64(len - header) }
        };
        assert_eq!(corrupt(&cache, &key("a")), expected, "{len} bytes");
    }
}

#[test]
fn surplus_bytes_are_rejected() {
    let (_folder, cache, path, whole) = stored();
    let announced = to_u64(whole.len()) - HEADER_BYTES;
    for surplus in [1, 84, 4096] {
        let bytes = [whole.clone(), vec![0; surplus]].concat();
        fs::write(&path, bytes).expect("written");
        let found = announced + to_u64(surplus);
        assert_eq!(corrupt(&cache, &key("a")), CubinFault::Length { announced, found });
    }
}

#[test]
fn an_absurd_length_is_rejected() {
    let (_folder, cache, path, whole) = stored();
    let found = to_u64(whole.len()) - HEADER_BYTES;
    for announced in [0, 1, found - 1, found + 1, MAX_IMAGE_BYTES + 1, 1 << 63, u64::MAX] {
        let mut bytes = whole.clone();
        bytes[44..52].copy_from_slice(&announced.to_le_bytes());
        fs::write(&path, bytes).expect("written");
        assert_eq!(corrupt(&cache, &key("a")), CubinFault::Length { announced, found });
    }
    // A gibibyte, of which the disk stores a page: nothing is read.
    let file = File::options().write(true).open(&path).expect("the entry");
    file.set_len(1 << 30).expect("a sparse file");
    for announced in [MAX_IMAGE_BYTES, MAX_IMAGE_BYTES + 1, (1 << 30) - HEADER_BYTES] {
        let mut start = whole[..84].to_vec();
        start[44..52].copy_from_slice(&announced.to_le_bytes());
        (&file).write_all(&start).expect("written");
        Seek::rewind(&mut (&file)).expect("at the start");
        assert_eq!(corrupt(&cache, &key("a")), CubinFault::TooLarge(1 << 30));
    }
}

#[test]
fn an_entry_under_another_name_is_rejected() {
    let (_folder, cache, path, _) = stored();
    fs::rename(path, cache.entry(&key("b"))).expect("renamed");
    assert_eq!(corrupt(&cache, &key("b")), CubinFault::Key(key("a").to_string()));
    assert_eq!(cache.get(&key("a")), Ok(None));
}

#[test]
fn a_truncated_image_is_rejected_despite_its_checksum() {
    let (_folder, cache, path, _) = stored();
    let image = cubin(b"machine code");
    let cut = &image.bytes()[..100];
    fs::write(&path, [&header(&key("a"), cut), cut].concat()).expect("written");
    let fault = corrupt(&cache, &key("a"));
    assert!(matches!(fault, CubinFault::Image(ImageError::Truncated { .. })), "{fault}");
    fs::write(&path, header(&key("a"), b"")).expect("written");
    assert_eq!(corrupt(&cache, &key("a")), CubinFault::Image(ImageError::Empty));
}

#[test]
fn a_corrupt_entry_is_replaced() {
    let (_folder, cache, path, _) = stored();
    fs::write(&path, "").expect("written");
    assert_eq!(corrupt(&cache, &key("a")), CubinFault::Header(0));
    cache.put(&key("a"), &cubin(b"new")).expect("stored again");
    assert_eq!(cache.get(&key("a")), Ok(Some(cubin(b"new"))));
}
