//! Looks at a kernel image before the driver does.
//!
//! A truncated cubin makes the driver crash with a segmentation fault (seen on an H200), so an
//! image must be whole before it gets there.

use crate::limits::ComputeCapability;

/// Device code as bytes: PTX text, a cubin or a fatbin, checked to be whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    bytes: Vec<u8>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ptx,
    Cubin,
    Fatbin,
}

/// Why bytes are no whole image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Nothing at all.
    #[error("the image is empty")]
    Empty,
    /// Neither PTX, nor a cubin, nor a fatbin.
    #[error("the image is neither PTX, cubin nor fatbin, it begins with {start:02x?}")]
    Unknown {
        /// Its first bytes.
        start: Vec<u8>,
    },
    /// The image ends before the parts that its own headers announce.
    #[error("the image is truncated: its {part} ends at byte {needed}, there are {available}")]
    Truncated {
        /// The part that is cut.
        part: &'static str,
        /// Bytes that are needed; saturated.
        needed: u64,
        /// Bytes that there are.
        available: u64,
    },
    /// PTX text with a zero byte within.
    #[error("the PTX holds a zero byte at {at}")]
    ZeroByte {
        /// Where.
        at: usize,
    },
}

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const FATBIN_MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
/// The machine number of CUDA in an ELF header.
const EM_CUDA: u64 = 190;
/// A section that is none.
const SHT_NULL: u64 = 0;
/// A section without bytes in the file.
const SHT_NOBITS: u64 = 8;

impl Image {
    /// Checks `bytes` and takes them over.
    ///
    /// # Errors
    ///
    /// [`ImageError`] where they are no image, or not whole.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, ImageError> {
        let mut bytes = bytes.into();
        if bytes.is_empty() {
            return Err(ImageError::Empty);
        }
        let kind = if bytes.starts_with(&ELF_MAGIC) {
            whole_elf(&bytes)?;
            Kind::Cubin
        } else if bytes.starts_with(&FATBIN_MAGIC) {
            whole_fatbin(&bytes)?;
            Kind::Fatbin
        } else {
            whole_ptx(&mut bytes)?;
            Kind::Ptx
        };
        Ok(Self { bytes, kind })
    }

    /// The image's bytes; PTX ends with a zero byte.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The text of PTX, without the zero byte at its end.
    #[must_use]
    pub fn ptx(&self) -> Option<&str> {
        let text = self.bytes.strip_suffix(&[0]).unwrap_or(&self.bytes);
        if self.kind == Kind::Ptx { core::str::from_utf8(text).ok() } else { None }
    }

    /// The target that PTX states, such as `sm_90`.
    pub(super) fn ptx_target(&self) -> Option<&str> {
        let target = directive(self.ptx()?, ".target")?;
        target.split(',').next().map(str::trim)
    }

    /// The version that PTX states, such as `8.0`.
    pub(super) fn ptx_version(&self) -> Option<&str> {
        directive(self.ptx()?, ".version")
    }

    /// The kernels that PTX declares.
    pub(super) fn ptx_kernels(&self) -> Vec<String> {
        let name = |line: &str| {
            let (_, after) = line.split_once(".entry")?;
            let name = after.trim().split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'));
            name.into_iter().next().filter(|name| !name.is_empty()).map(str::to_owned)
        };
        self.ptx().map(|text| text.lines().filter_map(name).collect()).unwrap_or_default()
    }

    /// Whether PTX states a target that `capability` cannot run: PTX runs on its own and later
    /// architectures, with a suffix `a` on its own only, with `f` on its family.
    pub(super) fn ptx_is_foreign_to(&self, capability: ComputeCapability) -> bool {
        let Some(target) = self.ptx_target().and_then(|target| target.strip_prefix("sm_")) else {
            return false;
        };
        let digits = target.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let Ok(number) = digits.parse::<u32>() else {
            return false;
        };
        let own = capability.major * 10 + capability.minor;
        match target.strip_prefix(digits) {
            Some("a") => number != own,
            Some("f") => number / 10 != capability.major || number > own,
            _ => number > own,
        }
    }
}

