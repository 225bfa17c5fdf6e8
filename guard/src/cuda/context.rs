//! The context of a guard, synchronisation of its streams, and checked launches: those synchronised
//! one by one, so that an error names the faulting launch.

use core::ops::RangeInclusive;
use core::panic::Location;
use std::sync::{Arc, LazyLock};

use cudarc::driver::CudaContext;

use super::driver::from_cudarc;
use super::error::{CudaError, DriverError};
use super::history::{ContextHistory, History};
use super::query::{device_count, free_memory, limits_of_context};
use super::symbols::{Driver, Handle, Status};
use crate::limits::DeviceLimits;
use crate::record::counters::Counts;

/// The context that a guard launches in.
#[derive(Clone, Debug)]
pub(crate) struct CudaBackend {
    pub(super) context: Arc<CudaContext>,
    pub(super) history: Arc<ContextHistory>,
    /// Whether each launch is synchronised at once.
    pub(super) checked: bool,
}

impl CudaBackend {
    /// The primary context of device `ordinal`, and the device's limits.
    pub(super) fn primary(ordinal: usize) -> Result<(Self, Arc<DeviceLimits>), CudaError> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal)
            .map_err(|error| from_cudarc(None, "cuDevicePrimaryCtxRetain", error))?;
        Self::new(context)
    }

    /// `context`, and the limits of its device.
    pub(super) fn new(context: Arc<CudaContext>) -> Result<(Self, Arc<DeviceLimits>), CudaError> {
        let limits = limits_of_context(Driver::get()?, &context)?;
        let history = ContextHistory::of(context.cu_ctx().cast());
        Ok((Self { context, history, checked: *CHECKED_BY_ENVIRONMENT }, limits))
    }

    /// The primary context of the device with the most free memory, and the device's limits.
    pub(crate) fn most_free_memory() -> Result<(Self, Arc<DeviceLimits>), CudaError> {
        let count = device_count()?;
        if count == 1 {
            return Self::primary(0);
        }
        // A device that cannot be queried is skipped as long as another can.
        let mut best = Err(CudaError::NoSuchDevice { ordinal: 0, count });
        for ordinal in 0..count {
            best = match (free_memory(ordinal), best) {
                (Ok((free, _)), Ok((most, other))) if most >= free => Ok((most, other)),
                (Ok((free, _)), _) => Ok((free, ordinal)),
                (Err(_), Ok(other)) => Ok(other),
                (Err(error), Err(_)) => Err(error),
            };
        }
        best.and_then(|(_, ordinal)| Self::primary(ordinal))
    }

    /// `counts` with what is counted for the whole context.
    pub(crate) fn add_context_counts(&self, counts: Counts) -> Counts {
        self.history.add_context_counts(counts)
    }
}

/// What to record of a launch, and whether to synchronise it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    /// Where the program launched it.
    pub(super) call_site: &'static Location<'static>,
    /// Whether to synchronise it at once.
    pub(super) checked: bool,
}

impl Watch {
    /// A launch by the caller, without a guard.
    #[inline]
    #[track_caller]
    pub(super) fn here() -> Self {
        Self { call_site: Location::caller(), checked: *CHECKED_BY_ENVIRONMENT }
    }
}

/// Whether `GRIDGUARD_SYNC` asks for checked launches; read once for the process.
static CHECKED_BY_ENVIRONMENT: LazyLock<bool> = LazyLock::new(|| {
    let value = std::env::var_os("GRIDGUARD_SYNC");
    value.is_some_and(|value| !value.is_empty() && value != "0")
});

/// Synchronises a launch that was just recorded, unless its stream is being captured. Its context
/// is current.
///
/// # Safety
///
/// As [`synchronize`].
#[cold]
pub(super) unsafe fn check_launch(
    driver: &Driver,
    history: &History,
    stream: Handle,
) -> Result<(), DriverError> {
    // SAFETY: the stream is alive, by this function's contract.
    let synchronized = match unsafe { is_capturing(driver, stream) } {
        Ok(true) => {
            history.count_unchecked_in_capture();
            return Ok(());
        }
        // SAFETY: as above.
        Ok(false) => unsafe { synchronize(driver, history, stream) },
        // A fault that is quick enough already surfaces at the query.
        Err(error) => Err(error),
    };
    match synchronized {
        Ok(()) => {
            history.count_checked();
            Ok(())
        }
        Err(error) => Err(error.after_checked_launch()),
    }
}

/// Waits for all launches on `stream`, and clears them of suspicion. The stream's context is current.
///
/// # Safety
///
/// `stream` is a live stream of the current context, or null for its default one.
pub(super) unsafe fn synchronize(
    driver: &Driver,
    history: &History,
    stream: Handle,
) -> Result<(), DriverError> {
    let mark = history.mark(stream);
    // SAFETY: the stream is alive, by this function's contract.
    let status = unsafe { (driver.stream_synchronize)(stream) };
    driver.check("cuStreamSynchronize", status)?;
    mark.into_iter().for_each(|mark| history.prove(mark));
    Ok(())
}

/// Whether `stream` is being captured, so that synchronising would invalidate the capture.
///
/// # Safety
///
/// As [`synchronize`].
pub(super) unsafe fn is_capturing(driver: &Driver, stream: Handle) -> Result<bool, DriverError> {
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` to `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`.
    const CAPTURE_ERRORS: RangeInclusive<Status> = 900..=908;
    // Every CUDA 12 driver has the function. Without it no launch is synchronised.
    let Some(look_up) = driver.stream_is_capturing else { return Ok(true) };
    let mut capturing = 0;
    // SAFETY: the stream is alive, by this function's contract; the pointer is to a live integer.
    let status = unsafe { look_up(stream, &raw mut capturing) };
    if CAPTURE_ERRORS.contains(&status) {
        return Ok(true);
    }
    driver.check("cuStreamIsCapturing", status)?;
    Ok(capturing != 0)
}
