//! Launches that launchers of Triton's kernels skip without an error: they multiply the grid in 32 bits, and launch only if
//! the product is positive. Triton's launcher is a function `launch` in an extension module; PyTorch's, which
//! `torch.compile` uses, is `_launch_kernel` of a class in `torch._C`. Python looks up the module's `PyInit_...` by
//! `dlsym`; the module that it returns then gets a function that looks at the grid first. Python's functions are called only
//! by the thread that initialises a module or launches, which holds the interpreter.

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::mem::transmute;
use core::ptr;
use std::sync::OnceLock;

use gridguard::Dim3;

use crate::driver::functions;
use crate::driver::request::Launch;
use crate::hook::{outcome, relay};
use crate::process::{elf, options};

/// A `PyObject *`.
type Object = *mut c_void;
type Init = unsafe extern "C-unwind" fn() -> Object;

/// The modules that may have a launcher: Triton's, one for each signature of a kernel up to Triton 3.6 and then one for all,
/// and PyTorch's.
pub(super) const MODULES: [&CStr; 3] =
    [c"PyInit___triton_launcher", c"PyInit_cuda_utils", c"PyInit__C"];

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
    kind = c"PyObject_Type": fn(Object) -> Object;
    dictionary = c"PyObject_GenericGetDict": fn(Object, *mut c_void) -> Object;
    set_entry = c"PyDict_SetItemString": fn(Object, *const c_char, Object) -> c_int;
    type_modified = c"PyType_Modified": fn(Object) -> ();
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
const NAMES: [&CStr; 2] = [c"launch", c"_launch_kernel"];
/// The functions of Triton and of PyTorch.
static METHODS: [Method; 2] = [
    Method {
        name: NAMES[0].as_ptr(),
        function: launch::<false>,
        flags: ARGUMENTS,
        documentation: ptr::null(),
    },
    Method {
        name: NAMES[1].as_ptr(),
        function: launch::<true>,
        flags: ARGUMENTS,
        documentation: ptr::null(),
    },
];

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
        // SAFETY: a module, or what defines one and has no such attribute.
        unsafe {
            python.replace(module, &METHODS[0]);
            let class = (python.attribute)(module, c"_StaticCudaLauncher".as_ptr());
            if !class.is_null() {
                python.replace(class, &METHODS[1]);
                (python.release)(class);
            }
            (python.clear_error)();
        }
    }
    module
}

impl Python {
    /// Replaces the function of `owner` that has the name of `method`, if there is one. It becomes `self` of the replacement.
    /// May leave an error.
    ///
    /// # Safety
    ///
    /// `owner` is an object of Python, whose interpreter this thread holds.
    unsafe fn replace(&self, owner: Object, method: &'static Method) {
        // SAFETY: by this function's contract; the method is a constant. Only `type` is its own kind, so with such a kind
        // `owner` is a class: what `type_modified` takes, and what has a dictionary.
        unsafe {
            let original = (self.attribute)(owner, method.name);
            if original.is_null() {
                return;
            }
            let replacement = (self.function)(method, original, ptr::null_mut());
            (self.release)(original);
            if !replacement.is_null() {
                let set = (self.set_attribute)(owner, method.name, replacement);
                (self.clear_error)();
                let kind = (self.kind)(owner);
                let of_kind = (self.kind)(kind);
                // A class that is immutable for Python.
                if set != 0 && kind == of_kind {
                    let entries = (self.dictionary)(owner, ptr::null_mut());
                    if !entries.is_null() {
                        (self.set_entry)(entries, method.name, replacement);
                        (self.release)(entries);
                    }
                    (self.type_modified)(owner);
                }
                [of_kind, kind, replacement].into_iter().for_each(|object| (self.release)(object));
            }
        }
    }

    /// # Safety
    ///
    /// `of` is a tuple, whose interpreter this thread holds. May leave an error.
    unsafe fn number<T: TryFrom<c_long> + Default>(&self, of: Object, place: isize) -> T {
        // SAFETY: by this function's contract; the item is borrowed.
        T::try_from(unsafe { (self.number)((self.item)(of, place)) }).unwrap_or_default()
    }