fn directive<'a>(ptx: &'a str, name: &str) -> Option<&'a str> {
    ptx.lines().find_map(|line| {
        let value = line.trim_start().strip_prefix(name)?;
        value.starts_with(char::is_whitespace).then(|| {
            let end = value.find("//").unwrap_or(value.len());
            value.get(..end).unwrap_or(value).trim()
        })
    })
}

fn whole_ptx(bytes: &mut Vec<u8>) -> Result<(), ImageError> {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        let is_text = core::str::from_utf8(bytes).is_ok_and(|text| text.contains(".version"));
        return Err(if is_text { ImageError::ZeroByte { at } } else { unknown(bytes) });
    }
    if !core::str::from_utf8(bytes).is_ok_and(|text| directive(text, ".version").is_some()) {
        return Err(unknown(bytes));
    }
    bytes.push(0);
    Ok(())
}

fn unknown(bytes: &[u8]) -> ImageError {
    ImageError::Unknown { start: bytes.iter().copied().take(8).collect() }
}

/// Reads little-endian numbers of an image, or says which part is cut.
struct Reader<'a> {
    bytes: &'a [u8],
    part: &'static str,
}

impl Reader<'_> {
    fn number(&self, at: u64, size: u64) -> Result<u64, ImageError> {
        let end = self.part_end(self.part, at, size)?;
        let range = usize::try_from(at).ok().zip(usize::try_from(end).ok());
        let bytes = range.and_then(|(start, end)| self.bytes.get(start..end)).unwrap_or_default();
        Ok(bytes.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
    }

    fn part_end(&self, part: &'static str, at: u64, size: u64) -> Result<u64, ImageError> {
        let available = u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
        match at.checked_add(size) {
            Some(end) if end <= available => Ok(end),
            end => Err(ImageError::Truncated { part, needed: end.unwrap_or(u64::MAX), available }),
        }
    }
}

/// A 64-bit little-endian ELF of CUDA whose headers, sections and segments all lie in the file.
fn whole_elf(bytes: &[u8]) -> Result<(), ImageError> {
    let header = Reader { bytes, part: "ELF header" };
    header.part_end(header.part, 0, 64)?;
    let is_cuda = header.number(4, 1)? == 2 && header.number(18, 2)? == EM_CUDA;
    if !is_cuda {
        return Err(unknown(bytes));
    }
    let (segments, sections) = (header.number(32, 8)?, header.number(40, 8)?);
    let (segment_size, segment_count) = (header.number(54, 2)?, header.number(56, 2)?);
    let (section_size, section_count) = (header.number(58, 2)?, header.number(60, 2)?);
    let table = Reader { bytes, part: "section table" };
    // More than 16 bits hold are counted by the size of the first section, which is none.
    let (section_count, section_size) = match section_count {
        0 if sections > 0 => {
            table.part_end(table.part, sections, 64)?;
            (table.number(sections + 32, 8)?, section_size.max(64))
        }
        count => (count, section_size),
    };
    for index in 0..section_count {
        let at = sections.saturating_add(index.saturating_mul(section_size));
        table.part_end(table.part, at, section_size.max(64))?;
        if ![SHT_NULL, SHT_NOBITS].contains(&table.number(at + 4, 4)?) {
            table.part_end("section", table.number(at + 24, 8)?, table.number(at + 32, 8)?)?;
        }
    }
    let table = Reader { bytes, part: "segment table" };
    for index in 0..segment_count {
        let at = segments.saturating_add(index * segment_size);
        table.part_end(table.part, at, segment_size.max(56))?;
        table.part_end("segment", table.number(at + 8, 8)?, table.number(at + 32, 8)?)?;
    }
    Ok(())
}

