//! Why a release was not pushed, pulled or accepted.

use core::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gridguard::profile::ProfileError;
use url::Url;

use crate::digest::Digest;

/// Why a release was not pushed, pulled or accepted. The pulled folder keeps its last good profiles.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum FleetError {
    /// The address cannot be used.
    #[error("{url}: {reason}")]
    Address { url: String, reason: String },
    /// A file of keys cannot be used.
    #[error("{}: {reason}", path.display())]
    Key { path: PathBuf, reason: String },
    /// There was no usable response. `retry_after` is how long the server asks clients to wait.
    #[error("{what}: {reason}")]
    Unreachable { what: String, reason: String, retry_after: Option<Duration> },
    /// The server refuses these credentials.
    #[error(
        "{what}: status {status}: log in to the registry, or set the credentials of the object store"
    )]
    Denied { what: String, status: u16 },
    /// There is no such tag or blob.
    #[error("{what}: there is none{}: push it first, or correct the address", listed(tags))]
    Missing { what: String, tags: Vec<String> },
    /// The step took too long.
    #[error("{what} was not done in {} s: the server is too slow", limit.as_secs())]
    TooSlow { what: &'static str, limit: Duration },
    /// A response has more bytes than announced or allowed.
    #[error("{what} has more than {limit} bytes, the number announced or the limit")]
    TooLarge { what: String, limit: u64 },
    /// The bytes do not match their digest: a blob was truncated or changed.
    #[error("{expected} has other bytes, whose digest is {found}: the blob was cut or changed")]
    OtherBytes { expected: Digest, found: Digest },
    /// The tag is no release of profiles.
    #[error("the manifest is no release of profiles: {0}")]
    Manifest(String),
    /// No pinned key signed the release.
    #[error(
        "no pinned key signed the release; it names {signers}: pin the key of the signer, if you trust it"
    )]
    Untrusted { signers: String },
    /// A signed release is invalid.
    #[error("the signed release is invalid: {0}")]
    Release(String),
    /// The release belongs to another channel.
    #[error(
        "the release is for channel {found:?}, not {expected:?}: correct the address or the channel"
    )]
    OtherChannel { expected: String, found: String },
    /// The release is older than the accepted one: a replay, or a stale mirror.
    #[error(
        "the release has serial {found}, but serial {accepted} was accepted before: it is an old one"
    )]
    Replayed { found: u64, accepted: u64 },
    /// Two releases have one serial.
    #[error("another release has serial {serial} too: push again, which takes the next serial")]
    Forked { serial: u64 },
    /// A profile of a signed release is invalid.
    #[error("profile {name}: {reason}")]
    Profile { name: String, reason: String },
    /// The push cannot be done.
    #[error("{0}")]
    Push(String),
    /// A local file cannot be read, written or locked. It keeps its old contents.
    #[error("{}: {reason}", path.display())]
    Local { path: PathBuf, reason: String },
}

impl FleetError {
    /// Whether the server could not be reached or did not respond in time, so that trying again may help.
    pub const fn is_offline(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TooSlow { .. })
    }

    /// Whether a release was found and refused: it was tampered with, replayed, signed by an unknown key, or invalid.
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::TooLarge { .. }
                | Self::OtherBytes { .. }
                | Self::Manifest(_)
                | Self::Untrusted { .. }
                | Self::Release(_)
                | Self::OtherChannel { .. }
                | Self::Replayed { .. }
                | Self::Forked { .. }
                | Self::Profile { .. }
        )
    }

    /// The same error with the address of the repository.
    pub(crate) fn at(mut self, base: &Url) -> Self {
        if let Self::Unreachable { what, .. }
        | Self::Denied { what, .. }
        | Self::Missing { what, .. }
        | Self::TooLarge { what, .. } = &mut self
        {
            *what = format!("{what} at {base}");
        }
        self
    }

    pub(crate) fn local(path: &Path, reason: impl Display) -> Self {
        Self::Local { path: path.to_owned(), reason: reason.to_string() }
    }

    pub(crate) fn profile(name: &str, reason: &ProfileError) -> Self {
        Self::Profile { name: name.to_owned(), reason: reason.to_string() }
    }
}

/// The tags of channels, without those of single releases.
fn listed(tags: &[String]) -> String {
    let is_release = |tag: &&String| {
        tag.rsplit_once('-').is_some_and(|(channel, serial)| {
            serial.parse::<u64>().is_ok() && tags.iter().any(|tag| tag == channel)
        })
    };
    let channels: Vec<_> = tags.iter().filter(|tag| !is_release(tag)).map(String::as_str).collect();
    match channels.get(..MAX_LISTED) {
        _ if channels.is_empty() => String::new(),
        Some(first) => {
            format!(" (the tags are {} and {} more)", first.join(", "), channels.len() - MAX_LISTED)
        }
        None => format!(" (the tags are {})", channels.join(", ")),
    }
}

const MAX_LISTED: usize = 8;
