//! Reads a loaded image: its digest, and its PTX or the origin of its machine code.

use core::ffi::c_void;
use core::ptr;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gridguard::ComputeCapability;
use gridguard::image::{FileImage, ImageFile, fatbin_bytes};

use crate::driver::Driver;
use crate::fix::fatbin::{in_fatbin, text_of, unreadable, with_zero};
use crate::process::{self, elf, reserve};
use crate::watch::handle_record::{Digest, Origin, Reason, cubin_bytes};
use crate::watch::slot_cache::hash_of;

/// Where an image that a program loads is.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// An image that the driver may load: text with a zero byte at its end, a cubin, a fat binary, or the
    /// structure around one that compilers write.
    Memory(*const c_void),
    /// The path of a file, which may be null.
    File(*const c_void),
}

/// The contents of an image, for `--fix`.
#[derive(Debug)]
pub(super) enum Contents {
    /// PTX that the driver compiles on all devices of the process, with a zero at its end.
    Ptx(Vec<u8>),
    /// Machine code, on some device at least.
    Machine(Origin),
}

impl Source {
    /// The contents of the image.
    ///
    /// # Safety
    ///
    /// The pointer is null, or leads to an image of the variant's kind.
    pub(super) unsafe fn contents(self, driver: &Driver) -> Result<Contents, Reason> {
        // SAFETY: by this function's contract.
        unsafe {
            // The structure of another version lists further images.
            if let Self::Memory(image) = self
                && wrapper_at(image.cast()).is_some_and(|wrapper| wrapper.version != 1)
            {
                return Err(UNKNOWN_FATBIN.into());
            }
            let most = if matches!(self, Self::File(_)) { MOST_READ } else { usize::MAX };
            let bytes = self.bytes(most)?;
            let is_cut = bytes.len() == most;
            if bytes.starts_with(ELF) {
                return Ok(Contents::Machine(Origin::Cubin(Digest::of_cubin(&bytes))));
            }
            if !bytes.starts_with(FATBIN) {
                if is_cut {
                    return Err("its file has more than 64 MiB".into());
                }
                reserve::for_text(bytes.len())?;
                return Ok(Contents::Ptx(with_zero(bytes.into_owned())));
            }
            // A file that is not read whole is read again when a launch needs its image.
            let text = match is_cut {
                true => None,
                false => of_fatbin(&bytes, &driver.capabilities(), process::options().forces_ptx)?,
            };
            text.map_or_else(|| self.origin(&bytes, driver), |text| Ok(Contents::Ptx(text)))
        }
    }

    /// The origin of the machine code of a fat binary that begins with these bytes.
    ///
    /// # Safety
    ///
    /// As [`Self::contents`].
    unsafe fn origin(self, fatbin: &[u8], driver: &Driver) -> Result<Contents, Reason> {
        let origin = match self {
            Self::File(path) => {
                // SAFETY: by this function's contract.
                let path = unsafe { process::text(path.cast()) }.ok_or("its path is null")?;
                let path = Path::new(OsStr::from_bytes(path.to_bytes()));
                let path = std::path::absolute(path).map_err(|error| error.to_string())?;
                let digest = digest_of_path(&path, fatbin).map_err(|error| error.to_string())?;
                Origin::File { path, digest }
            }
            Self::Memory(_) => match digest_of_object(fatbin) {
                Some(digest) => {
                    Origin::Mapped { address: fatbin.as_ptr().expose_provenance(), digest }
                }
                None => {
                    let text = |capability| {
                        Ok(lz4_flex::compress_prepend_size(&in_fatbin(fatbin, capability)?))
                    };
                    let devices = driver.capabilities().into_iter();
                    Origin::Copied(devices.map(|device| (device, text(device))).collect())
                }
            },
        };
        Ok(Contents::Machine(origin))
    }

    /// A hash of the first bytes of the image, 0 if it cannot be read. The header of a cubin or fat binary is among
    /// them and states its size.
    ///
    /// # Safety
    ///
    /// As [`Self::contents`]; the driver has loaded the image.
    pub(crate) unsafe fn digest(self) -> u64 {
        // SAFETY: by this function's contract.
        unsafe { self.bytes(DIGESTED) }.map_or(0, |bytes| digest_of(&bytes))
    }

