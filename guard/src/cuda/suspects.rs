//! Which launches an error is to be blamed on that surfaces later, at another call.

use core::fmt;

use super::driver::{Driver, Handle, Status};
use super::history::{History, LaunchRecord};

/// Codes with which a failed kernel, or a failed device, poisons its context: every later call
/// answers them, whatever it is.
const STICKY: [Status; 13] = [
    214, // CUDA_ERROR_ECC_UNCORRECTABLE
    220, // CUDA_ERROR_NVLINK_UNCORRECTABLE
    226, // CUDA_ERROR_CONTAINED
    700, // CUDA_ERROR_ILLEGAL_ADDRESS
    702, // CUDA_ERROR_LAUNCH_TIMEOUT
    710, // CUDA_ERROR_ASSERT
    714, // CUDA_ERROR_HARDWARE_STACK_ERROR
    715, // CUDA_ERROR_ILLEGAL_INSTRUCTION
    716, // CUDA_ERROR_MISALIGNED_ADDRESS
    717, // CUDA_ERROR_INVALID_ADDRESS_SPACE
    718, // CUDA_ERROR_INVALID_PC
    719, // CUDA_ERROR_LAUNCH_FAILED
    721, // CUDA_ERROR_TENSOR_MEMORY_LEAK
];

/// Launches that a message names; the typed data has all.
pub(super) const NAMED: usize = 8;

/// What an error is to be blamed on that is of an earlier launch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultSuspects {
    /// This launch: it was waited for at once, and nothing else was under way through a guard.
    Launch(LaunchRecord),
    /// One of these, all since their streams were last synchronised through a guard, or a launch
    /// that is not on record: one that went around the guard, or of which guard and kernels are gone.
    OneOf {
        /// Those on record, the newest last.
        launches: Vec<LaunchRecord>,
        /// Those without a record: as a rule older ones.
        forgotten: u64,
    },
}

impl FaultSuspects {
    /// What `status` is to be blamed on, where it is not the call's own that answered it: launches
    /// in `context`, or else in the current one.
    pub(super) fn of(driver: &Driver, status: Status, context: Option<Handle>) -> Option<Self> {
        if !STICKY.contains(&status) {
            return None;
        }
        let known = History::known(context.or_else(|| driver.current_context()));
        let (mut launches, mut forgotten) = (Vec::new(), 0_u64);
        for history in &known {
            let (suspects, more) = history.suspects();
            launches.extend(suspects);
            forgotten = forgotten.saturating_add(more);
        }
        (!known.is_empty()).then_some(Self::OneOf { launches, forgotten })
    }

    /// The same, knowing that the newest launch was waited for at once: where it is the only one, it
    /// is the one.
    pub(super) fn at_a_check(self) -> Self {
        match self {
            Self::OneOf { mut launches, forgotten: 0 } if launches.len() == 1 => {
                let Some(launch) = launches.pop() else {
                    return Self::OneOf { launches, forgotten: 0 };
                };
                Self::Launch(launch)
            }
            several => several,
        }
    }

    /// The launches that can be to blame, the newest last.
    #[must_use]
    pub fn launches(&self) -> &[LaunchRecord] {
        match self {
            Self::Launch(launch) => core::slice::from_ref(launch),
            Self::OneOf { launches, .. } => launches,
        }
    }
}

impl fmt::Display for FaultSuspects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launch(launch) => write!(f, "the launch at fault is {launch}"),
            Self::OneOf { launches, forgotten } => one_of(f, launches, *forgotten),
        }
    }
}

fn one_of(f: &mut fmt::Formatter<'_>, launches: &[LaunchRecord], forgotten: u64) -> fmt::Result {
    let known = u64::try_from(launches.len()).unwrap_or(u64::MAX);
    let all = known.saturating_add(forgotten);
    f.write_str("this call is not to blame: ")?;
    match all {
        0 => return f.write_str("a launch that is not on record must be"),
        1 => f.write_str("1 launch since the last synchronisation can be")?,
        all => write!(f, "{all} launches since the last synchronisation can be")?,
    }
    let named = launches.get(launches.len().saturating_sub(NAMED)..).unwrap_or_default();
    if u64::try_from(named.len()).is_ok_and(|named| named < all) {
        write!(f, ", the last {} on record being", named.len())?;
    } else {
        f.write_str(":")?;
    }
    for (place, launch) in named.iter().enumerate() {
        write!(f, "{} {launch}", if place == 0 { "" } else { "," })?;
    }
    Ok(())
}
