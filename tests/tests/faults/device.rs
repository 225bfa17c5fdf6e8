//! Devices that do not exist or that `CUDA_VISIBLE_DEVICES` hides.

use std::ffi::OsString;
use std::path::Path;

use gridguard::cuda::{compute_mode, device_count, device_limits, free_memory};
use gridguard::{FallbackReason, Guard};
use gridguard_test_support::Random;

use crate::observed::{Expected, Observed, Seen};
use crate::setup::Setup;

/// The value of `CUDA_VISIBLE_DEVICES`, and whether it hides every device.
fn visible(number: u64, random: &mut Random) -> (Option<String>, bool) {
    // Beyond the devices of any machine.
    let n = 100 + random.below(100_000);
    let hides_all = ["", "NoDevFiles", &format!("{n}"), &format!("-1,{n}"), &format!("GPU-{n:08}")]
        .map(str::to_owned);
    let hides_others = [format!("0,{n}"), format!("0,-1,{n}"), format!("0,,{n}")];
    match number % 3 {
        0 => (hides_all.into_iter().nth(place(random, 5)), true),
        1 => (hides_others.into_iter().nth(place(random, 3)), false),
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
        None => device_count().expect("a device").saturating_add(beyond(random)),
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

fn place(random: &mut Random, end: u64) -> usize {
    usize::try_from(random.below(end)).expect("64 bits")
}

/// Devices after the first that is missing: also more than 32 bits count.
fn beyond(random: &mut Random) -> usize {
    let most = random.pick(&[8, 1 << 16, 1 << 31, 1 << 62]);
    place(random, most)
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
