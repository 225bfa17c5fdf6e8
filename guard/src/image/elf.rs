//! 64-bit little-endian ELF files: cubins, and files of programs.

use object::LittleEndian as LE;
use object::elf::{
    ELFCLASS64, EM_CUDA, FileHeader64, PT_LOAD, ProgramHeader64, Rel64, Rela64, SHN_XINDEX,
    SHT_NOBITS, SHT_NULL, SHT_REL, SHT_RELA, SHT_STRTAB, SHT_SYMTAB, SectionHeader64, SectionType,
    Sym64,
};
use object::pod::{Pod, slice_from_all_bytes};

use super::error::{ImageError, part, require};
use super::info::records;
use crate::dim::saturated;

/// Checks that a cubin is complete, in time linear in its size. Headers, sections and segments must be within the
/// file. Tables must have valid indices. Symbols, relocations and kernel attributes must be within their
/// sections.
pub(super) fn check(bytes: &[u8]) -> Result<(), ImageError> {
    let elf = Elf::of_cubin(bytes)?;
    elf.sections.iter().try_for_each(|section| elf.check_header(section))?;
    for segment in elf.segments {
        let (size, memory) = (segment.p_filesz.get(LE), segment.p_memsz.get(LE));
        part(bytes, "segment", segment.p_offset.get(LE), size)?;
        let fits = segment.p_type.get(LE) != PT_LOAD || memory >= size;
        require("segment", "size in memory", memory, fits)?;
    }
    // Overlapping sections would make the work quadratic.
    let mut looked_at = 0_u64;
    let symbols = elf.section_of_symbols().map_or(0, |symbols| symbols.sh_size.get(LE));
    let symbols = symbols / saturated(size_of::<Sym64<LE>>());
    for section in elf.sections {
        let kind = section.sh_type.get(LE);
        if TABLES.contains(&kind) {
            looked_at = looked_at.saturating_add(section.sh_size.get(LE));
            require(TABLE, "size of all tables", looked_at, looked_at <= saturated(bytes.len()))?;
        }
        match kind {
            SHT_SYMTAB => elf.check_symbols(section)?,
            SHT_RELA => elf.check_relocations(section, symbols, |entry: &Rela64<LE>| {
                (entry.r_offset.get(LE), entry.r_sym(LE, false))
            })?,
            SHT_REL => elf.check_relocations(section, symbols, |entry: &Rel64<LE>| {
                (entry.r_offset.get(LE), entry.r_sym(LE))
            })?,
            SHT_CUDA_INFO => elf.check_info(section)?,
            _ => {}
        }
    }
    Ok(())
}

pub(super) type Section = SectionHeader64<LE>;

/// A file with complete tables of sections and segments.
pub(super) struct Elf<'a> {
    bytes: &'a [u8],
    pub(super) header: &'a FileHeader64<LE>,
    pub(super) sections: &'a [Section],
    segments: &'a [ProgramHeader64<LE>],
    /// The section of the sections' names, if any.
    names: Option<&'a Section>,
}

impl<'a> Elf<'a> {
    pub(super) fn of_cubin(bytes: &'a [u8]) -> Result<Self, ImageError> {
        let header = entry::<FileHeader64<LE>>(bytes, HEADER, 0)?;
        if header.e_machine.get(LE) != EM_CUDA {
            return Err(ImageError::unknown(bytes));
        }
        Self::parse(bytes)
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ImageError> {
        let header = entry::<FileHeader64<LE>>(bytes, HEADER, 0)?;
        if header.e_ident.class != ELFCLASS64 {
            return Err(ImageError::unknown(bytes));
        }
        let order = header.e_ident.data;
        require(HEADER, "byte order", order.0.into(), order == object::elf::ELFDATA2LSB)?;
        let (start, entry_bytes) = (header.e_shoff.get(LE), header.e_shentsize.get(LE).into());
        let mut count = u64::from(header.e_shnum.get(LE));
        let mut names = u64::from(header.e_shstrndx.get(LE).0);
        // Numbers above 16 bits are in the header of the first section, which is unused.
        if start > 0 && (count == 0 || names == u64::from(SHN_XINDEX.0)) {
            let first = entry::<Section>(bytes, TABLE, start)?;
            count = if count == 0 { first.sh_size.get(LE) } else { count };
            let is_there = names != u64::from(SHN_XINDEX.0);
            names = if is_there { names } else { first.sh_link.get(LE).into() };
        }
        let right = count == 0 || entry_bytes == saturated(size_of::<Section>());
        require(HEADER, "size of a section's header", entry_bytes, right)?;
        let (segments, segment_bytes) =
            (u64::from(header.e_phnum.get(LE)), header.e_phentsize.get(LE).into());
        let right = segments == 0 || segment_bytes == saturated(size_of::<ProgramHeader64<LE>>());
        require(HEADER, "size of a segment's header", segment_bytes, right)?;
        require(HEADER, "section of names", names, names == 0 || names < count)?;
        let mut elf = Self {
            bytes,
            header,
            sections: table(bytes, TABLE, start, count)?,
            segments: table(bytes, "segment table", header.e_phoff.get(LE), segments)?,
            names: None,
        };
        if names > 0 {
            elf.names = Some(elf.strings(names, HEADER)?);
        }
        Ok(elf)
    }

    /// Whether the name of a section and its zero byte begin with `prefix`.
    pub(super) fn name_begins(&self, section: &Section, prefix: &[u8]) -> bool {
        let names = self.names.and_then(|names| self.data(names).ok()).unwrap_or_default();
        let start = usize::try_from(section.sh_name.get(LE)).unwrap_or(usize::MAX);
        names.get(start..).is_some_and(|name| name.starts_with(prefix))
    }

    fn section_of_symbols(&self) -> Option<&'a Section> {
        self.sections.iter().find(|section| section.sh_type.get(LE) == SHT_SYMTAB)
    }

