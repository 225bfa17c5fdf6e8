//! The functions that wait for the device, and so prove launches or return the errors of earlier ones.

use core::ffi::c_void;

use crate::driver::abi::{Handle, SUCCESS, Status};
use crate::driver::functions::{FUNCTIONS, replacements};
use crate::hook::outcome;
use crate::refuse::late;
use crate::watch::recent;

replacements! {
    /// `cuStreamSynchronize`.
    stream(stream: Handle)
    |through, call| {
        let before = recent::launches();
        let status = call();
        if status == SUCCESS {
            recent::prove_stream(stream.addr(), FUNCTIONS[H].per_thread, before);
        }
        checked(through, status)
    }

    /// `cuCtxSynchronize`.
    context()
    |through, call| {
        let before = recent::launches();
        let status = call();
        if status == SUCCESS {
            recent::prove_all(before);
        }
        checked(through, status)
    }

    /// A call with a stream, an event or a context, whose success proves no launch.
    on_handle(handle: Handle)
    |through, call| { checked(through, call()) }

    /// `cuMemcpyDtoH`.
    copy_to_host(to: *mut c_void, from: u64, bytes: usize)
    |through, call| { checked(through, call()) }
}

/// Reports a late error, and returns it, or that of a refused launch which is raised here.
fn checked(through: (usize, usize), status: Status) -> Status {
    if status == SUCCESS {
        return outcome::raised();
    }
    late::check(through, status);
    status
}
