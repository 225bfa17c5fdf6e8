//! Tuned choices: stores what was fastest for each kernel and shape, and looks it up for a launch.
//!
//! A tuner measures on a device and [publishes](publish) the results to that device's file
//! ([`DeviceIdentity::file_name`]). A server [loads](Layers) the file once, passes it to its
//! [`Guard`](crate::Guard) and looks up every launch: the result says which entry matches and how
//! well, and is the planner's default if none does. The plan is validated like any other.
//!
//! ```
//! use gridguard::profile::{
//!     DefaultReason, Document, Entry, Environment, Key, Layers, Match, MissLog, Provenance,
//!     StoredChoice, Summary, publish,
//! };
//! use gridguard::{Choice, DeviceLimits, Guard};
//! use std::sync::Arc;
//!
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let guard = Guard::host(DeviceLimits::any_device());
//! let environment = Environment { tuner: "0.1.0".into(), ..Environment::default() };
//! let key = Key { kernel: "rms_norm".into(), dtypes: "f16".into(), ..Key::default() };
//!
//! // A tuner, after measuring.
//! let mut document = Document::new(guard.identity(), environment.clone());
//! document.insert(Entry {
//!     key: key.clone(),
//!     shape: vec![("rows".into(), 32_768), ("columns".into(), 4096)],
//!     choice: StoredChoice::Whole,
//!     parameters: vec![("warps".into(), 4)],
//!     launches: 1,
//!     chosen: Summary::default(),
//!     default: Summary::default(),
//!     found: Provenance::default(),
//! })?;
//! publish(&folder.join(guard.identity().file_name()), &document)?;
//!
//! // A server, when it starts.
//! let loaded = Layers::new().user_at(folder).load(&guard.identity(), &environment);
//! for notice in &loaded.notices {
//!     eprintln!("{notice}");
//! }
//! let misses = Arc::new(MissLog::new(1000));
//! let guard = guard.with_profile(Arc::new(loaded.profile)).with_miss_log(Arc::clone(&misses));
//!
//! // For each launch.
//! let names = ["rows", "columns"];
//! let tuned = guard.tuned(&key, &names, &[30_000, 4096]);
//! assert_eq!(tuned.matched, Match::Default(DefaultReason::OutOfRange { size: 0 }));
//! assert_eq!(tuned.choice(), Choice::AUTOMATIC);
//! let tuned = guard.tuned(&key, &names, &[40_000, 4096]);
//! assert_eq!((tuned.matched, tuned.parameters()), (Match::Bucket, &[("warps".into(), 4)][..]));
//!
//! // What to tune next.
//! misses.write(&folder.join("misses.ron"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The file
//!
//! RON: `(schema: 1, device: (..), aliases: [..], environment: (..), entries: [..])`, with sorted
//! entries of four lines each. An invalid entry is reported with its line and column and left out; a
//! file with another schema is rejected. Any input is safe to read: size, nesting and number of
//! entries are limited, and reading takes time linear in the size.

pub(crate) mod device;
mod document;
mod error;
mod index;
mod layers;
pub(crate) mod lookup;
pub(crate) mod matching;
mod merge;
pub(crate) mod misses;
pub(crate) mod model;
mod notice;
mod rows;
mod store;
#[cfg(test)]
mod tests;

pub use device::{Backend, DeviceIdentity, DeviceMismatch, Environment, Processor};
pub use document::{Document, ParsedProfile};
pub use error::{FileFault, MAX_FILE_BYTES, ProfileError, SCHEMA};
pub use layers::{Layers, LoadedProfile, user_folder};
pub use lookup::{Profile, TunedChoice, TunedKernel};
pub use matching::{DefaultReason, Layer, LookupCounts, Match, MatchKind};
pub use merge::{EntryDifference, MergeConflict, MergeReason};
pub use misses::{MissLog, MissedShape, ParsedShapes};
pub use model::{
    Entry, EntryError, Key, L2, MAX_ENTRIES, MAX_ENTRY_BYTES, MAX_NAME_BYTES, MAX_SIZES, Named,
    Objective, Policy, Provenance, StopReason, StoredChoice, Submission, Summary,
};
pub use notice::{Component, LayerNotice, NoticeLevel, ProfileNotice};
pub use store::{Published, load, publish, update};
