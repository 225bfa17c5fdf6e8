//! The OCI image manifest of a release or of misses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::FleetError;

/// An OCI image manifest. The media type of its config determines the kind of artefact.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    schema_version: u64,
    media_type: String,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

/// A blob of a manifest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub(crate) fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Self { media_type: media_type.to_owned(), digest, size, annotations: BTreeMap::new() }
    }

    /// The blob has this file name for other tools.
    pub(crate) fn titled(mut self, name: &str) -> Self {
        self.annotations.insert(TITLE.to_owned(), name.to_owned());
        self
    }
}

impl Manifest {
    pub(crate) fn new(
        config: Descriptor,
        layers: Vec<Descriptor>,
        signatures: Option<String>,
    ) -> Self {
        let annotations =
            signatures.map(|signatures| (SIGNATURES.to_owned(), signatures)).into_iter().collect();
        Self {
            schema_version: 2,
            media_type: MANIFEST_TYPE.to_owned(),
            config,
            layers,
            annotations,
        }
    }

    /// Reads an untrusted manifest, whose config has this media type.
    pub(crate) fn parse(bytes: &[u8], config_type: &str) -> Result<Self, FleetError> {
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| FleetError::Manifest(error.to_string()))?;
        let found = &manifest.config.media_type;
        if manifest.media_type != MANIFEST_TYPE || found != config_type {
            let found: String = found.chars().filter(char::is_ascii_graphic).take(128).collect();
            return Err(FleetError::Manifest(format!(
                "its media type is {found}, not {config_type}"
            )));
        }
        Ok(manifest)
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>, FleetError> {
        serde_json::to_vec(self).map_err(|error| FleetError::Manifest(error.to_string()))
    }

    pub(crate) fn signatures(&self) -> &str {
        self.annotations.get(SIGNATURES).map_or("", String::as_str)
    }
}

/// The media type of the manifest itself, as every registry knows it.
pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// The config of a release: the signed statement.
pub(crate) const RELEASE_TYPE: &str = "application/vnd.gridguard.release.v1+json";
/// A layer of a release: a profile.
pub(crate) const PROFILE_TYPE: &str = "application/vnd.gridguard.profile.v1+ron";
/// The config of misses, and their layer.
pub(crate) const MISSES_TYPE: &str = "application/vnd.gridguard.misses.v1+ron";
const TITLE: &str = "org.opencontainers.image.title";
const SIGNATURES: &str = "dev.gridguard.signatures";
