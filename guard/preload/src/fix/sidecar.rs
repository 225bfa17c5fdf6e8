//! Sidecar modules: forms of a kernel, loaded beside a module of machine code when a launch first needs them.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::CString;

use gridguard::ptx::{EntryReport, Extracted, Rewritten, Variable, extract, rewrite_entries};

use crate::driver::abi::{CAPTURE_RELAXED, Handle, SUCCESS};
use crate::driver::request::Launch;
use crate::driver::{Driver, written};
use crate::fix::pair::ptx_of;
use crate::process::reserve;
use crate::watch::handle_record::{Kernel, Origin, Reason};
use crate::watch::slot_cache::{SlotCache, hash_of};

/// Kernels of machine code that are repaired.
const MOST: usize = 16_384;
static SIDECARS: SlotCache<Sidecar, { 1 << 15 }, MOST> = SlotCache::new();

/// The sidecar of a kernel in a context, or why there is none.
struct Sidecar {
    /// The handle and load number of the kernel's module or library.
    container: (usize, u64),
    /// The number of the context.
    context: u64,
    image: Result<SidecarImage, Reason>,
    is_unloaded: AtomicBool,
}

/// The module of a sidecar.
#[derive(Debug)]
pub(super) struct SidecarImage {
    module: Module,
    pub(super) entry: EntryReport,
    /// The shifted and the folded form.
    pub(super) forms: [Handle; 2],
    constants: Vec<Constant>,
}

// SAFETY: handles of the driver may be used by all threads.
unsafe impl Send for SidecarImage {}
// SAFETY: shared access only reads handles, which all threads may use.
unsafe impl Sync for SidecarImage {}

/// A constant of the kernel's module, and its copy.
#[derive(Clone, Copy, Debug)]
struct Constant {
    from: u64,
    to: u64,
    bytes: usize,
}

/// The module with forms of `kernel` for the current context.
///
/// # Safety
///
/// The program is launching `launch` of the kernel just now.
pub(super) unsafe fn image_for(
    kernel: &Kernel,
    origin: &Origin,
    launch: &Launch,
) -> Result<&'static SidecarImage, Reason> {
    let driver = Driver::of(launch.through);
    // SAFETY: the pointer is to a live number; null stands for the current context.
    let context = written(0, |id| Some(unsafe { driver.context_id?(ptr::null_mut(), id) }));
    let context = context.ok_or("the driver is older than CUDA 12")?;
    let container = (kernel.container, kernel.load);
    let sidecar = SIDECARS.get(hash_of(&(container, context, &kernel.name)), || {
        // SAFETY: by this function's contract.
        let image = relaxed(driver, || unsafe { make(kernel, origin, launch, driver) });
        Sidecar { container, context, image, is_unloaded: AtomicBool::new(false) }
    });
    let image = &sidecar.ok_or("16384 kernels of machine code were repaired before it")?.image;
    image.as_ref().map_err(Reason::clone)
}

/// Unloads the sidecars of the kernels of this module or library, which was unloaded.
pub(super) fn unloaded(driver: &Driver, container: (usize, u64)) {
    // SAFETY: the pointer is to a live number; null stands for the current context.
    let current = written(0, |id| Some(unsafe { driver.context_id?(ptr::null_mut(), id) }));
    let of_container = |sidecar: &&Sidecar| {
        sidecar.container == container
            && Some(sidecar.context) == current
            && !sidecar.is_unloaded.swap(true, Ordering::Relaxed)
    };
    for sidecar in SIDECARS.all().filter(of_container) {
        if let Ok(image) = &sidecar.image {
            Module(image.module.0).unload(driver);
        }
    }
}

