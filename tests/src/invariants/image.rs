//! Images of device code: complete images are accepted, truncated ones are rejected.

use gridguard::image::{Image, ImageError, ImageFile};
use gridguard_test_support::invariants::{Bytes, from_bytes};
use proptest::strategy::BoxedStrategy;

const ELF_MAGIC: &[u8] = b"\x7fELF";
const FATBIN_MAGIC: &[u8] = b"\x50\xed\x55\xba";
/// The machine number of CUDA.
const EM_CUDA: u128 = 190;
/// An unused section header, whose sizes have no meaning.
const SHT_NULL: u64 = 0;
/// A section with bytes.
const SHT_PROGBITS: u64 = 1;
/// A section without bytes in the file.
const SHT_NOBITS: u64 = 8;
/// Sections of CUDA without bytes in the file: global, local, shared and reserved shared memory.
const SHT_CUDA_NOBITS: [u64; 4] = [0x7000_0007, 0x7000_0009, 0x7000_000a, 0x7000_0015];

/// A second implementation agrees whether bytes are an image. An accepted image is unchanged, and no byte that its
/// headers announce is missing. Every image is also a file of images, and the kernels that a file states take bounded
/// memory.
pub(super) fn check(bytes: &[u8]) {
    check_kernels(bytes);
    let expected = Look { bytes }.whole();
    let image = match (Image::new(bytes), expected) {
        (Ok(image), Some(end)) => (image, end),
        (Err(error), None) => return is_told(&error, bytes),
        // What its tables name, and the entries of a fatbin, are not looked at a second time.
        (Err(error), Some(_)) if is_binary(bytes) => return is_told(&error, bytes),
        (answer, expected) => panic!("{answer:?}, and by a second look {expected:?}"),
    };
    let (image, end) = image;
    assert_eq!(Image::new(image.bytes()).as_ref(), Ok(&image));
    match image.ptx() {
        Some(text) => {
            assert!(text.contains(".version") && !text.contains('\0'));
            assert_eq!(image.bytes().strip_suffix(b"\0"), Some(text.as_bytes()));
        }
        None => {
            assert_eq!(image.bytes(), bytes);
            let cut = Image::new(&bytes[..end - 1]).expect_err("a byte is missing");
            assert!(matches!(cut, ImageError::Truncated { .. }), "{cut}");
        }
    }
}

