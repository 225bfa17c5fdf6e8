//! Tuned choices: what a profile stores, and which entry serves a launch.
//!
//! A tuner measures on a device and [publishes](publish) what it found to the device's file, one
//! for each ([`DeviceIdentity::file_name`]). A server [loads](Layers) it once, hands it to its
//! [`Guard`](crate::Guard) and asks for each launch: the answer says which entry serves and how well
//! it matches, and is the planner's own way where none does. Whatever it says, the plan is validated
//! like any other.
//!
//! ```
//! use gridguard::profile::{
//!     Document, Entry, Environment, Key, Layers, Match, MissLog, Provenance, Reason, StoredChoice,
//!     Summary, publish,
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
//! for finding in &loaded.findings {
//!     eprintln!("{finding}");
//! }
//! let misses = Arc::new(MissLog::new(1000));
//! let guard = guard.with_profile(Arc::new(loaded.profile)).with_miss_log(Arc::clone(&misses));
//!
//! // And at each launch.
//! let names = ["rows", "columns"];
//! let answer = guard.tuned(&key, &names, &[30_000, 4096]);
//! assert_eq!(answer.matched, Match::Default(Reason::OutOfRange { size: 0 }));
//! assert_eq!(answer.choice(), Choice::AUTOMATIC);
//! let answer = guard.tuned(&key, &names, &[40_000, 4096]);
//! assert_eq!((answer.matched, answer.parameters()), (Match::Bucket, &[("warps".into(), 4)][..]));
//!
//! // What to tune next.
//! misses.write(&folder.join("misses.ron"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The file
//!
//! RON: `(schema: 1, device: (..), aliases: [..], environment: (..), entries: [..])`, entries sorted
//! and four lines each. A bad entry is reported with its line and column and left out; a file of a
//! schema to come is refused. Files may be anything: size, nesting and number of entries are bounded.

mod bounds;
mod document;
mod entry;
mod environment;
mod error;
mod file;
mod finding;
mod hash;
mod identity;
mod key;
mod layers;
mod logarithm;
mod lookup;
mod matching;
mod merge;
mod misses;
mod outline;
mod processor;
mod reader;
mod record;
mod row;
mod scanner;
mod shapes;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod writer;

pub use bounds::{EntryFault, MAX_ENTRIES, MAX_FILE_BYTES, MAX_NAME_BYTES, MAX_SIZES};
pub use document::{Document, Parsed, SCHEMA};
pub use entry::{Entry, Named, Provenance, StopReason, StoredChoice, Summary};
pub use environment::Environment;
pub use error::{Fault, InsertError, ProfileError, StoreError};
pub use finding::{Finding, LayerFinding, Level};
pub use identity::{Backend, DeviceIdentity, Mismatch};
pub use key::{Key, L2, Objective, Policy, Submission};
pub use layers::{Layer, Layers, Loaded, user_folder};
pub use lookup::{Profile, Tuned, TunedChoice};
pub use matching::{Match, MatchKind, Reason};
pub use merge::{Conflict, Contender, Difference, MergeError};
pub use misses::{MissLog, MissedShape};
pub use processor::Processor;
pub use record::LookupCounts;
pub use shapes::ParsedShapes;
pub use store::{Published, load, publish, update};
