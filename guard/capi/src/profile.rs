//! Tuned choices from profiles: loads them, looks them up, and says what matched.

use core::ffi::c_char;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::OnceLock;

use gridguard::profile::{
    DefaultReason, DeviceIdentity, Environment, Key, L2, Layer, Layers, Match, Objective, Policy,
    Profile, StoredChoice, Submission, TunedChoice,
};

use crate::config::{
    GG_STRATEGY_AUTOMATIC, GG_STRATEGY_CHUNKED, GG_STRATEGY_FOLDED, GG_STRATEGY_SHIFTED,
    GG_STRATEGY_WHOLE, known_flags,
};
use crate::error::{create, entry, gg_error};
use crate::failure::{Failure, gg_status};
use crate::handles;
use crate::limits::gg_limits;
use crate::memory::{self, c_string, versioned};

/// The tuned choices for one device. Free it with `gg_free`.
pub struct gg_profile {
    profile: Profile,
    notices: Vec<CString>,
    digest: OnceLock<CString>,
    /// The names of launch parameters, as C reads them.
    names: BTreeMap<String, CString>,
}

/// The key of a profile's choices: kernel, code and purpose. Immutable; free it with `gg_free`.
pub struct gg_key(pub(crate) Key);

/// The fields of a key. Zeros are their defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_key_info {
    /// Set it to `sizeof(gg_key_info)`.
    pub struct_size: usize,
    /// The kernel's name.
    pub kernel: *const c_char,
    /// A hash of the device code in hexadecimal digits; NULL for none.
    pub source: *const c_char,
    /// Which of several implementations; NULL if there is only one.
    pub variant: *const c_char,
    /// The element types of the tensors, for example `f16`; NULL for none.
    pub dtypes: *const c_char,
    /// Measured for the largest chunk whose launch takes at most this many microseconds; 0 otherwise.
    pub max_launch_us: u64,
    /// Measured within a workspace of this many bytes for each item; 0 otherwise.
    pub workspace_bytes_per_item: u64,
    /// The whole workspace in bytes.
    pub workspace_bytes: u64,
    /// The sum of some of `GG_HOT_CACHE` and `GG_GRAPH`: how times were measured.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(gg_key_info, 72);

/// The data of a launch was in the L2 cache.
pub const GG_HOT_CACHE: u32 = 1;
/// Launches were submitted as a graph.
pub const GG_GRAPH: u32 = 2;

/// The result of a lookup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_tuned {
    /// Set it to `sizeof(gg_tuned)`.
    pub struct_size: usize,
    /// For `gg_batch.max_items`.
    pub max_items: u64,
    /// For `gg_batch.strategy`; `GG_STRATEGY_AUTOMATIC` if no entry matches.
    pub strategy: u32,
    /// `GG_MATCH_EXACT`, `_ROW`, `_BUCKET`, `_NEIGHBOUR` or `_DEFAULT`.
    pub matched: u32,
    /// For `GG_MATCH_DEFAULT`, why no entry matches: `GG_DEFAULT_NO_ENTRIES` and others.
    pub default_reason: u32,
    /// For `GG_MATCH_NEIGHBOUR`, the distance in thousandths of an octave, summed over the sizes.
    pub distance_millioctaves: u32,
    /// Where the entry comes from: `GG_LAYER_EXPLICIT`, `_USER`, `_SHIPPED`, `_EMBEDDED` or `_NONE`.
    pub layer: u32,
    /// 1 if the entry was measured with another major version of the driver, else 0.
    pub degraded: u32,
    /// Launch parameters of the entry.
    pub parameter_count: usize,
}

versioned!(gg_tuned, 48);

/// A launch parameter of an entry, for example the warps of a block. This structure never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_parameter {
    /// Its name. Valid until the profile is freed.
    pub name: *const c_char,
    /// Its value.
    pub value: u64,
}

/// The sizes are the same.
pub const GG_MATCH_EXACT: u32 = 0;
/// Each pair of sizes is between the same powers of two.
pub const GG_MATCH_BUCKET: u32 = 1;
/// Each size is within a factor of two.
pub const GG_MATCH_NEIGHBOUR: u32 = 2;
/// No entry matches: the planner's default applies.
pub const GG_MATCH_DEFAULT: u32 = 3;
/// A row of the key's decision list decides.
pub const GG_MATCH_ROW: u32 = 4;

/// The kernel was not tuned in this variant, with these types, for this purpose.
pub const GG_DEFAULT_NO_ENTRIES: u32 = 1;
/// All entries are for other device code.
pub const GG_DEFAULT_OTHER_SOURCE: u32 = 2;
/// The entries have another number of sizes.
pub const GG_DEFAULT_SIZE_COUNT: u32 = 3;
/// The first size, which counts the items, is 0.
pub const GG_DEFAULT_ZERO_SIZE: u32 = 4;
/// A size is outside the powers of two that were tuned.
pub const GG_DEFAULT_OUT_OF_RANGE: u32 = 5;
/// No entry is within a factor of two of each size.
pub const GG_DEFAULT_NO_NEIGHBOUR: u32 = 6;
/// Nothing beats the default of the entry that matches.
pub const GG_DEFAULT_CONFIRMED: u32 = 7;

