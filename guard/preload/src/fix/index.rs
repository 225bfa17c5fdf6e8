//! Compares launches with the sizes at which 32-bit indices of their kernels wrap (`gridguard run --index`).
//!
//! The PTX is the module's own, or for machine code the PTX that `pair` finds. Of a text only the entries that are launched
//! are analysed. Each kind of launch is compared once, with the values of its parameters.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Mutex;

use gridguard::{Axis, Dim3, IndexLimit};
use gridguard_index::{EntryIndex, EntryPlaces, Size, Sizes, Verdict, Wrap};
use gridguard_report::{IndexCoverage, IndexUse, Nearness};

use crate::driver::Driver;
use crate::driver::request::Launch;
use crate::fix::arguments::{Arguments, RawArguments, WordSlot};
use crate::fix::pair::ptx_of;
use crate::fix::sidecar::parameters;
use crate::fix::store;
use crate::process::{self, reserve};
use crate::watch::handle_record::{HandleRecord, Kernel, LoadedImage};
use crate::watch::slot_cache::{SlotCache, hash_of, place_of};
use crate::watch::table::{self, Entry};

/// Texts that are kept, and kernels that are watched.
const MOST_TEXTS: usize = 8192;
const MOST_KERNELS: usize = 16_384;
/// Kinds of launches that are compared.
const KINDS: usize = 1 << 16;
/// The most work on all launches of a kernel, in units of about a microsecond: a few seconds.
const MOST_WORK: usize = 4_000_000;
/// The longest text that is analysed.
const MOST_BYTES: usize = 32 << 20;

/// The compressed texts of images that are PTX, by the address of their record; `None` if there was no room.
static TEXTS: SlotCache<Option<Vec<u8>>, { 1 << 14 }, MOST_TEXTS> = SlotCache::new();
/// By the address of their record.
static KERNELS: SlotCache<Option<Watched>, { 1 << 15 }, MOST_KERNELS> = SlotCache::new();
static SEEN: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];

/// A kernel whose PTX is at hand.
struct Watched {
    entry: Mutex<EntryIndex>,
    /// The parameters that its indices depend on: the parameter, the offset in it, the bytes.
    used: Vec<(usize, u64, usize)>,
    /// The offset and size of each parameter.
    layout: Vec<(usize, usize)>,
    found: Mutex<Option<IndexUse>>,
    launches: AtomicU64,
    /// How much of [`MOST_WORK`] is left.
    work: AtomicUsize,
    /// Whether the verdict on a launch was unknown.
    is_unknown: AtomicBool,
    /// Whether a launch was not compared, because another thread compared one for long.
    missed: AtomicBool,
}

/// Keeps the PTX of an image, which was loaded just now.
pub(super) fn keep(image: &'static HandleRecord, ptx: &[u8]) {
    if let Some(loaded) = image.loaded() {
        let _ = TEXTS.get(address_hash(loaded), || {
            let text = lz4_flex::compress_prepend_size(ptx);
            store::reserve(text.len()).then_some(text)
        });
    }
}

/// Compares a launch, if its kernel's PTX is at hand and no equal launch was compared before.
///
/// # Safety
///
/// The program is making this launch, with these arguments.
pub(crate) unsafe fn launched(launch: &Launch, passed: RawArguments) {
    let known = table::find(launch.kernel.addr()).and_then(Entry::record);
    let Some(kernel) = known.and_then(HandleRecord::kernel) else { return };
    // SAFETY: by this function's contract.
    let watched = KERNELS.get(address_hash(kernel), || unsafe { Watched::new(kernel, launch) });
    let Some(watched) = watched.and_then(Option::as_ref) else { return };
    watched.launches.fetch_add(1, Relaxed);
    // SAFETY: the arguments are of this launch, by this function's contract.
    let Some(values) = (unsafe { watched.values(passed) }) else { return };
    let kind = hash_of(&(address_hash(kernel), launch.grid, launch.block, &values));
    if let Some((_, true)) = place_of(kind, KINDS, |place| &SEEN[place]) {
        watched.compare(kernel, launch, &values);
    }
}

