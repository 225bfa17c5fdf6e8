//! The host stack of a launch: functions and libraries, from the loader's own tables.

use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use gridguard_report::PythonFrame;

use crate::process::demangle::demangled;
use crate::process::{python, text};

/// One frame: `at::native::add(...)+0x1f in libtorch_cuda.so`.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// The path of the library or program.
    pub(crate) library: String,
    /// The function, if its name is exported, with the offset of the call.
    function: Option<String>,
    /// The offset of the call within the library.
    offset: usize,
}

/// The stacks of this thread, the innermost frames first.
#[derive(Default)]
pub(crate) struct Stacks {
    pub(crate) python: Vec<PythonFrame>,
    /// Functions and libraries. If there are frames of Python, only the frames that the interpreter called.
    pub(crate) native: Vec<Frame>,
}

impl Stacks {
    pub(crate) fn now() -> Self {
        let (python, mut native) = (python::frames(), frames());
        if !python.is_empty()
            && let Some(place) = native.iter().position(Frame::is_of_interpreter)
        {
            native.truncate(place);
        }
        Self { python, native }
    }
}

/// The frames outside this library, the innermost first.
fn frames() -> Vec<Frame> {
    let mut into = [ptr::null_mut(); MAX_FRAMES];
    let count = addresses(&mut into);
    // SAFETY: this thread is in these functions.
    let frames = into.into_iter().take(count).filter_map(|address| unsafe { frame(address) });
    without_own(frames).take(SHOWN_FRAMES).collect()
}

/// The innermost frame outside this library.
pub(crate) fn caller() -> Option<Frame> {
    frames().into_iter().next()
}

/// Writes the return addresses of this thread, the innermost first, and returns their number.
pub(crate) fn addresses(into: &mut [*mut c_void]) -> usize {
    let most = c_int::try_from(into.len()).unwrap_or(0);
    // SAFETY: the slice has `most` elements.
    let count = unsafe { libc::backtrace(into.as_mut_ptr(), most) };
    usize::try_from(count).unwrap_or(0)
}

/// The frames outside this library.
pub(crate) fn without_own(frames: impl Iterator<Item = Frame>) -> impl Iterator<Item = Frame> {
    let own = library_of((&raw const OWN).cast());
    // A launch of the runtime passes through this library twice.
    frames.filter(move |frame| Some(&frame.library) != own.as_ref())
}

/// The library that launched: the first one that is not of CUDA itself.
pub(crate) fn launching_library(frames: &[Frame]) -> Option<&Frame> {
    let is_cuda = |frame: &&Frame| {
        let name = frame.library_name();
        ["libcuda.so", "libcudart"].iter().any(|cuda| name.starts_with(cuda))
    };
    frames.iter().find(|frame| !is_cuda(frame)).or(frames.first())
}

impl Frame {
    fn is_of_interpreter(&self) -> bool {
        ["libpython", "python"].iter().any(|name| self.library_name().starts_with(name))
    }

    /// The file name of the library.
    pub(crate) fn library_name(&self) -> &str {
        self.library.rsplit('/').next().unwrap_or(&self.library)
    }
}

impl core::fmt::Display for Frame {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.function {
            Some(function) => write!(f, "{function} in {}", self.library_name()),
            None => write!(f, "{}+{:#x}", self.library_name(), self.offset),
        }
    }
}

/// The frame that returns to `address`.
///
/// # Safety
///
/// The library that contains the address, if there is one, is not unloaded meanwhile.
pub(crate) unsafe fn frame(address: *mut c_void) -> Option<Frame> {
    // The instruction after a call may belong to the next function.
    let call = address.wrapping_byte_sub(1);
    let info = described(call)?;
    // SAFETY: a string of the loader, which lives as long as the library.
    let library = unsafe { text(info.dli_fname) }?.to_string_lossy().into_owned();
    // SAFETY: null or a string of the loader, which lives as long as the library.
    let symbol = unsafe { text(info.dli_sname) }.map(|name| name.to_string_lossy());
    let function = symbol.map(|symbol| {
        let offset = call.addr().wrapping_sub(info.dli_saddr.addr());
        format!("{}+{offset:#x}", demangled(&symbol))
    });
    let offset = call.addr().wrapping_sub(info.dli_fbase.addr());
    Some(Frame { library, function, offset })
}

/// The function at `address`, or else its library and offset: `libexample.so+0x1f0`.
pub(crate) fn place(address: *const c_void) -> String {
    let Some(info) = described(address) else { return "<unnamed>".to_owned() };
    // SAFETY: strings of the loader, which live as long as the library of a function that is being called.
    let (symbol, library) = unsafe { (text(info.dli_sname), text(info.dli_fname)) };
    match (symbol, library) {
        (Some(symbol), _) if info.dli_saddr.addr() == address.addr() => {
            symbol.to_string_lossy().into_owned()
        }
        (_, Some(library)) => {
            let library = library.to_string_lossy().into_owned();
            let offset = address.addr().wrapping_sub(info.dli_fbase.addr());
            Frame { library, function: None, offset }.to_string()
        }
        _ => "<unnamed>".to_owned(),
    }
}

/// The path of the object that contains `address`.
pub(crate) fn object_path<'a>(address: *const c_void) -> Option<&'a CStr> {
    // SAFETY: a string of the loader, which lives as long as the object.
    described(address).and_then(|info| unsafe { text(info.dli_fname) })
}

fn library_of(address: *const c_void) -> Option<String> {
    object_path(address).map(|path| path.to_string_lossy().into_owned())
}

fn described(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address is accepted; the pointer is to a structure of this type.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) } != 0;
    // SAFETY: `Dl_info` holds only pointers, and null is valid.
    found.then(|| unsafe { info.assume_init() })
}

/// An address within this library.
static OWN: u8 = 0;
/// The most frames that are examined.
const MAX_FRAMES: usize = 64;
/// The most frames that are shown.
const SHOWN_FRAMES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_name_functions_and_libraries() {
        let frame = |function: Option<&str>| Frame {
            library: "/usr/lib/libm.so.6".into(),
            function: function.map(str::to_owned),
            offset: 16,
        };
        assert_eq!(frame(Some("cos+0x2")).to_string(), "cos+0x2 in libm.so.6");
        assert_eq!(frame(None).to_string(), "libm.so.6+0x10");
        // Here the test program counts as this library; the C library started it.
        assert!(frames().iter().any(|frame| frame.library_name().starts_with("libc.so")));
    }
}
