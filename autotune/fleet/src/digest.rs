//! SHA-256 digests of blobs, and hexadecimal text.

use core::fmt::{self, Write as _};
use core::str::FromStr;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize, de};

/// The SHA-256 digest of a blob, in the form `sha256:0123...`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut all = [0; 32];
        all.iter_mut().zip(digest(&SHA256, bytes).as_ref()).for_each(|(to, from)| *to = *from);
        Self(all)
    }

    pub(crate) const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hexadecimal digits.
    pub(crate) fn hex(&self) -> String {
        hex(&self.0)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of `2 * N` lower-case hexadecimal digits.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let is_digit = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        let pair = pair.iter().all(is_digit).then(|| str::from_utf8(pair).ok())??;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(bytes)
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = text.strip_prefix("sha256:").and_then(unhex);
        bytes.map(Self).ok_or("a digest is sha256: and 64 lower-case hexadecimal digits")
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_its_text_and_nothing_else() {
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), text);
        assert_eq!(text.parse(), Ok(Digest::of(b"")));
        for wrong in ["", "sha256:", &text[..70], &text.to_uppercase(), &text.replace("e3", "+3")] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
