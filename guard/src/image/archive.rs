//! Static libraries: `ar` archives of object files.

use super::error::{ImageError, part, require};
use crate::dim::saturated;

pub(super) const MAGIC: &[u8] = b"!<arch>\n";
/// The start of an archive whose members are in other files.
pub(super) const THIN_MAGIC: &[u8] = b"!<thin>\n";

/// The members of an archive, with tables of symbols and names, up to the first incomplete member. Names of members
/// are not looked up, because all members may share one long name.
pub(super) fn members(bytes: &[u8]) -> impl Iterator<Item = Result<&[u8], ImageError>> {
    let mut at = saturated(MAGIC.len());
    core::iter::from_fn(move || {
        (at < saturated(bytes.len())).then(|| {
            let read = member(bytes, at);
            // Members begin at even offsets.
            at = read.as_ref().map_or(u64::MAX, |(_, end)| end.saturating_add(end % 2));
            read.map(|(contents, _)| contents)
        })
    })
}

/// The contents of the member whose header is at `at`, and the end of the member.
fn member(bytes: &[u8], at: u64) -> Result<(&[u8], u64), ImageError> {
    let header = part(bytes, HEADER, at, HEADER_BYTES)?;
    let is_header = header.ends_with(b"`\n");
    require(HEADER, "end", at.saturating_add(HEADER_BYTES), is_header)?;
    let field = |at, size| decimal(part(header, HEADER, at, size).unwrap_or_default());
    let size =
        field(48, 10).ok_or(ImageError::Damaged { part: HEADER, what: "size", value: at })?;
    let (start, end) = (at + HEADER_BYTES, (at + HEADER_BYTES).saturating_add(size));
    let contents = part(bytes, "archive member", start, size)?;
    // BSD's format puts long names before the contents.
    let name = header.strip_prefix(b"#1/").map_or(Some(0), |_| field(3, 13));
    let name = name.filter(|name| *name <= size);
    let name = name.ok_or(ImageError::Damaged { part: HEADER, what: "name", value: at })?;
    Ok((part(contents, "archive member", name, size - name)?, end))
}

/// A decimal number that is padded with blanks.
fn decimal(field: &[u8]) -> Option<u64> {
    str::from_utf8(field).ok()?.trim_end_matches(' ').parse().ok()
}

const HEADER: &str = "archive member's header";
const HEADER_BYTES: u64 = 60;