    /// The image, at least its first `most` bytes if it has as many.
    ///
    /// # Safety
    ///
    /// As [`Self::contents`].
    pub(crate) unsafe fn bytes<'a>(self, most: usize) -> Result<Cow<'a, [u8]>, Reason> {
        let path = match self {
            // SAFETY: by this function's contract.
            Self::Memory(image) => return unsafe { image_at(image.cast(), most) }.map(Cow::from),
            // SAFETY: null or a path, by this function's contract.
            Self::File(path) => unsafe { process::text(path.cast()) }.ok_or("its path is null")?,
        };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        let failed = |error: io::Error| Reason::from(format!("{}: {error}", path.display()));
        // Reading a pipe would leave nothing for the driver.
        let file = gridguard_files::open(path).map_err(|error| failed(error.into()))?;
        let mut bytes = Vec::new();
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        file.take(most).read_to_end(&mut bytes).map_err(failed)?;
        Ok(bytes.into())
    }
}

/// The fat binary, or the first `most` bytes of the cubin or text at `image`.
///
/// # Safety
///
/// `image` is null or an image that the driver may load, as in [`Source::Memory`]. It outlives the result.
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
            let bytes = cubin_bytes(&image.cast::<[u8; 64]>().read()).min(most);
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

/// The PTX of a fat binary, if the driver compiles it for all devices of the process. `None` if the driver uses machine
/// code for some device. Machine code is not replaced, because that would change launches that need no fix.
fn of_fatbin(
    bytes: &[u8],
    capabilities: &[ComputeCapability],
    forces_ptx: bool,
) -> Result<Option<Vec<u8>>, Reason> {
    let file = ImageFile::parse(bytes).map_err(unreadable)?;
    let of_device = |capability: &ComputeCapability| match forces_ptx {
        true => newest_ptx(&file, *capability),
        false => file.images_for(*capability).next(),
    };
    let mut images = capabilities.iter().map(of_device);
    let Some(Some(first)) = images.next() else {
        return Err("its fat binary has nothing for the devices of the process".into());
    };
    let is_same = |other: Option<&FileImage<'_>>| other.is_some_and(|other| ptr::eq(other, first));
    match first.is_ptx() && images.all(is_same) {
        true => text_of(first).map(Some),
        false => Ok(None),
    }
}

/// The PTX for the latest architecture that the device can run.
fn newest_ptx<'i, 'a>(
    file: &'i ImageFile<'a>,
    capability: ComputeCapability,
) -> Option<&'i FileImage<'a>> {
    let ptx = file.images().filter(|image| image.is_ptx() && image.runs_on(capability));
    ptx.max_by_key(|image| image.architecture())
}

/// The digest of an image that begins with these bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> u64 {
    hash_of(&bytes[..bytes.len().min(DIGESTED)])
}

/// The digest of a file that begins with these bytes. Builds that differ only after these bytes have different file
/// times.
pub(super) fn digest_of_path(path: &Path, bytes: &[u8]) -> io::Result<u64> {
    let file = std::fs::metadata(path)?;
    let times = (file.ctime(), file.ctime_nsec(), file.mtime(), file.mtime_nsec());
    Ok(hash_of(&(digest_of(bytes), file.dev(), file.ino(), file.len(), times)))
}

/// The digest of the file of the loaded object that contains these bytes.
pub(super) fn digest_of_object(bytes: &[u8]) -> Option<u64> {
    let address = bytes.as_ptr().addr();
    let path = elf::path_of(address).filter(|_| elf::contains(address, bytes.len()))?;
    let program = Path::new("/proc/self/exe");
    let path =
        if path.is_empty() { program } else { Path::new(OsStr::from_bytes(path.to_bytes())) };
    digest_of_path(path, bytes).ok()
}

/// Whether these bytes stand at `image`.
///
/// # Safety
///
/// The bytes at `image` can be read, up to and including the first one that differs.
unsafe fn begins_with(image: *const u8, bytes: &[u8]) -> bool {
    // SAFETY: all bytes before were equal.
    bytes.iter().enumerate().all(|(at, byte)| unsafe { image.add(at).read() } == *byte)
}

/// The fat binary at `image`.
///
/// # Safety
///
/// A complete fat binary is there, and outlives the result.
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
/// All bytes up to the first one that cannot be part of a text can be read, and outlive the result.
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

