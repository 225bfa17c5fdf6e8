//! Tests of profiles across modules.

mod decided;
mod generate;
mod hostile;
mod logged;
mod looked_up;
mod merged;
mod written;

use core::num::NonZeroU64;

use super::*;
use crate::DeviceLimits;

pub(super) fn device() -> DeviceIdentity {
    DeviceIdentity::new(&DeviceLimits::any_device())
}

pub(super) fn environment() -> Environment {
    Environment { driver: "13.0".into(), compiler: "13.0".into(), tuner: "0.1.0".into() }
}

pub(super) fn key(kernel: &str) -> Key {
    Key { kernel: kernel.into(), source: "0f1e".into(), dtypes: "f16".into(), ..Key::default() }
}

/// An entry of `kernel` for rows and columns, in chunks of `rows` items.
pub(super) fn entry(kernel: &str, rows: u64, columns: u64) -> Entry {
    let max_items = NonZeroU64::new(rows).expect("rows");
    Entry {
        key: key(kernel),
        shape: vec![("rows".into(), rows), ("columns".into(), columns)],
        choice: StoredChoice::Chunked { max_items },
        parameters: vec![("warps".into(), 4)],
        launches: 1,
        chosen: Summary { median_ns: 100, low_ns: 90, high_ns: 110, samples: 20 },
        default: Summary { median_ns: 120, low_ns: 110, high_ns: 130, samples: 20 },
        found: Provenance {
            date: "2026-11-20T12:00:00Z".into(),
            driver: "13.0".into(),
            compiler: "13.0".into(),
            tuner: "0.1.0".into(),
            candidates: 12,
            failed: 1,
            samples: 400,
            stopped: StopReason::Noise,
            tolerance: String::new(),
            attained_percent: 0,
        },
    }
}

pub(super) fn document(entries: impl IntoIterator<Item = Entry>) -> Document {
    let mut document = Document::new(device(), environment());
    for entry in entries {
        document.insert(entry).expect("within the limits");
    }
    document
}
