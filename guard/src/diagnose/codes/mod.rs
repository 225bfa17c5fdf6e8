//! The table of failures. Numbers and names are those of CUDA 13; where a message differs between
//! releases, both wordings stand.

mod arguments;
mod capture;
mod device;
mod execution;
mod framework;
mod graphics;
mod image;
mod library;
mod loader;
mod machine;
mod memory;
mod nccl;
mod nested;
mod retired;
mod system;
mod xid;

use super::failure::{Failure, Origin, cause};

const GROUPS: [&[Failure]; 16] = [
    arguments::FAILURES,
    memory::FAILURES,
    execution::FAILURES,
    image::FAILURES,
    device::FAILURES,
    system::FAILURES,
    capture::FAILURES,
    nested::FAILURES,
    graphics::FAILURES,
    retired::FAILURES,
    framework::FAILURES,
    library::FAILURES,
    nccl::FAILURES,
    loader::FAILURES,
    machine::FAILURES,
    xid::FAILURES,
];

/// Every listed failure.
pub fn failures() -> impl Iterator<Item = &'static Failure> {
    GROUPS.into_iter().flatten()
}

pub(super) fn by_number(number: i32) -> Option<&'static Failure> {
    let cuda = || failures().filter(|row| matches!(row.origin, Origin::Driver | Origin::Runtime));
    let today =
        |retired| cuda().find(move |row| row.number == Some(number) && row.retired == retired);
    today(false).or_else(|| by_former_number(number)).or_else(|| today(true))
}

/// What the runtime before CUDA 10.1 meant by a number that was another's then.
pub(super) fn by_former_number(number: i32) -> Option<&'static Failure> {
    failures().find(|row| row.former_number == Some(number))
}

pub(super) fn by_xid(number: i32) -> Option<&'static Failure> {
    xid::FAILURES.iter().find(|row| row.number == Some(number))
}

pub(super) fn by_name(name: &str) -> Option<&'static Failure> {
    let is_named = |own: &str| own.eq_ignore_ascii_case(name);
    // A status of cuDNN 9 may be finer than the one listed: CUDNN_STATUS_NOT_SUPPORTED_LAYOUT.
    let begins_so =
        |own: &str| name.get(..own.len()).is_some_and(|it| it.eq_ignore_ascii_case(own));
    failures().find(|row| is_named(row.name) || row.runtime_name.is_some_and(is_named)).or_else(
        || {
            let cudnn = failures().filter(|row| row.origin == Origin::Cudnn);
            cudnn.filter(|row| begins_so(row.name)).max_by_key(|row| row.name.len())
        },
    )
}

/// A number of CUDA that the table does not list.
pub(super) static UNLISTED_CUDA: Failure = Failure::new(
    Origin::Driver,
    "CUDA error",
    &[],
    "a CUDA call failed with a code that this version of gridguard does not list",
    &[cause(
        "the driver is newer than gridguard, or the number is not one of CUDA",
        "look the number up in the CUresult table of the driver's own documentation",
    )],
);

/// An Xid that the table does not list.
pub(super) static UNLISTED_XID: Failure = Failure::new(
    Origin::Xid,
    "Xid",
    &[],
    "the kernel's driver module reported an event that this version of gridguard does not list",
    &[cause(
        "an event of hardware, driver or program",
        "look the number up in the vendor's Xid catalogue, and read the lines around it",
    )],
)
.run(&[NVIDIA_SMI_Q]);

/// Filled in with the launch where it is known.
pub(super) const CHECK: &str = "gridguard check --device 0 --grid X,Y,Z --block X,Y,Z";
const LIMITS: &str = "gridguard limits --device 0";
const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING=1 PROGRAM";
const SANITIZER: &str = "compute-sanitizer PROGRAM";
const NVIDIA_SMI: &str = "nvidia-smi";
const NVIDIA_SMI_Q: &str = "nvidia-smi -q";
const XIDS: &str = "dmesg | grep -i xid";
const LIST_ELF: &str = "cuobjdump --list-elf --list-ptx FILE";
const TORCH_BUILD: &str =
    "python -c 'import torch; print(torch.version.cuda, torch.cuda.get_arch_list())'";

