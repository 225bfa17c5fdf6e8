//! Devices that do not exist or that `CUDA_VISIBLE_DEVICES` hides.

use std::ffi::OsString;
use std::path::Path;

use gridguard::cuda::{compute_mode, device_count, device_limits, free_memory};
use gridguard::{FallbackReason, Guard};
use gridguard_test_support::Random;

use crate::observed::{Expected, Observed, Seen};
use crate::setup::Setup;

/// Values that hide every device.
const HIDES_ALL: [&str; 8] = ["", "-1", "99", "NoDevFiles", "-1,0", "GPU-00000000", "0,0", "MIG-1"];
/// Values that leave the first device visible.
const HIDES_OTHERS: [&str; 5] = ["0", "0,99", "0,-1", "0,-1,1", "0,,1"];
/// Ordinals after the first that is missing.
const BEYOND: [usize; 7] = [0, 1, 7, 1 << 16, (1 << 31) - 9, 1 << 32, usize::MAX >> 1];

/// The value of `CUDA_VISIBLE_DEVICES`, and whether it hides every device.
fn visible(number: u64, random: &mut Random) -> (Option<&'static str>, bool) {
    match number % 3 {
        0 => (Some(random.pick(&HIDES_ALL)), true),
        1 => (Some(random.pick(&HIDES_OTHERS)), false),
        _ => (None, false),
    }
}

pub(crate) fn prepare(
    _: &Setup,
    _: &Path,
    number: u64,
    random: &mut Random,
) -> Vec<(&'static str, OsString)> {
    let value = visible(number, random).0;
    value.into_iter().map(|value| ("CUDA_VISIBLE_DEVICES", value.into())).collect()
}

pub(crate) fn inject(setup: &Setup, number: u64, random: &mut Random) -> Observed {
    let (value, hides_all) = visible(number, random);
    let ordinal = match value {
        Some(_) => usize::from(!hides_all),
        None => device_count().expect("a device").saturating_add(random.pick(&BEYOND)),
    };
    let call = random.below(4);
    let seen = match call {
        0 => Seen::of(&Guard::cuda(ordinal)),
        1 => Seen::of(&device_limits(ordinal)),
        2 => Seen::of(&free_memory(ordinal)),
        _ => Seen::of(&compute_mode(ordinal)),
    };
    // Drivers fail to initialise if a device is named twice, and else see none (H200).
    let outcomes: &[&str] = match hides_all {
        true => &["CudaError::NoDevice", "CudaError::InitFailed/101 "],
        false => &["CudaError::NoSuchDevice"],
    };
    let drawn = format!("{value:?}, call {call} for device {ordinal}");
    let mut observed = Observed::new(drawn, &seen, &Expected { outcomes, ..Expected::default() });
    if hides_all {
        require_fallback(&mut observed);
    } else {
        let ordinary = setup.check_launch(&setup.guard());
        observed.require(ordinary.is_ok(), || format!("device 0: {ordinary:?}"));
    }
    observed
}

/// The best guard serves the host, for the reason that was observed.
pub(crate) fn require_fallback(observed: &mut Observed) -> Guard {
    let guard = Guard::best_or_host();
    let reason = match guard.fallback() {
        Some(FallbackReason::Cuda(reason)) => Seen::failure(reason).outcome,
        other => format!("{other:?}"),
    };
    let same = !guard.is_cuda() && reason == observed.outcome;
    observed.require(same, || format!("the best guard fell back for {reason}"));
    guard
}
