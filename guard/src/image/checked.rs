//! Checks kernel images before they are loaded. A truncated cubin makes the driver crash with a segmentation
//! fault (H200).

use super::architecture::Architecture;
use super::error::ImageError;
use super::{elf, fatbin, ptx};
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
    /// PTX is ASCII text. A byte order mark is removed, and other non-ASCII bytes become `?`. They occur in
    /// comments and paths of source files. ptxas of CUDA 13.0 rejects such bytes, and ptxas of 12.4 crashes.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if they are not an image, or incomplete.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, ImageError> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(ImageError::Empty);
        }
        if bytes.starts_with(&object::elf::ELFMAG) {
            elf::check(&bytes)?;
        } else if bytes.starts_with(&fatbin::MAGIC) {
            fatbin::check(&bytes)?;
        } else {
            return Ok(Self { bytes: check_ptx(bytes)?, is_ptx: true });
        }
        Ok(Self { bytes, is_ptx: false })
    }

    /// The image's bytes; PTX ends with a zero byte.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The PTX text, without the zero byte at its end.
    pub fn ptx(&self) -> Option<&str> {
        let text = self.bytes.strip_suffix(&[0]).unwrap_or(&self.bytes);
        if self.is_ptx { core::str::from_utf8(text).ok() } else { None }
    }

    /// The target that PTX states, such as `sm_90`.
    pub(crate) fn ptx_target(&self) -> Option<&str> {
        ptx::header(self.ptx()?)?.1
    }

    /// The PTX version, such as `8.0`.
    pub(crate) fn ptx_version(&self) -> Option<&str> {
        Some(ptx::header(self.ptx()?)?.0)
    }

    /// The kernels that the PTX declares.
    pub(crate) fn ptx_kernels(&self) -> Vec<String> {
        ptx::kernel_names(self.ptx().unwrap_or_default()).map(str::to_owned).collect()
    }

    /// Whether devices of `capability` cannot run the PTX.
    pub(crate) fn ptx_is_foreign_to(&self, capability: ComputeCapability) -> bool {
        let target = self.ptx_target().and_then(|name| Architecture::from_name(name).ok());
        target.is_some_and(|target| !target.compiles_for(capability))
    }
}

/// Checks PTX, and ends it with the zero byte that the driver expects.
fn check_ptx(mut bytes: Vec<u8>) -> Result<Vec<u8>, ImageError> {
    let unknown = ImageError::unknown(&bytes);
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(end);
    let zero = bytes.iter().position(|byte| *byte == 0);
    if bytes.starts_with(&BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    bytes.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
    if core::str::from_utf8(&bytes).ok().and_then(ptx::header).is_none() {
        return Err(unknown);
    }
    if let Some(at) = zero {
        return Err(ImageError::ZeroByte { at });
    }
    bytes.push(0);
    Ok(bytes)
}

/// Some editors write it before UTF-8 text.
const BYTE_ORDER_MARK: [u8; 3] = *b"\xef\xbb\xbf";

#[cfg(all(test, feature = "cuda"))]
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
    fn bytes_past_ascii_do_not_reach_the_driver() {
        let text = b"\xef\xbb\xbf// \xe9\xc3\xa9\n.version 8.0\n.target sm_90\n.file 1 \"/\xff/a.cu\"\n\0\0";
        let image = Image::new(*text).expect("PTX");
        let plain = "// ???\n.version 8.0\n.target sm_90\n.file 1 \"/?/a.cu\"\n";
        assert_eq!(image.ptx(), Some(plain));
        assert_eq!(Image::new(image.bytes()), Ok(image));
        let error = Image::new(*b"\xef\xbb\xbf.version 8.0\n\0x").expect_err("zero within");
        assert_eq!(error, ImageError::ZeroByte { at: 16 });
        // A non-ASCII blank is not skipped.
        let start = b"\xc2\xa0.versi".to_vec();
        assert_eq!(Image::new(*b"\xc2\xa0.version 8.0\n"), Err(ImageError::Unknown { start }));
    }
}
