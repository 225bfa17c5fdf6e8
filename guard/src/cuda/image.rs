//! Checks kernel images before they are loaded.
//!
//! A truncated cubin makes the driver crash with a segmentation fault (seen on an H200), so only
//! complete images may reach it.

use crate::limits::ComputeCapability;

/// Device code: PTX text, a cubin or a fatbin, checked to be complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    bytes: Vec<u8>,
    is_ptx: bool,
}

impl Image {
    /// Checks `bytes` and takes ownership of them.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if they are not an image, or incomplete.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, ImageError> {
        let mut bytes = bytes.into();
        if bytes.is_empty() {
            return Err(ImageError::Empty);
        }
        let is_cubin = bytes.starts_with(&ELF_MAGIC);
        let is_ptx = !is_cubin && !bytes.starts_with(&FATBIN_MAGIC);
        if is_ptx {
            check_ptx(&mut bytes)?;
        } else if is_cubin {
            check_cubin(&bytes)?;
        } else {
            check_fatbin(&bytes)?;
        }
        Ok(Self { bytes, is_ptx })
    }

    /// The image's bytes; PTX ends with a zero byte.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The PTX text, without the zero byte at its end.
    #[must_use]
    pub fn ptx(&self) -> Option<&str> {
        let text = self.bytes.strip_suffix(&[0]).unwrap_or(&self.bytes);
        if self.is_ptx { core::str::from_utf8(text).ok() } else { None }
    }

    /// The target that PTX states, such as `sm_90`.
    pub(super) fn ptx_target(&self) -> Option<&str> {
        let target = directive(self.ptx()?, ".target")?;
        target.split(',').next().map(str::trim)
    }

    /// The PTX version, such as `8.0`.
    pub(super) fn ptx_version(&self) -> Option<&str> {
        directive(self.ptx()?, ".version")
    }

    /// The kernels that the PTX declares.
    pub(super) fn ptx_kernels(&self) -> Vec<String> {
        let name = |line: &str| {
            let (_, after) = line.split_once(".entry")?;
            let name = after.trim().split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'));
            name.into_iter().next().filter(|name| !name.is_empty()).map(str::to_owned)
        };
        self.ptx().map(|text| text.lines().filter_map(name).collect()).unwrap_or_default()
    }

    /// Whether devices of `capability` cannot run the PTX: it runs on its target architecture and
    /// later ones; with suffix `a` on its own only, with `f` on its family.
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

fn directive<'a>(ptx: &'a str, name: &str) -> Option<&'a str> {
    ptx.lines().find_map(|line| {
        let value = line.trim_start().strip_prefix(name)?;
        value.starts_with(char::is_whitespace).then(|| {
            let end = value.find("//").unwrap_or(value.len());
            value.get(..end).unwrap_or(value).trim()
        })
    })
}

