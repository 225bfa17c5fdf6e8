//! The records of a cubin's `.nv.info` sections, which describe its kernels.

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// The attribute that it describes.
    pub(super) attribute: u8,
    /// The number in its header.
    pub(super) number: u16,
    /// The bytes that follow the header, if any.
    pub(super) bytes: &'a [u8],
}

/// The number of bytes of a record past the end of its section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Surplus(pub(super) usize);

/// The records of a section, up to the first record of an unknown format and size.
pub(super) fn records(section: &[u8]) -> impl Iterator<Item = Result<Record<'_>, Surplus>> {
    let mut rest = section;
    core::iter::from_fn(move || {
        let (&[format, attribute, low, high], after) = match rest.split_first_chunk::<4>() {
            Some(split) => split,
            None if rest.is_empty() => return None,
            None => {
                let surplus = 4 - rest.len();
                rest = &[];
                return Some(Err(Surplus(surplus)));
            }
        };
        let number = u16::from_le_bytes([low, high]);
        let size = match format {
            NO_VALUE | BYTE_VALUE | HALF_VALUE => 0,
            SIZED_VALUE => usize::from(number),
            _ => return None,
        };
        let Some((bytes, after)) = after.split_at_checked(size) else {
            rest = &[];
            return Some(Err(Surplus(size - after.len())));
        };
        rest = after;
        Some(Ok(Record { attribute, number, bytes }))
    })
}

/// Formats of a record: without a value, with 8 or 16 bits in its header, and with `number` bytes after its
/// header.
const NO_VALUE: u8 = 1;
const BYTE_VALUE: u8 = 2;
const HALF_VALUE: u8 = 3;
const SIZED_VALUE: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_every_format_are_read_and_an_unknown_one_ends_them() {
        let section = [1, 5, 0, 0, 3, 0x19, 16, 0, 4, 0x2f, 2, 0, 7, 8, 9, 0, 0, 0];
        let records: Vec<_> = records(&section).collect();
        let record = |attribute, number, bytes| Ok(Record { attribute, number, bytes });
        let expected =
            [record(5, 0, &[][..]), record(0x19, 16, &[]), record(0x2f, 2, &[7_u8, 8][..])];
        assert_eq!(records, expected);
    }

    #[test]
    fn a_record_past_the_end_is_an_error_with_what_is_missing() {
        assert_eq!(records(&[1, 5, 0, 0, 1, 5]).last(), Some(Err(Surplus(2))));
        assert_eq!(records(&[4, 5, 3, 0, 1]).last(), Some(Err(Surplus(2))));
        assert_eq!(records(&[]).last(), None);
    }
}