fn check_kernels(bytes: &[u8]) {
    let file = match ImageFile::parse(bytes) {
        Ok(file) => file,
        Err(error) => {
            // Entries of fatbins may have other kinds, or a wrong compressed size.
            let is_image = Image::new(bytes).is_ok() && !bytes.starts_with(FATBIN_MAGIC);
            assert!(!is_image, "{error}");
            return;
        }
    };
    for image in file.images() {
        match image.kernels() {
            Ok(kernels) => {
                let names: usize = kernels.iter().map(|kernel| kernel.name.len()).sum();
                // A byte that is not UTF-8 becomes three.
                assert!(names <= 3 * 1024 * bytes.len());
                assert!(kernels.iter().all(|kernel| kernel.limits().name == kernel.name));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Images that are whole by the way they are made: the last byte of each belongs to a part of it.
pub fn whole_images() -> BoxedStrategy<Vec<u8>> {
    from_bytes(|from| if from.one_in(4) { fatbin(from) } else { elf(from) })
}

/// An image, whole by the way it was made, is taken, and refused wherever it is cut.
pub fn a_whole_image_is_taken_and_a_cut_one_refused(image: &[u8], cut: usize) {
    assert!(Image::new(image).is_ok(), "it is whole");
    let error = Image::new(&image[..cut]).expect_err("it is cut");
    let too_short_to_tell = cut < 4;
    assert!(matches!(error, ImageError::Truncated { .. }) || too_short_to_tell, "{error}");
}

/// A header, then entries of a header and bytes each.
fn fatbin(from: &mut Bytes<'_>) -> Vec<u8> {
    let mut content = Vec::new();
    for _ in 0..from.within(0..4) {
        let (kind, header, size) = (from.within(1..9), from.within(16..130), from.within(0..90));
        let cubin = if kind == 2 && from.one_in(2) { elf(from) } else { vec![7; position(size)] };
        let begin = content.len();
        content.extend((kind | header << 32).to_le_bytes());
        content.extend(number(cubin.len()).to_le_bytes());
        content.resize(begin + position(header), 7);
        content.extend(cubin);
    }
    let header = from.within(16..100);
    let mut image = FATBIN_MAGIC.to_vec();
    image.extend([1, 0]);
    image.extend(u16::try_from(header).expect("small").to_le_bytes());
    image.extend(number(content.len()).to_le_bytes());
    image.resize(position(header), 7);
    image.extend(content);
    image
}

/// Header, contents, then both tables in either order. Sections without bytes may be anywhere.
fn elf(from: &mut Bytes<'_>) -> Vec<u8> {
    let mut image = vec![0; 64];
    let mut sections = vec![[0_u64; 8]];
    for _ in 0..from.within(0..6) {
        let (kind, size) =
            ([SHT_PROGBITS, SHT_NOBITS, SHT_NULL][from.one_of([6, 1, 1])], from.within(0..90));
        let is_there = kind == SHT_PROGBITS;
        let at = if is_there { number(image.len()) } else { from.any() };
        sections.push([kind << 32, 0, 0, at, if is_there { size } else { from.any() }, 0, 0, 0]);
        if is_there {
            image.resize(image.len() + position(size), 7);
        }
    }
    let mut segments = Vec::new();
    for _ in 0..from.within(0..3) {
        let at = from.within(0..number(image.len()));
        let size = from.within(0..number(image.len()) - at + 1);
        segments.push([1, at, 0, 0, size, size + from.within(0..3), 0]);
    }
    // More sections than 16 bits count would be told so.
    let many = from.one_in(4);
    if many {
        sections[0][4] = number(sections.len());
    }
    let counts = [segments.len(), if many { 0 } else { sections.len() }];
    let tables = [table(&segments), table(&sections)];
    let mut places = [0; 2];
    let first = from.one_of([1, 1]);
    for place in [first, 1 - first] {
        places[place] = image.len();
        image.extend(&tables[place]);
    }
    image[..6].copy_from_slice(b"\x7fELF\x02\x01");
    image[18] = 190;
    for (at, place) in [(32, places[0]), (40, places[1])] {
        image[at..at + 8].copy_from_slice(&number(place).to_le_bytes());
    }
    for (at, half) in [(54, 56), (56, counts[0]), (58, 64), (60, counts[1])] {
        image[at..at + 2].copy_from_slice(&u16::try_from(half).expect("small").to_le_bytes());
    }
    image
}

fn table<const WORDS: usize>(headers: &[[u64; WORDS]]) -> Vec<u8> {
    headers.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
}

fn number(length: usize) -> u64 {
    u64::try_from(length).expect("64 bits")
}

fn position(size: u64) -> usize {
    usize::try_from(size).expect("small")
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes.starts_with(ELF_MAGIC) || bytes.starts_with(FATBIN_MAGIC)
}

fn is_told(error: &ImageError, bytes: &[u8]) {
    assert!(!error.to_string().is_empty());
    match error {
        ImageError::Empty => assert!(bytes.is_empty()),
        ImageError::Truncated { needed, available, .. } => {
            assert_eq!(usize::try_from(*available), Ok(bytes.len()));
            assert!(needed > available);
        }
        ImageError::ZeroByte { at } => assert_eq!(bytes[*at], 0),
        ImageError::Unknown { start } => assert!(bytes.starts_with(start)),
        ImageError::Damaged { .. } => assert!(is_binary(bytes)),
        ImageError::InFatbin { .. } => assert!(bytes.starts_with(FATBIN_MAGIC)),
        other => panic!("{other}"),
    }
}

/// A second look at an image, naively and in u128.
struct Look<'a> {
    bytes: &'a [u8],
}

impl Look<'_> {
    /// Where the last byte that must be there ends, if all are.
    fn whole(&self) -> Option<usize> {
        let end = if self.bytes.starts_with(ELF_MAGIC) {
            self.elf()?
        } else if self.bytes.starts_with(FATBIN_MAGIC) {
            (self.number(6, 2)? + self.number(8, 8)?).max(16)
        } else {
            return self.ptx().then_some(self.bytes.len());
        };
        usize::try_from(end).ok().filter(|end| *end <= self.bytes.len())
    }

    fn ptx(&self) -> bool {
        let end = self.bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let text = &self.bytes[..end];
        let mut rest = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        // One blank or comment after the other.
        while let [first, ..] = rest {
            let end = match (first, rest.get(1)) {
                (b' ' | b'\t' | b'\r' | b'\n' | 12, _) => Some(1),
                (b'/', Some(b'/')) => rest.iter().position(|byte| *byte == b'\n'),
                (b'/', Some(b'*')) if rest.get(2) != Some(&b'/') => {
                    rest[2..].windows(2).position(|pair| pair == b"*/").map(|at| at + 4)
                }
                _ => break,
            };
            let Some(end) = end else { return false };
            rest = &rest[end..];
        }
        let Some(after) = rest.strip_prefix(b".version") else { return false };
        let value = after.iter().find(|byte| !b" \t".contains(byte));
        let is_number = value.is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.');
        let is_apart = after.first().is_some_and(|byte| b" \t".contains(byte));
        is_apart && is_number && !text.contains(&0)
    }

    fn elf(&self) -> Option<u128> {
        let is_cuda = self.number(4, 1)? == 2 && self.number(18, 2)? == EM_CUDA;
        let mut end = 64;
        let (segments, sections) = (self.number(32, 8)?, self.number(40, 8)?);
        let (segment_size, section_size) = (self.number(54, 2)?, self.number(58, 2)?);
        let mut counts = [self.number(56, 2)?, self.number(60, 2)?];
        if counts[1] == 0 && sections != 0 {
            // More than 16 bits hold: the first section's header has the number.
            counts[1] = self.number(sections + 32, 8)?;
            end = end.max(sections + 64);
        }
        let too_small = |count, size, least| count > 0 && size < least;
        if too_small(counts[0], segment_size, 56) || too_small(counts[1], section_size, 64) {
            return None;
        }
        for index in 0..counts[1] {
            let at = sections + index * section_size;
            end = end.max(at + section_size);
            let (kind, from, size) =
                (self.number(at + 4, 4)?, self.number(at + 24, 8)?, self.number(at + 32, 8)?);
            let without = [SHT_NULL, SHT_NOBITS].into_iter().chain(SHT_CUDA_NOBITS);
            if !without.map(u128::from).any(|other| other == kind) {
                end = end.max(from + size);
            }
        }
        for index in 0..counts[0] {
            let at = segments + index * segment_size;
            end = end.max(at + segment_size);
            end = end.max(self.number(at + 8, 8)? + self.number(at + 32, 8)?);
        }
        (is_cuda && self.bytes.len() >= 64).then_some(end)
    }

    fn number(&self, at: u128, size: usize) -> Option<u128> {
        let at = usize::try_from(at).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }
}
