//! Cubins as ELF files: their sections, and how to damage them.

/// Bytes of a file's header.
pub(crate) const HEADER: usize = 64;

/// A part of an ELF file.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    /// The offset of its header.
    pub(crate) header: usize,
}

fn number(bytes: &[u8], at: usize, size: usize) -> usize {
    let digits = bytes[at..at + size].iter().rev();
    digits.fold(0, |number, byte| (number << 8) | usize::from(*byte))
}

/// The sections of a whole file that have bytes.
pub(crate) fn sections(elf: &[u8]) -> Vec<Section> {
    let (table, count, names) = (number(elf, 40, 8), number(elf, 60, 2), number(elf, 62, 2));
    let header = |index: usize| table + index * 64;
    let names = number(elf, header(names) + 24, 8);
    let section = |index: usize| {
        let at = header(index);
        let name = &elf[names + number(elf, at, 4)..];
        let end = name.iter().position(|byte| *byte == 0).expect("names end");
        let name = String::from_utf8_lossy(&name[..end]).into_owned();
        let (start, bytes) = (number(elf, at + 24, 8), number(elf, at + 32, 8));
        // The first is empty, and some only reserve memory.
        let has_bytes = ![0, 8].contains(&number(elf, at + 4, 4)) && bytes > 0;
        has_bytes.then_some(Section { name, start, bytes, header: at })
    };
    (0..count).filter_map(section).collect()
}

/// The same file, with instructions in `kernel` that no device can execute.
pub(crate) fn without_instructions(mut elf: Vec<u8>, kernel: &str) -> Vec<u8> {
    let name = format!(".text.{kernel}");
    let section = sections(&elf).into_iter().find(|section| section.name == name);
    let Section { start, bytes, .. } = section.expect("the kernel's code");
    elf[start..start + bytes].fill(0xff);
    elf
}

/// A synthetic file for `architecture` whose kernel is zeros.
pub(crate) fn synthetic(architecture: u32) -> Vec<u8> {
    const NAMES: &[u8] = b"\0.shstrtab\0.text.iota_y\0";
    const CODE: usize = 512;
    let (code, table) = (HEADER + NAMES.len().next_multiple_of(8), 0);
    let table = table + code + CODE;
    let mut elf = vec![0; table + 3 * 64];
    let mut write = |at: usize, size: usize, value: usize| {
        elf[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    };
    // Class, byte order, version; an executable for CUDA.
    for (at, size, value) in [(4, 1, 2), (5, 1, 1), (6, 1, 1), (16, 2, 2), (18, 2, 190), (20, 4, 1)]
    {
        write(at, size, value);
    }
    let architecture = usize::try_from(architecture).expect("two or three digits");
    for (at, size, value) in [(40, 8, table), (48, 4, architecture), (52, 2, HEADER)] {
        write(at, size, value);
    }
    for (at, value) in [(58, 64), (60, 3), (62, 1)] {
        write(at, 2, value);
    }
    for (index, name, kind, start, bytes) in
        [(1, 1, 3, HEADER, NAMES.len()), (2, 11, 1, code, CODE)]
    {
        let at = table + index * 64;
        for (offset, size, value) in [(0, 4, name), (4, 4, kind), (24, 8, start), (32, 8, bytes)] {
            write(at + offset, size, value);
        }
    }
    elf[..4].copy_from_slice(b"\x7fELF");
    elf[HEADER..HEADER + NAMES.len()].copy_from_slice(NAMES);
    elf
}
