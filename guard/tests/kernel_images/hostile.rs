//! Damaged, inconsistent and unusual images.

use gridguard::image::{ImageError, ImageFile, KernelAttributes};

use super::{
    BLACKWELL, CLUSTERS, HOPPER, KERNELS, LZ4, RECURSIVE, RELOCATABLE, THOR, TURING, ZSTD, program,
};

const ALL: [&[u8]; 10] =
    [KERNELS, CLUSTERS, TURING, HOPPER, BLACKWELL, RECURSIVE, RELOCATABLE, THOR, ZSTD, LZ4];

/// The kernels of all images of a file.
fn read(bytes: &[u8]) -> Result<Vec<KernelAttributes>, ImageError> {
    let file = ImageFile::parse(bytes)?;
    let kernels: Result<Vec<_>, _> = file.images().map(|image| image.kernels()).collect();
    kernels.map(|kernels| kernels.concat())
}

fn ptx(entry: &str) -> Result<Vec<KernelAttributes>, ImageError> {
    read(format!(".version 8.0\n.target sm_90\n{entry}").as_bytes())
}

/// Overwrites the little-endian number of `size` bytes at `at`.
fn write(bytes: &mut [u8], at: usize, size: usize, value: u64) {
    bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
}

#[test]
fn a_binary_image_cut_anywhere_is_an_error() {
    for whole in &ALL[2..] {
        assert!(read(whole).is_ok());
        for len in (4..whole.len()).step_by(7) {
            let error = read(&whole[..len]).expect_err("cut");
            assert!(matches!(error, ImageError::Truncated { .. }), "{len}: {error}");
        }
    }
    let program = program(".nv_fatbin", LZ4);
    for len in (4..program.len()).step_by(11) {
        assert!(read(&program[..len]).is_err(), "{len}");
    }
}

