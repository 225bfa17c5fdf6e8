//! An on-disk cache of compiled device code.
//!
//! Compiling a kernel takes about a second. Entries are written to a temporary file and renamed. A reader
//! verifies the whole entry, so a killed writer or a damaged disk cannot pass wrong bytes to the driver. File and
//! folder must belong to the user or root, and nobody else may write to them. Other entries are not used.

use core::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gridguard::cuda::{CompileOptions, Image, ImageError};
use gridguard_files::{
    Distrust, ReadError, check_folder, delete_leftovers, publish_private, read_trusted,
    user_cache_folder,
};
use sha2::{Digest, Sha256};

use crate::element::to_u64;

/// A folder of compiled images, one file each, shared by any number of processes. Beyond 4,096 images, the
/// oldest are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CubinCache {
    folder: PathBuf,
}

/// A hash of everything that determines a compiled image.
///
/// Covers the version of this package, the compiler's version, the architecture, the program's name,
/// its macros and options in order, and the source. Does not cover headers that the source includes,
/// nor the compiler's patch level, which NVRTC does not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CubinKey {
    digest: [u8; 32],
}

impl CubinKey {
    /// The key of `source` compiled with `options` by `compiler` (major and minor version).
    pub(crate) fn new(source: &str, options: &CompileOptions, compiler: (u32, u32)) -> Self {
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
}

/// The key in hexadecimal.
impl fmt::Display for CubinKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why an image was not read from the cache or not stored in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum CubinCacheError {
    /// Anyone other than the user or root may have written the entry.
    #[error("compiled kernels are not cached: {0}")]
    Untrusted(#[from] Distrust),
    /// The entry cannot be read, or is not a regular file.
    #[error("the cached image {} cannot be read: {reason}", path.display())]
    Read { path: PathBuf, reason: String },
    /// The entry cannot be written.
    #[error("the cached image {} cannot be written: {reason}", path.display())]
    Write { path: PathBuf, reason: String },
    /// The entry is damaged or has another key; storing the image again replaces it.
    #[error("the cached image {} is corrupt and must be stored again: {what}", path.display())]
    Corrupt { path: PathBuf, what: CubinFault },
    /// The image is PTX, which the driver would compile at each load, or a fatbin.
    #[error("the cache stores cubins only, the image is PTX or a fatbin")]
    NotCubin,
    /// The image has this many bytes, more than the cache stores.
    #[error("the image has {0} bytes, the limit of the cache is {MAX_IMAGE_BYTES}")]
    TooLarge(u64),
}

/// How an entry of the cache is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CubinFault {
    /// The checksum differs: the file is damaged, truncated, or the entry of another key.
    #[error("its checksum is wrong")]
    Checksum,
    /// The file has this many bytes, more than any entry.
    #[error("it has {0} bytes, the limit is {MAX_ENTRY_BYTES}")]
    TooLarge(u64),
    /// The stored bytes are not a complete image.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl CubinCache {
    /// The cache in `folder`, which is created with the first image.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The user's cache: the folder in `GRIDGUARD_CUBIN_CACHE` if it is set, else `gridguard/cubins` in
    /// the user's cache folder. `None` if the variable is `off` or there is no such folder.
    pub fn for_user() -> Option<Self> {
        user_cache_folder("GRIDGUARD_CUBIN_CACHE", "gridguard/cubins").map(Self::at)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Checks that the folder belongs to the user or root and that nobody else can write to it. A
    /// missing one passes. Reading and storing images check this too.
    ///
    /// # Errors
    ///
    /// [`CubinCacheError::Untrusted`], and [`CubinCacheError::Read`] if the folder cannot be opened.
    pub fn check(&self) -> Result<(), CubinCacheError> {
        check_folder(&self.folder).map_err(|error| read_error(self.folder.clone(), error))
    }

    /// The image stored under `key`; `None` if there is no entry.
    ///
    /// # Errors
    ///
    /// [`CubinCacheError::Untrusted`] if someone else may have written the entry, or it is a link.
    /// [`CubinCacheError::Read`] if it cannot be read or is not a regular file.
    /// [`CubinCacheError::Corrupt`] if it is damaged or has another key. In each case the program can
    /// compile instead, and storing the image replaces the entry.
    pub(crate) fn get(&self, key: &CubinKey) -> Result<Option<Image>, CubinCacheError> {
        let path = self.entry(key);
        let entry = match read_trusted(&path, MAX_ENTRY_BYTES) {
            Ok(Some(entry)) => entry,
            Ok(None) => return Ok(None),
            Err(error) => return Err(read_error(path, error)),
        };
        decode(&entry, key).map(Some).map_err(|what| CubinCacheError::Corrupt { path, what })
    }

    /// Stores `image` under the key of its source and options, and replaces an existing entry. Not public: the safety
    /// of launches relies on the sources of the stored images. Readers see the old or the new entry, never a part.
    /// Only the user may read it. Also deletes temporary files of killed writers after an hour, and the oldest
    /// entries if there are too many.
    ///
    /// # Errors
    ///
    /// [`CubinCacheError::NotCubin`] for PTX and fatbins; [`CubinCacheError::TooLarge`] for more
    /// than 64 MiB; [`CubinCacheError::Untrusted`] if others can write to the folder;
    /// [`CubinCacheError::Write`] if it cannot be created or written, or the disk is full.
    pub(crate) fn put(&self, key: &CubinKey, image: &Image) -> Result<(), CubinCacheError> {
        let cubin = image.bytes();
        if !cubin.starts_with(&ELF_MAGIC) {
            return Err(CubinCacheError::NotCubin);
        }
        if to_u64(cubin.len()) > MAX_IMAGE_BYTES {
            return Err(CubinCacheError::TooLarge(to_u64(cubin.len())));
        }
        // Writing reports other errors of the folder.
        if let Err(error @ CubinCacheError::Untrusted(_)) = self.check() {
            return Err(error);
        }
        let path = self.entry(key);
        delete_leftovers(&self.folder, is_entry, LEFTOVER_AGE);
        publish_private(&path, &[checksum(key, cubin).as_slice(), cubin].concat())
            .map_err(|error| CubinCacheError::Write { path, reason: error.to_string() })?;
        self.delete_oldest(MAX_ENTRIES);
        Ok(())
    }

    /// If there are more than `most` entries, deletes the oldest until three quarters are left. An entry that
    /// cannot be deleted only costs disk space.
    fn delete_oldest(&self, most: usize) {
        let Ok(files) = fs::read_dir(&self.folder) else { return };
        let entries = files.flatten().map(|file| file.file_name());
        let entries: Vec<_> = entries.filter(|name| is_entry(name.as_encoded_bytes())).collect();
        if entries.len() <= most {
            return;
        }
        // Reading thousands of times is slow, so they are read only now.
        let stored = |name| {
            let path = self.folder.join(name);
            Some((fs::symlink_metadata(&path).ok()?.modified().ok()?, path))
        };
        let mut entries: Vec<_> = entries.iter().filter_map(stored).collect();
        entries.sort_unstable();
        entries.truncate(entries.len().saturating_sub(most / 4 * 3));
        entries.iter().for_each(|(_, path)| _ = fs::remove_file(path));
    }

    fn entry(&self, key: &CubinKey) -> PathBuf {
        self.folder.join(format!("{key}.cubin"))
    }
}

/// Whether an entry has this name: a key.
fn is_entry(name: &[u8]) -> bool {
    let key = name.strip_suffix(b".cubin");
    key.is_some_and(|key| key.len() == 64 && key.iter().all(u8::is_ascii_hexdigit))
}

fn read_error(path: PathBuf, error: ReadError) -> CubinCacheError {
    match error {
        ReadError::Untrusted(why) => why.into(),
        ReadError::TooLarge { bytes, .. } => {
            CubinCacheError::Corrupt { path, what: CubinFault::TooLarge(bytes) }
        }
        error => CubinCacheError::Read { path, reason: error.to_string() },
    }
}

/// The first bytes of an entry: the checksum of its key and image.
fn checksum(key: &CubinKey, cubin: &[u8]) -> [u8; CHECKSUM_BYTES] {
    Sha256::new().chain_update(key.digest).chain_update(cubin).finalize().into()
}

/// The image of `entry`, if it is undamaged and has this key.
fn decode(entry: &[u8], key: &CubinKey) -> Result<Image, CubinFault> {
    match entry.split_first_chunk() {
        Some((found, cubin)) if *found == checksum(key, cubin) => Ok(Image::new(cubin)?),
        _ => Err(CubinFault::Checksum),
    }
}

/// Part of every key; changing it invalidates all entries.
const KEY_TAG: &[u8] = b"gridguard cubin key 2";
const CHECKSUM_BYTES: usize = 32;
/// Hundreds of times the largest kernel here. Limits the bytes read from a damaged folder.
const MAX_IMAGE_BYTES: u64 = 64 << 20;
const MAX_ENTRY_BYTES: u64 = 32 + MAX_IMAGE_BYTES;
/// The first bytes of a cubin.
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
/// The most entries of a cache: some hundred megabytes.
const MAX_ENTRIES: usize = 4096;
/// No writer takes this long: it was killed.
const LEFTOVER_AGE: Duration = Duration::from_secs(60 * 60);

#[cfg(test)]
mod tests;
