//! The kinds of fault, and how a fault is drawn.

use std::ffi::OsString;
use std::fmt::{self, Debug};
use std::path::Path;

use gridguard_test_support::Random;
use serde::{Deserialize, Serialize};

use crate::device_setup::DeviceSetup;
use crate::environment::{Platform, RunEnvironment};
use crate::expected::{Expected, Observed};
use crate::{
    bad_image, bad_library, destroyed_context, illegal_access, killed_writer, other_device,
    out_of_memory, undefined_behaviour,
};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A kernel with an illegal access or another fault.
    IllegalAccess,
    /// More memory than is available.
    OutOfMemory,
    /// An image or a source that cannot be loaded.
    BadImage,
    /// An object of another device, context or kernel.
    WrongDevice,
    /// A library that is missing, invalid, or another one than its name says.
    MissingLibrary,
    /// A context that another part of the program destroys.
    ContextDestroyed,
    /// A writer of profiles that is killed.
    KilledWriter,
    /// A cubin with correct headers and damaged content.
    DamagedBody,
    /// A handle of a destroyed object, which is undefined behaviour in CUDA.
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

    /// The number of faults per run: a thousand in all, and the undefined ones.
    pub(crate) const fn count(self, platform: Platform) -> u64 {
        match self {
            Self::IllegalAccess => 240,
            Self::BadImage => 200,
            Self::OutOfMemory | Self::WrongDevice | Self::MissingLibrary => 120,
            Self::ContextDestroyed | Self::KilledWriter => 100,
            // Only a real driver's result is of interest.
            Self::DamagedBody | Self::StaleHandle if matches!(platform, Platform::Fake) => 4,
            Self::DamagedBody => 60,
            Self::StaleHandle => 20,
        }
    }

    /// Whether each fault must get a typed error: one of the thousand.
    pub(crate) const fn is_promised(self) -> bool {
        !matches!(self, Self::DamagedBody | Self::StaleHandle)
    }

    /// Whether it takes the memory that other faults need.
    pub(crate) const fn needs_the_device_alone(self) -> bool {
        matches!(self, Self::OutOfMemory)
    }

    /// Whether it stops the device, which then has to recover.
    pub(crate) const fn stops_the_device(self) -> bool {
        matches!(self, Self::IllegalAccess)
    }

    /// Faults that one process injects, if they leave the process usable.
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

/// One fault: everything needed to repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) seed: u64,
}

impl Fault {
    /// Draws the fault. The number cycles through the variants, the rest is random.
    pub(crate) fn case(&self) -> Box<dyn Case> {
        let Self { kind, number, seed } = *self;
        // Each fault has its own generator, so that it can be repeated alone.
        let kind_number = Kind::ALL.iter().zip(0_u64..).find(|(one, _)| **one == kind);
        let (_, kind_number) = kind_number.expect("all are listed");
        let mut random = Random::new(seed ^ (kind_number << 48) ^ (number << 24));
        let random = &mut random;
        match kind {
            Kind::IllegalAccess => Box::new(illegal_access::draw(number, random)),
            Kind::OutOfMemory => Box::new(out_of_memory::draw(number, random)),
            Kind::BadImage => Box::new(bad_image::draw(number, random)),
            Kind::WrongDevice => Box::new(other_device::draw(number, random)),
            Kind::MissingLibrary => Box::new(bad_library::draw(number, random)),
            Kind::ContextDestroyed => Box::new(destroyed_context::draw(number, random)),
            Kind::KilledWriter => Box::new(killed_writer::draw(number, random)),
            Kind::DamagedBody => Box::new(undefined_behaviour::damaged_body(number, random)),
            Kind::StaleHandle => Box::new(undefined_behaviour::stale_handle(number, random)),
        }
    }
}

impl fmt::Display for Fault {
    /// The value of `GRIDGUARD_FAULT` for this fault.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, number, seed } = self;
        write!(f, "PROPTEST_RNG_SEED={seed} GRIDGUARD_FAULT={}:{number}", kind.name())
    }
}

/// A drawn fault.
pub(crate) trait Case: Debug {
    /// The name of the variant.
    fn name(&self) -> &'static str;

    /// Whether it needs a process of its own.
    fn needs_a_process(&self) -> bool;

    /// Prepares the process's `folder` and returns its environment.
    fn prepare(&self, _ground: &RunEnvironment, _folder: &Path) -> Vec<(&'static str, OsString)> {
        Vec::new()
    }

    /// The expected result.
    fn expected(&self, environment: &RunEnvironment) -> Expected;

    /// Injects it, observes the result, and cleans up.
    fn inject(&self, setup: &DeviceSetup) -> Observed;
}
