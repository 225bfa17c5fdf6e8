//! Pushes releases to a channel, and misses to and from a repository.

use core::time::Duration;
use std::collections::BTreeMap;

use gridguard::profile::ParsedShapes;

use crate::digest::Digest;
use crate::error::FleetError;
use crate::keys::SigningKey;
use crate::manifest::{Descriptor, MISSES_TYPE, Manifest, PROFILE_TYPE, RELEASE_TYPE};
use crate::pull::{Channel, Found, MISSES_TAG};
use crate::registry::Tagged;
use crate::release::{ProfileFile, Release, Staged};
use crate::store::Store;

/// What a push changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds or replaces these profiles: for all nodes, or staged for a percentage of them.
    Profiles {
        /// The contents of the files.
        texts: Vec<Vec<u8>>,
        /// The share of the nodes, at most 100.
        percent: u8,
    },
    /// Gives the staged profiles to more nodes, or to all.
    Widen {
        /// The share of the nodes, at most 100.
        percent: u8,
    },
    /// Returns to the profiles of another tag, as a new release. The channel's own tag ends a staged roll-out.
    RollBack {
        /// The tag, for example `stable-7`.
        tag: String,
    },
}

impl Channel {
    /// Pushes the next release, within ten minutes. It gets the channel's tag, and the tag with the serial, for
    /// example `stable-8`. The channel's keys verify the release before it.
    ///
    /// # Errors
    ///
    /// [`FleetError`]. After [`FleetError::Forked`] another push has won.
    pub async fn push(&self, key: &SigningKey, change: Change) -> Result<Release, FleetError> {
        self.store().within("the push", PUSH_LIMIT, self.push_now(key, change)).await
    }

    async fn push_now(&self, key: &SigningKey, change: Change) -> Result<Release, FleetError> {
        let tag = self.location().tag();
        let previous = match self.find(tag, None).await {
            Err(FleetError::Missing { .. }) => None,
            found => found?.map(|Found { release, .. }| release),
        };
        let mut texts = BTreeMap::new();
        let (files, staged) = self.changed(previous.as_ref(), change, &mut texts).await?;
        let release = Release::after(previous.as_ref(), self.name(), files, staged)?;
        let statement = release.to_json()?;
        let digest = Digest::of(&statement);
        let layer = |file: &ProfileFile| {
            Descriptor::new(PROFILE_TYPE, file.digest, file.size).titled(&file.name)
        };
        let layers = release.all_files().map(layer).collect();
        let manifest =
            Manifest::new(described(RELEASE_TYPE, &statement), layers, Some(key.sign(&statement)));
        let mut blobs: BTreeMap<Digest, &[u8]> =
            texts.iter().map(|(digest, text)| (*digest, &**text)).collect();
        blobs.insert(digest, &statement);
        let numbered = self.location().with_tag(&format!("{tag}-{}", release.serial))?;
        self.store().publish(&blobs, &manifest, &[numbered.tag(), tag]).await?;
        match self.find(tag, None).await? {
            Some(found) if found.statement == digest => Ok(release),
            _ => Err(FleetError::Forked { serial: release.serial }),
        }
    }