/// The findings of each kernel whose indices wrap, or are near a wrap.
pub(crate) fn found() -> Vec<IndexUse> {
    let all = KERNELS.all().flatten();
    all.filter_map(|watched| process::patiently(&watched.found)?.clone()).collect()
}

/// How many kernels were compared.
pub(crate) fn coverage() -> IndexCoverage {
    let mut coverage = IndexCoverage::default();
    for kernel in KERNELS.all() {
        let Some(watched) = kernel else {
            coverage.kernels_without_ptx += 1;
            continue;
        };
        coverage.kernels += 1;
        coverage.launches += watched.launches.load(Relaxed);
        let is_part = watched.work.load(Relaxed) == 0 || watched.missed.load(Relaxed);
        coverage.kernels_in_part += u64::from(is_part);
        coverage.kernels_unknown += u64::from(watched.is_unknown.load(Relaxed));
    }
    coverage
}

/// Forgets the findings, in a child process. An entry that another thread of the parent was writing stays.
pub(crate) fn reset() {
    for watched in KERNELS.all().flatten() {
        watched.launches.store(0, Relaxed);
        if let Ok(mut found) = watched.found.try_lock() {
            *found = None;
        }
    }
}

impl Watched {
    /// # Safety
    ///
    /// As [`launched`].
    unsafe fn new(kernel: &Kernel, launch: &Launch) -> Option<Self> {
        let driver = Driver::of(launch.through);
        let text = match kernel.loaded? {
            LoadedImage::Machine(origin) => ptx_of(kernel, origin, driver).ok()?,
            loaded => store::decompressed(TEXTS.find(address_hash(loaded))?.as_ref()?).ok()?,
        };
        if text.len() > MOST_BYTES || reserve::for_text(text.len()).is_err() {
            return None;
        }
        let name = kernel.name.to_str().ok()?;
        let entry = EntryPlaces::read(&text).ok()?.index(&text, name).ok()??;
        // SAFETY: the program is launching the kernel just now.
        let layout = unsafe { parameters(driver, driver.function_of(launch.kernel)) }.ok()?;
        let mut used = Vec::new();
        for (size, bytes) in entry.sizes() {
            if let Size::Parameter { index, offset } = size {
                let bytes = usize::try_from(bytes).ok()?;
                let end = usize::try_from(offset).ok()?.checked_add(bytes)?;
                // PTX of another build may have other parameters.
                layout.get(index).filter(|(_, all)| end <= *all && bytes <= 8)?;
                used.push((index, offset, bytes));
            }
        }
        Some(Self {
            entry: Mutex::new(entry),
            used,
            layout,
            found: Mutex::default(),
            launches: AtomicU64::new(0),
            work: AtomicUsize::new(MOST_WORK),
            is_unknown: AtomicBool::new(false),
            missed: AtomicBool::new(false),
        })
    }

    /// The values of the parameters that indices depend on. `None` in place of a value that may be negative or large.
    ///
    /// # Safety
    ///
    /// As [`launched`].
    unsafe fn values(&self, passed: RawArguments) -> Option<Vec<Option<i64>>> {
        let own_bytes = self.layout.last().map_or(0, |(offset, bytes)| offset + bytes);
        let added = WordSlot { index: self.layout.len(), offset: own_bytes, own_bytes };
        // SAFETY: by this function's contract.
        let arguments = unsafe { Arguments::new(passed, added) }.ok()?;
        let value = |(index, offset, bytes): &(usize, u64, usize)| {
            let offset = usize::try_from(*offset).ok()?;
            let mut number = [0_u8; 8];
            let number_bytes = number.get_mut(..*bytes)?;
            match &arguments {
                Arguments::Addresses(addresses) => {
                    let from = addresses.get(*index)?.cast::<u8>();
                    // SAFETY: the parameter has as many bytes, as the driver tells; `Watched::new` compared them.
                    let from = unsafe { core::slice::from_raw_parts(from.add(offset), *bytes) };
                    number_bytes.copy_from_slice(from);
                }
                Arguments::Buffer { buffer, .. } => {
                    let from = self.layout.get(*index)?.0 + offset;
                    number_bytes.copy_from_slice(buffer.get(from..from + bytes)?);
                }
            }
            let value = i64::from_le_bytes(number);
            let most = if *bytes < 8 { i64::from(i32::MAX) } else { i64::MAX };
            Some(value).filter(|value| (0..=most).contains(value))
        };
        Some(self.used.iter().map(value).collect())
    }

