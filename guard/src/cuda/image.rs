//! Checks kernel images before they are loaded.
//!
//! A truncated cubin makes the driver crash with a segmentation fault (seen on an H200), so only
//! complete images may reach it.

mod elf;
mod reader;

pub use self::reader::ImageError;
use self::reader::{Reader, unknown};
use crate::limits::ComputeCapability;

/// Device code: PTX text, a cubin or a fatbin, checked to be complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    bytes: Vec<u8>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ptx,
    Cubin,
    Fatbin,
}

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const FATBIN_MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

impl Image {
    /// Checks `bytes` and takes ownership of them.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if they are not an image, or incomplete.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, ImageError> {
        let mut bytes = bytes.into();
        if bytes.is_empty() {
            return Err(ImageError::Empty);
        }
        let kind = if bytes.starts_with(&ELF_MAGIC) {
            elf::check(&bytes)?;
            Kind::Cubin
        } else if bytes.starts_with(&FATBIN_MAGIC) {
            check_fatbin(&bytes)?;
            Kind::Fatbin
        } else {
            check_ptx(&mut bytes)?;
            Kind::Ptx
        };
        Ok(Self { bytes, kind })
    }

    /// The image's bytes; PTX ends with a zero byte.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The PTX text, without the zero byte at its end.
    #[must_use]
    pub fn ptx(&self) -> Option<&str> {
        let text = self.bytes.strip_suffix(&[0]).unwrap_or(&self.bytes);
        if self.kind == Kind::Ptx { core::str::from_utf8(text).ok() } else { None }
    }

    /// The target that PTX states, such as `sm_90`.
    pub(super) fn ptx_target(&self) -> Option<&str> {
        let target = directive(self.ptx()?, ".target")?;
        target.split(',').next().map(str::trim)
    }

    /// The PTX version, such as `8.0`.
    pub(super) fn ptx_version(&self) -> Option<&str> {
        directive(self.ptx()?, ".version")
    }

    /// The kernels that the PTX declares.
    pub(super) fn ptx_kernels(&self) -> Vec<String> {
        let name = |line: &str| {
            let (_, after) = line.split_once(".entry")?;
            let name = after.trim().split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'));
            name.into_iter().next().filter(|name| !name.is_empty()).map(str::to_owned)
        };
        self.ptx().map(|text| text.lines().filter_map(name).collect()).unwrap_or_default()
    }

    /// Whether devices of `capability` cannot run the PTX: it runs on its target architecture and
    /// later ones; with suffix `a` on its own only, with `f` on its family.
    pub(super) fn ptx_is_foreign_to(&self, capability: ComputeCapability) -> bool {
        let Some(target) = self.ptx_target().and_then(|target| target.strip_prefix("sm_")) else {
            return false;
        };
        let digits = target.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let Ok(number) = digits.parse::<u32>() else {
            return false;
        };
        let own = capability.major * 10 + capability.minor;
        match target.strip_prefix(digits) {
            Some("a") => number != own,
            Some("f") => number / 10 != capability.major || number > own,
            _ => number > own,
        }
    }
}

fn directive<'a>(ptx: &'a str, name: &str) -> Option<&'a str> {
    ptx.lines().find_map(|line| {
        let value = line.trim_start().strip_prefix(name)?;
        value.starts_with(char::is_whitespace).then(|| {
            let end = value.find("//").unwrap_or(value.len());
            value.get(..end).unwrap_or(value).trim()
        })
    })
}

fn check_ptx(bytes: &mut Vec<u8>) -> Result<(), ImageError> {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        let is_text = core::str::from_utf8(bytes).is_ok_and(|text| text.contains(".version"));
        return Err(if is_text { ImageError::ZeroByte { at } } else { unknown(bytes) });
    }
    if !core::str::from_utf8(bytes).is_ok_and(|text| directive(text, ".version").is_some()) {
        return Err(unknown(bytes));
    }
    bytes.push(0);
    Ok(())
}

/// Checks that the fatbin's header and content are complete.
fn check_fatbin(bytes: &[u8]) -> Result<(), ImageError> {
    let header = Reader { bytes, part: "fatbin header" };
    let size = header.number(6, 2)?;
    let content = header.number(8, 8)?;
    header.part_end("fatbin content", size, content)?;
    Ok(())
}

#[cfg(test)]
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
    fn the_error_about_other_data_shows_its_first_bytes() {
        assert_eq!(Image::new(""), Err(ImageError::Empty));
        let error = Image::new("hello world").expect_err("no PTX");
        assert_eq!(
            error.to_string(),
            "the image is neither PTX, cubin nor fatbin, it begins with \
             [68, 65, 6c, 6c, 6f, 20, 77, 6f]"
        );
        let error = Image::new(*b".version 8.0\n\0.target sm_90\n").expect_err("zero within");
        assert_eq!(error, ImageError::ZeroByte { at: 13 });
    }

    #[test]
    fn a_truncated_fatbin_is_rejected() {
        let mut bytes = vec![0; 16 + 32];
        bytes[..4].copy_from_slice(&FATBIN_MAGIC);
        bytes[6] = 16;
        bytes[8] = 32;
        assert!(Image::new(bytes.clone()).is_ok());
        bytes.pop();
        assert!(matches!(Image::new(bytes), Err(ImageError::Truncated { .. })));
    }
}
