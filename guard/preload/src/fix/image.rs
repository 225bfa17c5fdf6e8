//! Returns the digest of a loaded image, and its PTX or the reason for not rewriting it.

use core::ffi::c_void;
use core::ptr;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use gridguard::ComputeCapability;
use gridguard::image::{FileImage, ImageFile, fatbin_bytes};

use crate::driver::Driver;
use crate::process;
use crate::watch::kept::hash_of;
use crate::watch::known::Reason;

/// The place of an image that a program loads.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// An image that the driver may load: text with a zero byte at its end, a cubin, a fat binary, or the
    /// structure around one that compilers write.
    Memory(*const c_void),
    /// The path of a file, which may be null.
    File(*const c_void),
}

impl Source {
    /// The PTX, which ends with a zero.
    ///
    /// # Safety
    ///
    /// The pointer is to what its kind says, or null.
    pub(super) unsafe fn ptx(self, driver: &Driver) -> Result<Vec<u8>, Reason> {
        // SAFETY: by this function's contract.
        unsafe {
            // The structure of another version lists further images.
            if let Self::Memory(image) = self
                && wrapper_at(image.cast()).is_some_and(|wrapper| wrapper.version != 1)
            {
                return Err(UNKNOWN_FATBIN.into());
            }
            of_bytes(&self.bytes(usize::MAX)?, driver)
        }
    }

    /// A hash of the first bytes of the image, 0 if it cannot be read. The header of a cubin or fat binary is among
    /// them and states its size.
    ///
    /// # Safety
    ///
    /// As [`Self::ptx`]; the driver has loaded the image.
    pub(super) unsafe fn digest(self) -> u64 {
        // SAFETY: by this function's contract.
        let bytes = unsafe { self.bytes(DIGESTED) };
        bytes.map_or(0, |bytes| hash_of(&bytes[..bytes.len().min(DIGESTED)]))
    }

    /// The image, at least its first `most` bytes if it has as many.
    ///
    /// # Safety
    ///
    /// As [`Self::ptx`].
    unsafe fn bytes<'a>(self, most: usize) -> Result<Cow<'a, [u8]>, Reason> {
        let path = match self {
            // SAFETY: by this function's contract.
            Self::Memory(image) => return unsafe { image_at(image.cast(), most) }.map(Cow::from),
            // SAFETY: as above.
            Self::File(path) => unsafe { process::text(path.cast()) }.ok_or("its path is null")?,
        };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        // Reading a pipe would leave nothing for the driver.
        if !path.is_file() {
            return Err(format!("{} is no regular file", path.display()).into());
        }
        let failed = |error| Reason::from(format!("{}: {error}", path.display()));
        let (file, mut bytes) = (File::open(path).map_err(failed)?, Vec::new());
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        file.take(most).read_to_end(&mut bytes).map_err(failed)?;
        Ok(bytes.into())
    }
}

/// The fat binary, the first [`DIGESTED`] bytes of the cubin, or the first `most` bytes of the text at `image`.
///
/// # Safety
///
/// `image` is null or one that the driver may load, as of [`Source::Memory`]. It lives for as long as the result.
unsafe fn image_at<'a>(image: *const u8, most: usize) -> Result<&'a [u8], Reason> {
    if image.is_null() {
        return Err("its image is null".into());
    }
    // SAFETY: by this function's contract; a comparison ends at the first other byte, so at a text's end.
    unsafe {
        if let Some(Wrapper { fatbin, .. }) = wrapper_at(image) {
            return match !fatbin.is_null() && begins_with(fatbin, FATBIN) {
                true => Ok(fatbin_at(fatbin)),
                false => Err(UNKNOWN_FATBIN.into()),
            };
        }
        if begins_with(image, ELF) {
            let bytes = elf_bytes(&image.cast::<[u8; 64]>().read()).min(DIGESTED);
            return Ok(core::slice::from_raw_parts(image, bytes));
        }
        match begins_with(image, FATBIN) {
            true => Ok(fatbin_at(image)),
            false => text_at(image, most),
        }
    }
}

/// The structure around a fat binary at `image`, if it is one.
///
/// # Safety
///
/// As [`image_at`].
unsafe fn wrapper_at(image: *const u8) -> Option<Wrapper> {
    // SAFETY: by this function's contract, the image is complete.
    unsafe {
        let is_one = !image.is_null() && begins_with(image, WRAPPER);
        is_one.then(|| image.cast::<Wrapper>().read_unaligned())
    }
}