/// The caller's file.
pub const GG_LAYER_EXPLICIT: u32 = 0;
/// The user's own profile.
pub const GG_LAYER_USER: u32 = 1;
/// A folder shipped with the program.
pub const GG_LAYER_SHIPPED: u32 = 2;
/// The profile that is built into the library.
pub const GG_LAYER_EMBEDDED: u32 = 3;
/// No entry matches.
pub const GG_LAYER_NONE: u32 = 4;

/// Loads the tuned choices for the device of `limits`. The file or folder `path`, which may be NULL, comes first, then
/// the user's folder (`GRIDGUARD_PROFILES`), then the profiles built into the library.
///
/// A file or an entry that cannot be used is left out with a notice. Entries of another device are never used.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_profile_load(
    limits: *const gg_limits,
    path: *const c_char,
    out: *mut *mut gg_profile,
    error: *mut *mut gg_error,
) -> gg_status {
    let make = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let limits = unsafe { handles::get(limits, "limits") }?;
        let device = DeviceIdentity::new(limits.limits.device());
        // The software decides whether entries are stale. Without a driver it is unknown.
        #[cfg(feature = "cuda")]
        let environment = Environment::cuda().unwrap_or_default();
        #[cfg(not(feature = "cuda"))]
        let environment = Environment::default();
        let layers = if path.is_null() {
            Layers::new()
        } else {
            // SAFETY: the caller's text, for the time of this call.
            Layers::new().explicit(unsafe { memory::text(path, "path") }?)
        };
        let loaded = layers.user().built_in(&device).load(&device, &environment);
        let entries = loaded.profile.entries();
        let names = entries.flat_map(|(_, entry)| &entry.parameters);
        let names = names.map(|(name, _)| (name.clone(), c_string(name.as_str()))).collect();
        let notices = loaded.notices.iter().map(|it| c_string(it.to_string())).collect();
        Ok(gg_profile { profile: loaded.profile, notices, digest: OnceLock::new(), names })
    };
    // SAFETY: `out` and `error` are the caller's.
    unsafe { create(out, error, make) }
}

/// The notice at `index`, from 0, about an entry or file that was left out or may be stale. NULL past the last
/// notice, and for a wrong handle. The notice is valid until the profile is freed.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_profile_notice(
    profile: *const gg_profile,
    index: usize,
) -> *const c_char {
    // SAFETY: the caller does not free the handle meanwhile.
    let profile = unsafe { handles::get(profile, "profile") }.ok();
    let notice = profile.and_then(|profile| profile.notices.get(index));
    notice.map_or(core::ptr::null(), |notice| notice.as_ptr())
}

/// The digest of all choices, 64 hexadecimal digits. Profiles with equal digests choose alike for every launch, so the
/// ranks of a job can compare theirs at the start. NULL for a wrong handle. Valid until the profile is freed.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_profile_digest(profile: *const gg_profile) -> *const c_char {
    // SAFETY: the caller does not free the handle meanwhile.
    let profile = unsafe { handles::get(profile, "profile") }.ok();
    let digest = profile
        .map(|profile| profile.digest.get_or_init(|| c_string(profile.profile.choices_digest())));
    digest.map_or(core::ptr::null(), |digest| digest.as_ptr())
}

/// Makes a key for lookups.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_key_create(
    info: *const gg_key_info,
    out: *mut *mut gg_key,
    error: *mut *mut gg_error,
) -> gg_status {
    let make = || {
        // SAFETY: the caller's structure, for the time of this call.
        let info = unsafe { memory::read(info, "info") }?;
        known_flags(info.flags, GG_HOT_CACHE | GG_GRAPH, "info.flags")?;
        let optional = |text: *const c_char, what| {
            // SAFETY: the caller's text, for the time of this call.
            unsafe { memory::optional_text(text, what) }.map(|text| text.unwrap_or("").to_owned())
        };
        let objective = match (info.max_launch_us, info.workspace_bytes_per_item) {
            (0, 0) => Objective::Throughput,
            (max_launch_us, 0) => Objective::Latency { max_launch_us },
            (0, bytes_per_item) => {
                Objective::Memory { bytes_per_item, bytes: info.workspace_bytes }
            }
            (given, _) => {
                let expected = "0 where a workspace is given";
                return Err(Failure::range("info.max_launch_us", given, expected));
            }
        };
        let l2 = if info.flags & GG_HOT_CACHE != 0 { L2::Hot } else { L2::Cold };
        let submission =
            if info.flags & GG_GRAPH != 0 { Submission::Graph } else { Submission::Eager };
        Ok(gg_key(Key {
            // SAFETY: the caller's text, for the time of this call.
            kernel: unsafe { memory::text(info.kernel, "info.kernel") }?.to_owned(),
            source: optional(info.source, "info.source")?,
            variant: optional(info.variant, "info.variant")?,
            dtypes: optional(info.dtypes, "info.dtypes")?,
            policy: Policy { l2, submission },
            objective,
        }))
    };
    // SAFETY: `out` and `error` are the caller's.
    unsafe { create(out, error, make) }
}

