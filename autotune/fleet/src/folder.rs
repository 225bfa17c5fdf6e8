//! The folder of pulled profiles: a file for each device, and the record of the release.

use core::fmt::Display;
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use gridguard::profile::MAX_FILE_BYTES;
use gridguard_files::{FileLock, create_folder, delete_leftovers, publish, read};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::FleetError;
use crate::release::{Release, is_plain};

/// The release in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Installed {
    /// The channel.
    pub channel: String,
    /// The serial. Lower ones are refused.
    pub serial: u64,
    /// The date of the push.
    pub created: String,
    /// The digest of the signed statement.
    pub statement: Digest,
    /// The address that it was pulled from.
    pub source: String,
    /// The name of the machine.
    pub node: String,
    /// The ETag of the manifest.
    pub etag: Option<String>,
    /// The digest of the keys that could have signed it.
    pub keys: Option<Digest>,
    /// The profiles.
    pub files: BTreeMap<String, Digest>,
}

/// A locked folder.
pub(crate) struct Folder<'f> {
    path: &'f Path,
    _lock: FileLock,
}

impl Installed {
    /// Checks that a release may follow this one.
    pub(crate) fn check_successor(
        &self,
        release: &Release,
        statement: Digest,
    ) -> Result<(), FleetError> {
        let (found, accepted) = (release.serial, self.serial);
        if self.channel != release.channel {
            let (expected, found) = (self.channel.clone(), release.channel.clone());
            Err(FleetError::OtherChannel { expected, found })
        } else if found < accepted {
            Err(FleetError::Replayed { found, accepted })
        } else if found == accepted && statement != self.statement {
            Err(FleetError::Forked { serial: found })
        } else {
            Ok(())
        }
    }
}

impl<'f> Folder<'f> {
    pub(crate) fn lock(path: &'f Path) -> Result<Self, FleetError> {
        create_folder(path).map_err(|error| FleetError::local(path, error))?;
        let lock = path.join(".release.lock");
        let failed = |error| FleetError::local(&lock, error);
        Ok(Self { path, _lock: FileLock::acquire(&lock, PATIENCE).map_err(failed)? })
    }

    pub(crate) fn installed(&self) -> Result<Option<Installed>, FleetError> {
        Self::read(self.path)
    }

    /// The record of the release in a folder. A record that does not parse is an error, because the serial is in it.
    pub(crate) fn read(folder: &Path) -> Result<Option<Installed>, FleetError> {
        let path = folder.join(RECORD);
        let found =
            read(&path, MAX_RECORD_BYTES).map_err(|error| FleetError::local(&path, error))?;
        let broken = |error: &dyn Display| {
            FleetError::local(&path, format_args!("{error}: {BROKEN_RECORD}"))
        };
        let parsed = found.map(|bytes| serde_json::from_slice(&bytes)).transpose();
        let record: Option<Installed> = parsed.map_err(|error| broken(&error))?;
        // Files of these names may be deleted.
        let mut names = record.iter().flat_map(|record| record.files.keys());
        match names.find(|name| !is_plain(name)) {
            Some(name) => Err(broken(&format_args!("{name:?} is no name of a profile"))),
            None => Ok(record),
        }
    }

    /// Whether a file has the contents of this digest.
    pub(crate) fn has(&self, name: &str, digest: Digest) -> bool {
        let file = read(&self.path.join(name), MAX_FILE_BYTES);
        file.is_ok_and(|bytes| bytes.is_some_and(|bytes| Digest::of(&bytes) == digest))
    }

    /// Whether all files of a release are there.
    pub(crate) fn is_whole(&self, installed: &Installed) -> bool {
        installed.files.iter().all(|(name, digest)| self.has(name, *digest))
    }

    /// Replaces files one by one, removes files that only the old release had, and writes the record last. If this
    /// fails, the next pull finds the record of the old release, and continues.
    pub(crate) fn install(
        &self,
        old: Option<&Installed>,
        next: &Installed,
        new: &[(&str, Vec<u8>)],
    ) -> Result<(), FleetError> {
        let publish = |name: &str, bytes: &[u8]| {
            let path = self.path.join(name);
            if path.is_symlink() {
                return Err(FleetError::local(
                    &path,
                    "it is a link, which may leave the folder: remove it",
                ));
            }
            publish(&path, bytes).map(drop).map_err(|error| FleetError::local(&path, error))
        };
        // Of killed pulls. Another program may be writing a file of the same name now.
        let is_ours = |name: &[u8]| {
            let is_new = new.iter().any(|(new, _)| new.as_bytes() == name);
            let mut old = old.iter().flat_map(|old| old.files.keys());
            name == RECORD.as_bytes() || is_new || old.any(|old| old.as_bytes() == name)
        };
        delete_leftovers(self.path, is_ours, LEFTOVER_AGE);
        for (name, bytes) in new {
            publish(name, bytes)?;
        }
        let gone = old
            .iter()
            .flat_map(|old| old.files.keys())
            .filter(|name| !next.files.contains_key(*name));
        for name in gone {
            let path = self.path.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(FleetError::local(&path, error));
                }
                _ => {}
            }
        }
        if old == Some(next) {
            return Ok(());
        }
        let record =
            serde_json::to_vec_pretty(next).map_err(|error| FleetError::local(self.path, error))?;
        publish(RECORD, &record)
    }
}

const RECORD: &str = "release.json";
/// Longer than any writer takes.
const LEFTOVER_AGE: Duration = Duration::from_secs(60 * 60);
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// Another pull of the same folder may run.
const PATIENCE: Duration = Duration::from_secs(10);
const BROKEN_RECORD: &str =
    "delete the folder if you trust the server not to replay an old release";
