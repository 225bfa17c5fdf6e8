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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::abi::INVALID_VALUE;

    const GRID: [c_uint; 3] = [70_000, 70_000, 2];

    /// Carries a launch, where the driver's function is called by `driver`, and the runtime's own error is 9.
    fn carried(
        shared_bytes: usize,
        driver: impl Fn([c_uint; 3], c_uint) -> Status,
    ) -> Option<Status> {
        let small =
            |grid: [c_uint; 3], bytes| driver(grid, c_uint::try_from(bytes).expect("a mark"));
        carry((GRID, shared_bytes), small, || 9)
    }

    #[test]
    fn the_driver_gets_the_launch_once_and_its_refusal_is_that_of_the_runtime() {
        for (status, expected) in [(SUCCESS, SUCCESS), (INVALID_VALUE, 9)] {
            let result = carried(4096, |grid, bytes| {
                assert!(!is_oversized(grid) && grid[2] == 2 && !is_taken());
                let Carried { grid, shared_bytes } = take(bytes).expect("a launch");
                assert_eq!((grid, shared_bytes), (GRID, 4096));
                assert!(is_taken() && take(bytes).is_none());
                status
            });
            assert_eq!((result, is_taken()), (Some(expected), false));
        }
    }

    #[test]
    fn a_launch_that_the_driver_never_gets_is_not_carried() {
        assert_eq!(carried(0, |_, _| 98), None, "the runtime refuses the kernel");
        assert_eq!(carried(0, |_, _| INVALID_VALUE), None, "the driver's function is not replaced");
        assert!(take(MARK).is_none() && take(0).is_none(), "the program asked for it");
        let too_much = usize::try_from(u64::from(c_uint::MAX) + 1).expect("64 bits");
        assert_eq!(carried(too_much, |_, _| SUCCESS), None);
    }
}
