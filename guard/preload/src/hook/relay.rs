//! Relays oversized launches through a runtime that checks the grid itself, as runtimes before CUDA 13 do. The runtime
//! gets a small grid. Our replacement of the driver's function then takes the whole grid back, and launches it in parts.

use core::cell::Cell;
use core::ffi::c_uint;

use crate::driver::abi::{SUCCESS, Status};
use crate::driver::functions;
use crate::driver::request::{MAX_OTHER, is_oversized};
use crate::process;
use crate::process::flag::Flag;

/// The grid and shared memory of the program's launch.
#[derive(Clone, Copy)]
pub(crate) struct RelayedLaunch {
    pub(crate) grid: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
}

#[derive(Clone, Copy)]
enum State {
    None,
    /// The runtime was called, and has not called the driver yet.
    Waiting(RelayedLaunch),
    /// The driver's function has the launch.
    Taken,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State::None) };
}

/// Sentinel in `sharedMemBytes`: tells our `cuLaunchKernel` that a relayed launch is behind it. No device has so much
/// shared memory, so a driver whose function is not replaced refuses the launch.
const SENTINEL: c_uint = 0x7fff_fff1;
/// Blocks along an oversized axis of the small grid. Clusters divide it.
const SMALL: c_uint = 1 << 15;

/// Whether a launch of the runtime with this grid is relayed.
#[inline(always)]
pub(crate) fn applies_to(grid: [c_uint; 3]) -> bool {
    is_oversized(grid) && process::options().fix
}

/// Makes the launch by `small`, which takes a grid and the bytes of shared memory. If the parts are refused, `whole`
/// returns the runtime's own error. `None` if the runtime did not call the driver.
#[cold]
pub(crate) fn launch(
    (grid, shared_bytes): ([c_uint; 3], usize),
    small: impl Fn([c_uint; 3], usize) -> Status,
    whole: impl Fn() -> Status,
) -> Option<Status> {
    let shared_bytes = c_uint::try_from(shared_bytes).ok()?;
    STATE.set(State::Waiting(RelayedLaunch { grid, shared_bytes }));
    let grid = grid.map(|blocks| if blocks > MAX_OTHER { SMALL } else { blocks });
    let status = small(grid, usize::try_from(SENTINEL).ok()?);
    match STATE.replace(State::None) {
        State::Taken if status == SUCCESS => Some(SUCCESS),
        // The refusal was explained already.
        State::Taken => Some(functions::once(Flag::Launch, &whole, &whole)),
        State::None | State::Waiting(_) => None,
    }
}

/// The relayed launch behind a call of the driver's function with this amount of shared memory.
#[inline(always)]
pub(crate) fn take(shared_bytes: c_uint) -> Option<RelayedLaunch> {
    if shared_bytes == SENTINEL { take_waiting() } else { None }
}

#[cold]
fn take_waiting() -> Option<RelayedLaunch> {
    match STATE.get() {
        State::Waiting(launch) => {
            STATE.set(State::Taken);
            Some(launch)
        }
        State::None | State::Taken => None,
    }
}

/// Whether this thread's launch is relayed. The driver would refuse it whole.
pub(crate) fn is_taken() -> bool {
    matches!(STATE.get(), State::Taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::abi::INVALID_VALUE;

    const GRID: [c_uint; 3] = [70_000, 70_000, 2];

    /// Relays a launch, where the driver's function is called by `driver`, and the runtime's own error is 9.
    fn relayed(
        shared_bytes: usize,
        driver: impl Fn([c_uint; 3], c_uint) -> Status,
    ) -> Option<Status> {
        let small =
            |grid: [c_uint; 3], bytes| driver(grid, c_uint::try_from(bytes).expect("a mark"));
        launch((GRID, shared_bytes), small, || 9)
    }

    #[test]
    fn a_launch_that_the_driver_never_gets_is_not_relayed() {
        assert_eq!(relayed(0, |_, _| 98), None, "the runtime refuses the kernel");
        assert_eq!(relayed(0, |_, _| INVALID_VALUE), None, "the driver's function is not replaced");
        assert!(take(SENTINEL).is_none() && take(0).is_none(), "the program asked for it");
        let too_much = usize::try_from(u64::from(c_uint::MAX) + 1).expect("64 bits");
        assert_eq!(relayed(too_much, |_, _| SUCCESS), None);
    }
}
