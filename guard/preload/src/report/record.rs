//! `gridguard run --record FILE`: each kind of launch once, as a request that `gridguard check` reads.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde_json::Value;

use crate::driver::Driver;
use crate::driver::request::Launch;
use crate::process::output::Output;
use crate::watch::kernel::Kernel;
use crate::watch::slot_cache::{hash_of, place_of};

/// The most kinds of launches that are recorded.
const KINDS: usize = 1 << 16;

/// The hashes of the launches that were recorded.
static RECORDED: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];
/// Kinds for which no place was free, or whose line could not be written.
static LEFT_OUT: AtomicUsize = AtomicUsize::new(0);

/// Appends the launch of `kernel` to the file, unless an equal launch was recorded before.
pub(crate) fn record(to: &Output, launch: &Launch, kernel: &Kernel) {
    if is_new(launch, kernel) && to.append(line(launch, &kernel.name()).as_bytes()).is_err() {
        LEFT_OUT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Kinds of launches that were not recorded.
pub(crate) fn left_out() -> usize {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// The launch as one line of JSON.
fn line(launch: &Launch, name: &str) -> String {
    // SAFETY: the program launched the kernel just now.
    let kernel = unsafe { Driver::of(launch.through).limits_for(launch, name) };
    let mut request = serde_json::to_value(launch.request()).unwrap_or_default();
    if let Value::Object(fields) = &mut request {
        fields.insert("name".into(), name.into());
        fields.insert("kernel".into(), serde_json::to_value(kernel).unwrap_or_default());
    }
    format!("{request}\n")
}

fn is_new(launch: &Launch, kernel: &Kernel) -> bool {
    let Launch { grid, block, shared_bytes, cluster, cooperative, dependent, priority, .. } =
        launch;
    let kernel = core::ptr::from_ref(kernel).addr();
    let configuration = (grid, block, shared_bytes, cluster, cooperative, dependent, priority);
    match place_of(hash_of(&(kernel, configuration)), KINDS, |place| &RECORDED[place]) {
        Some((_, is_new)) => is_new,
        None => {
            LEFT_OUT.fetch_add(1, Ordering::Relaxed);
            false
        }
    }
}
