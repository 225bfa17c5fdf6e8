//! Carries oversized launches past a runtime that compares the grid with the limits of the device itself, as runtimes
//! before CUDA 13 do. The runtime gets a small grid, and the replacement of the driver's function gets the whole one back,
//! which it makes in parts.

use core::cell::Cell;
use core::ffi::c_uint;

use crate::driver::abi::{SUCCESS, Status};
use crate::driver::functions;
use crate::driver::request::{MAX_OTHER, is_oversized};
use crate::process;
use crate::process::flag::Flag;

/// What the program asked for.
#[derive(Clone, Copy)]
pub(crate) struct Carried {
    pub(crate) grid: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
}

#[derive(Clone, Copy)]
enum State {
    None,
    /// The runtime was called, and did not call the driver so far.
    Waiting(Carried),
    /// The driver's function has it.
    Taken,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State::None) };
}

/// Marks a carried launch. No device has so much shared memory: without this library the driver refuses the launch.
const MARK: c_uint = 0x7fff_fff1;
/// Blocks along an oversized axis of the small grid. Clusters divide it.
const SMALL: c_uint = 1 << 15;

/// Whether a launch of the runtime is to be carried.
#[inline(always)]
pub(crate) fn is_wanted(grid: [c_uint; 3]) -> bool {
    is_oversized(grid) && process::options().fix
}

/// Makes a launch with `small`, which takes a grid and the bytes of shared memory. If the driver's function refused to
/// make its parts, `whole` returns the runtime's own error. `None` if the runtime did not call the driver.
#[cold]
pub(crate) fn carry(
    (grid, shared_bytes): ([c_uint; 3], usize),
    small: impl Fn([c_uint; 3], usize) -> Status,
    whole: impl Fn() -> Status,
) -> Option<Status> {
    let shared_bytes = c_uint::try_from(shared_bytes).ok()?;
    STATE.set(State::Waiting(Carried { grid, shared_bytes }));
    let grid = grid.map(|blocks| if blocks > MAX_OTHER { SMALL } else { blocks });
    let status = small(grid, usize::try_from(MARK).ok()?);
    match STATE.replace(State::None) {
        State::Taken if status == SUCCESS => Some(SUCCESS),
        // It was explained.
        State::Taken => Some(functions::once(Flag::Launch, &whole, &whole)),
        State::None | State::Waiting(_) => None,
    }
}

/// What a call of the driver's function with so much shared memory carries.
#[inline(always)]
pub(crate) fn take(shared_bytes: c_uint) -> Option<Carried> {
    if shared_bytes == MARK { take_waiting() } else { None }
}

#[cold]
fn take_waiting() -> Option<Carried> {
    match STATE.get() {
        State::Waiting(carried) => {
            STATE.set(State::Taken);
            Some(carried)
        }
        State::None | State::Taken => None,
    }
}

/// Whether this thread's launch is carried. The driver would refuse it whole.
pub(crate) fn is_taken() -> bool {
    matches!(STATE.get(), State::Taken)
}