    /// The symbols, and the bytes of their names; none if there is no table of symbols.
    pub(super) fn symbols(&self) -> Result<(&'a [Sym64<LE>], &'a [u8]), ImageError> {
        let Some(table) = self.section_of_symbols() else { return Ok((&[], &[])) };
        let names = self.strings(table.sh_link.get(LE).into(), SYMBOLS)?;
        Ok((self.entries(table, SYMBOLS)?, self.data(names)?))
    }

    /// The string section `index`, which `part` refers to. Strings end with a zero byte, so the last byte must
    /// be zero.
    fn strings(&self, index: u64, part: &'static str) -> Result<&'a Section, ImageError> {
        let section = self.section(index).filter(|names| names.sh_type.get(LE) == SHT_STRTAB);
        let Some(names) = section else {
            return Err(ImageError::Damaged { part, what: "section of names", value: index });
        };
        let last = self.data(names)?.last().copied().unwrap_or(0);
        require("names", "end", last.into(), last == 0)?;
        Ok(names)
    }

    fn section(&self, index: u64) -> Option<&'a Section> {
        self.sections.get(usize::try_from(index).ok()?)
    }

    /// The bytes of a section; none if it only reserves memory.
    pub(super) fn data(&self, section: &Section) -> Result<&'a [u8], ImageError> {
        if WITHOUT_BYTES.contains(&section.sh_type.get(LE)) {
            return Ok(&[]);
        }
        part(self.bytes, "section", section.sh_offset.get(LE), section.sh_size.get(LE))
    }

    fn check_header(&self, section: &Section) -> Result<(), ImageError> {
        let (name, link) = (section.sh_name.get(LE), section.sh_link.get(LE).into());
        let most = self.names.map_or(u64::MAX, |names| names.sh_size.get(LE).max(1));
        require(TABLE, "name", name.into(), u64::from(name) < most)?;
        require(TABLE, "section", link, self.section(link).is_some())?;
        let kind = section.sh_type.get(LE);
        let align = section.sh_addralign.get(LE);
        let is_power = kind == SHT_NULL || align == 0 || align.is_power_of_two();
        require(TABLE, "alignment", align, is_power)?;
        self.data(section).map(|_| ())
    }

    fn check_symbols(&self, symbols: &Section) -> Result<(), ImageError> {
        let names = self.strings(symbols.sh_link.get(LE).into(), SYMBOLS)?;
        for symbol in self.entries::<Sym64<LE>>(symbols, SYMBOLS)? {
            let (name, of) = (symbol.st_name.get(LE), symbol.st_shndx.get(LE));
            let is_name = u64::from(name) < names.sh_size.get(LE).max(1);
            require(SYMBOLS, "name", name.into(), is_name)?;
            if of.is_special() {
                continue;
            }
            let section = self.section(of.0.into());
            require(SYMBOLS, "section", of.0.into(), section.is_some())?;
            let end = symbol.st_value.get(LE).saturating_add(symbol.st_size.get(LE));
            let lies_within = section.is_none_or(|section| {
                WITHOUT_BYTES.contains(&section.sh_type.get(LE)) || end <= section.sh_size.get(LE)
            });
            require(SYMBOLS, "end", end, lies_within)?;
        }
        Ok(())
    }

    /// Checks a relocation table. `read` returns (offset, symbol index); `symbols` is the number of symbols. The
    /// table's own link to the symbols is not checked, because it is wrong in cubins of CUDA 12.2.
    fn check_relocations<T: Pod>(
        &self,
        relocations: &Section,
        symbols: u64,
        read: impl Fn(&T) -> (u64, u32),
    ) -> Result<(), ImageError> {
        let of = relocations.sh_info.get(LE).into();
        let target = self.section(of);
        require(RELOCATIONS, "section", of, target.is_some())?;
        let most = target.map_or(0, |target| target.sh_size.get(LE));
        for relocation in self.entries::<T>(relocations, RELOCATIONS)? {
            let (place, symbol) = read(relocation);
            require(RELOCATIONS, "symbol", symbol.into(), u64::from(symbol) < symbols)?;
            require(RELOCATIONS, "place", place, place < most)?;
        }
        Ok(())
    }

    fn check_info(&self, section: &Section) -> Result<(), ImageError> {
        let attributes = self.data(section)?;
        #[cfg(test)]
        work::count(attributes);
        let missing = records(attributes).find_map(Result::err);
        let missing = missing.map_or(0, |surplus| saturated(surplus.0));
        require("kernel attributes", "end", missing, missing == 0)
    }

    /// The entries of a section that is a table.
    fn entries<T: Pod>(
        &self,
        section: &Section,
        part: &'static str,
    ) -> Result<&'a [T], ImageError> {
        let (entry, size) = (section.sh_entsize.get(LE), section.sh_size.get(LE));
        let bytes = saturated(size_of::<T>());
        require(part, "size of an entry", entry, entry == bytes)?;
        require(part, "size", size, size.is_multiple_of(bytes))?;
        table(self.bytes, part, section.sh_offset.get(LE), size / bytes)
    }
}