/// Looks up the tuned choice for a shape of `count` sizes, in the order of the profile's entries, and writes it to
/// `out`. Up to `capacity` of its launch parameters are written to `parameters`, which may be NULL if `capacity`
/// is 0. The lookup neither allocates nor locks.
///
/// A choice is a preference: set `GG_PREFERENCE` with it.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_profile_look_up(
    profile: *const gg_profile,
    key: *const gg_key,
    sizes: *const u64,
    count: usize,
    out: *mut gg_tuned,
    parameters: *mut gg_parameter,
    capacity: usize,
    error: *mut *mut gg_error,
) -> gg_status {
    let body = || {
        // SAFETY: the caller does not free the handles meanwhile.
        let (profile, key) =
            unsafe { (handles::get(profile, "profile")?, handles::get(key, "key")?) };
        // SAFETY: the caller's array, for the time of this call.
        let sizes = unsafe { memory::array(sizes, count, MAX_SIZES, "sizes") }?;
        if capacity > 0 && parameters.is_null() {
            return Err(Failure::null("parameters"));
        }
        let tuned = profile.profile.lookup(&key.0, sizes);
        // SAFETY: `out` is the caller's.
        unsafe { memory::write(out, &result_of(&tuned), "out") }?;
        for (place, (name, value)) in tuned.parameters().iter().enumerate().take(capacity) {
            let name = profile.names.get(name).map_or(core::ptr::null(), |name| name.as_ptr());
            let parameter = gg_parameter { name, value: *value };
            // SAFETY: not null, so there is room for `capacity` parameters, and `place` is less.
            unsafe { parameters.add(place).write_unaligned(parameter) };
        }
        Ok(())
    };
    // SAFETY: `error` is the caller's.
    unsafe { entry(error, body) }
}

fn result_of(tuned: &TunedChoice<'_>) -> gg_tuned {
    let choice = tuned.entry.map(|entry| entry.choice).unwrap_or_default();
    let (strategy, max_items) = match choice {
        StoredChoice::Automatic => (GG_STRATEGY_AUTOMATIC, 0),
        StoredChoice::Whole => (GG_STRATEGY_WHOLE, 0),
        StoredChoice::Folded => (GG_STRATEGY_FOLDED, 0),
        StoredChoice::Shifted => (GG_STRATEGY_SHIFTED, 0),
        StoredChoice::Chunked { max_items } => (GG_STRATEGY_CHUNKED, max_items.get()),
    };
    let (matched, distance_millioctaves, default_reason) = match tuned.matched {
        Match::Exact => (GG_MATCH_EXACT, 0, 0),
        Match::Row { .. } => (GG_MATCH_ROW, 0, 0),
        Match::Bucket => (GG_MATCH_BUCKET, 0, 0),
        Match::Neighbour { distance_millioctaves } => {
            (GG_MATCH_NEIGHBOUR, distance_millioctaves, 0)
        }
        Match::Default(reason) => (GG_MATCH_DEFAULT, 0, number_of(reason)),
    };
    let layer = match tuned.layer {
        Some(Layer::Explicit) => GG_LAYER_EXPLICIT,
        Some(Layer::User) => GG_LAYER_USER,
        Some(Layer::Shipped) => GG_LAYER_SHIPPED,
        Some(Layer::Embedded) => GG_LAYER_EMBEDDED,
        None => GG_LAYER_NONE,
    };
    gg_tuned {
        struct_size: 0,
        max_items,
        strategy,
        matched,
        default_reason,
        distance_millioctaves,
        layer,
        degraded: tuned.degraded.into(),
        parameter_count: tuned.parameters().len(),
    }
}

const fn number_of(reason: DefaultReason) -> u32 {
    match reason {
        DefaultReason::OtherSource => GG_DEFAULT_OTHER_SOURCE,
        DefaultReason::SizeCount { .. } => GG_DEFAULT_SIZE_COUNT,
        DefaultReason::ZeroSize => GG_DEFAULT_ZERO_SIZE,
        DefaultReason::OutOfRange { .. } => GG_DEFAULT_OUT_OF_RANGE,
        DefaultReason::NoNeighbour => GG_DEFAULT_NO_NEIGHBOUR,
        DefaultReason::Confirmed { .. } => GG_DEFAULT_CONFIRMED,
        // No entries. Without a profile there is no lookup.
        _ => GG_DEFAULT_NO_ENTRIES,
    }
}

/// More sizes than any entry has.
const MAX_SIZES: usize = 1 << 10;
