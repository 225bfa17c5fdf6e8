//! The key of a compiled image.

use core::fmt;

use gridguard::cuda::CompileOptions;
use sha2::{Digest, Sha256};

use crate::element::to_u64;

/// A hash of everything that determines a compiled image.
///
/// Covers the version of this package, the compiler's version, the architecture, the program's name,
/// its macros and options in order, and the source. Does not cover headers that the source includes,
/// nor the compiler's patch level, which NVRTC does not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CubinKey {
    digest: [u8; 32],
}

impl CubinKey {
    /// The key of `source` compiled with `options` by `compiler` (major and minor version).
    #[must_use]
    pub fn new(source: &str, options: &CompileOptions, compiler: (u32, u32)) -> Self {
        // No `..`, so that a new option must be added to the key.
        let CompileOptions {
            name,
            architecture: _,
            architecture_specific: _,
            defines,
            options: flags,
        } = options;
        let mut hash = Sha256::new();
        // Each field is preceded by its length and each list by its count, so that moving a byte from
        // one field to the next changes the key.
        let mut field = |bytes: &[u8]| {
            hash.update(to_u64(bytes.len()).to_le_bytes());
            hash.update(bytes);
        };
        field(KEY_TAG);
        field(env!("CARGO_PKG_VERSION").as_bytes());
        field(&compiler.0.to_le_bytes());
        field(&compiler.1.to_le_bytes());
        field(options.target().as_bytes());
        field(name.as_bytes());
        field(&to_u64(defines.len()).to_le_bytes());
        for (name, value) in defines {
            field(name.as_bytes());
            field(value.as_bytes());
        }
        field(&to_u64(flags.len()).to_le_bytes());
        for option in flags {
            field(option.as_bytes());
        }
        field(source.as_bytes());
        Self { digest: hash.finalize().into() }
    }

    pub(super) const fn from_digest(digest: [u8; 32]) -> Self {
        Self { digest }
    }

    pub(super) const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

/// The key in hexadecimal.
impl fmt::Display for CubinKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Part of every key; changing it invalidates all entries.
const KEY_TAG: &[u8] = b"gridguard cubin key 1";

#[cfg(test)]
mod tests {
    use gridguard::ComputeCapability;

    use super::*;

    #[test]
    fn every_field_changes_the_key() {
        let options = |name: &str, defines: &[(&str, &str)], further: &[&str]| {
            let mut options = CompileOptions::new(name, ComputeCapability::new(9, 0));
            for (name, value) in defines {
                options = options.define(*name, value);
            }
            options.options = further.iter().map(ToString::to_string).collect();
            options
        };
        let plain = |options: &CompileOptions| CubinKey::new("source", options, (12, 8));
        let newer = CompileOptions::new("a.cu", ComputeCapability::new(10, 0));
        let base = options("a.cu", &[("N", "12"), ("M", "3")], &["-G", "-w"]);
        let keys = [
            plain(&base),
            CubinKey::new("source ", &base, (12, 8)),
            CubinKey::new("", &base, (12, 8)),
            CubinKey::new("source", &base, (12, 9)),
            CubinKey::new("source", &base, (13, 8)),
            CubinKey::new("source", &base, (8, 12)),
            plain(&newer),
            plain(&options("a.cu", &[], &[])),
            plain(&options("b.cu", &[("N", "12"), ("M", "3")], &["-G", "-w"])),
            // Another value, another order, one fewer.
            plain(&options("a.cu", &[("N", "13"), ("M", "3")], &["-G", "-w"])),
            plain(&options("a.cu", &[("M", "3"), ("N", "12")], &["-G", "-w"])),
            plain(&options("a.cu", &[("N", "12")], &["-G", "-w"])),
            plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-w", "-G"])),
            plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-G"])),
            // The same bytes in other fields.
            plain(&options("a.cuN", &[("", "12"), ("M", "3")], &["-G", "-w"])),
            plain(&options("a.cu", &[("N1", "2"), ("M", "3")], &["-G", "-w"])),
            plain(&options("a.cu", &[("N", "12M"), ("", "3")], &["-G", "-w"])),
            plain(&options("a.cu", &[("N", "12"), ("M", "3-G")], &["", "-w"])),
            plain(&options("a.cu", &[("N", "12")], &["M", "3", "-G", "-w"])),
            plain(&options("a.cu", &[("N", "12"), ("M", "3"), ("-G", "-w")], &[])),
            plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-G-w"])),
            plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-G", "-w", "source"])),
            CubinKey::new(
                "-wsource",
                &options("a.cu", &[("N", "12"), ("M", "3")], &["-G", ""]),
                (12, 8),
            ),
            // Fields that look like the count of a list.
            plain(&options("a.cu", &[], &["x", "\0\0\0\0\0\0\0\0"])),
            plain(&options("a.cu", &[("\u{2}\0\0\0\0\0\0\0", "x")], &[])),
        ];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        let again = options("a.cu", &[("N", "12"), ("M", "3")], &["-G", "-w"]);
        assert_eq!(plain(&base), plain(&again));
    }

    #[test]
    fn a_key_is_shown_in_hexadecimal() {
        let mut digest = [0; 32];
        digest[0] = 0x0f;
        digest[31] = 0xa0;
        assert_eq!(CubinKey { digest }.to_string(), format!("0f{}a0", "0".repeat(60)));
    }
}
