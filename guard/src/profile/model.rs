//! The entries of a profile: key, shape, choice and measured times of each tuned problem.

use core::fmt;
use core::num::NonZeroU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use derive_more::Display;
use serde::{Deserialize, Serialize};

use super::error::ProfileError;
use crate::plan::choice::{Choice, Strategy};

/// Whether a launch's data is in the L2 cache before it is timed.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display(rename_all = "lowercase")]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum L2 {
    /// The cache is flushed before each sample.
    #[default]
    Cold,
    /// The same launches ran just before the sample.
    Hot,
}

/// How launches are submitted to the device.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display(rename_all = "lowercase")]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Submission {
    /// One by one, from the host.
    #[default]
    Eager,
    /// As a captured graph.
    Graph,
}

/// The conditions of the measurements.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display("{l2}-{submission}")]
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The state of the L2 cache.
    pub l2: L2,
    /// How launches were submitted.
    pub submission: Submission,
}

/// The goal of a choice.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display(rename_all = "lowercase")]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Objective {
    /// The least time for the whole batch.
    #[default]
    Throughput,
    /// The largest chunk whose launch stays within a time limit, for servers that share a device.
    #[display("latency {max_launch_us}us")]
    Latency {
        /// The time limit of one launch in microseconds. For a pipeline, of the first chunks in flight.
        max_launch_us: u64,
    },
    /// The least time for the whole batch within a workspace.
    #[display(
        "memory {bytes} bytes{}",
        if *bytes_per_item == 0 { String::new() } else { format!(", {bytes_per_item} an item") }
    )]
    Memory {
        /// Workspace per item, in bytes; 0 for a pipeline, whose plan has the size of its scratch.
        bytes_per_item: u64,
        /// The whole workspace, or all scratch of a pipeline, in bytes.
        bytes: u64,
    },
}

/// The part that entries of different shapes share: kernel, code and purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Key {
    /// The name of the kernel or the pipeline, for example `rms_norm`.
    pub kernel: String,
    /// A hash of the device code in hexadecimal digits. Edited code matches no entry.
    pub source: String,
    /// The implementation, if there are several. For a pipeline, a hash of its stages and buffers.
    pub variant: String,
    /// The element types of the tensors, such as `f16` or `f16 i64`.
    pub dtypes: String,
    /// The conditions of the measurements.
    pub policy: Policy,
    /// The goal of the choice.
    pub objective: Objective,
}

impl Key {
    /// The key without its source, which an edit of the kernel does not change.
    pub(super) fn purpose(&self) -> (&str, &str, &str, Policy, Objective) {
        let Self { kernel, source: _, variant, dtypes, policy, objective } = self;
        (kernel, variant, dtypes, *policy, *objective)
    }
}

/// A planner's choice as stored in a profile.
///
/// The planner applies it within the limits, and reports an error if it is not legal.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display(rename_all = "lowercase")]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum StoredChoice {
    /// The planner's default.
    #[default]
    Automatic,
    /// One launch, as requested. For a pipeline, one chunk.
    Whole,
    /// One launch with the batch axis folded into x. For a rewritten kernel, all blocks flat on x.
    Folded,
    /// For a rewritten kernel, as few launches of parts of the grid as possible.
    Shifted,
    /// Several launches, one per chunk.
    #[display("chunks of {max_items}")]
    Chunked {
        /// The most items of a chunk.
        max_items: NonZeroU64,
    },
}

impl From<StoredChoice> for Choice {
    fn from(stored: StoredChoice) -> Self {
        match stored {
            StoredChoice::Automatic => Self::AUTOMATIC,
            StoredChoice::Whole => Self::AUTOMATIC.strategy(Strategy::Whole),
            StoredChoice::Folded => Self::AUTOMATIC.strategy(Strategy::Folded),
            StoredChoice::Shifted => Self::AUTOMATIC.strategy(Strategy::Shifted),
            StoredChoice::Chunked { max_items } => {
                Self::at_most(max_items.get()).strategy(Strategy::Chunked)
            }
        }
    }
}

/// Names and values, in the kernel's order: the sizes of a shape, or launch parameters.
pub type Named = Vec<(String, u64)>;

/// The value with this name.
pub(crate) fn value_of(named: &[(String, u64)], name: &str) -> Option<u64> {
    named.iter().find(|(other, _)| other == name).map(|(_, value)| *value)
}

/// How many bytes a second the device can move, reading or copying data of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attainable {
    /// The state of the L2 cache.
    pub l2: L2,
    /// The size of the data: [`Self::size_of`] the traffic.
    pub bytes: u64,
    /// What the device can move.
    pub bytes_per_second: u64,
}

