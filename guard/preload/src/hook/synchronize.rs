//! The functions that wait for the device. Their success proves earlier launches; their error may be of an earlier
//! launch.

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

    /// A call whose success proves no launch.
    on_handle(handle: Handle)
    |through, call| { checked(through, call()) }

    /// `cuMemcpyDtoH`.
    copy_to_host(to: *mut c_void, from: u64, bytes: usize)
    |through, call| { checked(through, call()) }
}

/// Reports and returns a late error. Without one, returns the error of a refused launch that is to be raised here.
fn checked(through: (usize, usize), status: Status) -> Status {
    if status == SUCCESS {
        return outcome::raised();
    }
    late::check(through, status);
    status
}
