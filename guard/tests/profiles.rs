//! Profiles of one device, for the tests of files, layers and allocations.

use gridguard::DeviceLimits;
use gridguard::profile::{DeviceIdentity, Document, Entry, Environment, Key, StoredChoice};

pub(crate) fn device() -> DeviceIdentity {
    DeviceIdentity::new(&DeviceLimits::any_device())
}

pub(crate) fn key(kernel: &str) -> Key {
    Key { kernel: kernel.into(), dtypes: "f16".into(), ..Key::default() }
}

/// An entry of `kernel` for so many rows.
pub(crate) fn entry(kernel: &str, rows: u64) -> Entry {
    Entry {
        key: key(kernel),
        shape: vec![("rows".into(), rows)],
        choice: StoredChoice::Whole,
        launches: 1,
        ..Entry::default()
    }
}

pub(crate) fn document(entries: impl IntoIterator<Item = Entry>) -> Document {
    let mut document = Document::new(device(), Environment::default());
    for entry in entries {
        document.insert(entry).expect("within the limits");
    }
    document
}
