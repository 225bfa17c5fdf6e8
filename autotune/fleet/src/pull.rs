//! Pulls the release of a channel into a folder, and keeps the last good one.

use core::time::Duration;
use std::path::PathBuf;

use tokio::time::sleep;

use crate::digest::Digest;
use crate::error::FleetError;
use crate::folder::{Folder, Installed};
use crate::keys::TrustedKeys;
use crate::location::Location;
use crate::manifest::{Manifest, RELEASE_TYPE};
use crate::registry::Tagged;
use crate::release::Release;
use crate::store::Store;

/// A channel, and the keys that its releases must be signed with.
#[derive(Debug)]
pub struct Channel {
    store: Store,
    location: Location,
    name: String,
    keys: TrustedKeys,
}

/// Pulls a channel into a folder.
#[derive(Debug)]
pub struct Puller {
    /// The channel.
    pub channel: Channel,
    /// The folder for the profiles, a file for each device.
    pub folder: PathBuf,
    /// The name of this machine, which decides whether it gets staged profiles.
    pub node: String,
}

/// The result of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulled {
    /// Whether the release or a file is new in the folder.
    pub is_new: bool,
    /// The release in the folder.
    pub installed: Installed,
}

/// A verified release, and the ETag of its manifest.
pub(crate) struct Found {
    pub(crate) release: Release,
    pub(crate) statement: Digest,
    etag: Option<String>,
}

impl Pulled {
    /// The result of a pull that failed and left the installed release.
    #[must_use]
    pub const fn kept(installed: Installed) -> Self {
        Self { is_new: false, installed }
    }
}

impl Channel {
    /// The channel at `location`, with the [default name](Location::channel) unless there is another.
    #[must_use]
    pub fn new(store: Store, location: Location, name: Option<String>, keys: TrustedKeys) -> Self {
        let name = name.unwrap_or_else(|| location.channel());
        Self { store, location, name, keys }
    }

    /// The current release. Its signature is verified, and all its profiles are checked, within two minutes.
    ///
    /// # Errors
    ///
    /// [`FleetError`].
    pub async fn verify(&self) -> Result<Release, FleetError> {
        self.store.within("the check", PULL_LIMIT, self.verify_now()).await
    }

    async fn verify_now(&self) -> Result<Release, FleetError> {
        let found = self.find(self.location.tag(), None).await?;
        let release = found.ok_or_else(|| self.missing())?.release;
        for file in release.all_files() {
            file.check(&self.store.blob(file.digest, file.size).await?)?;
        }
        Ok(release)
    }

    /// The release of a tag; `None` if its manifest still has this ETag.
    pub(crate) async fn find(
        &self,
        tag: &str,
        etag: Option<&str>,
    ) -> Result<Option<Found>, FleetError> {
        let (manifest, etag) = match self.store.tagged(tag, etag).await {
            Ok(Tagged::Bytes(manifest, etag)) => (manifest, etag),
            Ok(Tagged::NotModified) => return Ok(None),
            Err(FleetError::Missing { what, .. }) => {
                // The tags are for the message alone.
                let mut tags = self.store.tags().await.unwrap_or_default();
                tags.retain(|tag| !tag.starts_with(MISSES_TAG));
                return Err(FleetError::Missing { what, tags });
            }
            Err(error) => return Err(error),
        };
        let manifest = Manifest::parse(&manifest, RELEASE_TYPE)?;
        let statement = manifest.config.digest;
        let bytes =
            self.store.blob(statement, MAX_STATEMENT_BYTES.min(manifest.config.size)).await?;
        // Verified before any byte of the statement is parsed.
        let signed = self.keys.verify(&bytes, manifest.signatures())?;
        let release = Release::parse(&signed, &self.name)?;
        Ok(Some(Found { release, statement, etag }))
    }

    fn missing(&self) -> FleetError {
        FleetError::Missing { what: self.location.to_string(), tags: Vec::new() }
    }