const LAUNCH: &[&str] = &[CHECK, LIMITS, BLOCKING];
const EXECUTION: &[&str] = &[SANITIZER, BLOCKING];
const HARDWARE: &[&str] = &[NVIDIA_SMI_Q, XIDS];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Text for people: lower case unless it begins with a name, and no full stop.
    fn is_text(text: &str) -> bool {
        let first = text.split([' ', ',', ':']).next().unwrap_or_default();
        let is_name = first.chars().skip(1).any(|c| c.is_ascii_uppercase() || c == '_');
        let begins_well = text.starts_with(|c: char| c.is_ascii_lowercase()) || is_name;
        begins_well && !text.ends_with('.') && !text.contains("  ") && !text.contains('\n')
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn no_row_leaves_anything_open() {
        for row in failures().chain([&UNLISTED_CUDA, &UNLISTED_XID]) {
            let name = row.name;
            assert!(!name.is_empty() && is_text(row.meaning), "{name}: {}", row.meaning);
            assert!(!row.usual_causes.is_empty(), "{name}");
            for cause in row.usual_causes {
                assert!(is_text(cause.what), "{name}: {}", cause.what);
                assert!(is_text(cause.remedy), "{name}: {}", cause.remedy);
            }
            assert!(row.wordings.iter().all(|words| words.len() > 8), "{name}");
            assert!(row.mistaken_for.is_none_or(is_text), "{name}");
            assert!(row.commands.iter().all(|command| !command.is_empty()), "{name}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn numbers_and_names_are_unique_and_every_one_finds_its_row() {
        let [mut numbers, mut formers] = [BTreeSet::new(), BTreeSet::new()];
        let mut names = BTreeSet::new();
        for row in failures() {
            let is_cuda = matches!(row.origin, Origin::Driver | Origin::Runtime);
            if let Some(number) = row.number.filter(|_| is_cuda) {
                assert!(numbers.insert(number), "{number}");
                // What no CUDA answers any more yields to what the same number once was.
                let former = by_former_number(number).filter(|_| row.retired);
                assert_eq!(by_number(number), Some(former.unwrap_or(row)));
            }
            if let Some(number) = row.former_number {
                assert!(formers.insert(number), "{number}");
            }
            for name in row.runtime_name.iter().chain([&row.name]) {
                assert!(row.origin == Origin::Xid || names.insert(*name), "{name}");
                assert!(row.origin == Origin::Xid || by_name(name) == Some(row), "{name}");
            }
        }
    }

    #[test]
    fn driver_and_runtime_are_named_by_their_own_conventions() {
        for row in failures() {
            match row.origin {
                Origin::Driver => {
                    assert!(row.name.starts_with("CUDA_ERROR_"), "{}", row.name);
                    let is_runtimes = |name: &str| name.starts_with("cudaError");
                    assert!(row.runtime_name.is_none_or(is_runtimes), "{}", row.name);
                    assert!(row.number.is_some(), "{}", row.name);
                }
                Origin::Runtime => {
                    assert!(row.name.starts_with("cudaError") && row.runtime_name.is_none());
                    assert!(row.number.is_some() && !row.wordings.is_empty(), "{}", row.name);
                }
                _ => assert!(row.runtime_name.is_none(), "{}", row.name),
            }
        }
    }

    #[test]
    fn former_numbers_mean_nothing_else_today_or_yield_to_it() {
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
            assert_eq!(by_number(number).map(|row| row.name), Some(name));
        }
    }

    #[test]
    fn what_kills_the_context_is_sticky_and_a_refused_launch_is_not() {
        for number in [700, 710, 714, 715, 716, 717, 718, 719] {
            assert!(by_number(number).is_some_and(|row| row.sticky && row.late), "{number}");
        }
        for number in [1, 2, 9, 98, 209, 701, 720, 912] {
            assert!(by_number(number).is_some_and(|row| !row.sticky && !row.late), "{number}");
        }
    }
}