fn check_ptx(bytes: &mut Vec<u8>) -> Result<(), ImageError> {
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

/// Checks that the fatbin's header and content are complete.
fn check_fatbin(bytes: &[u8]) -> Result<(), ImageError> {
    let header = Reader { bytes, part: "fatbin header" };
    let size = header.number(6, 2)?;
    let content = header.number(8, 8)?;
    header.part_end("fatbin content", size, content)?;
    Ok(())
}

/// Checks that a cubin is complete: a 64-bit little-endian ELF file for CUDA whose headers, sections and
/// segments lie within the file, and whose tables refer only to entries that exist.
fn check_cubin(bytes: &[u8]) -> Result<(), ImageError> {
    let header = Reader { bytes, part: HEADER };
    header.part_end(header.part, 0, HEADER_BYTES)?;
    if header.number(4, 1)? != 2 || header.number(18, 2)? != EM_CUDA {
        return Err(unknown(bytes));
    }
    require(HEADER, "byte order", header.number(5, 1)?, |order| order == 1)?;
    let (segment_bytes, segment_count) = (header.number(54, 2)?, header.number(56, 2)?);
    let (start, section_bytes) = (header.number(40, 8)?, header.number(58, 2)?);
    let (mut count, mut names) = (header.number(60, 2)?, header.number(62, 2)?);
    // Numbers that do not fit 16 bits are in the header of the first section, which is unused.
    if start > 0 && (count == 0 || names == SHN_XINDEX) {
        let first = Sections { bytes, start, count, names }.get(0)?;
        count = if count == 0 { first.size } else { count };
        names = if names == SHN_XINDEX { first.link } else { names };
    }
    let size = "size of a section's header";
    require(HEADER, size, section_bytes, |bytes| count == 0 || bytes == SECTION_BYTES)?;
    let size = "size of a segment's header";
    require(HEADER, size, segment_bytes, |bytes| segment_count == 0 || bytes == SEGMENT_BYTES)?;
    require(HEADER, "section of names", names, |names| names == 0 || names < count)?;
    Sections { bytes, start, count, names }.check()?;
    let segments = header.number(32, 8)?;
    let table = Reader { bytes, part: "segment table" };
    for index in 0..segment_count {
        let at = segments.saturating_add(index * SEGMENT_BYTES);
        table.part_end(table.part, at, SEGMENT_BYTES)?;
        table.part_end("segment", table.number(at + 8, 8)?, table.number(at + 32, 8)?)?;
    }
    Ok(())
}

/// Fails unless `value`, the `what` of `part`, is valid.
fn require(
    part: &'static str,
    what: &'static str,
    value: u64,
    is_valid: impl FnOnce(u64) -> bool,
) -> Result<(), ImageError> {
    if is_valid(value) { Ok(()) } else { Err(ImageError::Damaged { part, what, value }) }
}

/// The sections of an ELF file.
struct Sections<'a> {
    bytes: &'a [u8],
    /// The offset of their table.
    start: u64,
    count: u64,
    /// The section of their names; 0 if none.
    names: u64,
}

/// A section's header.
struct Section {
    name: u64,
    kind: u64,
    start: u64,
    size: u64,
    /// The section that it refers to.
    link: u64,
    info: u64,
    entry_bytes: u64,
}