/// A fatbin whose header and announced content lie in the file.
fn whole_fatbin(bytes: &[u8]) -> Result<(), ImageError> {
    let header = Reader { bytes, part: "fatbin header" };
    let size = header.number(6, 2)?;
    let content = header.number(8, 8)?;
    header.part_end("fatbin content", size, content)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "//\n.version 8.0\n.target sm_90, debug // x\n.visible .entry copy(\n)";

    #[test]
    fn ptx_tells_its_version_target_and_kernels() {
        let image = Image::new(PTX).expect("PTX");
        assert_eq!(image.ptx_version(), Some("8.0"));
        assert_eq!(image.ptx_target(), Some("sm_90"));
        assert_eq!(image.ptx_kernels(), ["copy"]);
        assert_eq!(image.bytes().last(), Some(&0));
    }

    #[test]
    fn ptx_runs_on_its_own_and_later_architectures() {
        let foreign = |target: &str, major, minor| {
            let image = Image::new(PTX.replace("sm_90", target)).expect("PTX");
            image.ptx_is_foreign_to(ComputeCapability::new(major, minor))
        };
        assert!(!foreign("sm_75", 9, 0));
        assert!(foreign("sm_120", 9, 0));
        assert!(foreign("sm_90a", 10, 0));
        assert!(!foreign("sm_90a", 9, 0));
        assert!(!foreign("sm_100f", 10, 3));
        assert!(foreign("sm_100f", 12, 0));
    }

    #[test]
    fn what_is_no_image_says_how_it_begins() {
        assert_eq!(Image::new(""), Err(ImageError::Empty));
        let error = Image::new("hello world").expect_err("no PTX");
        assert_eq!(
            error.to_string(),
            "the image is neither PTX, cubin nor fatbin, it begins with \
             [68, 65, 6c, 6c, 6f, 20, 77, 6f]"
        );
        let error = Image::new(*b".version 8.0\n\0.target sm_90\n").expect_err("zero within");
        assert_eq!(error, ImageError::ZeroByte { at: 13 });
    }

    /// A minimal CUDA ELF: header, one section of 16 bytes, its table.
    fn elf() -> Vec<u8> {
        let mut bytes = vec![0; 64 + 16 + 64];
        bytes[..4].copy_from_slice(&ELF_MAGIC);
        bytes[4] = 2;
        bytes[18] = 190;
        bytes[40] = 80; // section table
        bytes[58] = 64; // bytes a section header
        bytes[60] = 1; // sections
        bytes[80 + 4] = 1; // a section with bytes
        bytes[80 + 24] = 64; // its offset
        bytes[80 + 32] = 16; // its size
        bytes
    }

    #[test]
    fn an_elf_cut_anywhere_is_refused() {
        let whole = elf();
        assert!(Image::new(whole.clone()).is_ok());
        for len in 4..whole.len() {
            let cut = Image::new(&whole[..len]).expect_err("cut");
            assert!(matches!(cut, ImageError::Truncated { .. }), "{len}: {cut}");
        }
    }

    #[test]
    fn sections_past_16_bits_are_counted_by_the_first_of_them() {
        let mut bytes = vec![0; 64 + 2 * 64 + 16];
        bytes[..4].copy_from_slice(&ELF_MAGIC);
        bytes[4] = 2;
        bytes[18] = 190;
        bytes[40] = 64; // section table
        bytes[58] = 64; // bytes a section header
        bytes[64 + 32] = 2; // sections, since the header says 0
        bytes[128 + 4] = 1; // a section with bytes
        bytes[128 + 24] = 192; // its offset
        bytes[128 + 32] = 16; // its size
        assert!(Image::new(bytes.clone()).is_ok());
        for len in 64..bytes.len() {
            assert!(Image::new(&bytes[..len]).is_err(), "{len}");
        }
        bytes[64 + 32..64 + 40].fill(0xff);
        let error = Image::new(bytes).expect_err("more sections than bytes");
        assert!(matches!(error, ImageError::Truncated { part: "section table", .. }));
    }

    #[test]
    fn an_elf_whose_headers_lie_is_refused() {
        let mut bytes = elf();
        bytes[40..48].fill(0xff);
        let error = Image::new(bytes).expect_err("table past the end");
        assert!(matches!(error, ImageError::Truncated { part: "section table", .. }));
        let mut bytes = elf();
        bytes[18] = 62;
        assert!(matches!(Image::new(bytes), Err(ImageError::Unknown { .. })));
    }

    #[test]
    fn a_cut_fatbin_is_refused() {
        let mut bytes = vec![0; 16 + 32];
        bytes[..4].copy_from_slice(&FATBIN_MAGIC);
        bytes[6] = 16;
        bytes[8] = 32;
        assert!(Image::new(bytes.clone()).is_ok());
        bytes.pop();
        assert!(matches!(Image::new(bytes), Err(ImageError::Truncated { .. })));
    }
}
