//! The launch corpus and the catalogue of GPUs.

use gridguard::catalog::{self, parse_gpus};
use gridguard::{Axis, DeviceLimits, KernelLimits};
use gridguard_test_support::invariants::{Bytes, case, plans};
use gridguard_test_support::parse_corpus;

use super::description;

/// Any text is a corpus, a catalogue, or an error with a position. Each launch of a corpus gets a correct verdict, and
/// plans for the GPUs of a catalogue are legal.
pub(super) fn check(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    match parse_corpus(text) {
        Ok(rows) => {
            let h200 = &catalog::gpu("h200").expect("catalogued").limits;
            rows.iter().for_each(|row| description::check(&row.request, h200));
        }
        Err(error) => assert!(error.starts_with("corpus.ron"), "{error}"),
    }
    match parse_gpus(text) {
        Ok(gpus) => {
            for gpu in gpus {
                assert_eq!(gpu.facts.len(), 28, "{}", gpu.limits.name);
                is_planned_for(&gpu.limits, bytes);
            }
        }
        Err(error) => {
            assert_eq!(error.unknown_gpu(), None, "{error}");
            assert!(error.to_string().starts_with("gpus.ron"), "{error}");
        }
    }
}

/// A launch that is made of `bytes`.
fn is_planned_for(device: &DeviceLimits, bytes: &[u8]) {
    let mut case = case(&mut Bytes::new(bytes));
    case.device = device.clone();
    case.kernel = KernelLimits::unknown("k");
    case.batch.axis = Axis::Y;
    plans::what_is_planned_is_legal_and_what_is_refused_is_hopeless(&case);
}
