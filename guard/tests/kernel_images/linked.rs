//! Relocatable device code: object files, static libraries of them, and the images that the device linker makes.

use gridguard::ComputeCapability;
use gridguard::image::{FileImage, ImageError, ImageFile};

use super::{LZ4, RELOCATABLE, TURING, program, resources, sorted};

const LIBRARY: &[u8] = include_bytes!("relocatable.a");
const LINKED: &[u8] = include_bytes!("linked.so");
const INTERMEDIATE: &[u8] = include_bytes!("intermediate.o");

/// The architecture of an image, and the registers of each kernel by name.
type Image = (String, Vec<(String, Option<u64>)>);

fn images(bytes: &[u8]) -> Vec<Image> {
    let file = ImageFile::parse(bytes).expect("a file");
    file.images().map(described).collect()
}

fn described(image: &FileImage<'_>) -> Image {
    let kernels = sorted(image.kernels().expect("complete"));
    let kind = if image.is_ptx() { "PTX " } else { "" };
    let architecture = format!("{kind}{}", image.architecture().expect("stated"));
    let registers = resources(&kernels).into_iter();
    let registers = registers.map(|(name, all)| (name.to_owned(), all.map(|all| all.0)));
    (architecture, registers.collect())
}

fn unlinked(architecture: &str, names: &[&str]) -> Image {
    (architecture.to_owned(), names.iter().map(|name| ((*name).to_owned(), None)).collect())
}

/// An archive of these members: the fields for the name, and the contents.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, contents) in members {
        bytes.extend(format!("{name:<16}{:<32}{:<10}`\n", "0", contents.len()).bytes());
        bytes.extend(*contents);
        bytes.resize(bytes.len().next_multiple_of(2), b'\n');
    }
    bytes
}

#[test]
fn a_static_library_has_the_images_of_its_members() {
    let of_callers = ["bounded_caller", "caller"];
    let expected = [
        unlinked("sm_90", &of_callers),
        unlinked("PTX sm_90", &of_callers),
        unlinked("sm_90", &["alone"]),
        unlinked("PTX sm_90", &["alone"]),
    ];
    assert_eq!(images(LIBRARY), expected);
    let file = ImageFile::parse(LIBRARY).expect("a library");
    let hopper: Vec<_> = file.images_for(ComputeCapability::new(9, 0)).map(described).collect();
    assert_eq!(hopper, [expected[0].clone(), expected[2].clone()]);
}

#[test]
fn a_linked_library_states_the_resources_after_its_relocatable_images() {
    let all = images(LINKED);
    assert_eq!(all[..4], images(LIBRARY));
    let [(architecture, kernels)] = &all[4..] else { panic!("one linked image: {all:?}") };
    let names: Vec<&str> = kernels.iter().map(|(name, _)| &**name).collect();
    assert_eq!(
        (&**architecture, &names[..]),
        ("sm_90", &["alone", "bounded_caller", "caller"][..])
    );
    assert!(kernels.iter().all(|(_, registers)| registers.is_some()), "{kernels:?}");
}

#[test]
fn members_of_every_kind_are_read_and_others_are_skipped() {
    let object = program(".nv_fatbin", LZ4);
    // A long name of BSD's format precedes the contents.
    let named = [b"a long name.o\0\0\0", &object[..]].concat();
    let library = archive(&[
        ("/", b"\0\0\0\0"),
        ("//", b"no name at all"),
        ("kernels.cubin/", TURING),
        ("odd/", b"odd"),
        ("#1/16", &named),
        ("kernels.fatbin/", LZ4),
        ("text/", b".version 8.0\n.target sm_90\n"),
    ]);
    let file = ImageFile::parse(&library).expect("a library");
    assert_eq!(file.images().count(), 1 + 3 + 3);
    assert_eq!(file.images_for(ComputeCapability::new(8, 0)).count(), 2);
    assert_eq!(file.images_for(ComputeCapability::new(7, 5)).count(), 3);
}

#[test]
fn libraries_without_kernels_and_thin_ones_are_errors_that_say_so() {
    let error = |bytes: &[u8]| ImageFile::parse(bytes).expect_err("no kernels");
    assert_eq!(error(&archive(&[])), ImageError::NoImage);
    assert_eq!(error(&archive(&[("a.txt/", b"text")])), ImageError::NoImage);
    assert_eq!(error(b"!<thin>\n"), ImageError::ThinArchive);
    assert_eq!(error(INTERMEDIATE), ImageError::Intermediate);
    assert_eq!(error(&archive(&[("a.o/", INTERMEDIATE)])), ImageError::Intermediate);
    assert!(ImageError::Intermediate.to_string().contains("-dlto"));
    assert!(ImageError::ThinArchive.to_string().contains("read its object files"));
}

#[test]
fn a_damaged_library_is_an_error_with_the_place() {
    let error = |bytes: &[u8]| ImageFile::parse(bytes).expect_err("damaged").to_string();
    let cut = &RELOCATABLE[..RELOCATABLE.len() / 2];
    let text = error(&archive(&[("text/", b"text"), ("a.cubin/", cut)]));
    assert!(text.starts_with("member 1 of the library: the image is truncated: "), "{text}");
    let whole = archive(&[("a.cubin/", TURING)]);
    let header = |what, value| {
        let part = "archive member's header";
        ImageError::Damaged { part, what, value }.to_string()
    };
    for (at, byte, what, value) in [
        (8 + 58, b'x', "end", 68),
        (8 + 48, b'-', "size", 8),
        (8 + 48, b' ', "size", 8),
        (8 + 49, b'\xff', "size", 8),
    ] {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        assert_eq!(error(&bytes), header(what, value));
    }
    assert_eq!(error(&archive(&[("#1/99999", TURING)])), header("name", 8));
    assert_eq!(error(&archive(&[("#1/x", TURING)])), header("name", 8));
    for len in (9..whole.len()).step_by(7) {
        let text = error(&whole[..len]);
        assert!(text.contains("truncated"), "{len}: {text}");
    }
    let mut bytes = whole.clone();
    bytes[8 + 48..8 + 58].copy_from_slice(b"9999999999");
    assert!(error(&bytes).contains("truncated"), "{}", error(&bytes));
}

#[test]
fn a_library_with_any_byte_changed_is_read_or_an_error() {
    for whole in [LIBRARY, LINKED, INTERMEDIATE] {
        for at in (0..whole.len()).step_by(29) {
            for byte in [0, 1, b'0', 0xff] {
                let mut bytes = whole.to_vec();
                bytes[at] = byte;
                if let Ok(file) = ImageFile::parse(&bytes) {
                    file.images().for_each(|image| drop(image.kernels()));
                }
            }
        }
    }
}

#[test]
fn sections_that_share_a_fatbin_are_an_error() {
    let mut bytes = program(".nv_fatbin", LZ4);
    assert!(ImageFile::parse(&bytes).is_ok());
    // A copy of the last header, once more and then often.
    let table = usize::try_from(u64::from_le_bytes(bytes[40..48].try_into().expect("eight")));
    let section = table.expect("an offset") + 2 * 64;
    let header = bytes[section..section + 64].to_vec();
    for _ in 0..100 {
        bytes.extend(&header);
        bytes[60] += 1;
    }
    let error = ImageFile::parse(&bytes).expect_err("each byte a hundred times");
    let what = "size of all fatbins";
    assert!(matches!(error, ImageError::Damaged { what: found, .. } if found == what), "{error}");
}
