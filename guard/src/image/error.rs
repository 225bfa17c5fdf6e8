//! Errors of incomplete images, and reads that return them.

use crate::dim::saturated;
use crate::launch::violation::count;

/// Why bytes are not a complete image. Entries and members are counted from 0; tables of a static library count as
/// members.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ImageError {
    /// There are no bytes.
    #[error("the image is empty")]
    Empty,
    /// Not PTX, a cubin or a fatbin.
    #[error("the image is not PTX, a cubin or a fatbin: it begins with {start:02x?}")]
    Unknown { start: Vec<u8> },
    /// The image ends before a part that its headers announce.
    #[error(
        "the image is truncated: its {part} ends at byte {needed}, but it has {}",
        count(*available, "byte")
    )]
    Truncated { part: &'static str, needed: u64, available: u64 },
    /// A header has an invalid value.
    #[error("the image is damaged: the {what} of its {part} is invalid ({value})")]
    Damaged { part: &'static str, what: &'static str, value: u64 },
    /// A cubin in a fatbin is incomplete. Offsets and sizes are relative to the cubin.
    #[error("entry {entry} of the fatbin: {source}")]
    InFatbin { entry: usize, source: Box<Self> },
    /// A member of a static library is damaged. Offsets and sizes are relative to the member.
    #[error("member {member} of the library: {source}")]
    InArchive { member: usize, source: Box<Self> },
    /// The members of a static library are in other files.
    #[error("the library is a thin archive without contents: read its object files")]
    ThinArchive,
    /// The file only contains code for link-time optimization.
    #[error(
        "the file contains no kernels yet, only code for link-time optimization (-dlto): link it, and read the \
         linked file"
    )]
    Intermediate,
    /// An object file, a library or a program contains no image.
    #[error("the file contains neither a cubin nor PTX")]
    NoImage,
    /// A compressed image is larger than the limit of decompression.
    #[error("the decompressed image has {bytes} bytes, the limit is {most}")]
    TooLarge { bytes: u64, most: u64 },
    /// A compressed image is damaged.
    #[error("the image cannot be decompressed: {reason}")]
    Compressed { reason: String },
    /// No architecture has this name.
    #[error("there is no architecture {name:?}: {}", instead(nearest.as_deref()))]
    UnknownArchitecture { name: String, nearest: Option<String> },
    /// The PTX text contains a zero byte.
    #[error("the PTX contains a zero byte at offset {at}")]
    ZeroByte { at: usize },
}

fn instead(nearest: Option<&str>) -> String {
    let question = nearest.map(|name| format!("did you mean {name}?"));
    question.unwrap_or_else(|| "use a name like sm_90a".to_owned())
}

impl ImageError {
    /// The error about bytes that are not an image.
    pub(super) fn unknown(bytes: &[u8]) -> Self {
        Self::Unknown { start: bytes.iter().copied().take(8).collect() }
    }
}

/// The `size` bytes at `at`, which are the `part` of an image.
pub(super) fn part<'a>(
    bytes: &'a [u8],
    part: &'static str,
    at: u64,
    size: u64,
) -> Result<&'a [u8], ImageError> {
    let (end, available) = (at.saturating_add(size), saturated(bytes.len()));
    let range = usize::try_from(at).ok().zip(usize::try_from(end).ok());
    let found = range.and_then(|(start, end)| bytes.get(start..end));
    found.ok_or(ImageError::Truncated { part, needed: end, available })
}

/// Fails unless `value`, the `what` of `part`, is valid.
pub(super) fn require(
    part: &'static str,
    what: &'static str,
    value: u64,
    is_valid: bool,
) -> Result<(), ImageError> {
    if is_valid { Ok(()) } else { Err(ImageError::Damaged { part, what, value }) }
}
