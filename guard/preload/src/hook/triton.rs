//! Launches that Triton's launcher skips without an error. It is a function `launch` in an extension module, and
//! multiplies the grid in 32 bits: `if (gridX * gridY * gridZ > 0)`. Python looks up the module's `PyInit_...` by `dlsym`;
//! the module that it returns then gets a `launch` that looks at the grid first. Python's functions are called only by the
//! thread that initialises a module or launches, which holds the interpreter.

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::mem::transmute;
use core::ptr;
use std::sync::OnceLock;

use crate::driver::functions;
use crate::driver::request::Launch;
use crate::hook::{outcome, relay};
use crate::process::{elf, options};

/// A `PyObject *`.
type Object = *mut c_void;
type Init = unsafe extern "C-unwind" fn() -> Object;

/// The modules that have the launcher: one for each signature of a kernel up to Triton 3.6, and then one for all.
pub(super) const MODULES: [&CStr; 2] = [c"PyInit___triton_launcher", c"PyInit_cuda_utils"];

macro_rules! python {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// Functions of the interpreter.
        struct Python {
            $($name: unsafe extern "C-unwind" fn($($argument),*) -> $result,)*
        }

        impl Python {
            fn find() -> Option<Self> {
                let find = |name| elf::find_map(|object| object.find(name));
                // SAFETY: Python's headers declare these signatures.
                Some(Self { $($name: unsafe {
                    type Function = unsafe extern "C-unwind" fn($($argument),*) -> $result;
                    transmute::<*mut c_void, Function>(find($symbol)?)
                },)* })
            }
        }
    };
}

python! {
    attribute = c"PyObject_GetAttrString": fn(Object, *const c_char) -> Object;
    set_attribute = c"PyObject_SetAttrString": fn(Object, *const c_char, Object) -> c_int;
    function = c"PyCFunction_NewEx": fn(*const Method, Object, Object) -> Object;
    call = c"PyObject_Call": fn(Object, Object, Object) -> Object;
    count = c"PyTuple_Size": fn(Object) -> isize;
    item = c"PyTuple_GetItem": fn(Object, isize) -> Object;
    list = c"PySequence_List": fn(Object) -> Object;
    set_item = c"PyList_SetItem": fn(Object, isize, Object) -> c_int;
    tuple = c"PyList_AsTuple": fn(Object) -> Object;
    number = c"PyLong_AsLong": fn(Object) -> c_long;
    integer = c"PyLong_FromLong": fn(c_long) -> Object;
    release = c"Py_DecRef": fn(Object) -> ();
    clear_error = c"PyErr_Clear": fn() -> ();
}

static PYTHON: OnceLock<Option<Python>> = OnceLock::new();

/// A `PyMethodDef`.
#[repr(C)]
struct Method {
    name: *const c_char,
    function: unsafe extern "C-unwind" fn(Object, Object) -> Object,
    flags: c_int,
    documentation: *const c_char,
}

// SAFETY: constants.
unsafe impl Sync for Method {}

/// `METH_VARARGS`.
const ARGUMENTS: c_int = 1;
static LAUNCH: Method =
    Method { name: NAME.as_ptr(), function: launch, flags: ARGUMENTS, documentation: ptr::null() };
const NAME: &CStr = c"launch";

thread_local! {
    /// The function that initialises the module, between its lookup and its call.
    static INIT: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
}

/// The replacement of `init`, which initialises a module that may have the launcher.
#[allow(clippy::as_conversions, reason = "the address of a function")]
pub(super) fn initialiser(init: *mut c_void) -> *mut c_void {
    if init.is_null() {
        return init;
    }
    INIT.set(init);
    initialise as *mut c_void
}

