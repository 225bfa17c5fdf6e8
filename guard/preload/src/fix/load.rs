//! The functions that load and unload modules and libraries. With `--fix` they add forms of the entries to PTX.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashMap;

use gridguard::ptx::{Rewritten, rewrite};

use crate::driver::Driver;
use crate::driver::abi::{BINARY_IS_PRESERVED, Handle, SUCCESS, Status};
use crate::driver::functions::{FUNCTIONS, replacements};
use crate::fix::image::{Contents, Source};
use crate::fix::{index, kernels, sidecar};
use crate::process;
use crate::process::flag::Flag;
use crate::process::guarded;
use crate::watch::handle_record::{HandleRecord, Reason};
use crate::watch::slot_cache::hash_of;
use crate::watch::table;

replacements! {
    /// `cuModuleLoadData` and `cuModuleLoadDataEx`. The first does not read the registers of the options.
    module(
        module: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_int,
        values: *mut *mut c_void,
    )
    |through, call, original| {
        let has_options = FUNCTIONS[H].symbol.to_bytes().ends_with(b"Ex");
        let values_of_program = if has_options { values } else { ptr::null_mut() };
        // SAFETY: the caller's own arguments, with a rewritten text for the image.
        let again = |_: &Driver, text| Some(unsafe { original(module, text, count, options, values) });
        let load = Call::new(through, Source::Memory(image), module);
        // SAFETY: the driver writes the handle to `module`.
        unsafe { loaded(&Call { values: values_of_program, count, ..load }, call, again) }
    }

    /// `cuModuleLoad` and `cuModuleLoadFatBinary`, which take no text.
    module_without_text(module: *mut Handle, image: *const c_void)
    |through, call| {
        // SAFETY: the pointer to which the driver writes the handle, and a text with a zero byte at its end.
        let again = |driver: &Driver, text| driver.load_module.map(|load| unsafe { load(module, text) });
        // SAFETY: the driver writes the handle to `module`.
        unsafe { loaded(&Call::new(through, source::<H>(image), module), call, again) }
    }

    /// `cuLibraryLoadData` and `cuLibraryLoadFromFile`.
    library(
        library: *mut Handle, image: *const c_void, options: *mut c_int, values: *mut *mut c_void,
        count: c_uint, own_options: *mut c_int, own_values: *mut *mut c_void, own_count: c_uint,
    )
    |through, call| {
        // SAFETY: the caller's own arguments, with a rewritten text for the image.
        let again = |driver: &Driver, text| driver.load_library.map(|load| unsafe {
            load(library, text, options, values, count, own_options, own_values, own_count)
        });
        // SAFETY: the caller's own arguments.
        let keeps_text = unsafe { is_preserved(own_options, own_count) };
        let load = Call::new(through, source::<H>(image), library);
        // SAFETY: the driver writes the handle to `library`.
        unsafe { loaded(&Call { values, count, keeps_text, ..load }, call, again) }
    }

    /// `cuModuleUnload` and `cuLibraryUnload`.
    unload(container: Handle)
    |through, call| {
        // Read before the call: afterwards another thread may load a module with the same handle.
        let load = table::load_of(container.addr());
        let status = call();
        if status == SUCCESS {
            table::unloaded(container.addr(), load);
            if process::options().fix {
                guarded::run(|| sidecar::unloaded(Driver::of(through), (container.addr(), load)));
            }
        }
        status
    }
}

/// The image that a function takes: a path, or data.
fn source<const H: usize>(image: *const c_void) -> Source {
    match FUNCTIONS[H].symbol.to_bytes() {
        b"cuModuleLoad" | b"cuLibraryLoadFromFile" => Source::File(image),
        _ => Source::Memory(image),
    }
}

/// A call that loads an image.
struct Call {
    /// The hook and slot that it came through.
    through: (usize, usize),
    source: Source,
    /// Where the driver writes the handle.
    out: *mut Handle,
    /// The values of the options, which the driver may overwrite.
    values: *mut *mut c_void,
    count: c_uint,
    /// Whether the driver may read the text until it is unloaded.
    keeps_text: bool,
}

impl Call {
    /// A call without options.
    const fn new(through: (usize, usize), source: Source, out: *mut Handle) -> Self {
        Self { through, source, out, values: ptr::null_mut(), count: 0, keeps_text: false }
    }
}