impl Sections<'_> {
    fn check(&self) -> Result<(), ImageError> {
        let names = if self.names == 0 { None } else { Some(self.get(self.names)?) };
        if let Some(names) = &names {
            require(HEADER, "section of names", self.names, |_| names.kind == SHT_STRTAB)?;
            self.check_ends(names)?;
        }
        for index in 0..self.count {
            let section = self.get(index)?;
            if let Some(names) = &names {
                require(TABLE, "name", section.name, |name| name < names.size.max(1))?;
            }
            require(TABLE, "section", section.link, |link| link < self.count)?;
            match section.kind {
                SHT_SYMTAB => self.check_symbols(&section)?,
                SHT_RELA => self.check_relocations(&section, SYMBOL_BYTES)?,
                SHT_REL => self.check_relocations(&section, 16)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The section `index`, whose bytes are within the file.
    fn get(&self, index: u64) -> Result<Section, ImageError> {
        let table = Reader { bytes: self.bytes, part: TABLE };
        let at = self.start.saturating_add(index.saturating_mul(SECTION_BYTES));
        table.part_end(table.part, at, SECTION_BYTES)?;
        let section = Section {
            name: table.number(at, 4)?,
            kind: table.number(at + 4, 4)?,
            start: table.number(at + 24, 8)?,
            size: table.number(at + 32, 8)?,
            link: table.number(at + 40, 4)?,
            info: table.number(at + 44, 4)?,
            entry_bytes: table.number(at + 56, 8)?,
        };
        if ![SHT_NULL, SHT_NOBITS].contains(&section.kind) {
            table.part_end("section", section.start, section.size)?;
        }
        Ok(section)
    }

    /// Names are zero-terminated, so the last byte of the section must be zero.
    fn check_ends(&self, names: &Section) -> Result<(), ImageError> {
        let Some(last) = names.size.checked_sub(1) else { return Ok(()) };
        let table = Reader { bytes: self.bytes, part: "section" };
        let last = table.number(names.start.saturating_add(last), 1)?;
        require("names", "end", last, |last| last == 0)
    }

    fn check_symbols(&self, symbols: &Section) -> Result<(), ImageError> {
        let names = self.get(symbols.link)?;
        require(SYMBOLS, "section of names", symbols.link, |_| names.kind == SHT_STRTAB)?;
        self.check_ends(&names)?;
        self.check_entries(symbols, SYMBOLS, SYMBOL_BYTES)?;
        let table = Reader { bytes: self.bytes, part: SYMBOLS };
        for index in 0..symbols.size / SYMBOL_BYTES {
            let at = symbols.start.saturating_add(index * SYMBOL_BYTES);
            require(SYMBOLS, "name", table.number(at, 4)?, |name| name < names.size.max(1))?;
            let of = table.number(at + 6, 2)?;
            require(SYMBOLS, "section", of, |of| of < self.count || of >= SHN_LORESERVE)?;
        }
        Ok(())
    }

    fn check_relocations(&self, relocations: &Section, bytes: u64) -> Result<(), ImageError> {
        require(RELOCATIONS, "section", relocations.info, |info| info < self.count)?;
        self.check_entries(relocations, RELOCATIONS, bytes)?;
        let symbols = self.get(relocations.link)?;
        let table = Reader { bytes: self.bytes, part: RELOCATIONS };
        for index in 0..relocations.size / bytes {
            let at = relocations.start.saturating_add(index * bytes);
            // The upper half of `r_info`; the lower half is the relocation's type.
            let symbol = table.number(at + 12, 4)?;
            let exists = symbols.kind == SHT_SYMTAB && symbol < symbols.size / SYMBOL_BYTES;
            require(RELOCATIONS, "symbol", symbol, |_| exists)?;
        }
        Ok(())
    }

    fn check_entries(
        &self,
        table: &Section,
        part: &'static str,
        bytes: u64,
    ) -> Result<(), ImageError> {
        require(part, "size of an entry", table.entry_bytes, |entry| entry == bytes)?;
        require(part, "size", table.size, |size| size.is_multiple_of(bytes))
    }
}

/// Reads little-endian numbers of an image, or reports which part is truncated.
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

/// The error about bytes that are not an image.
fn unknown(bytes: &[u8]) -> ImageError {
    ImageError::Unknown { start: bytes.iter().copied().take(8).collect() }
}

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const FATBIN_MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

/// The machine number of CUDA in an ELF header.
const EM_CUDA: u64 = 190;
/// An unused section header.
const SHT_NULL: u64 = 0;
const SHT_SYMTAB: u64 = 2;
const SHT_STRTAB: u64 = 3;
const SHT_RELA: u64 = 4;
/// A section without bytes in the file.
const SHT_NOBITS: u64 = 8;
const SHT_REL: u64 = 9;
/// Section numbers from here on are not sections of the file, but classify a symbol.
const SHN_LORESERVE: u64 = 0xff00;
/// The number of the section of names does not fit 16 bits.
const SHN_XINDEX: u64 = 0xffff;
/// Bytes of the headers of the file, a section and a segment, and of a symbol.
const HEADER_BYTES: u64 = 64;
const SECTION_BYTES: u64 = 64;
const SEGMENT_BYTES: u64 = 56;
const SYMBOL_BYTES: u64 = 24;

const HEADER: &str = "ELF header";
const TABLE: &str = "section table";
const SYMBOLS: &str = "symbol table";
const RELOCATIONS: &str = "relocation table";

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "//\n.version 8.0\n.target sm_90, debug // x\n.visible .entry copy(\n)";

    #[test]
    fn ptx_states_its_version_target_and_kernels() {
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
    fn the_error_about_other_data_shows_its_first_bytes() {
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

    #[test]
    fn a_truncated_fatbin_is_rejected() {
        let mut bytes = vec![0; 16 + 32];
        bytes[..4].copy_from_slice(&FATBIN_MAGIC);
        bytes[6] = 16;
        bytes[8] = 32;
        assert!(Image::new(bytes.clone()).is_ok());
        bytes.pop();
        assert!(matches!(Image::new(bytes), Err(ImageError::Truncated { .. })));
    }
}