impl Attainable {
    /// The size at which the bandwidth for this traffic is measured: the power of two at most as large.
    ///
    /// ```
    /// assert_eq!(gridguard::profile::Attainable::size_of(1_887_436_800), 1 << 30);
    /// ```
    pub fn size_of(traffic: u64) -> u64 {
        traffic.checked_ilog2().map_or(0, |power| 1 << power)
    }

    /// Checks the size and the bandwidth.
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        match self.bytes.is_power_of_two() && self.bytes_per_second > 0 {
            true => Ok(()),
            false => Err(ProfileError::entry(format!(
                "{} bytes at {} bytes a second: give a power of two, and at least 1",
                self.bytes, self.bytes_per_second
            ))),
        }
    }
}

/// A summary of timing samples, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// The median.
    pub median_ns: u64,
    /// A lower bound of the median, with 97.5 % confidence.
    pub low_ns: u64,
    /// An upper bound of the median, with 97.5 % confidence.
    pub high_ns: u64,
    /// Number of samples.
    pub samples: u64,
}

/// Why sampling ended.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum StopReason {
    /// The relative deviation reached its target.
    #[default]
    Precise,
    /// More samples no longer reduced the deviation.
    Noise,
    /// The maximum number of samples was taken.
    Ceiling,
    /// The time limit was reached.
    Timeout,
}

/// How an entry was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The date in the form `2026-11-20T12:00:00Z`, which sorts as text; empty if unknown.
    pub date: String,
    /// The driver's CUDA version, as `13.0`; empty on the host.
    pub driver: String,
    /// The version of the device code's compiler with its build if known, as `13.0` or `13.0.88`; empty on the host.
    pub compiler: String,
    /// The version of the tuner.
    pub tuner: String,
    /// Number of candidates measured.
    pub candidates: u64,
    /// Number of candidates that failed: rejected, wrong result, timed out, or crashed.
    pub failed: u64,
    /// Samples of all candidates, including dropped candidates.
    pub samples: u64,
    /// Why the last sampling ended.
    pub stopped: StopReason,
    /// The allowed difference of outputs from the default's output, relative to it: `0`, or a number such as `1e-5`.
    /// Empty if the kernel's own test decided.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tolerance: String,
    /// How much of the [attainable](Attainable) bandwidth the choice reaches, in percent; 0 if unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attained_percent: u64,
}

/// The tuned choice for one shape. It serializes with the fields of its key at the same level.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Entry {
    /// Kernel, code and purpose.
    #[serde(flatten)]
    pub key: Key,
    /// The sizes, for example `[("rows", 32768), ("columns", 4096)]`. The first size counts the items and is at
    /// least 1. The others may be 0.
    pub shape: Named,
    /// How to plan the launch.
    pub choice: StoredChoice,
    /// Launch parameters of the kernel.
    pub parameters: Named,
    /// Launches of the plan.
    pub launches: u64,
    /// Times of the choice.
    pub chosen: Summary,
    /// Times of the default, measured in the same run.
    pub default: Summary,
    /// How it was measured.
    pub found: Provenance,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Entry {
    /// A problem whose default was measured on the device of the profile, where no candidate beat it. The file has one
    /// short row for it, without times, and a lookup returns no entry.
    pub fn confirmed(key: Key, shape: Named, date: String) -> Self {
        let found = Provenance { date, ..Provenance::default() };
        Self { key, shape, found, ..Self::default() }
    }

    /// Whether it is [confirmed](Self::confirmed).
    pub fn is_confirmed(&self) -> bool {
        let Self { choice, parameters, launches, chosen, default, found, .. } = self;
        *launches == 0
            && *choice == StoredChoice::Automatic
            && parameters.is_empty()
            && [chosen, default].iter().all(|times| **times == Summary::default())
            && *found == Provenance { date: found.date.clone(), ..Provenance::default() }
    }

    /// Whether its times do not beat the default's by 2 %, so that it can be stored as [confirmed](Self::confirmed).
    /// Never for an objective of latency or memory, where other reasons decide against the default.
    pub fn gains_nothing(&self) -> bool {
        let [chosen, default] =
            [self.chosen, self.default].map(|times| u128::from(times.median_ns));
        self.key.objective == Objective::Throughput
            && chosen > 0
            && default * 100 < chosen * LEAST_GAIN_PERCENT
    }

    /// Whether the default serves its shape.
    pub(super) fn keeps_default(&self) -> bool {
        self.is_confirmed() || self.gains_nothing()
    }

    /// Checks names, sizes, parameters and date against the limits of a profile.
    ///
    /// # Errors
    ///
    /// The first limit that is exceeded.
    pub fn check(&self) -> Result<(), ProfileError> {
        let Self { key, shape, parameters, found, .. } = self;
        check_key(key)?;
        check_length("source", &key.source)?;
        check_length("date", &found.date)?;
        check_date(&found.date)?;
        check_length("driver", &found.driver)?;
        check_length("compiler", &found.compiler)?;
        check_length("tuner", &found.tuner)?;
        check_length("tolerance", &found.tolerance)?;
        check_shape(shape)?;
        check_named("parameters", parameters)
    }

    /// The identity of the entry within a profile, which is also its sort key.
    pub(super) const fn subject(&self) -> (&Key, &Named) {
        (&self.key, &self.shape)
    }
}

