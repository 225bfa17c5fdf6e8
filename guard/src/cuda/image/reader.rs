//! Bounds-checked reading of kernel images, and its errors.

/// Why bytes are not a complete image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// There are no bytes.
    #[error("the image is empty")]
    Empty,
    /// Neither PTX, nor a cubin, nor a fatbin.
    #[error("the image is neither PTX, cubin nor fatbin, it begins with {start:02x?}")]
    Unknown {
        /// Its first bytes.
        start: Vec<u8>,
    },
    /// The image ends before a part that its headers announce.
    #[error(
        "the image is truncated: its {part} ends at byte {needed}, but it has {available} bytes"
    )]
    Truncated {
        /// The part that is incomplete.
        part: &'static str,
        /// Where the part ends, in bytes; saturated.
        needed: u64,
        /// Bytes of the image.
        available: u64,
    },
    /// A header has an invalid value.
    #[error("the image is damaged: the {what} of its {part} is invalid ({value})")]
    Damaged {
        /// The part.
        part: &'static str,
        /// What the value means.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// The PTX text contains a zero byte.
    #[error("the PTX contains a zero byte at offset {at}")]
    ZeroByte {
        /// Its offset.
        at: usize,
    },
}

/// Reads little-endian numbers of an image, or reports which part is truncated.
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) part: &'static str,
}

impl Reader<'_> {
    pub(super) fn number(&self, at: u64, size: u64) -> Result<u64, ImageError> {
        let end = self.part_end(self.part, at, size)?;
        let range = usize::try_from(at).ok().zip(usize::try_from(end).ok());
        let bytes = range.and_then(|(start, end)| self.bytes.get(start..end)).unwrap_or_default();
        Ok(bytes.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
    }

    pub(super) fn part_end(
        &self,
        part: &'static str,
        at: u64,
        size: u64,
    ) -> Result<u64, ImageError> {
        let available = u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
        match at.checked_add(size) {
            Some(end) if end <= available => Ok(end),
            end => Err(ImageError::Truncated { part, needed: end.unwrap_or(u64::MAX), available }),
        }
    }
}

/// The error about bytes that are not an image.
pub(super) fn unknown(bytes: &[u8]) -> ImageError {
    ImageError::Unknown { start: bytes.iter().copied().take(8).collect() }
}