/// The size of a cubin with this header: the tables of its sections and segments stand behind all else.
fn elf_bytes(header: &[u8; 64]) -> usize {
    let number = |at: usize, bytes: usize| {
        header[at..at + bytes].iter().rev().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte))
    };
    let end =
        |offset: u64, size: u64, count: u64| offset.saturating_add(size.saturating_mul(count));
    let segments = end(number(32, 8), number(54, 2), number(56, 2));
    let sections = end(number(40, 8), number(58, 2), number(60, 2));
    usize::try_from(segments.max(sections)).unwrap_or(usize::MAX).max(header.len())
}

/// The PTX of an image.
fn of_bytes(bytes: &[u8], driver: &Driver) -> Result<Vec<u8>, Reason> {
    if bytes.starts_with(ELF) {
        return Err(MACHINE_CODE.into());
    }
    if !bytes.starts_with(FATBIN) {
        return Ok(with_zero(bytes.to_owned()));
    }
    let unreadable = |error| Reason::from(format!("its fat binary cannot be read: {error}"));
    let file = ImageFile::parse(bytes).map_err(unreadable)?;
    let image = chosen(&file, &driver.capabilities(), process::options().forces_ptx)?;
    let options = image.compiler_options();
    if !options.is_empty() {
        return Err(format!(
            "the PTX of its fat binary is compiled with options that a rewritten one would lose: {options}"
        )
        .into());
    }
    Ok(with_zero(image.ptx().map_err(unreadable)?.into_owned()))
}

/// The PTX that the driver compiles of a fat binary, if it does so for all devices of the process. Machine
/// code is not replaced, since that would change launches that need no fix.
fn chosen<'i, 'a>(
    file: &'i ImageFile<'a>,
    capabilities: &[ComputeCapability],
    forces_ptx: bool,
) -> Result<&'i FileImage<'a>, Reason> {
    let of_device = |capability: &ComputeCapability| {
        let ptx = file.images().filter(|image| image.is_ptx() && image.runs_on(*capability));
        match forces_ptx {
            true => ptx.max_by_key(|image| image.architecture()),
            false => file.images_for(*capability).next(),
        }
    };
    let mut images = capabilities.iter().map(of_device);
    let Some(Some(first)) = images.next() else {
        return Err("its fat binary has nothing for the devices of the process".into());
    };
    if !first.is_ptx() {
        let has_ptx = file.images().any(FileImage::is_ptx);
        return Err(if has_ptx { COMPILED.into() } else { MACHINE_CODE.into() });
    }
    match images.all(|other| other.is_some_and(|other| ptr::eq(other, first))) {
        true => Ok(first),
        false => Err("the devices of the process use different images of its fat binary".into()),
    }
}

/// Whether these bytes stand at `image`.
///
/// # Safety
///
/// So many bytes can be read up to and including the first other one.
unsafe fn begins_with(image: *const u8, bytes: &[u8]) -> bool {
    // SAFETY: all bytes before were equal.
    bytes.iter().enumerate().all(|(at, byte)| unsafe { image.add(at).read() } == *byte)
}

/// The fat binary at `image`.
///
/// # Safety
///
/// A complete one stands there, and lives for as long as the result.
unsafe fn fatbin_at<'a>(image: *const u8) -> &'a [u8] {
    // SAFETY: the header of a fat binary has 16 bytes.
    let header = unsafe { image.cast::<[u8; 16]>().read() };
    let bytes = fatbin_bytes(&header).and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    // SAFETY: a complete fat binary has the bytes that its header states.
    unsafe { core::slice::from_raw_parts(image, bytes) }
}

/// The text at `image`, which a zero byte ends, or its first `most` bytes.
///
/// # Safety
///
/// All bytes up to the first one that stands in no text can be read, and live for as long as the result.
unsafe fn text_at<'a>(image: *const u8, most: usize) -> Result<&'a [u8], Reason> {
    let mut length = 0;
    while length < most {
        // SAFETY: all bytes before stand in text.
        let byte = unsafe { image.add(length).read() };
        match byte {
            0 => break,
            b'\t' | b'\n' | 0x0b | 0x0c | b'\r' | b' '..=b'~' | 0x80.. => length += 1,
            _ => return Err("its image is of a format that is not known".into()),
        }
    }
    // SAFETY: `length` bytes were read.
    Ok(unsafe { core::slice::from_raw_parts(image, length) })
}

