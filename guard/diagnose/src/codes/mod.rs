//! The tables of failures, with the numbers and names of CUDA 13. Messages that differ between releases are all
//! listed.

pub(crate) mod causes;
pub(crate) mod commands;

mod device;
mod execution;
mod graph;
mod graphics;
mod image;
mod launch;
mod library;
mod memory;
mod operator;
mod rocm;
mod sanitizer;
mod system;
mod xid;

use super::failure::{KnownFailure, Origin};

const TABLES: [&[KnownFailure]; 13] = [
    launch::FAILURES,
    memory::FAILURES,
    execution::FAILURES,
    image::FAILURES,
    device::FAILURES,
    system::FAILURES,
    graph::FAILURES,
    graphics::FAILURES,
    library::FAILURES,
    operator::FAILURES,
    rocm::FAILURES,
    sanitizer::FAILURES,
    xid::FAILURES,
];

/// A CUDA error code that the tables do not list.
pub(super) static UNLISTED_CODE: KnownFailure = KnownFailure::new(Origin::Driver, "CUDA error")
    .means("a CUDA call failed with a code that this version of gridguard does not list")
    .cause("the driver is newer than gridguard, or the number is not a CUDA error code")
    .fix("look the number up in the documentation of CUresult for the driver's CUDA version");

/// An Xid that the tables do not list.
pub(super) static UNLISTED_XID: KnownFailure = KnownFailure::new(Origin::Xid, "Xid")
    .means(
        "the NVIDIA kernel module reported an event that this version of gridguard does not list",
    )
    .cause("the hardware, the driver or a program")
    .fix("look the number up in NVIDIA's Xid catalog, and read the lines around it")
    .run(&[commands::NVIDIA_SMI_Q]);

/// The failure of ROCm with the number of this failure of CUDA.
pub(super) fn of_rocm(number: Option<i32>) -> &'static KnownFailure {
    let mut all = rocm::FAILURES.iter();
    all.find(|it| it.number.is_some() && it.number == number).unwrap_or(&rocm::UNLISTED)
}

/// All listed failures.
pub fn known_failures() -> impl Iterator<Item = &'static KnownFailure> {
    TABLES.into_iter().flatten()
}

pub(super) fn by_number(number: i32) -> Option<&'static KnownFailure> {
    let find = |retired| {
        known_failures().find(move |it| {
            it.origin.is_cuda() && it.number == Some(number) && it.retired == retired
        })
    };
    find(false).or_else(|| by_former_number(number)).or_else(|| find(true))
}

/// The failure that the runtime before CUDA 10.1 returned as `number`, if it has another number now.
pub(super) fn by_former_number(number: i32) -> Option<&'static KnownFailure> {
    known_failures().find(|it| it.former_number == Some(number))
}

pub(super) fn by_xid(number: i32) -> Option<&'static KnownFailure> {
    xid::FAILURES.iter().find(|it| it.number == Some(number))
}

pub(super) fn by_name(name: &str) -> Option<&'static KnownFailure> {
    let is_named = |own: &str| own.eq_ignore_ascii_case(name);
    known_failures()
        .find(|it| is_named(it.name) || it.runtime_name.is_some_and(is_named))
        .or_else(|| by_cudnn_prefix(name))
}

