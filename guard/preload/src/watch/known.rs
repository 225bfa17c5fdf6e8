//! The data of `--fix` for a module, library or kernel. It is never freed: a launch on another thread may be reading it.

use core::ptr;
use core::sync::atomic::AtomicPtr;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, CString};

use gridguard::ptx::EntryReport;

/// Why a launch or an image is not changed.
pub(crate) type Reason = Cow<'static, str>;

/// The data of a handle.
#[derive(Debug)]
pub(crate) enum Known {
    /// A module or library.
    Container(Loaded),
    Kernel(Kernel),
}

/// A loaded image.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// Rewritten PTX, with a report of each entry by name.
    Ptx(HashMap<String, EntryReport>),
    /// An image that is not rewritten.
    Kept(Reason),
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
    pub(crate) loaded: Option<&'static Loaded>,
    /// The shifted and the folded form, once they were looked up.
    pub(crate) forms: [AtomicPtr<core::ffi::c_void>; 2],
}

impl Known {
    pub(crate) const fn kernel(&self) -> Option<&Kernel> {
        match self {
            Self::Kernel(kernel) => Some(kernel),
            Self::Container(_) => None,
        }
    }

    pub(crate) const fn loaded(&'static self) -> Option<&'static Loaded> {
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
        loaded: Option<&'static Loaded>,
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

    /// Whether the same lookup would find the same again.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let Self { name, container, load, found_by, loaded, forms: _ } = self;
        let address = |loaded: Option<&'static Loaded>| loaded.map(ptr::from_ref);
        (name, container, load, found_by)
            == (&other.name, &other.container, &other.load, &other.found_by)
            && address(*loaded) == address(other.loaded)
    }

    /// What was made of the kernel's entry.
    pub(crate) fn entry(&self) -> Result<&'static EntryReport, Reason> {
        match self.loaded {
            None => Err("its module was loaded by a function that is not watched".into()),
            Some(Loaded::Kept(reason)) => Err(reason.clone()),
            Some(Loaded::Ptx(entries)) => {
                let entry = self.name.to_str().ok().and_then(|name| entries.get(name));
                entry.ok_or_else(|| "its PTX has no entry of its name".into())
            }
        }
    }
}