/// Loads the PTX by `rewritten` if `--fix` is on and it can be rewritten, else the image by `original`. Records the
/// module or library in the table.
///
/// # Safety
///
/// `call.source` is the image that the program passed to the driver. A successful load writes a handle through
/// `call.out` unless it is null.
unsafe fn loaded(
    call: &Call,
    original: impl FnOnce() -> Status,
    rewritten: impl FnOnce(&Driver, *const c_void) -> Option<Status>,
) -> Status {
    if Flag::Load.replace(true) {
        return original();
    }
    let (status, image) = match process::options().keeps_ptx() {
        // SAFETY: by this function's contract.
        true => unsafe { load_forms(call, original, rewritten) },
        false => (original(), None),
    };
    if status == SUCCESS && !call.out.is_null() {
        // SAFETY: the successful call wrote the handle, and read the image.
        let handle = unsafe { *call.out };
        guarded::run(|| {
            // SAFETY: the driver has loaded the image, which the program passed.
            table::loaded(handle.addr(), unsafe { call.source.digest() });
            if let Some(image) = image {
                kernels::loaded(handle, image);
            }
        });
    }
    Flag::Load.replace(false);
    status
}

/// Loads an image for `--fix` or `--index`, and returns what [`kernels::loaded`] takes.
///
/// # Safety
///
/// As [`loaded`].
unsafe fn load_forms(
    call: &Call,
    original: impl FnOnce() -> Status,
    rewritten: impl FnOnce(&Driver, *const c_void) -> Option<Status>,
) -> (Status, Option<Result<&'static HandleRecord, Reason>>) {
    let driver = Driver::of(call.through);
    // SAFETY: by this function's contract.
    let prepared = guarded::run(|| match unsafe { call.source.contents(driver) }? {
        Contents::Ptx(text) => prepare(text),
        Contents::Machine(origin) => Ok((None, kernels::machine(origin)?)),
    })
    .unwrap_or_else(|| Err("rewriting its PTX failed".into()));
    match prepared {
        Err(reason) => (original(), Some(Err(reason))),
        Ok((None, image)) => (original(), Some(Ok(image))),
        Ok((Some(text), image)) => {
            // SAFETY: the program's own options.
            let loaded = unsafe { keep_values(call, || rewritten(driver, text.as_ptr().cast())) };
            if loaded == Some(SUCCESS) {
                if call.keeps_text {
                    core::mem::forget(text);
                }
                return (SUCCESS, Some(Ok(image)));
            }
            let status = original();
            // The original text may be invalid too.
            let refused = loaded.filter(|_| status == SUCCESS);
            let reason = refused.and_then(|refused| guarded::run(|| tell_refused(driver, refused)));
            (status, Some(Err(reason.unwrap_or("its rewritten PTX was not loaded".into()))))
        }
    }
}

/// The text with forms, if it has any and `--fix` is on, and the record of its entries.
fn prepare(text: Vec<u8>) -> Result<(Option<Vec<u8>>, &'static HandleRecord), Reason> {
    let (hash, options) = (hash_of(&*text), process::options());
    let (forms, image) = match options.fix {
        true => with_forms(&text, hash)?,
        false => (None, kernels::rewritten(hash, HashMap::new())?),
    };
    if options.index {
        index::keep(image, &text);
    }
    Ok((forms, image))
}

fn with_forms(text: &[u8], hash: u64) -> Result<(Option<Vec<u8>>, &'static HandleRecord), Reason> {
    let Rewritten { text, report } =
        rewrite(text).map_err(|error| Reason::from(format!("its PTX cannot be read: {error}")))?;
    let has_forms = report.entries.iter().any(|entry| entry.forms.is_ok());
    let entries = report.entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
    Ok((has_forms.then_some(text), kernels::rewritten(hash, entries)?))
}

/// Prints once that the driver refused a rewritten text.
fn tell_refused(driver: &Driver, status: Status) -> Reason {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let reason = format!("the driver refused its rewritten PTX: {}", driver.error(status));
    if !TOLD.swap(true, Ordering::Relaxed) {
        process::say(&format!(
            "gridguard: a module is loaded unmodified, and its launches are not fixed: {reason}\n"
        ));
    }
    reason.into()
}

/// Calls `load`, and restores the values of the options if it fails: the driver overwrites the sizes of logs.
///
/// # Safety
///
/// `call.values` is null or points to `call.count` values.
unsafe fn keep_values(call: &Call, load: impl FnOnce() -> Option<Status>) -> Option<Status> {
    let count = if call.values.is_null() { 0 } else { usize::try_from(call.count).unwrap_or(0) };
    // SAFETY: `count` values by this function's contract.
    let before: Vec<_> = (0..count).map(|place| unsafe { *call.values.add(place) }).collect();
    let status = load();
    if status != Some(SUCCESS) {
        for (place, value) in before.into_iter().enumerate() {
            // SAFETY: `count` values by this function's contract, which the driver may write too.
            unsafe { *call.values.add(place) = value };
        }
    }
    status
}

/// Whether the options of a library promise that its image stays.
///
/// # Safety
///
/// `options` is null or points to `count` options.
unsafe fn is_preserved(options: *const c_int, count: c_uint) -> bool {
    let count = if options.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
    // SAFETY: `count` options by this function's contract.
    (0..count).any(|place| unsafe { *options.add(place) } == BINARY_IS_PRESERVED)
}