unsafe extern "C-unwind" fn initialise() -> Object {
    let init = INIT.get();
    // SAFETY: Python calls what it looked up last, on the same thread.
    let module = unsafe { transmute::<*mut c_void, Init>(init)() };
    if let Some(python) = PYTHON.get_or_init(Python::find)
        && !module.is_null()
    {
        // SAFETY: a module, whose function becomes `self` of the replacement.
        unsafe {
            let original = (python.attribute)(module, NAME.as_ptr());
            if original.is_null() {
                (python.clear_error)();
                return module;
            }
            let replacement = (python.function)(&raw const LAUNCH, original, ptr::null_mut());
            (python.release)(original);
            if replacement.is_null()
                || (python.set_attribute)(module, NAME.as_ptr(), replacement) != 0
            {
                (python.clear_error)();
            }
            if !replacement.is_null() {
                (python.release)(replacement);
            }
        }
    }
    module
}

/// Calls the launcher `original`. A launch that it would skip is made through our replacement of the driver's function if
/// `--fix` is on, and explained otherwise.
///
/// # Safety
///
/// Python calls it with a tuple.
unsafe extern "C-unwind" fn launch(original: Object, arguments: Object) -> Object {
    let Some(Some(python)) = PYTHON.get() else { return ptr::null_mut() };
    // SAFETY: by this function's contract; numbers are read from borrowed items.
    unsafe {
        let call = |arguments| (python.call)(original, arguments, ptr::null_mut());
        let number = |of, place| (python.number)((python.item)(of, place));
        if (python.count)(arguments) < LEAST_ARGUMENTS {
            return call(arguments);
        }
        let grid = [0, 1, 2].map(|axis| i32::try_from(number(arguments, axis)).unwrap_or(0));
        if grid.iter().any(|blocks| *blocks <= 0) {
            (python.clear_error)();
            return call(arguments);
        }
        if grid.into_iter().fold(1, i32::wrapping_mul) > 0 {
            return call(arguments);
        }
        let grid = grid.map(i32::cast_unsigned);
        // The numbers of warps of a block, of CTAs of a cluster, and of bytes of shared memory begin a tuple.
        let is_metadata =
            |place: &isize| [3, 6].contains(&(python.count)((python.item)(arguments, *place)));
        let place = (5..LEAST_ARGUMENTS).find(is_metadata);
        let metadata = place.map(|place| (python.item)(arguments, place));
        let numbers = metadata.map_or([0; 3], |tuple| {
            [0, 1, 2].map(|place| u32::try_from(number(tuple, place)).unwrap_or(0))
        });
        // Triton before 3.0 has neither the tuple nor the kernel at these places.
        let kernel = place.and_then(|_| usize::try_from(number(arguments, 4)).ok()).unwrap_or(0);
        (python.clear_error)();
        if let Some((place, metadata)) = place.zip(metadata).filter(|_| options().fix) {
            let integer = |value: u32| (python.integer)(value.into());
            let with = |of, items: &[(isize, Object)]| {
                let list = (python.list)(of);
                items.iter().for_each(|(place, item)| {
                    (python.set_item)(list, *place, *item);
                });
                let tuple = (python.tuple)(list);
                (python.release)(list);
                tuple
            };
            let metadata = with(metadata, &[(2, integer(relay::SENTINEL))]);
            let one = || integer(1);
            let small = with(arguments, &[(0, one()), (1, one()), (2, one()), (place, metadata)]);
            let result = relay::skipped(grid, numbers[2], || call(small));
            (python.release)(small);
            return result;
        }
        let [warps, ctas, shared_bytes] = numbers;
        let (kernel, block) =
            (ptr::without_provenance_mut(kernel), [warps.saturating_mul(32), 1, 1]);
        let sizes = (shared_bytes, ptr::null_mut());
        let launch = Launch::plain(functions::known(), kernel, grid, block, sizes);
        outcome::skipped(&Launch { cluster: (ctas > 1).then_some([ctas, 1, 1]), ..launch });
        call(arguments)
    }
}

/// The fewest arguments of all versions.
const LEAST_ARGUMENTS: isize = 10;
