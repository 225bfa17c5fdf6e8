//! Relays launches through a runtime that checks the grid itself, as runtimes before CUDA 13 do, or a launcher that skips
//! the grid, as Triton's does. The runtime gets a small grid. Our replacement of the driver's function then takes the whole
//! grid back, and launches it, in parts if it is oversized.

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
    /// Whether the small grid has one cluster, and the whole grid counts clusters along x.
    of_clusters: bool,
}

thread_local! {
    /// The launch that the runtime was called for, until the driver's function takes it.
    static WAITING: Cell<Option<RelayedLaunch>> = const { Cell::new(None) };
    /// Whether the driver's function has the launch.
    static TAKEN: Cell<bool> = const { Cell::new(false) };
}

/// Sentinel in `sharedMemBytes`: tells our `cuLaunchKernel` that a relayed launch is behind it. No device has so much
/// shared memory, so a driver whose function is not replaced refuses the launch.
pub(crate) const SENTINEL: c_uint = 0x7fff_fff1;
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
    WAITING.set(Some(RelayedLaunch { grid, shared_bytes, of_clusters: false }));
    let grid = grid.map(|blocks| if blocks > MAX_OTHER { SMALL } else { blocks });
    let status = small(grid, usize::try_from(SENTINEL).ok()?);
    WAITING.set(None);
    TAKEN.replace(false).then(|| match status {
        SUCCESS => SUCCESS,
        // The refusal was explained already.
        _ => functions::once(Flag::Launch, &whole, &whole),
    })
}

/// Has a launcher make the launch of a grid of clusters, which it would skip, by `small`: with one cluster and
/// [`SENTINEL`].
#[cold]
pub(crate) fn skipped<R>(grid: [c_uint; 3], shared_bytes: c_uint, small: impl FnOnce() -> R) -> R {
    let before = WAITING.replace(Some(RelayedLaunch { grid, shared_bytes, of_clusters: true }));
    let result = small();
    WAITING.set(before);
    TAKEN.set(false);
    result
}

/// The relayed launch behind a call of the driver's function with this grid and shared memory.
#[inline(always)]
pub(crate) fn take(grid: [c_uint; 3], shared_bytes: c_uint) -> Option<RelayedLaunch> {
    if shared_bytes == SENTINEL { take_waiting(grid) } else { None }
}

#[cold]
fn take_waiting(small: [c_uint; 3]) -> Option<RelayedLaunch> {
    let mut launch = WAITING.take()?;
    TAKEN.set(true);
    if launch.of_clusters {
        launch.grid[0] = launch.grid[0].saturating_mul(small[0]);
    }
    Some(launch)
}

/// Whether this thread's launch is relayed. The driver would refuse it whole.
pub(crate) fn is_taken() -> bool {
    TAKEN.get()
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
        let is_taken = [SENTINEL, 0].map(|bytes| take([1; 3], bytes).is_some());
        assert_eq!(is_taken, [false; 2], "the program asked for it");
        let too_much = usize::try_from(u64::from(c_uint::MAX) + 1).expect("64 bits");
        assert_eq!(relayed(too_much, |_, _| SUCCESS), None);
    }
}