    pub(crate) const fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) const fn location(&self) -> &Location {
        &self.location
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Puller {
    /// Pulls the current release, within two minutes.
    ///
    /// # Errors
    ///
    /// [`FleetError`]. The folder then keeps its release.
    pub async fn pull(&self) -> Result<Pulled, FleetError> {
        self.channel.store.within("the pull", PULL_LIMIT, self.pull_now()).await
    }

    async fn pull_now(&self) -> Result<Pulled, FleetError> {
        let folder = Folder::lock(&self.folder)?;
        let installed = folder.installed()?;
        let source = self.channel.location.to_string();
        let keys = Some(self.channel.keys.digest());
        // A release that a removed key signed is refused, even if it is unchanged.
        let is_whole = |old: &&Installed| {
            let is_same = old.source == source && old.node == self.node && old.keys == keys;
            is_same && folder.is_whole(old)
        };
        let etag = installed.as_ref().filter(is_whole).and_then(|old| old.etag.as_deref());
        let Some(found) = self.channel.find(self.channel.location.tag(), etag).await? else {
            // Only with an ETag, and so with an installed release.
            let installed = installed.ok_or_else(|| self.channel.missing())?;
            return Ok(Pulled { is_new: false, installed });
        };
        let Found { release, statement, etag } = found;
        if let Some(old) = &installed {
            old.check_successor(&release, statement)?;
        }
        let (mut new, files) = (Vec::new(), release.files_for(&self.node));
        for file in files {
            if !folder.has(&file.name, file.digest) {
                let bytes = self.channel.store.blob(file.digest, file.size).await?;
                file.check(&bytes)?;
                new.push((file.name.as_str(), bytes));
            }
        }
        let names = files.iter().map(|file| (file.name.clone(), file.digest)).collect();
        let next = Installed {
            channel: release.channel.clone(),
            serial: release.serial,
            created: release.created.clone(),
            statement,
            source,
            node: self.node.clone(),
            etag,
            keys,
            files: names,
        };
        let is_new =
            !new.is_empty() || installed.as_ref().is_none_or(|old| old.files != next.files);
        folder.install(installed.as_ref(), &next, &new)?;
        Ok(Pulled { is_new, installed: next })
    }

    /// The release in the folder, without a request.
    ///
    /// # Errors
    ///
    /// [`FleetError`] if the folder cannot be read.
    pub fn installed(&self) -> Result<Option<Installed>, FleetError> {
        Folder::read(&self.folder)
    }

    /// Pulls for ever: first within `splay`, then about every `every`, which is 1 s to a year, and after failures with
    /// growing random pauses. `report` gets each result.
    pub async fn watch(
        &self,
        every: Duration,
        splay: Duration,
        mut report: impl FnMut(&Result<Pulled, FleetError>),
    ) -> core::convert::Infallible {
        let every = every.clamp(FIRST_PAUSE, LONGEST);
        sleep(splay.min(LONGEST).mul_f64(fastrand::f64())).await;
        let mut failures = 0;
        loop {
            let result = self.pull().await;
            report(&result);
            let pause = match &result {
                Ok(_) => {
                    failures = 0;
                    every.mul_f64(0.9 + 0.2 * fastrand::f64())
                }
                Err(error) => {
                    failures += 1;
                    pause(failures, every, error)
                }
            };
            sleep(pause).await;
        }
    }
}

/// The pause after a number of consecutive failures: random, with a bound that doubles each time up to `longest`. A
/// server's `Retry-After` is a lower limit.
pub fn pause(failures: u32, longest: Duration, error: &FleetError) -> Duration {
    let ceiling = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures.min(20))).min(longest);
    let jittered = ceiling.mul_f64(fastrand::f64());
    let wish = match error {
        FleetError::Unreachable { retry_after: Some(wish), .. } => *wish,
        _ => Duration::ZERO,
    };
    wish.min(MAX_WISH) + jittered.max(FIRST_PAUSE / 2)
}

/// Starts the tags of misses.
pub(crate) const MISSES_TAG: &str = "misses-";
const PULL_LIMIT: Duration = Duration::from_secs(120);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Between two pulls.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// A server cannot stop its clients for longer.
const MAX_WISH: Duration = Duration::from_secs(600);
const MAX_STATEMENT_BYTES: u64 = 1 << 20;
