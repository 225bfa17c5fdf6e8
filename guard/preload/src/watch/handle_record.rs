//! The data of `--fix` for a module, library or kernel. It is never freed, because a launch on another thread may be
//! reading it.

use core::ptr;
use core::sync::atomic::AtomicPtr;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::path::PathBuf;

use gridguard::ComputeCapability;
use gridguard::ptx::EntryReport;

use crate::watch::slot_cache::hash_of;

/// Why a launch or an image is not changed.
pub(crate) type Reason = Cow<'static, str>;

/// The data of a handle.
#[derive(Debug)]
pub(crate) enum HandleRecord {
    /// A module or library.
    Container(LoadedImage),
    Kernel(Kernel),
}

/// A loaded image.
#[derive(Debug)]
pub(crate) enum LoadedImage {
    /// Rewritten PTX, with a report of each entry by name.
    Ptx(HashMap<String, EntryReport>),
    /// Machine code, whose PTX is looked for if a launch needs it.
    Machine(Origin),
    /// An image that is not rewritten.
    Unchanged(Reason),
}

/// The origin of machine code.
#[derive(Debug, Hash)]
pub(crate) enum Origin {
    /// A fat binary in a loaded object.
    Mapped { address: usize, digest: u64 },
    /// A fat binary in a file.
    File { path: PathBuf, digest: u64 },
    /// A fat binary in the program's own memory: its compressed PTX for each device of the process, or why there is none.
    Copied(Vec<(ComputeCapability, Result<Vec<u8>, Reason>)>),
    /// A cubin.
    Cubin(Digest),
}

/// The size and hash of a whole cubin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Digest {
    pub(crate) bytes: usize,
    pub(crate) hash: u64,
}

impl Digest {
    /// The digest of the cubin that `bytes` begin with.
    pub(crate) fn of_cubin(bytes: &[u8]) -> Self {
        let header = bytes.first_chunk().map_or(bytes.len(), cubin_bytes);
        let cubin = &bytes[..header.min(bytes.len())];
        Self { bytes: cubin.len(), hash: hash_of(cubin) }
    }
}

/// The size of a cubin with this header: the tables of its sections and segments stand behind all else.
pub(crate) fn cubin_bytes(header: &[u8; 64]) -> usize {
    let number = |at: usize, bytes: usize| {
        header[at..at + bytes].iter().rev().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte))
    };
    let end =
        |offset: u64, size: u64, count: u64| offset.saturating_add(size.saturating_mul(count));
    let segments = end(number(32, 8), number(54, 2), number(56, 2));
    let sections = end(number(40, 8), number(58, 2), number(60, 2));
    usize::try_from(segments.max(sections)).unwrap_or(usize::MAX).max(header.len())
}

/// A kernel that was looked up by its name.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) name: CString,
    /// The handle of the module or library.
    pub(crate) container: usize,
    /// The load number of the container.
    pub(crate) load: u64,
    /// The hook and slot of the lookup.
    pub(crate) found_by: (usize, usize),
    /// `None` if a call loaded it that is not watched.
    pub(crate) loaded: Option<&'static LoadedImage>,
    /// The shifted and the folded form, once they were looked up.
    pub(crate) forms: [AtomicPtr<core::ffi::c_void>; 2],
}

impl HandleRecord {
    pub(crate) const fn kernel(&self) -> Option<&Kernel> {
        match self {
            Self::Kernel(kernel) => Some(kernel),
            Self::Container(_) => None,
        }
    }

    pub(crate) const fn loaded(&'static self) -> Option<&'static LoadedImage> {
        match self {
            Self::Container(loaded) => Some(loaded),
            Self::Kernel(_) => None,
        }
    }
}

impl Kernel {
    pub(crate) fn new(
        name: &CStr,
        (container, load): (usize, u64),
        found_by: (usize, usize),
        loaded: Option<&'static LoadedImage>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            container,
            load,
            found_by,
            loaded,
            forms: [const { AtomicPtr::new(ptr::null_mut()) }; 2],
        }
    }

    /// Whether the same lookup would find the same kernel again.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let key =
            |one: &Self| (one.container, one.load, one.found_by, one.loaded.map(ptr::from_ref));
        self.name == other.name && key(self) == key(other)
    }

    /// The forms of the kernel's entry, or why there are none.
    pub(crate) fn entry(&self) -> Result<&'static EntryReport, Reason> {
        match self.loaded {
            None => Err("its module was loaded by a function that is not watched, as CUDA runtimes before 12 do"
                .into()),
            Some(LoadedImage::Unchanged(reason)) => Err(reason.clone()),
            Some(LoadedImage::Machine(_)) => Err("its module is machine code".into()),
            Some(LoadedImage::Ptx(entries)) => {
                let entry = self.name.to_str().ok().and_then(|name| entries.get(name));
                entry.ok_or_else(|| "its PTX has no entry of its name".into())
            }
        }
    }
}
