//! Tuned choices: stores the fastest choice for each kernel and shape, and looks it up for a launch.
//!
//! A tuner measures on a device and [publishes](publish) the results to the file of that device
//! ([`DeviceIdentity::file_name`]). A server [loads](Layers) the file once, passes it to its
//! [`Guard`](crate::Guard) and looks up every launch. The result says how well an entry matches. Without a
//! match it is the planner's default. In both cases the plan is validated.
//!
//! ```
//! use gridguard::profile::{
//!     DefaultReason, Document, Entry, Environment, Key, Layers, Match, MissLog, StoredChoice,
//!     publish,
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
//!     ..Entry::default()
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
//! let outside = DefaultReason::OutOfRange { index: 0, size: 30_000, bits: (16, 16) };
//! assert_eq!(tuned.matched, Match::Default(outside));
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
//! RON: `(schema: 2, device: (..), aliases: [..], environment: (..), decisions: [..], entries: [..])`, with
//! [decision lists](DecisionList) that a person may change, and sorted entries of four lines each. Files without
//! decision lists have schema 1. An invalid entry is reported with its line and column and left out. A file
//! with another schema is rejected. Any input is safe to read: size, nesting and number of entries are
//! limited, and the time is linear in the size.

mod decide;
mod decision;
pub(crate) mod device;
mod digest;
mod document;
pub(crate) mod error;
mod index;
mod layers;
pub(crate) mod lookup;
pub(crate) mod matching;
mod merge;
pub(crate) mod misses;
pub(crate) mod model;
pub(crate) mod notice;
mod ranks;
mod rows;
mod store;
#[cfg(test)]
mod tests;

pub use decision::{DecisionList, DecisionRow, SizeRanges};
pub use device::{DeviceIdentity, Environment};
pub use document::Document;
pub use error::{ProfileError, ProfileErrorKind};
#[cfg(feature = "catalog")]
pub use layers::built_in_profile;
pub use layers::{Layers, LayersStamp, LoadedProfile};
pub use lookup::{Profile, TunedChoice};
pub use matching::{DefaultReason, Layer, Match};
pub use misses::MissLog;
pub use model::{
    Attainable, Entry, Key, L2, Objective, Policy, Provenance, StoredChoice, Submission, Summary,
};
pub use notice::{LayerNotice, NoticeLevel, ProfileNotice};
pub use ranks::{OtherChoices, compare_digests};
pub use store::publish;
// Parts of the items above, and what only the tuner and the command of this workspace use.
pub use {
    decide::{RowChoice, ServedShape, decision_lists},
    device::{Backend, DeviceMismatch, Processor},
    document::ParsedProfile,
    error::{FileFault, MAX_ENTRIES, MAX_FILE_BYTES},
    layers::{move_user_folder, user_folder},
    matching::MatchKind,
    merge::{MergeConflict, MergeReason},
    misses::{MissedShape, ParsedShapes},
    model::{MAX_ENTRY_BYTES, MAX_SIZES, Named, StopReason},
    store::{Published, load, update},
};
