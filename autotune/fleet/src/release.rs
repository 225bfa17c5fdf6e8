//! The signed statement of a release: which profiles a channel has, and which nodes get new ones first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use gridguard::profile::{Document, MAX_FILE_BYTES, ParsedProfile};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::FleetError;
use crate::keys::Verified;

/// A release of a channel, as signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Release {
    schema: u64,
    /// The channel, for example `profiles:stable`. A release of another channel is refused.
    pub channel: String,
    /// Grows with each release of the channel. A client never goes back to a lower serial.
    pub serial: u64,
    /// The date of the push, for people only.
    pub created: String,
    /// The version of gridguard that pushed it.
    pub tool: String,
    /// The profiles of all nodes, or of the nodes outside the staged percentage.
    pub files: Vec<ProfileFile>,
    /// Profiles that only some nodes use so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged: Option<Staged>,
}

/// Profiles for some of the nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Staged {
    /// The share of the nodes. Nodes stay in it while it grows.
    pub percent: u8,
    /// All profiles of these nodes.
    pub files: Vec<ProfileFile>,
}

/// A profile of a release, and its provenance. Its entries have the measurements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ProfileFile {
    /// The name of the file in the pulled folder, which the device determines.
    pub name: String,
    /// The digest of the file.
    pub digest: Digest,
    /// The size in bytes.
    pub size: u64,
    /// [`Document::choices_digest`].
    pub choices: String,
    /// The number of entries.
    pub entries: usize,
    /// The device's name.
    pub device: String,
    /// The CUDA version of the driver.
    pub driver: String,
    /// The version of the compiler of device code.
    pub compiler: String,
    /// The version of the tuner.
    pub tuner: String,
    /// The hashes of the device code of each kernel.
    pub sources: BTreeMap<String, BTreeSet<String>>,
}

impl Release {
    /// A release with the next serial after `previous`.
    pub(crate) fn after(
        previous: Option<&Self>,
        channel: &str,
        files: Vec<ProfileFile>,
        staged: Option<Staged>,
    ) -> Result<Self, FleetError> {
        let serial = previous.map_or(Some(1), |previous| previous.serial.checked_add(1));
        let release = Self {
            schema: SCHEMA,
            channel: channel.to_owned(),
            serial: serial
                .ok_or_else(|| invalid("the serial is exhausted: use another channel"))?,
            created: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            tool: env!("CARGO_PKG_VERSION").to_owned(),
            files,
            staged,
        };
        release.check()
    }

    /// Parses a signed statement, and checks its limits and its channel.
    pub(crate) fn parse(signed: &Verified<'_>, channel: &str) -> Result<Self, FleetError> {
        #[derive(Deserialize)]
        struct Version {
            schema: u64,
        }
        let statement = signed.statement();
        let json = |error: serde_json::Error| invalid(error.to_string());
        let Version { schema } = serde_json::from_slice(statement).map_err(json)?;
        if schema != SCHEMA {
            let fault = format!(
                "it has schema {schema}, this version reads schema {SCHEMA}: update gridguard"
            );
            return Err(invalid(fault));
        }
        let release: Self = serde_json::from_slice(statement).map_err(json)?;
        if release.channel != channel {
            let (expected, found) = (channel.to_owned(), release.channel);
            return Err(FleetError::OtherChannel { expected, found });
        }
        release.check()
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>, FleetError> {
        serde_json::to_vec(self).map_err(|error| invalid(error.to_string()))
    }

    /// The profiles for this node.
    pub fn files_for(&self, node: &str) -> &[ProfileFile] {
        match &self.staged {
            Some(staged) if staged.share_of(node) < staged.percent => &staged.files,
            _ => &self.files,
        }
    }

    /// All profiles, each digest once.
    pub(crate) fn all_files(&self) -> impl Iterator<Item = &ProfileFile> {
        let staged = self.staged.iter().flat_map(|staged| &staged.files);
        let mut seen = BTreeSet::new();
        self.files.iter().chain(staged).filter(move |file| seen.insert(file.digest))
    }

    fn check(self) -> Result<Self, FleetError> {
        for files in
            [&self.files].into_iter().chain(self.staged.as_ref().map(|staged| &staged.files))
        {
            let names: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
            if names.len() != files.len() || files.len() > MAX_FILES {
                return Err(invalid(format!(
                    "a name is twice, or there are more than {MAX_FILES} profiles"
                )));
            }
            if let Some(file) =
                files.iter().find(|file| !is_plain(&file.name) || file.size > MAX_FILE_BYTES)
            {
                let ProfileFile { name, size, .. } = file;
                return Err(invalid(format!(
                    "{name:?} is no name of a profile, or {size} bytes are too many"
                )));
            }
        }
        if self.staged.as_ref().is_some_and(|staged| staged.percent > 100) {
            return Err(invalid("more than 100 percent are staged"));
        }
        Ok(self)
    }
}

impl Staged {
    /// A number below 100 that depends on the node and the profiles, so that each roll-out begins elsewhere.
    fn share_of(&self, node: &str) -> u8 {
        let mut text = Vec::from(node);
        self.files.iter().for_each(|file| text.extend(file.digest.bytes()));
        let [first, second, third, fourth, ..] = *Digest::of(&text).bytes();
        u8::try_from(u32::from_be_bytes([first, second, third, fourth]) % 100).unwrap_or(0)
    }
}

impl ProfileFile {
    /// Describes a profile, all of whose entries must be valid.
    ///
    /// # Errors
    ///
    /// [`FleetError::Profile`].
    pub fn describe(text: &[u8]) -> Result<Self, FleetError> {
        let document = parsed("", text)?;
        let environment = document.environment().clone();
        let mut sources = BTreeMap::<_, BTreeSet<_>>::new();
        for entry in document.entries() {
            sources.entry(entry.key.kernel.clone()).or_default().insert(entry.key.source.clone());
        }
        Ok(Self {
            name: document.device().file_name(),
            digest: Digest::of(text),
            size: text.len().try_into().unwrap_or(u64::MAX),
            choices: document.choices_digest(),
            entries: document.entries().len(),
            device: document.device().name.clone(),
            driver: environment.driver,
            compiler: environment.compiler,
            tuner: environment.tuner,
            sources,
        })
    }

    /// Checks that these bytes, whose digest is known, are a whole profile for the device of the file's name.
    pub(crate) fn check(&self, text: &[u8]) -> Result<(), FleetError> {
        let name = parsed(&self.name, text)?.device().file_name();
        if name == self.name {
            return Ok(());
        }
        Err(FleetError::Profile {
            name: self.name.clone(),
            reason: format!("it is a profile for {name}"),
        })
    }
}

/// The profile, if all of its entries are valid.
fn parsed(name: &str, text: &[u8]) -> Result<Document, FleetError> {
    let fault = |reason: String| FleetError::Profile { name: name.to_owned(), reason };
    let text = str::from_utf8(text).map_err(|error| fault(error.to_string()))?;
    let ParsedProfile { document, faults } =
        Document::parse(text).map_err(|error| fault(error.to_string()))?;
    faults.first().map_or(Ok(document), |first| Err(fault(first.to_string())))
}

fn invalid(reason: impl Into<String>) -> FleetError {
    FleetError::Release(reason.into())
}

/// Whether the name is a plain file name, which cannot leave the folder.
pub(crate) fn is_plain(name: &str) -> bool {
    let stem = name.strip_suffix(".ron").unwrap_or_default();
    !stem.is_empty()
        && name.len() <= 255
        && stem.chars().all(|char| char.is_alphanumeric() || char == '-')
}

const SCHEMA: u64 = 1;
const MAX_FILES: usize = 64;
