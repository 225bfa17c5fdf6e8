//! What faults there are, and how one is drawn.

use std::ffi::OsString;
use std::fmt::{self, Debug};
use std::path::Path;

use gridguard_test_support::Random;
use serde::{Deserialize, Serialize};

use crate::bench::Bench;
use crate::ground::{Ground, Platform};
use crate::judge::{Expected, Observed};
use crate::{access, destroyed, device, image, library, memory, undefined, writer};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A kernel does what no kernel may.
    IllegalAccess,
    /// More memory than there is.
    OutOfMemory,
    /// An image or a source that cannot be loaded.
    BadImage,
    /// Something of another device, context or kernel.
    WrongDevice,
    /// A library that is missing, no library, or not the one that it says.
    MissingLibrary,
    /// A context that another part of the program destroys.
    ContextDestroyed,
    /// A writer of profiles that is killed.
    KilledWriter,
    /// A cubin whose headers are right and whose content is damaged: the driver's to judge.
    DamagedBody,
    /// A handle of what is gone: CUDA leaves undefined what happens.
    StaleHandle,
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::OutOfMemory,
        Self::IllegalAccess,
        Self::ContextDestroyed,
        Self::BadImage,
        Self::WrongDevice,
        Self::MissingLibrary,
        Self::KilledWriter,
        Self::DamagedBody,
        Self::StaleHandle,
    ];

    /// How many of a run are of it: a thousand, and what is beyond what anyone can promise.
    pub(crate) const fn count(self, platform: Platform) -> u64 {
        match self {
            Self::IllegalAccess => 240,
            Self::BadImage => 200,
            Self::OutOfMemory | Self::WrongDevice | Self::MissingLibrary => 120,
            Self::ContextDestroyed | Self::KilledWriter => 100,
            // What is asked is the real driver's answer.
            Self::DamagedBody | Self::StaleHandle if matches!(platform, Platform::Fake) => 4,
            Self::DamagedBody => 60,
            Self::StaleHandle => 20,
        }
    }

    /// Whether each fault of it must get a typed error: one of the thousand.
    pub(crate) const fn is_promised(self) -> bool {
        !matches!(self, Self::DamagedBody | Self::StaleHandle)
    }

    /// Whether it takes the device's memory from other faults.
    pub(crate) const fn needs_the_device_alone(self) -> bool {
        matches!(self, Self::OutOfMemory)
    }

    /// Whether the device itself is stopped and has to recover.
    pub(crate) const fn stops_the_device(self) -> bool {
        matches!(self, Self::IllegalAccess)
    }

    /// Faults of it that one process injects, where they leave the process whole.
    pub(crate) const fn batch(self) -> usize {
        match self {
            Self::OutOfMemory => 15,
            Self::BadImage => 20,
            _ => 10,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::IllegalAccess => "illegal_access",
            Self::OutOfMemory => "out_of_memory",
            Self::BadImage => "bad_image",
            Self::WrongDevice => "wrong_device",
            Self::MissingLibrary => "missing_library",
            Self::ContextDestroyed => "context_destroyed",
            Self::KilledWriter => "killed_writer",
            Self::DamagedBody => "damaged_body",
            Self::StaleHandle => "stale_handle",
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// One fault: all that it takes to repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) seed: u64,
}

impl Fault {
    /// What the fault is. The number goes through the variants in turn, the rest is random.
    pub(crate) fn case(&self) -> Box<dyn Case> {
        let Self { kind, number, seed } = *self;
        // Each draws from a generator of its own, so that it can be repeated alone.
        let kind_number = Kind::ALL.iter().zip(0_u64..).find(|(one, _)| **one == kind);
        let (_, kind_number) = kind_number.expect("all are listed");
        let mut random = Random::new(seed ^ (kind_number << 48) ^ (number << 24));
        let random = &mut random;
        match kind {
            Kind::IllegalAccess => Box::new(access::draw(number, random)),
            Kind::OutOfMemory => Box::new(memory::draw(number, random)),
            Kind::BadImage => Box::new(image::draw(number, random)),
            Kind::WrongDevice => Box::new(device::draw(number, random)),
            Kind::MissingLibrary => Box::new(library::draw(number, random)),
            Kind::ContextDestroyed => Box::new(destroyed::draw(number, random)),
            Kind::KilledWriter => Box::new(writer::draw(number, random)),
            Kind::DamagedBody => Box::new(undefined::damaged_body(number, random)),
            Kind::StaleHandle => Box::new(undefined::stale_handle(number, random)),
        }
    }
}

impl fmt::Display for Fault {
    /// How a run is told to inject this fault alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, number, seed } = self;
        write!(f, "PROPTEST_RNG_SEED={seed} GRIDGUARD_FAULT={}:{number}", kind.name())
    }
}

/// A fault that was drawn.
pub(crate) trait Case: Debug {
    /// Its name among those of its kind.
    fn name(&self) -> &'static str;

    /// Whether it takes the process with it, or needs one of its own from the beginning.
    fn needs_a_process(&self) -> bool;

    /// Makes ready in `folder`, which is the process's own, and gives its environment.
    fn prepare(&self, _ground: &Ground, _folder: &Path) -> Vec<(&'static str, OsString)> {
        Vec::new()
    }

    /// What is to come of it.
    fn expected(&self, ground: &Ground) -> Expected;

    /// Injects it, looks what comes of it, and cleans up.
    fn inject(&self, bench: &Bench) -> Observed;
}
