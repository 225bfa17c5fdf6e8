//! Cubins that are incomplete or damaged are refused before they reach the driver.

use gridguard::cuda::{Image, ImageError};

const HEADER: &str = "ELF header";
const TABLE: &str = "section table";
const SYMBOLS: &str = "symbol table";
const RELOCATIONS: &str = "relocation table";

const NAMES: &[u8] = b"\0.shstrtab\0.symtab\0.rela\0copy\0";
/// Offsets of the names, two symbols, a relocation and the section table.
const PLACES: [usize; 4] = [64, 96, 144, 168];

fn check(bytes: impl Into<Vec<u8>>) -> Result<(), ImageError> {
    Image::new(bytes).map(|_| ())
}

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
    assert_eq!(check(whole.clone()), Ok(()));
    for len in 4..whole.len() {
        let cut = check(&whole[..len]).expect_err("cut");
        assert!(matches!(cut, ImageError::Truncated { .. }), "{len}: {cut}");
    }
}

#[test]
fn sections_past_16_bits_are_counted_by_the_first_of_them() {
    let mut bytes = elf();
    bytes[60] = 0;
    bytes[62..64].fill(0xff);
    bytes[PLACES[3] + 32] = 5;
    bytes[PLACES[3] + 40] = 1;
    assert_eq!(check(bytes.clone()), Ok(()));
    bytes[PLACES[3] + 40] = 5;
    let error = check(bytes.clone()).expect_err("there is no sixth section");
    assert!(matches!(error, ImageError::Damaged { part: HEADER, value: 5, .. }), "{error}");
    bytes[PLACES[3] + 32..PLACES[3] + 40].fill(0xff);
    let error = check(bytes.clone()).expect_err("more sections than bytes");
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
        // The code of the relocations has as many bytes as its section reserves.
        (PLACES[2] + 7, 1, RELOCATIONS, "place"),
        (section(2, 48), 3, TABLE, "alignment"),
    ];
    for (at, byte, part, what) in damage {
        let mut bytes = elf();
        bytes[at] = byte;
        let value = if what == "place" { 1 << 56 } else { u64::from(byte) };
        assert_eq!(
            check(bytes.clone()),
            Err(ImageError::Damaged { part, what, value }),
            "byte {at}"
        );
    }
}

#[test]
fn a_symbol_past_the_end_of_its_section_is_refused() {
    let mut bytes = elf();
    // The names that have bytes in the file.
    bytes[PLACES[1] + 30] = 1;
    bytes[PLACES[1] + 32] = 20;
    bytes[PLACES[1] + 40] = u8::try_from(NAMES.len() - 20).expect("few");
    assert_eq!(check(bytes.clone()), Ok(()));
    bytes[PLACES[1] + 40] += 1;
    let value = u64::try_from(NAMES.len()).expect("few") + 1;
    assert_eq!(check(bytes), Err(ImageError::Damaged { part: SYMBOLS, what: "end", value }));
}

#[test]
fn attributes_of_kernels_past_the_end_of_their_section_are_refused() {
    let mut bytes = elf();
    let section = PLACES[3] + 4 * 64;
    let attributes = [1, 5, 0, 0, 4, 0x2f, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let at = bytes.len();
    bytes.extend(attributes);
    bytes[section + 4..section + 8].copy_from_slice(&0x7000_0000_u32.to_le_bytes());
    bytes[section + 24..section + 32].copy_from_slice(&at.to_le_bytes());
    bytes[section + 32..section + 40].copy_from_slice(&16_u64.to_le_bytes());
    assert_eq!(check(bytes.clone()), Ok(()));
    bytes[at + 6] = 11;
    let part = "kernel attributes";
    assert_eq!(check(bytes.clone()), Err(ImageError::Damaged { part, what: "end", value: 3 }));
    bytes[at + 6] = 6;
    assert_eq!(check(bytes), Err(ImageError::Damaged { part, what: "end", value: 2 }));
}

#[test]
fn sections_that_hold_the_same_entries_are_refused() {
    let mut bytes = elf();
    let (symbols, relocations) = (PLACES[3] + 2 * 64, PLACES[3] + 3 * 64);
    bytes.copy_within(symbols..symbols + 64, relocations);
    assert_eq!(check(bytes.clone()), Ok(()));
    // The symbols fill most of the file, twice.
    let most = u64::try_from(bytes.len() - PLACES[1]).expect("few") / 24 * 24;
    for section in [symbols, relocations] {
        bytes[section + 32..section + 40].copy_from_slice(&most.to_le_bytes());
    }
    bytes[PLACES[1]..PLACES[3]].fill(0);
    let error = check(bytes).expect_err("each entry twice");
    assert!(matches!(error, ImageError::Damaged { .. }), "{error}");
}

#[test]
fn a_segment_that_does_not_fit_its_memory_is_refused() {
    let mut bytes = elf();
    let at = bytes.len();
    bytes.extend([0; 56]);
    bytes[at] = 1;
    bytes[at + 32] = 9;
    bytes[at + 40] = 9;
    bytes[32..40].copy_from_slice(&at.to_le_bytes());
    bytes[54] = 56;
    bytes[56] = 1;
    assert_eq!(check(bytes.clone()), Ok(()));
    bytes[at + 40] = 8;
    let what = "size in memory";
    assert_eq!(check(bytes), Err(ImageError::Damaged { part: "segment", what, value: 8 }));
}