    /// The profiles of the next release. `texts` gets the contents that the repository may lack.
    async fn changed(
        &self,
        previous: Option<&Release>,
        change: Change,
        texts: &mut BTreeMap<Digest, Vec<u8>>,
    ) -> Result<(Vec<ProfileFile>, Option<Staged>), FleetError> {
        let old = || {
            previous.ok_or_else(|| {
                FleetError::Push("the channel has no release yet: push one first".to_owned())
            })
        };
        let (percent, new) = match change {
            Change::RollBack { tag } => {
                old()?;
                let found = self.find(self.location().with_tag(&tag)?.tag(), None).await?;
                let files = found.map(|found| found.release.files).unwrap_or_default();
                return Ok((files, None));
            }
            Change::Widen { percent } => {
                let staged = old()?.staged.as_ref().map(|staged| staged.files.clone());
                (
                    percent,
                    staged.ok_or_else(|| {
                        FleetError::Push("no profiles are staged: name a file".to_owned())
                    })?,
                )
            }
            Change::Profiles { texts: given, percent } => {
                let mut files: BTreeMap<_, _> = previous
                    .iter()
                    .flat_map(|old| &old.files)
                    .map(|file| (file.name.clone(), file.clone()))
                    .collect();
                for text in given {
                    let file = ProfileFile::describe(&text)?;
                    texts.insert(file.digest, text);
                    files.insert(file.name.clone(), file);
                }
                (percent, files.into_values().collect())
            }
        };
        if percent >= 100 {
            return Ok((new, None));
        }
        Ok((old()?.files.clone(), Some(Staged { percent, files: new })))
    }
}

impl Store {
    /// Pushes a file of missing shapes, which replaces the earlier one of this node.
    ///
    /// # Errors
    ///
    /// [`FleetError`], also for a file that is none of missing shapes.
    pub async fn push_misses(&self, node: &str, text: &str) -> Result<usize, FleetError> {
        let fault = |error| FleetError::profile("misses", &error);
        let shapes = ParsedShapes::parse(text).map_err(fault)?.shapes.len();
        let blob = described(MISSES_TYPE, text.as_bytes());
        let (digest, size) = (blob.digest, blob.size);
        let manifest = Manifest::new(
            blob,
            vec![Descriptor::new(MISSES_TYPE, digest, size).titled("misses.ron")],
            None,
        );
        // A name of a machine is no tag in general.
        let mut id = Digest::of(node.as_bytes()).hex();
        id.truncate(32);
        let blobs = BTreeMap::from([(digest, text.as_bytes())]);
        let tag = format!("{MISSES_TAG}{id}");
        let tags = [tag.as_str()];
        self.within("the push", PUSH_LIMIT, self.publish(&blobs, &manifest, &tags)).await?;
        Ok(shapes)
    }

    /// The missing shapes of all nodes, for `gridguard tune --shapes`, and the faults of unusable files.
    ///
    /// # Errors
    ///
    /// [`FleetError`] if the list of nodes cannot be read.
    pub async fn pull_misses(&self) -> Result<(ParsedShapes, Vec<FleetError>), FleetError> {
        let (mut files, mut faults) = (Vec::new(), Vec::new());
        for tag in self.tags().await?.iter().filter(|tag| tag.starts_with(MISSES_TAG)) {
            match self.misses_of(tag).await {
                Ok(found) => files.push(found),
                Err(error) => faults.push(error),
            }
        }
        Ok((ParsedShapes::merged(files), faults))
    }

    async fn misses_of(&self, tag: &str) -> Result<ParsedShapes, FleetError> {
        let found = async {
            let Tagged::Bytes(manifest, _) = self.tagged(tag, None).await? else {
                return Ok(ParsedShapes::default());
            };
            let Descriptor { digest, size, .. } = Manifest::parse(&manifest, MISSES_TYPE)?.config;
            let text = self.blob(digest, size.min(MAX_MISSES_BYTES)).await?;
            let text =
                str::from_utf8(&text).map_err(|error| FleetError::Manifest(error.to_string()))?;
            ParsedShapes::parse(text).map_err(|error| FleetError::profile(tag, &error))
        };
        self.within("the misses of a node", MISSES_LIMIT, found).await
    }
}

fn described(media_type: &str, bytes: &[u8]) -> Descriptor {
    Descriptor::new(media_type, Digest::of(bytes), bytes.len().try_into().unwrap_or(u64::MAX))
}

const PUSH_LIMIT: Duration = Duration::from_secs(600);
const MISSES_LIMIT: Duration = Duration::from_secs(60);
const MAX_MISSES_BYTES: u64 = 16 << 20;
