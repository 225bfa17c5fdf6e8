//! The functions that load modules and libraries: PTX is loaded with forms of its entries beside them.

use core::ffi::{CStr, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashMap;

use gridguard::ptx::{Rewritten, rewrite};

use crate::abi::{
    BINARY_IS_PRESERVED, Handle, LoadLibrary, LoadModule, LoadModuleEx, NOT_INITIALIZED, SUCCESS,
    Status,
};
use crate::driver::Driver;
use crate::fix::known::{Loaded, Reason};
use crate::fix::{image, kernels};
use crate::flag::Inside;
use crate::{functions, guarded, process};

/// `cuModuleLoadData`.
pub(crate) unsafe extern "C-unwind" fn module<const H: usize, const S: usize>(
    module: *mut Handle,
    image: *const c_void,
) -> Status {
    let Some(original) = functions::original::<H, S, LoadModule>() else { return NOT_INITIALIZED };
    // SAFETY: the caller's own arguments, or a rewritten text in place of the image.
    let load = |image| unsafe { original(module, image) };
    // SAFETY: the caller's own argument.
    let read = |driver: &Driver| unsafe { image::in_memory(image, driver) };
    let call = Call { through: (H, S), out: module, keeps_text: false };
    // SAFETY: the driver writes the handle to `module`.
    unsafe { loaded(&call, read, || load(image), |_, text| Some(load(text))) }
}

/// `cuModuleLoadDataEx`.
pub(crate) unsafe extern "C-unwind" fn module_ex<const H: usize, const S: usize>(
    module: *mut Handle,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> Status {
    let Some(original) = functions::original::<H, S, LoadModuleEx>() else {
        return NOT_INITIALIZED;
    };
    // SAFETY: the caller's own arguments, or a rewritten text in place of the image.
    let load = |image| unsafe { original(module, image, count, options, values) };
    // SAFETY: the caller's own argument.
    let read = |driver: &Driver| unsafe { image::in_memory(image, driver) };
    // SAFETY: the caller's own arguments.
    let again = |_: &Driver, text| Some(unsafe { keep_values(values, count, || load(text)) });
    let call = Call { through: (H, S), out: module, keeps_text: false };
    // SAFETY: the driver writes the handle to `module`.
    unsafe { loaded(&call, read, || load(image), again) }
}

/// `cuModuleLoad`.
pub(crate) unsafe extern "C-unwind" fn module_file<const H: usize, const S: usize>(
    module: *mut Handle,
    path: *const c_void,
) -> Status {
    // SAFETY: the caller's own argument.
    let read = |driver: &Driver| unsafe { in_file(path, driver) };
    // SAFETY: the caller's own arguments.
    unsafe { module_of_no_text::<H, S>(module, path, read) }
}

/// `cuModuleLoadFatBinary`, which takes no text.
pub(crate) unsafe extern "C-unwind" fn module_fatbin<const H: usize, const S: usize>(
    module: *mut Handle,
    image: *const c_void,
) -> Status {
    // SAFETY: the caller's own argument.
    let read = |driver: &Driver| unsafe { image::in_memory(image, driver) };
    // SAFETY: the caller's own arguments.
    unsafe { module_of_no_text::<H, S>(module, image, read) }
}

/// Calls a function that takes no text: what was made of the PTX that `read` returns is loaded by
/// `cuModuleLoadData`.
///
/// # Safety
///
/// `module` and `source` are the arguments of a call of the function.
unsafe fn module_of_no_text<const H: usize, const S: usize>(
    module: *mut Handle,
    source: *const c_void,
    read: impl FnOnce(&Driver) -> Result<Vec<u8>, Reason>,
) -> Status {
    let Some(original) = functions::original::<H, S, LoadModule>() else { return NOT_INITIALIZED };
    // SAFETY: where the driver writes the handle, and a text with a zero byte at its end.
    let again = |driver: &Driver, text| unsafe { Some((driver.load_module?)(module, text)) };
    let call = Call { through: (H, S), out: module, keeps_text: false };
    // SAFETY: the caller's own arguments; the driver writes the handle to `module`.
    unsafe { loaded(&call, read, || original(module, source), again) }
}

/// `cuLibraryLoadData`.
pub(crate) unsafe extern "C-unwind" fn library<const H: usize, const S: usize>(
    library: *mut Handle,
    image: *const c_void,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
    own_options: *mut c_int,
    own_values: *mut *mut c_void,
    own_count: c_uint,
) -> Status {
    let Some(original) = functions::original::<H, S, LoadLibrary>() else { return NOT_INITIALIZED };
    // SAFETY: the caller's own arguments, or a rewritten text in place of the image.
    let load = |image| unsafe {
        original(library, image, options, values, count, own_options, own_values, own_count)
    };
    // SAFETY: the caller's own argument.
    let read = |driver: &Driver| unsafe { image::in_memory(image, driver) };
    // SAFETY: the caller's own arguments.
    let again = |_: &Driver, text| Some(unsafe { keep_values(values, count, || load(text)) });
    // SAFETY: the caller's own arguments.
    let keeps_text = unsafe { is_preserved(own_options, own_count) };
    let call = Call { through: (H, S), out: library, keeps_text };
    // SAFETY: the driver writes the handle to `library`.
    unsafe { loaded(&call, read, || load(image), again) }
}

/// `cuLibraryLoadFromFile`.
pub(crate) unsafe extern "C-unwind" fn library_file<const H: usize, const S: usize>(
    library: *mut Handle,
    path: *const c_void,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
    own_options: *mut c_int,
    own_values: *mut *mut c_void,
    own_count: c_uint,
) -> Status {
    let Some(original) = functions::original::<H, S, LoadLibrary>() else { return NOT_INITIALIZED };
    // SAFETY: the caller's own argument.
    let read = |driver: &Driver| unsafe { in_file(path, driver) };
    // SAFETY: the caller's own arguments.
    let as_it_is = || unsafe {
        original(library, path, options, values, count, own_options, own_values, own_count)
    };
    // SAFETY: the caller's own arguments, and a text with a zero byte at its end.
    let again = |driver: &Driver, text| unsafe {
        let from_memory = driver.load_library?;
        Some(keep_values(values, count, || {
            from_memory(library, text, options, values, count, own_options, own_values, own_count)
        }))
    };
    // SAFETY: the caller's own arguments.
    let keeps_text = unsafe { is_preserved(own_options, own_count) };
    let call = Call { through: (H, S), out: library, keeps_text };
    // SAFETY: the driver writes the handle to `library`.
    unsafe { loaded(&call, read, as_it_is, again) }
}

/// A call that loads an image.
struct Call {
    /// The hook and slot that it came through.
    through: (usize, usize),
    /// Where the driver writes the handle.
    out: *mut Handle,
    /// Whether the driver may read the text for as long as it is loaded.
    keeps_text: bool,
}

/// Loads what was made of the PTX that `read` returns, by `rewritten`; or else the image itself, by
/// `as_it_is`. Notes what the loaded module or library is.
///
/// # Safety
///
/// A successful call writes a handle through `call.out`, unless that is null.
unsafe fn loaded(
    call: &Call,
    read: impl FnOnce(&Driver) -> Result<Vec<u8>, Reason>,
    as_it_is: impl FnOnce() -> Status,
    rewritten: impl FnOnce(&Driver, *const c_void) -> Option<Status>,
) -> Status {
    if !process::options().fix || Inside::Load.replace(true) {
        return as_it_is();
    }
    let driver = Driver::of(call.through);
    let mut prepared = Err("rewriting its PTX failed".into());
    guarded::run(|| prepared = read(driver).and_then(prepare));
    let (status, kept) = match prepared {
        Err(reason) => (as_it_is(), Loaded::Kept(reason)),
        Ok((None, entries)) => (as_it_is(), entries),
        Ok((Some(text), entries)) => match rewritten(driver, text.as_ptr().cast()) {
            Some(SUCCESS) => {
                if call.keeps_text {
                    core::mem::forget(text);
                }
                (SUCCESS, entries)
            }
            refused => {
                let status = as_it_is();
                let mut kept = Loaded::Kept("its rewritten PTX was not loaded".into());
                // A text that the driver refuses anyhow is the program's own affair.
                if let Some(refused) = refused.filter(|_| status == SUCCESS) {
                    guarded::run(|| kept = Loaded::Kept(tell_refused(driver, refused)));
                }
                (status, kept)
            }
        },
    };
    if status == SUCCESS && !call.out.is_null() {
        // SAFETY: the successful call wrote the handle.
        let handle = unsafe { *call.out };
        guarded::run(|| kernels::loaded(handle, kept));
    }
    Inside::Load.replace(false);
    status
}

/// The text with forms, if there are any, and what was found in it.
fn prepare(text: Vec<u8>) -> Result<(Option<Vec<u8>>, Loaded), Reason> {
    kernels::check_count()?;
    let Rewritten { text, report } =
        rewrite(&text).map_err(|error| Reason::from(format!("its PTX cannot be read: {error}")))?;
    let has_forms = report.entries.iter().any(|entry| entry.forms.is_ok());
    let entries: HashMap<_, _> =
        report.entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
    Ok((has_forms.then_some(text), Loaded::Ptx(entries)))
}

/// Says once that the driver refused a rewritten text.
fn tell_refused(driver: &Driver, status: Status) -> Reason {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let reason = format!("the driver refused its rewritten PTX: {}", driver.error(status));
    if !TOLD.swap(true, Ordering::Relaxed) {
        process::say(&format!(
            "gridguard: a module is loaded as it is, and its launches are not fixed: {reason}\n"
        ));
    }
    reason.into()
}

/// The PTX of the file at `path`.
///
/// # Safety
///
/// `path` is null or points to a string.
unsafe fn in_file(path: *const c_void, driver: &Driver) -> Result<Vec<u8>, Reason> {
    // SAFETY: by this function's contract.
    let path: Option<&CStr> = unsafe { process::text(path.cast()) };
    path.map_or(Err("its path is null".into()), |path| image::in_file(path, driver))
}

/// Loads, and undoes what the driver wrote to the values of the options if that fails: sizes of logs are
/// inputs and outputs.
///
/// # Safety
///
/// `values` is null or points to so many values.
unsafe fn keep_values(
    values: *mut *mut c_void,
    count: c_uint,
    load: impl FnOnce() -> Status,
) -> Status {
    let count = if values.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
    // SAFETY: so many values by this function's contract.
    let before: Vec<_> = (0..count).map(|place| unsafe { *values.add(place) }).collect();
    let status = load();
    if status != SUCCESS {
        for (place, value) in before.into_iter().enumerate() {
            // SAFETY: as above; the driver wrote there too.
            unsafe { *values.add(place) = value };
        }
    }
    status
}

/// Whether the options of a library promise that its image stays.
///
/// # Safety
///
/// `options` is null or points to so many options.
unsafe fn is_preserved(options: *const c_int, count: c_uint) -> bool {
    let count = if options.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
    // SAFETY: so many options by this function's contract.
    (0..count).any(|place| unsafe { *options.add(place) } == BINARY_IS_PRESERVED)
}