#[test]
fn a_file_with_any_byte_changed_is_read_or_an_error() {
    for whole in ALL {
        for at in (0..whole.len()).step_by(37) {
            for byte in [0, 1, 0xff] {
                let mut bytes = whole.to_vec();
                bytes[at] = byte;
                if let Err(error) = read(&bytes) {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}

#[test]
fn a_compressed_image_that_lies_about_its_size_is_an_error_and_takes_no_memory() {
    for (fatbin, size) in [(ZSTD, 0), (LZ4, 0)].map(|(fatbin, at)| (fatbin, at + 16 + 56)) {
        let first = |claimed: u64| {
            let mut bytes = fatbin.to_vec();
            write(&mut bytes, size, 8, claimed);
            let file = ImageFile::parse(&bytes).expect("its headers are complete");
            file.images().next().expect("three").kernels().expect_err("another size")
        };
        let own = u64::from_le_bytes(fatbin[size..size + 8].try_into().expect("eight"));
        for claimed in [0, own - 1, own + 1] {
            let error = first(claimed);
            assert!(matches!(error, ImageError::Compressed { .. }), "{claimed}: {error}");
        }
        for claimed in [1 << 31, u64::MAX] {
            let error = first(claimed);
            assert!(
                matches!(error, ImageError::TooLarge { bytes, most } if bytes == claimed && most <= 1 << 30),
                "{claimed}: {error}"
            );
        }
    }
    let error = ImageError::TooLarge { bytes: 1 << 31, most: 1 << 30 };
    assert_eq!(
        error.to_string(),
        "the decompressed image has 2147483648 bytes, the limit is 1073741824"
    );
}

#[test]
fn kernels_that_share_one_long_name_are_an_error() {
    // All symbols become kernels of the same name, which is most of the file.
    let mut bytes = TURING.to_vec();
    let number = |bytes: &[u8], at: usize| {
        usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"))).unwrap()
    };
    let table = number(&bytes, 40);
    let section = |bytes: &[u8], kind: u8| {
        (0..).map(|index| table + index * 64).find(|at| bytes[at + 4] == kind).expect("there")
    };
    let symbols = section(&bytes, 2);
    let names = table + 64 * usize::from(bytes[symbols + 40]);
    let (at, size) = (bytes.len(), 8000);
    bytes.extend(vec![b'k'; size - 1]);
    bytes.push(0);
    write(&mut bytes, names + 24, 8, u64::try_from(at).unwrap());
    write(&mut bytes, names + 32, 8, u64::try_from(size).unwrap());
    let (start, count) = (number(&bytes, symbols + 24), number(&bytes, symbols + 32) / 24);
    for symbol in (0..count).map(|index| start + index * 24) {
        write(&mut bytes, symbol, 4, 0);
        bytes[symbol + 4] = 0x12;
        bytes[symbol + 5] = 0x10;
    }
    let error = read(&bytes).expect_err("names that overlap");
    let what = "size of all symbols' names";
    assert!(matches!(error, ImageError::Damaged { what: found, .. } if found == what), "{error}");
}

#[test]
fn other_files_are_no_images() {
    for bytes in [&b"MZ\x90"[..], b"\x7fELF", b"#!/bin/sh\n", &[0; 100], b"\x50\xed\x55\xba"] {
        assert!(read(bytes).is_err(), "{bytes:?}");
    }
    assert_eq!(read(b""), Err(ImageError::Empty));
    let mut foreign = program(".nv_fatbin", b"not a fatbin");
    assert!(matches!(read(&foreign), Err(ImageError::Unknown { .. })));
    // A 32-bit ELF file.
    foreign[4] = 1;
    assert!(matches!(read(&foreign), Err(ImageError::Unknown { .. })));
}

#[test]
fn kernels_are_found_however_their_declaration_is_written() {
    let unusual = r#"
        .file 1 "/a.cu { .entry no("
        /* .entry no() { } */ // .entry no() { }
        .extern .func (.param .b32 r) printf(.param .b64 a);
        .global .align 4 .b8 table[2] = { 1, 2 };
        .visible .func f(.param .b64 x) { { ret; } }
        .visible .entry declared(.param .u64 x);
        .visible .entry
            $a_b.c%d (
                .param .u8 a , .param .align 16 .b8 b [ 3 ] [ 0x2 ],
                .param .v4 .f32 c, .param .u64 .ptr .shared .align 64 d
            )
            .maxntid 0x10 , 2
            .pragma "nounroll; {";
            .maxnreg 32
        { { .reg .u32 %r; } ret; }
        .weak .entry opaque(.param .texref t) { }
        .section .debug_info { .b8 1 }
        .entry last { }
    "#;
    let kernels = ptx(unusual).expect("complete");
    let names: Vec<_> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, ["$a_b.c%d", "opaque", "last"]);
    let [first, opaque, last] = &kernels[..] else { panic!("three") };
    // 1 byte, 6 from byte 16 on, 16 from byte 32 on, 8.
    assert_eq!((first.parameter_bytes, first.max_threads_per_block), (Some(56), Some(32)));
    assert_eq!((opaque.parameter_bytes, last.parameter_bytes), (None, Some(0)));
}

#[test]
fn a_ptx_kernel_that_does_not_end_is_an_error() {
    let whole = ".entry k(.param .align 8 .b8 x[4]) .maxntid 8 { ret; }";
    assert!(ptx(whole).is_ok());
    for len in ".entry".len()..whole.len() {
        let error = ptx(&whole[..len]).expect_err("cut");
        let part = "PTX entry";
        assert!(matches!(error, ImageError::Truncated { part: found, .. } if found == part));
    }
    for entry in
        [".entry k(.param .u64 x", ".entry", ".entry k {", ".entry k /* {}", ".entry k \"{}"]
    {
        assert!(ptx(entry).is_err(), "{entry}");
    }
}

#[test]
fn numbers_that_do_not_fit_are_unknown() {
    let of = |entry: &str| ptx(entry).expect("complete").remove(0);
    let huge = of(".entry k(.param .b64 x[18446744073709551615]) { }");
    assert_eq!(huge.parameter_bytes, None);
    assert_eq!(
        huge.unchecked_rules().last().map(ToString::to_string).as_deref(),
        Some("parameter-bytes")
    );
    let huge = of(".entry k(.param .u64 x) .maxntid 4294967295, 4294967295, 4294967295 { }");
    assert_eq!(huge.max_threads_per_block, Some(u64::MAX));
    assert_eq!(of(".entry k() .maxntid x { }").max_threads_per_block, None);
}