/// The structure that compilers write around a fat binary.
#[repr(C)]
struct Wrapper {
    magic: [u8; 4],
    version: u32,
    fatbin: *const u8,
}

/// Bytes of an image that are hashed. Different images differ there, and hashing more would take time.
const DIGESTED: usize = 256 << 10;
pub(super) const ELF: &[u8] = b"\x7fELF";
pub(super) const FATBIN: &[u8] = &0xba55_ed50_u32.to_le_bytes();
const WRAPPER: &[u8] = &0x4662_43b1_u32.to_le_bytes();
const UNKNOWN_FATBIN: &str = "its fat binary has a format that is not known";
/// Bytes of a file that are read when it is loaded.
const MOST_READ: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &[u8] = b".version 8.0\n.target sm_90\n.entry k() { ret; }\n\0";

    /// A fat binary of entries, given by kind, architecture and content.
    fn fatbin(entries: &[(u16, u32, &[u8])]) -> Vec<u8> {
        let mut content = Vec::new();
        for (kind, architecture, bytes) in entries {
            let mut entry = [0_u8; 64];
            entry[..2].copy_from_slice(&kind.to_le_bytes());
            entry[4] = 64;
            entry[8..16].copy_from_slice(&u64::try_from(bytes.len()).unwrap().to_le_bytes());
            entry[28..32].copy_from_slice(&architecture.to_le_bytes());
            content.extend(entry);
            content.extend(*bytes);
        }
        let bytes = u64::try_from(content.len()).unwrap().to_le_bytes();
        [FATBIN, &[1, 0, 16, 0], &bytes, &content].concat()
    }

    fn of(image: &[u8]) -> Result<Vec<u8>, Reason> {
        // SAFETY: a complete image, or text with a zero byte at its end.
        match unsafe { Source::Memory(image.as_ptr().cast()).contents(&Driver::NONE) }? {
            Contents::Ptx(text) => Ok(text),
            Contents::Machine(origin) => Err(format!("{origin:?}").into()),
        }
    }

    #[track_caller]
    fn assert_kept<T>(found: Result<T, Reason>, reason: &str) {
        let found = found.map(|_| ()).unwrap_err();
        assert!(found.starts_with(reason), "{found}");
    }

    #[test]
    fn text_is_read_to_its_zero_byte_and_other_data_no_further_than_it_is_text() {
        assert_eq!(of(PTX), Ok(PTX.to_vec()));
        assert_eq!(of(b"\0"), Ok(b"\0".to_vec()));
        assert_eq!(of(b"// \xc3\xa9\r\n\0other"), Ok(b"// \xc3\xa9\r\n\0".to_vec()));
        assert_kept(of(b"P\x01"), "its image is of a format that is not known");
        assert_kept(of(&[ELF, &[0; 60]].concat()), "Cubin(Digest { bytes: 64, hash: ");
        // SAFETY: null is no image.
        let null = unsafe { Source::Memory(ptr::null()).contents(&Driver::NONE) };
        assert_kept(null, "its image is null");
    }

    #[test]
    fn of_a_fat_binary_counts_what_the_driver_would_use() {
        let hopper = [ComputeCapability::new(9, 0)];
        let both = [hopper[0], ComputeCapability::new(8, 6)];
        let (ptx, cubin): (u16, u16) = (1, 2);
        let older = b".version 8.0\n.target sm_80\n\0";
        let whole = fatbin(&[(cubin, 80, b""), (ptx, 80, older), (ptx, 90, PTX)]);
        let chosen = |capabilities: &[_], forces| {
            let text = of_fatbin(&whole, capabilities, forces)?;
            Ok(text.map(|text| if text == PTX { "sm_90" } else { "sm_80" }))
        };
        assert_eq!(chosen(&hopper, false), Ok(Some("sm_90")));
        // Machine code on one of the devices.
        assert_eq!((chosen(&both[1..], false), chosen(&both, false)), (Ok(None), Ok(None)));
        assert_eq!(chosen(&both[1..], true), Ok(Some("sm_80")));
        assert_eq!(chosen(&both, true), Ok(None));
        assert_kept(chosen(&[], false), "its fat binary has nothing for the devices");
        let old = ComputeCapability::new(7, 0);
        assert_kept(chosen(&[old], true), "its fat binary has nothing for the devices");
    }
}