impl SidecarImage {
    /// Copies the constants of the kernel's module, in the order of the stream. Programs change constants only between
    /// launches that wait for each other, so no launch reads the values of another one.
    pub(super) fn copy_constants(
        &self,
        driver: &Driver,
        stream: Handle,
        per_thread: bool,
    ) -> Result<(), Reason> {
        let copy = driver.copy_in_thread.filter(|_| per_thread).or(driver.copy);
        for Constant { from, to, bytes } in self.constants.iter().copied() {
            let copy = copy.ok_or("the driver cannot copy its constants")?;
            // SAFETY: variables of loaded modules, of this size.
            let status = unsafe { copy(to, from, bytes, stream) };
            if status != SUCCESS {
                let error = driver.error(status);
                return Err(format!("its constants were not copied: {error}").into());
            }
        }
        Ok(())
    }
}

/// # Safety
///
/// As [`image_for`].
unsafe fn make(
    kernel: &Kernel,
    origin: &Origin,
    launch: &Launch,
    driver: &Driver,
) -> Result<SidecarImage, Reason> {
    let name = kernel.name.to_str().map_err(|_| "its name is not UTF-8")?;
    let text = ptx_of(kernel, origin, driver)?;
    reserve::for_text(text.len())?;
    // SAFETY: the program is launching the kernel just now.
    let (original, of_original) = unsafe { original(launch.kernel, driver) }?;
    let address = |variable: &Variable| {
        // SAFETY: the module of the kernel.
        let (address, bytes) = unsafe { of_original.variable(driver, &variable.name) }?;
        (u64::try_from(bytes) == Ok(variable.bytes)).then_some(address)
    };
    let unreadable = |error| Reason::from(format!("its PTX cannot be read: {error}"));
    let in_ptx = |refusal: &_| Reason::from(format!("its PTX, {refusal}"));
    let Extracted { text, constants, .. } =
        extract(&text, name, address).map_err(unreadable)?.map_err(|refusal| in_ptx(&refusal))?;
    let Rewritten { mut text, report } =
        rewrite_entries(&text, |one| one == name).map_err(unreadable)?;
    let entry = report.entries.into_iter().next().ok_or("its PTX has no entry of its name")?;
    let symbols = match &entry.forms {
        Ok(forms) => [forms.shifted.clone(), forms.folded.clone()],
        Err(refusal) => return Err(in_ptx(refusal)),
    };
    text.push(0);
    let module = Module::load(driver, &text)?;
    // SAFETY: both modules are loaded.
    let finished = unsafe { module.forms(driver, original, &symbols) }.and_then(|forms| {
        let copied = |constant: &Variable| {
            // SAFETY: both modules are loaded.
            let found =
                unsafe { [&of_original, &module].map(|of| of.variable(driver, &constant.name)) };
            match found {
                [Some((from, bytes)), Some((to, other))] if bytes == other => {
                    Ok(Constant { from, to, bytes })
                }
                _ => Err(format!("its constant {} is not found in both modules", constant.name)),
            }
        };
        let constants = constants.iter().map(copied).collect::<Result<Vec<_>, _>>()?;
        Ok((forms, constants))
    });
    match finished {
        Ok((forms, constants)) => Ok(SidecarImage { module, entry, forms, constants }),
        Err(reason) => {
            module.unload(driver);
            Err(reason)
        }
    }
}

/// Runs `work` in relaxed capture mode, so that it is legal during this thread's capture.
pub(crate) fn relaxed<R>(driver: &Driver, work: impl FnOnce() -> R) -> R {
    let mut mode = CAPTURE_RELAXED;
    let mut exchange = || {
        // SAFETY: the pointer is to a live integer, a mode.
        driver.capture_mode.map(|exchange| unsafe { exchange(&raw mut mode) })
    };
    exchange();
    let result = work();
    exchange();
    result
}

/// The function of a kernel in the current context, and its module.
///
/// # Safety
///
/// The kernel is loaded.
unsafe fn original(kernel: Handle, driver: &Driver) -> Result<(Handle, Module), Reason> {
    // SAFETY: by this function's contract.
    let function = unsafe { driver.function_of(kernel) };
    let module = written(ptr::null_mut(), |module| {
        // SAFETY: the driver returned the function for a loaded kernel; the pointer is to a live handle.
        Some(unsafe { driver.function_module?(module, function) })
    });
    Ok((function, Module(module.ok_or("the driver does not tell its module")?)))
}