    /// A copy of the tuple `of` with other items, which it owns.
    ///
    /// # Safety
    ///
    /// `of` is a tuple, whose interpreter this thread holds.
    unsafe fn with(&self, of: Object, items: &[(isize, Object)]) -> Object {
        // SAFETY: by this function's contract.
        unsafe {
            let list = (self.list)(of);
            items.iter().for_each(|(place, item)| {
                (self.set_item)(list, *place, *item);
            });
            let tuple = (self.tuple)(list);
            (self.release)(list);
            tuple
        }
    }
}

/// Calls the launcher `original`. A launch that it would skip is made through our replacement of the driver's function if
/// `--fix` is on, and explained otherwise.
///
/// The arguments of PyTorch's launcher begin with the kernel, the grid, and the numbers of warps and of bytes of shared
/// memory. Those of Triton's begin with the grid, the stream and the kernel, and a later tuple has the numbers of warps of a
/// block, of CTAs of a cluster, and of bytes of shared memory; before Triton 3.0 that is not so.
///
/// # Safety
///
/// Python calls it with a tuple.
unsafe extern "C-unwind" fn launch<const OF_PYTORCH: bool>(
    original: Object,
    arguments: Object,
) -> Object {
    let Some(Some(python)) = PYTHON.get() else { return ptr::null_mut() };
    let (first, kernel, least) = if OF_PYTORCH { (1, 0, 9) } else { (0, 4, LEAST_OF_TRITON) };
    // SAFETY: by this function's contract.
    unsafe {
        let call = |arguments| (python.call)(original, arguments, ptr::null_mut());
        if (python.count)(arguments) < least {
            return call(arguments);
        }
        let axes = [first, first + 1, first + 2];
        let grid: [i32; 3] = axes.map(|place| python.number(arguments, place));
        // A negative axis becomes one that is too large.
        let grid = grid.map(i32::cast_unsigned);
        let Some(product) = Dim3::from(grid).wrapped_volume() else {
            (python.clear_error)();
            return call(arguments);
        };
        if product > 0 {
            return call(arguments);
        }
        let item = |place| (python.item)(arguments, place);
        let is_metadata = |place: &isize| [3, 6].contains(&(python.count)(item(*place)));
        let tuple = (5..least).find(|place| !OF_PYTORCH && is_metadata(place));
        // A place that no tuple has reads as 0.
        let sizes = match tuple {
            Some(place) => Some((item(place), [0, 1, 2])),
            None => OF_PYTORCH.then_some((arguments, [4, -1, SHARED_OF_PYTORCH])),
        };
        let number = |(of, places): (_, [isize; 3])| places.map(|place| python.number(of, place));
        let [warps, ctas, shared_bytes]: [u32; 3] = sizes.map_or([0; 3], number);
        let kernel = sizes.map_or(0, |_| python.number(arguments, kernel));
        (python.clear_error)();
        if sizes.is_some() && options().fix {
            let integer = |value: u32| (python.integer)(value.into());
            let sentinel = integer(relay::SENTINEL);
            let shared = match tuple {
                Some(place) => (place, python.with(item(place), &[(2, sentinel)])),
                None => (SHARED_OF_PYTORCH, sentinel),
            };
            let [x, y, z] = axes.map(|place| (place, integer(1)));
            let small = python.with(arguments, &[x, y, z, shared]);
            let result = relay::skipped(grid, shared_bytes, || call(small));
            (python.release)(small);
            return result;
        }
        let (kernel, block) =
            (ptr::without_provenance_mut(kernel), [warps.saturating_mul(32), 1, 1]);
        let sizes = (shared_bytes, ptr::null_mut());
        let launch = Launch::plain(functions::known(), kernel, grid, block, sizes);
        outcome::skipped(&Launch { cluster: (ctas > 1).then_some([ctas, 1, 1]), ..launch });
        call(arguments)
    }
}

/// The fewest arguments of all versions.
const LEAST_OF_TRITON: isize = 10;
const SHARED_OF_PYTORCH: isize = 5;
