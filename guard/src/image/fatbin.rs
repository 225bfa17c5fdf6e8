//! Fatbins: a header, then an entry for each architecture.

use super::elf;
use super::error::{ImageError, part, require};
use crate::dim::saturated;

pub(super) const MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

/// Checks that a fatbin is complete: its entries fill its content, and its uncompressed cubins are complete.
pub(super) fn check(bytes: &[u8]) -> Result<(), ImageError> {
    for (index, entry) in entries(bytes)?.enumerate() {
        let Entry { kind, stored, .. } = entry?;
        if kind == CUBIN && stored.starts_with(&object::elf::ELFMAG) {
            let within = |error| ImageError::InFatbin { entry: index, source: Box::new(error) };
            elf::check(stored).map_err(within)?;
        }
    }
    Ok(())
}

/// An entry of a fatbin.
pub(super) struct Entry<'a> {
    /// The kind of its contents.
    pub(super) kind: u64,
    /// Its header.
    pub(super) header: &'a [u8],
    /// Its contents, which may be compressed and padded.
    pub(super) stored: &'a [u8],
}

/// The entries of a fatbin, up to the first incomplete entry.
pub(super) fn entries(
    bytes: &[u8],
) -> Result<impl Iterator<Item = Result<Entry<'_>, ImageError>>, ImageError> {
    let mut rest = content(bytes)?;
    Ok(core::iter::from_fn(move || {
        (!rest.is_empty()).then(|| {
            let next = split_entry(rest);
            rest = next.as_ref().map_or(&[][..], |(_, after)| after);
            next.map(|(entry, _)| entry)
        })
    }))
}

/// The contents of a fatbin after its header: its entries.
fn content(bytes: &[u8]) -> Result<&[u8], ImageError> {
    let header = part(bytes, HEADER, 0, HEADER_BYTES)?;
    let (header_bytes, content) = (number(header, 6, 2), number(header, 8, 8));
    require(HEADER, "size", header_bytes, header_bytes >= HEADER_BYTES)?;
    part(bytes, "fatbin content", header_bytes, content)
}

/// The size in bytes of the fatbin that begins with `start`. `None` if it is not a fatbin.
#[cfg(feature = "image")]
pub fn fatbin_bytes(start: &[u8; 16]) -> Option<u64> {
    start.starts_with(&MAGIC).then(|| number(start, 6, 2).saturating_add(number(start, 8, 8)))
}

/// The bytes that follow a fatbin.
pub(super) fn after(bytes: &[u8]) -> Result<&[u8], ImageError> {
    let end = number(bytes, 6, 2).saturating_add(saturated(content(bytes)?.len()));
    part(bytes, HEADER, end, saturated(bytes.len()).saturating_sub(end))
}

/// The first of several entries, and the others.
fn split_entry(rest: &[u8]) -> Result<(Entry<'_>, &[u8]), ImageError> {
    let left = saturated(rest.len());
    require(ENTRY, "size", left, left >= ENTRY_BYTES)?;
    let (header_bytes, size) = (number(rest, 4, 4), number(rest, 8, 8));
    require(ENTRY, "size of the header", header_bytes, header_bytes >= ENTRY_BYTES)?;
    let end = header_bytes.saturating_add(size);
    require(ENTRY, "end", end, end <= left)?;
    let header = part(rest, ENTRY, 0, header_bytes)?;
    let stored = part(rest, ENTRY, header_bytes, size)?;
    Ok((Entry { kind: number(rest, 0, 2), header, stored }, part(rest, ENTRY, end, left - end)?))
}

/// The little-endian number of `size` bytes at `at`. Missing bytes count as zeros.
pub(super) fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    let bytes = bytes.iter().skip(at).take(size).rev();
    bytes.fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

/// Bytes of the header of a fatbin, and of the fields that every entry has.
const HEADER_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 16;
/// The kinds of entries that hold PTX or a cubin.
#[cfg(feature = "image")]
pub(super) const PTX: u64 = 1;
pub(super) const CUBIN: u64 = 2;
/// The kind of entries that only the linker turns into code (`-dlto`).
#[cfg(feature = "image")]
pub(super) const INTERMEDIATE: u64 = 8;

const HEADER: &str = "fatbin header";
const ENTRY: &str = "fatbin entry";

#[cfg(test)]
mod tests {
    use super::*;

    /// A fatbin of entries, given by their kind and content.
    fn fatbin(entries: &[(u16, &[u8])]) -> Vec<u8> {
        let mut content = Vec::new();
        for (kind, bytes) in entries {
            content.extend(kind.to_le_bytes());
            content.extend([1, 1, 64, 0, 0, 0]);
            content.extend(saturated(bytes.len()).to_le_bytes());
            content.extend([0; 48]);
            content.extend(*bytes);
        }
        let mut image = MAGIC.to_vec();
        image.extend([1, 0, 16, 0]);
        image.extend(saturated(content.len()).to_le_bytes());
        image.extend(content);
        image
    }

    #[test]
    fn a_fatbin_cut_anywhere_is_rejected() {
        let whole = fatbin(&[(1, b".version 8.0"), (2, b"compressed"), (8, b"")]);
        assert_eq!(check(&whole), Ok(()));
        assert_eq!(check(&fatbin(&[])), Ok(()));
        for len in 4..whole.len() {
            let error = check(&whole[..len]).expect_err("cut");
            assert!(matches!(error, ImageError::Truncated { .. }), "{len}: {error}");
        }
    }

    #[test]
    fn an_entry_past_the_content_is_rejected() {
        let damaged = |what, value| Err(ImageError::Damaged { part: ENTRY, what, value });
        let mut bytes = fatbin(&[(1, b".version 8.0")]);
        bytes.extend([0; 100]);
        bytes[16 + 8] += 1;
        assert_eq!(check(&bytes), damaged("end", 64 + 13));
        bytes[16 + 4] = 15;
        assert_eq!(check(&bytes), damaged("size of the header", 15));
        bytes[8] = 15;
        assert_eq!(check(&bytes), damaged("size", 15));
        bytes[6] = 15;
        let error = ImageError::Damaged { part: HEADER, what: "size", value: 15 };
        assert_eq!(check(&bytes), Err(error));
    }

    #[test]
    fn a_cubin_within_is_checked_too() {
        let error = check(&fatbin(&[(1, b""), (2, b"\x7fELF\x02")])).expect_err("cut");
        assert_eq!(
            error.to_string(),
            "entry 1 of the fatbin: the image is truncated: its ELF header ends at byte 64, but it \
             has 5 bytes"
        );
    }
}