/// A status of cuDNN 9 may be more specific than the listed status: `CUDNN_STATUS_NOT_SUPPORTED_LAYOUT`.
fn by_cudnn_prefix(name: &str) -> Option<&'static KnownFailure> {
    let begins_with =
        |own: &str| name.get(..own.len()).is_some_and(|it| it.eq_ignore_ascii_case(own));
    known_failures()
        .filter(|it| it.origin == Origin::Cudnn && begins_with(it.name))
        .max_by_key(|it| it.name.len())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Whether `text` starts in lower case, unless with a name, and has no full stop.
    fn is_text(text: &str) -> bool {
        let first = text.split([' ', ',', ':']).next().unwrap_or_default();
        let is_name = first.chars().skip(1).any(|c| c.is_ascii_uppercase() || c == '_');
        let begins_well = text.starts_with(|c: char| c.is_ascii_lowercase()) || is_name;
        begins_well && !text.ends_with('.') && !text.contains("  ") && !text.contains('\n')
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn every_entry_is_complete() {
        for entry in known_failures().chain([&UNLISTED_CODE, &UNLISTED_XID]) {
            let name = entry.name;
            assert!(!name.is_empty() && is_text(entry.meaning), "{name}: {}", entry.meaning);
            assert!(entry.known_causes().next().is_some(), "{name}");
            for cause in entry.known_causes() {
                assert!(is_text(cause.what), "{name}: {}", cause.what);
                assert!(is_text(cause.remedy), "{name}: {}", cause.remedy);
            }
            assert!(entry.messages().iter().all(|message| message.len() > 8), "{name}");
            assert!(entry.mistaken_for.is_none_or(is_text), "{name}");
            assert!(entry.commands.iter().all(|command| !command.is_empty()), "{name}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn numbers_and_names_are_unique_and_each_finds_its_entry() {
        let [mut numbers, mut formers] = [BTreeSet::new(), BTreeSet::new()];
        let mut names = BTreeSet::new();
        for entry in known_failures() {
            if let Some(number) = entry.number.filter(|_| entry.origin.is_cuda()) {
                assert!(numbers.insert(number), "{number}");
                // A retired number has the meaning of the same former number.
                let former = by_former_number(number).filter(|_| entry.retired);
                assert_eq!(by_number(number), Some(former.unwrap_or(entry)));
            }
            if let Some(number) = entry.former_number {
                assert!(formers.insert(number), "{number}");
            }
            for name in entry.runtime_name.iter().chain([&entry.name]) {
                assert!(entry.origin == Origin::Xid || names.insert(*name), "{name}");
                assert!(entry.origin == Origin::Xid || by_name(name) == Some(entry), "{name}");
            }
        }
    }

    #[test]
    fn driver_and_runtime_names_follow_their_conventions() {
        for entry in known_failures() {
            match entry.origin {
                Origin::Driver => {
                    assert!(entry.name.starts_with("CUDA_ERROR_"), "{}", entry.name);
                    let is_runtimes = |name: &str| name.starts_with("cudaError");
                    assert!(entry.runtime_name.is_none_or(is_runtimes), "{}", entry.name);
                    assert!(entry.number.is_some(), "{}", entry.name);
                }
                Origin::Runtime => {
                    assert!(entry.name.starts_with("cudaError") && entry.runtime_name.is_none());
                    assert!(
                        entry.number.is_some() && !entry.messages().is_empty(),
                        "{}",
                        entry.name
                    );
                }
                _ => assert!(entry.runtime_name.is_none(), "{}", entry.name),
            }
        }
    }

    #[test]
    fn former_numbers_yield_to_current_ones() {
        for (number, name) in [
            (77, "CUDA_ERROR_ILLEGAL_ADDRESS"),
            (59, "CUDA_ERROR_ASSERT"),
            (48, "CUDA_ERROR_NO_BINARY_FOR_GPU"),
            (30, "CUDA_ERROR_UNKNOWN"),
            (8, "cudaErrorInvalidDeviceFunction"),
            (4, "CUDA_ERROR_DEINITIALIZED"),
            (10, "cudaErrorVersionTranslation"),
            (6, "CUDA_ERROR_LAUNCH_TIMEOUT"),
        ] {
            assert_eq!(by_number(number).map(|entry| entry.name), Some(name));
        }
    }

    #[test]
    fn failures_that_lose_the_context_are_sticky_and_late_and_rejected_launches_are_neither() {
        for number in [214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911] {
            assert!(by_number(number).is_some_and(|it| it.sticky && it.late), "{number}");
        }
        for number in [1, 2, 9, 98, 209, 701, 709, 720, 910, 912, 999] {
            assert!(by_number(number).is_some_and(|it| !it.sticky && !it.late), "{number}");
        }
    }
}
