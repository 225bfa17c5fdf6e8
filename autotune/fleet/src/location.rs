//! Addresses of channels: `oci://registry/repository:tag`, and URLs of object stores with a tag.

use core::fmt;
use core::str::FromStr;

use url::Url;

use crate::error::FleetError;

/// The address of a channel: a repository or a folder of an object store, and a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub(crate) base: Url,
    pub(crate) tag: String,
}

impl Location {
    /// The tag, `latest` if the address has none.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The same repository with another tag.
    ///
    /// # Errors
    ///
    /// [`FleetError::Address`] for an invalid tag.
    pub fn with_tag(&self, tag: &str) -> Result<Self, FleetError> {
        let base = self.base.clone();
        if is_tag(tag) {
            Ok(Self { base, tag: tag.to_owned() })
        } else {
            Err(address(tag, BAD_TAG))
        }
    }

    /// The channel of the releases here: the last part of the path, and the tag. It is equal for mirrors.
    pub fn channel(&self) -> String {
        let last =
            self.base.path_segments().and_then(|mut parts| parts.rfind(|part| !part.is_empty()));
        format!("{}:{}", last.unwrap_or_default(), self.tag)
    }

    /// Whether the address is of an OCI registry, and whether without TLS.
    pub(crate) fn registry(&self) -> Option<bool> {
        match self.base.scheme() {
            "oci" => Some(false),
            "oci+http" => Some(true),
            _ => None,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.base.as_str().trim_end_matches('/'), self.tag)
    }
}

impl FromStr for Location {
    type Err = FleetError;

    fn from_str(text: &str) -> Result<Self, FleetError> {
        // The part after the last slash, so that ports stay.
        let split = text.rfind('/').map_or((text, ""), |slash| text.split_at(slash));
        let (base, tag) = match split.1.rsplit_once(':') {
            Some((name, tag)) => (format!("{}{name}", split.0), tag),
            None => (text.to_owned(), DEFAULT_TAG),
        };
        let base: Url =
            base.parse().map_err(|error| address(text, format_args!("{error}: {EXPECTED}")))?;
        let bad = match () {
            () if !SCHEMES.contains(&base.scheme()) => EXPECTED,
            () if !is_tag(tag) => BAD_TAG,
            () if base.query().or(base.fragment()).is_some() => "remove the part after the path",
            () if base.password().is_some() => {
                "remove the password: use `docker login` or variables of the store"
            }
            () => "",
        };
        if !bad.is_empty() {
            return Err(address(text, bad));
        }
        let location = Self { base, tag: tag.to_owned() };
        let is_repository = location.registry().is_none()
            || location.base.host().is_some()
                && location.base.username().is_empty()
                && location
                    .base
                    .path()
                    .strip_prefix('/')
                    .is_some_and(|path| path.split('/').all(is_component));
        if is_repository { Ok(location) } else { Err(address(text, BAD_REPOSITORY)) }
    }
}

fn address(url: &str, reason: impl fmt::Display) -> FleetError {
    FleetError::Address { url: url.to_owned(), reason: reason.to_string() }
}

/// Whether the text is a tag of the OCI distribution specification.
fn is_tag(tag: &str) -> bool {
    let in_tag = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    tag.len() <= 128 && tag.bytes().all(in_tag) && !tag.starts_with(['.', '-']) && !tag.is_empty()
}

/// Whether the text is a component of a repository's name.
fn is_component(part: &str) -> bool {
    let in_part =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    !part.is_empty() && part.bytes().all(in_part) && !part.starts_with(['.', '-', '_'])
}

const SCHEMES: [&str; 12] =
    ["oci", "oci+http", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "file", "http", "https"];
const EXPECTED: &str =
    "expected oci://REGISTRY/REPOSITORY:TAG, or a URL of s3, gs, az, file or https";
const BAD_TAG: &str = "a tag has at most 128 letters, digits, '.', '_' and '-'";
const BAD_REPOSITORY: &str =
    "a repository has parts of lower-case letters, digits, '.', '_' and '-'";
const DEFAULT_TAG: &str = "latest";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_repository_and_a_tag() {
        for (text, shown, channel) in [
            (
                "oci://r.example:5000/a/profiles:stable",
                "oci://r.example:5000/a/profiles:stable",
                "profiles:stable",
            ),
            ("oci+http://127.0.0.1:5000/p", "oci+http://127.0.0.1:5000/p:latest", "p:latest"),
            (
                "s3://bucket/gpu/profiles:h200-1",
                "s3://bucket/gpu/profiles:h200-1",
                "profiles:h200-1",
            ),
            ("file:///srv/profiles/", "file:///srv/profiles:latest", "profiles:latest"),
            ("https://w.example:8443/p:1.0", "https://w.example:8443/p:1.0", "p:1.0"),
        ] {
            let location: Location = text.parse().expect("an address");
            assert_eq!(
                (location.to_string(), location.channel()),
                (shown.to_owned(), channel.to_owned())
            );
            let again: Location = location.to_string().parse().expect("its own text");
            assert_eq!(again.tag(), location.tag());
        }
    }

    #[test]
    fn other_text_is_no_address() {
        for wrong in [
            "",
            "profiles",
            "oci://",
            "oci://r",
            "oci://r/",
            "oci://r/A",
            "oci://r/a:",
            "oci://r/a:-",
            "oci://r/a:b c",
            "oci://u:p@r/a",
            "oci://u@r/a",
            "oci://r/a?b",
            "ftp://r/a",
            "memory:///a",
            "s3://b/p:\u{e9}",
            "oci://r/a//b",
        ] {
            let refused = wrong.parse::<Location>().expect_err(wrong);
            assert!(matches!(refused, FleetError::Address { .. }), "{refused}");
        }
        let location: Location = "oci://r/a".parse().expect("an address");
        assert!(location.with_tag("a/b").is_err());
    }
}