/// The table of `count` entries at `at`.
fn table<'a, T: Pod>(
    bytes: &'a [u8],
    name: &'static str,
    at: u64,
    count: u64,
) -> Result<&'a [T], ImageError> {
    let found = part(bytes, name, at, count.saturating_mul(saturated(size_of::<T>())))?;
    #[cfg(test)]
    work::count(found);
    // The bytes are whole entries, which need no alignment: never an error.
    Ok(slice_from_all_bytes(found).unwrap_or_default())
}

fn entry<'a, T: Pod>(bytes: &'a [u8], name: &'static str, at: u64) -> Result<&'a T, ImageError> {
    let missing =
        ImageError::Truncated { part: name, needed: at, available: saturated(bytes.len()) };
    table(bytes, name, at, 1)?.first().ok_or(missing)
}

/// Attributes of kernels.
pub(super) const SHT_CUDA_INFO: SectionType = SectionType(0x7000_0000);
/// Types of sections without bytes in the file. Relocatable cubins also have such sections for global, local, shared
/// and reserved shared memory. Symbols may end past the sections of shared memory.
const WITHOUT_BYTES: [SectionType; 6] = [
    SHT_NULL,
    SHT_NOBITS,
    SectionType(0x7000_0007),
    SectionType(0x7000_0009),
    SectionType(0x7000_000a),
    SectionType(0x7000_0015),
];
/// Sections whose entries are checked.
const TABLES: [SectionType; 4] = [SHT_SYMTAB, SHT_RELA, SHT_REL, SHT_CUDA_INFO];

const HEADER: &str = "ELF header";
const TABLE: &str = "section table";
const SYMBOLS: &str = "symbol table";
const RELOCATIONS: &str = "relocation table";

/// Counts the bytes of tables that are checked.
#[cfg(test)]
mod work {
    use core::cell::Cell;

    thread_local! {
        static BYTES: Cell<usize> = const { Cell::new(0) };
    }

    /// The bytes since the last call on this thread.
    pub(super) fn take() -> usize {
        BYTES.take()
    }

    pub(super) fn count(table: &[u8]) {
        BYTES.set(BYTES.get() + table.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with `kilobytes` of section headers and `kilobytes` of symbols. Each section has all symbols.
    fn overlapping(kilobytes: usize) -> Vec<u8> {
        let (table, count) = (64 + kilobytes * 1008, kilobytes * 16);
        let mut bytes = vec![0; table + count * 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let mut write = |at: usize, size: usize, value: usize| {
            bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        for (at, size, value) in [(18, 2, 190), (40, 8, table), (58, 2, 64), (60, 2, count)] {
            write(at, size, value);
        }
        for index in 0..count {
            // The first one has their names.
            let (kind, size) = if index == 0 { (3, 1) } else { (2, kilobytes * 1008) };
            for (at, size, value) in [(4, 4, kind), (24, 8, 64), (32, 8, size), (56, 8, 24)] {
                write(table + index * 64 + at, size, value);
            }
        }
        bytes
    }

    #[test]
    fn the_work_grows_with_the_size_of_the_file_even_if_sections_overlap() {
        let work = |kilobytes| {
            work::take();
            let error = check(&overlapping(kilobytes)).expect_err("sections overlap");
            let what = "size of all tables";
            assert!(matches!(error, ImageError::Damaged { what: found, .. } if found == what));
            work::take()
        };
        let (once, twice) = (work(16), work(32));
        assert!(once > 16 * 1008 && twice <= 2 * once, "{once} bytes, then {twice}");
    }
}