/// The text with one zero byte at its end, as the driver takes it.
fn with_zero(mut text: Vec<u8>) -> Vec<u8> {
    let end = text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    text.truncate(end);
    text.push(0);
    text
}

/// What compilers write around a fat binary.
#[repr(C)]
struct Wrapper {
    magic: [u8; 4],
    version: u32,
    fatbin: *const u8,
}

/// Bytes of an image that are hashed. Different images differ there, and hashing more would take time.
const DIGESTED: usize = 256 << 10;
const ELF: &[u8] = b"\x7fELF";
const FATBIN: &[u8] = &0xba55_ed50_u32.to_le_bytes();
const WRAPPER: &[u8] = &0x4662_43b1_u32.to_le_bytes();
const UNKNOWN_FATBIN: &str = "its fat binary has a format that is not known";
const MACHINE_CODE: &str = "its module is machine code without PTX";
const COMPILED: &str = "its fat binary has machine code for this device, which is not replaced; with \
                        CUDA_FORCE_PTX_JIT=1 the driver compiles its PTX instead, which is rewritten";

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &[u8] = b".version 8.0\n.target sm_90\n.entry k() { ret; }\n\0";

    /// A fat binary of entries, given by kind, architecture, content and the compiler's options.
    fn fatbin(entries: &[(u16, u32, &[u8], &[u8])]) -> Vec<u8> {
        let mut content = Vec::new();
        for (kind, architecture, bytes, options) in entries {
            let header = 72 + options.len().next_multiple_of(8);
            let mut entry = vec![0_u8; header];
            entry[..2].copy_from_slice(&kind.to_le_bytes());
            entry[4..8].copy_from_slice(&u32::try_from(header).unwrap().to_le_bytes());
            entry[8..16].copy_from_slice(&u64::try_from(bytes.len()).unwrap().to_le_bytes());
            entry[28..32].copy_from_slice(&architecture.to_le_bytes());
            entry[64..68].copy_from_slice(&72_u32.to_le_bytes());
            entry[68..72].copy_from_slice(&u32::try_from(options.len()).unwrap().to_le_bytes());
            entry[72..72 + options.len()].copy_from_slice(options);
            content.extend(entry);
            content.extend(*bytes);
        }
        let mut image = FATBIN.to_vec();
        image.extend([1, 0, 16, 0]);
        image.extend(u64::try_from(content.len()).unwrap().to_le_bytes());
        image.extend(content);
        image
    }

    fn of(image: &[u8]) -> Result<Vec<u8>, Reason> {
        // SAFETY: a complete image, or text with a zero byte at its end.
        unsafe { Source::Memory(image.as_ptr().cast()).ptx(&Driver::NONE) }
    }

    #[track_caller]
    fn assert_kept<T>(found: Result<T, Reason>, reason: &str) {
        let found = found.map(|_| ()).unwrap_err();
        assert!(found.starts_with(reason), "{found}");
    }

    #[test]
    fn equal_images_have_one_digest_and_others_another() {
        let digest = |image: &[u8]| {
            // SAFETY: an image of the kinds that the driver may load.
            unsafe { Source::Memory(image.as_ptr().cast()).digest() }
        };
        let other = [b"// one\n", PTX].concat();
        let mut cubin = [ELF, &[0; 96]].concat();
        // A table of one section of 36 bytes, at the end.
        (cubin[40], cubin[58], cubin[60]) = (64, 36, 1);
        let mut other_cubin = cubin.clone();
        other_cubin[99] = 1;
        let fatbins = [PTX, &other].map(|text| fatbin(&[(1, 90, text, b"")]));
        let images = [PTX, &other, &cubin, &other_cubin, &fatbins[0], &fatbins[1]];
        let digests: std::collections::BTreeSet<u64> =
            images.iter().map(|image| digest(image)).collect();
        assert_eq!(digests.len(), images.len());
        let copies = images.map(<[u8]>::to_vec);
        assert!(copies.iter().zip(images).all(|(copy, image)| digest(copy) == digest(image)));
        let wrapper = Wrapper {
            magic: 0x4662_43b1_u32.to_le_bytes(),
            version: 1,
            fatbin: fatbins[0].as_ptr(),
        };
        // SAFETY: the structure around a fat binary.
        let wrapped = unsafe { Source::Memory((&raw const wrapper).cast()).digest() };
        assert_eq!(wrapped, digest(&fatbins[0]));
        // No more is read than is hashed.
        let mut long = vec![b' '; DIGESTED];
        long.extend(b"\xff");
        assert_eq!(digest(&long), hash_of(&long[..DIGESTED]));
    }

    #[test]
    fn text_is_read_to_its_zero_byte_and_other_data_no_further_than_it_is_text() {
        assert_eq!(of(PTX), Ok(PTX.to_vec()));
        assert_eq!(of(b"\0"), Ok(b"\0".to_vec()));
        assert_eq!(of(b"// \xc3\xa9\r\n\0other"), Ok(b"// \xc3\xa9\r\n\0".to_vec()));
        assert_kept(of(b"P\x01"), "its image is of a format that is not known");
        assert_kept(of(&[ELF, &[0; 60]].concat()), "its module is machine code without PTX");
        // SAFETY: null is no image.
        assert_kept(unsafe { Source::Memory(ptr::null()).ptx(&Driver::NONE) }, "its image is null");
    }

    #[test]
    fn of_a_fat_binary_counts_what_the_driver_would_use() {
        let hopper = [ComputeCapability::new(9, 0)];
        let both = [hopper[0], ComputeCapability::new(8, 6)];
        let (ptx, cubin): (u16, u16) = (1, 2);
        let whole = fatbin(&[(cubin, 80, b"", b""), (ptx, 80, PTX, b""), (ptx, 90, PTX, b"")]);
        let file = ImageFile::parse(&whole).expect("a fat binary");
        let architecture = |found: Result<&FileImage<'_>, Reason>| {
            found.map(|image| image.architecture().expect("stated").to_string())
        };
        let chosen = |capabilities: &[_], forces| architecture(chosen(&file, capabilities, forces));
        assert_eq!(chosen(&hopper, false).as_deref(), Ok("sm_90"));
        assert_kept(chosen(&both[1..], false), "its fat binary has machine code for this device");
        assert_eq!(chosen(&both[1..], true).as_deref(), Ok("sm_80"));
        assert_kept(chosen(&both, true), "the devices of the process use different images");
        assert_kept(chosen(&[], false), "its fat binary has nothing for the devices");
        assert_kept(
            chosen(&[ComputeCapability::new(7, 0)], true),
            "its fat binary has nothing for the devices",
        );
    }

    #[test]
    fn a_fat_binary_is_read_with_and_without_the_structure_around_it() {
        let hopper = [ComputeCapability::new(9, 0)];
        let plain = fatbin(&[(1, 90, PTX, b"")]);
        let with_options = fatbin(&[(1, 90, PTX, b" -maxrregcount 32 ")]);
        let text = |bytes: &[u8]| {
            let file = ImageFile::parse(bytes).map_err(|error| Reason::from(error.to_string()))?;
            chosen(&file, &hopper, false).map(|image| {
                (image.ptx().expect("PTX").into_owned(), image.compiler_options().into_owned())
            })
        };
        assert_eq!(text(&plain), Ok((PTX.to_vec(), String::new())));
        assert_eq!(text(&with_options), Ok((PTX.to_vec(), "-maxrregcount 32".to_owned())));
        let only_code = fatbin(&[(2, 90, b"", b"")]);
        assert_kept(text(&only_code), "its module is machine code without PTX");
        for version in [1, 2] {
            let wrapper = Wrapper {
                magic: WRAPPER.try_into().expect("four bytes"),
                version,
                fatbin: plain.as_ptr(),
            };
            // SAFETY: a live structure around a complete fat binary.
            let found = unsafe { Source::Memory((&raw const wrapper).cast()).ptx(&Driver::NONE) };
            let expected = match version {
                // Without a driver there are no devices.
                1 => "its fat binary has nothing for the devices of the process",
                _ => "its fat binary has a format that is not known",
            };
            assert_kept(found, expected);
        }
    }
}
