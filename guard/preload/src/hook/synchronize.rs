//! The functions that wait for the device. Their success proves earlier launches; their error may be of an earlier
//! launch.

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

    /// Queries and waits whose success proves no launch, and `cuMemcpyDtoH`. A function with fewer arguments does not read
    /// the registers of the others.
    other(first: u64, second: u64, third: u64)
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
