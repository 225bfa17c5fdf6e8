//! Checks that a cubin is complete: a 64-bit little-endian ELF file for CUDA whose headers, sections
//! and segments lie within the file, and whose tables refer only to entries that exist.

use super::reader::{ImageError, Reader, unknown};

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

/// Checks a file that begins as an ELF file.
pub(super) fn check(bytes: &[u8]) -> Result<(), ImageError> {
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

/// The sections of a file.
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

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[u8] = b"\0.shstrtab\0.symtab\0.rela\0copy\0";
    /// Offsets of the names, two symbols, a relocation and the section table.
    const PLACES: [usize; 4] = [64, 96, 144, 168];

    /// A CUDA ELF of five sections: none, names, symbols, relocations of them, and code without bytes.
    fn elf() -> Vec<u8> {
        let mut bytes = vec![0; PLACES[3] + 5 * 64];
        let mut write = |at: usize, size: usize, value: usize| {
            bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        for (at, size, value) in [
            (4, 1, 2),
            (5, 1, 1),
            (18, 2, 190),
            (40, 8, PLACES[3]),
            (58, 2, 64),
            (60, 2, 5),
            (62, 2, 1),
        ] {
            write(at, size, value);
        }
        let sections = [
            (1, 1, 3, PLACES[0], NAMES.len(), 0, 0, 0),
            (2, 11, 2, PLACES[1], 48, 1, 1, 24),
            (3, 19, 4, PLACES[2], 24, 2, 4, 24),
            (4, 25, 8, 1 << 40, 1 << 20, 0, 0, 0),
        ];
        for (index, name, kind, start, size, link, info, entry) in sections {
            let at = PLACES[3] + index * 64;
            for (offset, width, value) in [
                (0, 4, name),
                (4, 4, kind),
                (24, 8, start),
                (32, 8, size),
                (40, 4, link),
                (44, 4, info),
                (56, 8, entry),
            ] {
                write(at + offset, width, value);
            }
        }
        // The second symbol is of the code, and the relocation about it.
        write(PLACES[1] + 24, 4, 25);
        write(PLACES[1] + 30, 2, 4);
        write(PLACES[2] + 12, 4, 1);
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes[PLACES[0]..PLACES[0] + NAMES.len()].copy_from_slice(NAMES);
        bytes
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        let whole = elf();
        assert_eq!(check(&whole), Ok(()));
        for len in 4..whole.len() {
            let cut = check(&whole[..len]).expect_err("cut");
            assert!(matches!(cut, ImageError::Truncated { .. }), "{len}: {cut}");
        }
    }

    #[test]
    fn a_file_of_another_machine_is_unknown() {
        let mut bytes = elf();
        bytes[18] = 62;
        assert!(matches!(check(&bytes), Err(ImageError::Unknown { .. })));
    }

    #[test]
    fn sections_past_16_bits_are_counted_by_the_first_of_them() {
        let mut bytes = elf();
        bytes[60] = 0;
        bytes[62..64].fill(0xff);
        bytes[PLACES[3] + 32] = 5;
        bytes[PLACES[3] + 40] = 1;
        assert_eq!(check(&bytes), Ok(()));
        bytes[PLACES[3] + 40] = 5;
        let error = check(&bytes).expect_err("there is no sixth section");
        assert!(matches!(error, ImageError::Damaged { part: HEADER, value: 5, .. }), "{error}");
        bytes[PLACES[3] + 32..PLACES[3] + 40].fill(0xff);
        let error = check(&bytes).expect_err("more sections than bytes");
        assert!(matches!(error, ImageError::Truncated { part: TABLE, .. }), "{error}");
    }

    #[test]
    fn a_table_past_the_end_is_refused() {
        let mut bytes = elf();
        bytes[40..48].fill(0xff);
        let error = check(&bytes).expect_err("past the end");
        assert!(matches!(error, ImageError::Truncated { part: TABLE, .. }), "{error}");
    }

    #[test]
    fn what_is_named_and_is_not_there_is_refused_with_its_number() {
        let section = |index: usize, offset: usize| PLACES[3] + index * 64 + offset;
        let damage = [
            (5, 2, HEADER, "byte order"),
            (58, 40, HEADER, "size of a section's header"),
            (62, 9, HEADER, "section of names"),
            // A section of symbols holds no names.
            (62, 2, HEADER, "section of names"),
            (PLACES[0] + NAMES.len() - 1, 7, "names", "end"),
            (section(2, 0), 200, TABLE, "name"),
            (section(4, 40), 5, TABLE, "section"),
            (section(2, 40), 2, SYMBOLS, "section of names"),
            (section(2, 56), 25, SYMBOLS, "size of an entry"),
            (section(2, 32), 47, SYMBOLS, "size"),
            (PLACES[1] + 24, 77, SYMBOLS, "name"),
            (PLACES[1] + 30, 6, SYMBOLS, "section"),
            (section(3, 44), 5, RELOCATIONS, "section"),
            (PLACES[2] + 12, 2, RELOCATIONS, "symbol"),
        ];
        for (at, byte, part, what) in damage {
            let mut bytes = elf();
            bytes[at] = byte;
            let value = u64::from(byte);
            assert_eq!(check(&bytes), Err(ImageError::Damaged { part, what, value }), "byte {at}");
        }
    }

    #[test]
    fn a_file_with_any_byte_changed_is_taken_or_refused() {
        for at in 0..elf().len() {
            for byte in [0, 1, 2, 0x7f, 0x80, 0xff] {
                let mut bytes = elf();
                bytes[at] = byte;
                let _ = check(&bytes);
            }
        }
    }
}
