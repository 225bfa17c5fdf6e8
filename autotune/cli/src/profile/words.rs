//! Parts of entries as people read them.

use gridguard::profile::{Entry, Key, Named, Objective, Policy, StoredChoice};
use gridguard_autotune::duration;

/// `32768x4096`.
pub(super) fn shape(shape: &Named) -> String {
    let sizes: Vec<String> = shape.iter().map(|(_, size)| size.to_string()).collect();
    sizes.join("x")
}

/// `warps 4, rounds 1`; empty where there are none.
pub(super) fn parameters(parameters: &Named) -> String {
    let named: Vec<String> =
        parameters.iter().map(|(name, value)| format!("{name} {value}")).collect();
    named.join(", ")
}

/// `default`, `whole`, `folded`, `chunks of 8192`.
pub(super) fn choice(choice: StoredChoice) -> String {
    match choice {
        StoredChoice::Automatic => "default".to_owned(),
        other => other.to_string(),
    }
}

/// The choice with the launch parameters: `chunks of 8192, warps 4`.
pub(super) fn chosen(stored: StoredChoice, named: &Named) -> String {
    match parameters(named) {
        none if none.is_empty() => choice(stored),
        some => format!("{}, {some}", choice(stored)),
    }
}

/// How a time was taken and for what; empty for what is usual.
pub(super) fn purpose(key: &Key) -> String {
    let (usual_policy, usual_objective) = (Policy::default(), Objective::default());
    match (key.policy == usual_policy, key.objective == usual_objective) {
        (true, true) => String::new(),
        (false, true) => key.policy.to_string(),
        (true, false) => key.objective.to_string(),
        (false, false) => format!("{}, {}", key.policy, key.objective),
    }
}

/// `rms_norm f16, cold-eager, throughput, 32768x4096`.
pub(super) fn subject(entry: &Entry) -> String {
    format!("{}, {}", entry.key, shape(&entry.shape))
}

/// `102.4 us`; empty where nothing was measured.
pub(super) fn time(ns: u64) -> String {
    if ns == 0 { String::new() } else { duration(real(ns)) }
}

/// `+8.3 %`, `0.0 %`.
pub(super) fn percent(fraction: f64) -> String {
    match format!("{:+.1} %", fraction * 100.0) {
        none if matches!(&*none, "+0.0 %" | "-0.0 %") => "0.0 %".to_owned(),
        some => some,
    }
}

/// By how much of it a time is longer than another; `None` where one was not measured.
pub(super) fn change(before_ns: u64, now_ns: u64) -> Option<f64> {
    (before_ns > 0 && now_ns > 0).then(|| real(now_ns) / real(before_ns) - 1.0)
}

/// `1 entry`, `2 entries`.
pub(super) fn count(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// A count as a quantity.
#[allow(clippy::as_conversions, reason = "exact up to 2^53, which is enough")]
pub(super) const fn real(count: u64) -> f64 {
    count as f64
}