/// A module of the driver.
#[derive(Debug)]
struct Module(Handle);

impl Module {
    /// Loads a text with a zero byte at its end.
    fn load(driver: &Driver, text: &[u8]) -> Result<Self, Reason> {
        let load = driver.load_module.ok_or("the driver cannot load modules")?;
        let mut module = ptr::null_mut();
        // SAFETY: the text; the pointer is to a live handle.
        let status = unsafe { load(&raw mut module, text.as_ptr().cast()) };
        if status == SUCCESS {
            return Ok(Self(module));
        }
        Err(format!("the driver refused its rewritten PTX: {}", driver.error(status)).into())
    }

    /// The forms, whose parameters must begin with the original's parameters.
    ///
    /// # Safety
    ///
    /// The module and the function are loaded.
    unsafe fn forms(
        &self,
        driver: &Driver,
        original: Handle,
        symbols: &[String; 2],
    ) -> Result<[Handle; 2], Reason> {
        // SAFETY: by this function's contract.
        let own = unsafe { parameters(driver, original) }?;
        let find = |symbol: &String| -> Result<Handle, Reason> {
            let missing = || Reason::from(format!("its rewritten module has no {symbol}"));
            let name = CString::new(symbol.as_str()).map_err(|_| missing())?;
            let form = written(ptr::null_mut(), |form| {
                // SAFETY: the module is loaded, by this function's contract; the pointers are to a live handle and a string.
                Some(unsafe { driver.find_function?(form, self.0, name.as_ptr()) })
            });
            let form = form.ok_or_else(missing)?;
            let mut registers = 0;
            // This query has the driver load the form now: a captured launch must not load it.
            // SAFETY: a function of the module; the pointer is to a live integer.
            driver
                .function_attribute
                .map(|ask| unsafe { ask(&raw mut registers, REGISTERS, form) });
            // SAFETY: a function of the module.
            let of_form = unsafe { parameters(driver, form) }?;
            match of_form.split_last() {
                Some((_, others)) if others == own => Ok(form),
                _ => Err("the parameters of its PTX are others: it is of another build".into()),
            }
        };
        Ok([find(&symbols[0])?, find(&symbols[1])?])
    }

    /// The address and size of a variable.
    ///
    /// # Safety
    ///
    /// The module is loaded.
    unsafe fn variable(&self, driver: &Driver, name: &str) -> Option<(u64, usize)> {
        let name = CString::new(name).ok()?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: by this function's contract; the pointers are to live numbers and a string.
        let status = unsafe {
            driver.module_variable?(&raw mut address, &raw mut bytes, self.0, name.as_ptr())
        };
        (status == SUCCESS && address != 0).then_some((address, bytes))
    }

    /// Unloads the module, of which no function is launched any more.
    fn unload(self, driver: &Driver) {
        if let Some(unload) = driver.unload_module {
            // SAFETY: a module that this library loaded, and unloads once.
            unsafe { unload(self.0) };
        }
    }
}

/// The offset and size of each parameter.
///
/// # Safety
///
/// The function is loaded.
pub(crate) unsafe fn parameters(
    driver: &Driver,
    function: Handle,
) -> Result<Vec<(usize, usize)>, Reason> {
    let ask = driver
        .parameter
        .ok_or("the driver is older than CUDA 12.4, and does not tell its parameters")?;
    let parameter = |index| {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: by this function's contract; the pointers are to live numbers.
        let status = unsafe { ask(function, index, &raw mut offset, &raw mut bytes) };
        (status == SUCCESS).then_some((offset, bytes))
    };
    Ok((0..MOST_PARAMETERS).map_while(parameter).collect())
}

/// `CU_FUNC_ATTRIBUTE_NUM_REGS`.
const REGISTERS: c_int = 4;
/// More parameters than a kernel has.
const MOST_PARAMETERS: usize = 8192;
