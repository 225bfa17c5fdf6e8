//! Launches that are waited for one by one, so that an error names the launch that it is of.

use core::panic::Location;

use once_cell::sync::OnceCell;

use super::driver::{Driver, Handle};
use super::error::DriverError;
use super::history::History;

/// What is to be noted of a launch, and done about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    /// Where the program launched it.
    pub(super) call_site: &'static Location<'static>,
    /// Whether to wait for it.
    pub(super) checked: bool,
}

impl Watch {
    /// A launch without a guard, by the caller.
    #[inline]
    #[track_caller]
    pub(super) fn here() -> Self {
        Self { call_site: Location::caller(), checked: by_environment() }
    }
}

/// Whether `GRIDGUARD_SYNC` asks for checked launches; read once for the process.
#[inline]
pub(super) fn by_environment() -> bool {
    static ASKED: OnceCell<bool> = OnceCell::new();
    *ASKED.get_or_init(|| {
        let value = std::env::var_os("GRIDGUARD_SYNC");
        value.is_some_and(|value| !value.is_empty() && value != "0")
    })
}

/// Waits for a launch that was just recorded, where its stream is not being captured. Its context
/// is current.
#[cold]
pub(super) fn wait(driver: &Driver, history: &History, stream: Handle) -> Result<(), DriverError> {
    let waited = match is_capturing(driver, stream) {
        Ok(true) => {
            history.count_unchecked_in_capture();
            return Ok(());
        }
        Ok(false) => synchronize(driver, history, stream),
        // A fault that is quick enough surfaces at the question.
        Err(error) => Err(error),
    };
    match waited {
        Ok(()) => {
            history.count_checked();
            Ok(())
        }
        Err(error) => Err(error.at_a_check()),
    }
}

/// Waits for all that was launched on `stream`, which is proven good then. Its context is current.
pub(super) fn synchronize(
    driver: &Driver,
    history: &History,
    stream: Handle,
) -> Result<(), DriverError> {
    let mark = history.mark(stream);
    // SAFETY: the stream is alive; whoever launches on it keeps it so.
    let status = unsafe { (driver.stream_synchronize)(stream) };
    driver.check("cuStreamSynchronize", status)?;
    history.prove(mark);
    Ok(())
}

/// Whether `stream` is being captured, so that waiting for it would end the capture.
pub(super) fn is_capturing(driver: &Driver, stream: Handle) -> Result<bool, DriverError> {
    /// From `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` to `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`.
    const OF_CAPTURE: core::ops::RangeInclusive<i32> = 900..=908;
    // No driver of CUDA 12 lacks it. One that did could not tell, so nothing is waited for.
    let Some(ask) = driver.stream_is_capturing else { return Ok(true) };
    let mut capturing = 0;
    // SAFETY: the stream is alive, and the pointer is to a live integer.
    let status = unsafe { ask(stream, &raw mut capturing) };
    if OF_CAPTURE.contains(&status) {
        return Ok(true);
    }
    driver.check("cuStreamIsCapturing", status)?;
    Ok(capturing != 0)
}