    fn compare(&self, kernel: &Kernel, launch: &Launch, values: &[Option<i64>]) {
        let mut sizes = Sizes::default();
        for axis in 0..3 {
            sizes.set(Size::Grid(axis), launch.grid[axis].into());
            sizes.set(Size::Block(axis), launch.block[axis].into());
        }
        for ((index, offset, _), value) in self.used.iter().zip(values) {
            if let Some(value) = value {
                sizes.set(Size::Parameter { index: *index, offset: *offset }, *value);
            }
        }
        let is_whole = values.iter().all(Option::is_some);
        let Some(mut entry) = process::patiently(&self.entry) else {
            self.missed.store(true, Relaxed);
            return;
        };
        let mut work = self.work.load(Relaxed);
        if work == 0 {
            return;
        }
        let mut wraps = Vec::new();
        let verdict = entry.verdict_within(&sizes, &mut work);
        if matches!(verdict, Verdict::Unknown(_)) {
            self.is_unknown.store(true, Relaxed);
        }
        if let Verdict::Wraps(all) = verdict {
            let is_certain = |wrap: &&Wrap| {
                is_whole || wrap.first.iter().any(|first| matches!(first.size, Size::Grid(_)))
            };
            wraps.extend(all.iter().filter(is_certain).map(describe));
        }
        let is_safe = wraps.is_empty();
        let next = if is_safe { next(&mut entry, &sizes, launch, &mut work) } else { None };
        self.work.store(work, Relaxed);
        drop(entry);
        if wraps.is_empty() && next.is_none() {
            return;
        }
        let name = kernel.name.to_string_lossy().into_owned();
        let found = IndexUse { kernel: name, request: launch.request(), wraps, next };
        let Some(mut known) = process::patiently(&self.found) else { return };
        if known.as_ref().is_some_and(|known| !found.is_worse_than(known)) {
            return;
        }
        *known = Some(found.clone());
        drop(known);
        if let Some(wrap) = found.wraps.first() {
            let (kernel, launch) = (found.kernel, launch.describe());
            process::complain(&format!(
                "gridguard: a 32-bit index of {kernel} wraps: {wrap}\n  {launch}\n"
            ));
        }
    }
}

/// The index with its largest value, and where it is computed.
fn describe(wrap: &Wrap) -> String {
    let Wrap { expression, extreme, instruction, at, .. } = wrap;
    let place = match &wrap.source {
        Some(source) => format!("{}:{}", source.file, source.line),
        None => format!("{instruction} in {at} of its PTX"),
    };
    format!("{expression} reaches {extreme}, computed by {place}")
}

/// The axis along which the grid is nearest to a wrap, if one of ten times the size wraps.
fn next(
    entry: &mut EntryIndex,
    sizes: &Sizes,
    launch: &Launch,
    work: &mut usize,
) -> Option<Nearness> {
    let dim = |[x, y, z]: [u32; 3]| Dim3::new(x.into(), y.into(), z.into());
    let (grid, block) = (dim(launch.grid), dim(launch.block));
    let limits: Vec<_> =
        entry.limits_within(sizes, work).into_iter().map(IndexLimit::from).collect();
    let along = |axis: Axis| {
        let depends = limits.iter().filter(|limit| limit.depends_on(axis));
        let all = grid.with(axis, u32::MAX.into());
        let limit = depends.map(|limit| limit.most_blocks(axis, all, block)).min()?;
        let near = Nearness { axis, blocks: grid.along(axis), limit };
        (near.blocks > 1 && near.is_near()).then_some(near)
    };
    Axis::ALL.into_iter().filter_map(along).min_by(Nearness::compare)
}

/// A hash of the address of a record, which is never freed.
fn address_hash<T>(record: &T) -> u64 {
    hash_of(&ptr::from_ref(record).addr())
}