/// Checks the names in a key, except its source.
pub(super) fn check_key(key: &Key) -> Result<(), ProfileError> {
    if key.kernel.is_empty() {
        return Err(ProfileError::entry("kernel is empty: give the kernel's name"));
    }
    check_length("kernel", &key.kernel)?;
    check_length("variant", &key.variant)?;
    check_length("dtypes", &key.dtypes)
}

/// Checks that a shape has at least one size, and that the first is not zero.
pub(super) fn check_shape(shape: &Named) -> Result<(), ProfileError> {
    check_named("shape", shape)?;
    match shape.first() {
        None => Err(ProfileError::entry("shape has no sizes: give at least one")),
        Some((name, 0)) => Err(ProfileError::entry(format!(
            "size {name:?} is 0: the first size counts the items and must be at least 1"
        ))),
        Some(_) => Ok(()),
    }
}

pub(super) fn check_length(field: &'static str, text: &str) -> Result<(), ProfileError> {
    if text.len() > MAX_NAME_BYTES {
        let bytes = text.len();
        return Err(ProfileError::entry(format!(
            "{field} has {bytes} bytes, the limit is {MAX_NAME_BYTES}: shorten it"
        )));
    }
    Ok(())
}

/// Checks a date. Merging keeps the entry with the latest date.
fn check_date(date: &str) -> Result<(), ProfileError> {
    if date.is_empty() {
        return Ok(());
    }
    let parsed = humantime::parse_rfc3339(date).ok().filter(|_| date.len() == DATE_BYTES);
    let parsed = parsed.ok_or_else(|| {
        ProfileError::entry(format!(
            "date {date:?} is not a valid date of the form 2026-11-20T12:00:00Z: correct it, or leave it empty"
        ))
    })?;
    // With a clock that was never set, every entry would be in the future.
    let now = SystemTime::now().max(UNIX_EPOCH + EARLIEST_NOW);
    match parsed.duration_since(now) {
        Ok(ahead) if ahead > MAX_AHEAD => Err(ProfileError::entry(format!(
            "date {date} is more than a day in the future: check the clock, and correct the date or \
             leave it empty"
        ))),
        _ => Ok(()),
    }
}

pub(super) fn check_named(field: &'static str, named: &Named) -> Result<(), ProfileError> {
    if named.len() > MAX_SIZES {
        let count = named.len();
        return Err(ProfileError::entry(format!(
            "{field} has {count} values, the limit is {MAX_SIZES}: remove some"
        )));
    }
    for (place, (name, _)) in named.iter().enumerate() {
        check_length(field, name)?;
        if named.iter().take(place).any(|(earlier, _)| earlier == name) {
            return Err(ProfileError::entry(format!("{field} has {name:?} twice: remove one")));
        }
    }
    Ok(())
}

impl fmt::Display for Key {
    /// `rms_norm registers f16, cold-eager, throughput`: everything but the source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kernel)?;
        for part in [&self.variant, &self.dtypes] {
            if !part.is_empty() {
                write!(f, " {part}")?;
            }
        }
        write!(f, ", {}, {}", self.policy, self.objective)
    }
}

/// What a choice must gain, in percent of its time.
const LEAST_GAIN_PERCENT: u128 = 102;
/// The most bytes of an entry in a file, with comments: hundreds of times the size of a valid entry.
pub const MAX_ENTRY_BYTES: usize = 1 << 20;
/// The most bytes of a name, hash or date in an entry: the length of a hexadecimal SHA-256.
pub(super) const MAX_NAME_BYTES: usize = 64;
/// The length of every date, such as 2026-11-20T12:00:00Z.
const DATE_BYTES: usize = 20;
/// How far the clock of the machine that measured may be ahead.
const MAX_AHEAD: Duration = Duration::from_secs(24 * 60 * 60);
/// 2026-11-22 in time since 1970. Every correct clock is later.
const EARLIEST_NOW: Duration = Duration::from_secs(1_795_305_600);
/// The most sizes of a shape, and parameters of an entry.
pub const MAX_SIZES: usize = 16;
