//! Who may use a device.

use core::fmt;

use super::driver::Driver;
use super::error::CudaError;
use super::query::device_handle;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`.
const COMPUTE_MODE: i32 = 20;

/// Who may have a context on a device, as `nvidia-smi --compute-mode` sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComputeMode {
    /// Everyone.
    Default,
    /// One process at a time.
    Exclusive,
    /// Nobody.
    Prohibited,
    /// A number that is not known here.
    Other(i32),
}

impl ComputeMode {
    const fn of(number: i32) -> Self {
        match number {
            0 => Self::Default,
            // 1 is one thread at a time, which drivers since CUDA 8 take for one process.
            1 | 3 => Self::Exclusive,
            2 => Self::Prohibited,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for ComputeMode {
    /// `default`, `exclusive`, `prohibited`, `7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Exclusive => f.write_str("exclusive"),
            Self::Prohibited => f.write_str("prohibited"),
            Self::Other(number) => write!(f, "{number}"),
        }
    }
}

/// Who may use device `ordinal`. Needs no context, so that it is answered where none may be made.
///
/// # Errors
///
/// [`CudaError`] where there is no driver, no such device, or the query fails.
pub fn compute_mode(ordinal: usize) -> Result<ComputeMode, CudaError> {
    let (driver, device) = (Driver::get()?, device_handle(ordinal)?);
    let mut number = 0;
    // SAFETY: the pointer is to a live integer; the device is one that the driver named.
    let status = unsafe { (driver.device_get_attribute)(&raw mut number, COMPUTE_MODE, device) };
    driver.check("cuDeviceGetAttribute", status)?;
    Ok(ComputeMode::of(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_driver() {
        let modes = [0, 1, 2, 3, 7].map(|number| ComputeMode::of(number).to_string());
        assert_eq!(modes, ["default", "exclusive", "prohibited", "exclusive", "7"]);
    }
}
