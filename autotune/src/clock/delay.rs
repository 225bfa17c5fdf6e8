//! A kernel that keeps the device busy while the work behind it is submitted, and tells its clock.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{Args, Kernel, Module};
use gridguard::{Choice, Dim3, Guard, LaunchRequest, Parameter, Plan};

use crate::measurer::{FailureKind, MeasureFailure};

/// The delay kernel with its memory.
pub(super) struct Delay {
    kernel: Kernel,
    plan: Plan,
    stamps: CudaSlice<u64>,
}

impl Delay {
    pub(super) fn new(guard: &Guard, stream: &Arc<CudaStream>) -> Result<Self, MeasureFailure> {
        let kernel = kernel(&guard.compile("delay.cu", SOURCE)?)?;
        let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
        let plan = guard.plan(&request, None, kernel.limits(), Choice::AUTOMATIC).map_err(
            |violations| MeasureFailure::new(FailureKind::Illegal, violations.to_string()),
        )?;
        let stamps = stream
            .alloc_zeros(STAMPS)
            .map_err(|error| MeasureFailure::of_driver("cuMemAllocAsync", error))?;
        Ok(Self { kernel, plan, stamps })
    }

    /// Holds `stream` for [`WINDOW_NS`] from when the device comes to it.
    pub(super) fn submit(
        &mut self,
        guard: &Guard,
        stream: &CudaStream,
    ) -> Result<(), MeasureFailure> {
        let mut args = Args::new(stream);
        args.write(&mut self.stamps).value(WINDOW_NS);
        guard.launch(&self.kernel, &self.plan, args)?;
        Ok(())
    }

    /// The clock that the last delay saw, once all before `stream`'s end is done.
    pub(super) fn clock_mhz(
        &self,
        stream: &Arc<CudaStream>,
    ) -> Result<Option<f64>, MeasureFailure> {
        let mut stamps = [0; STAMPS];
        stream
            .memcpy_dtoh(&self.stamps, &mut stamps)
            .map_err(|error| MeasureFailure::of_driver("cuMemcpyDtoHAsync", error))?;
        Ok(clock_mhz(stamps))
    }
}

/// Cycles over time between both stamps; `None` where the timer gave no window to speak of.
fn clock_mhz([begin_cycles, begin_ns, end_cycles, end_ns]: [u64; STAMPS]) -> Option<f64> {
    let cycles = u32::try_from(end_cycles.checked_sub(begin_cycles)?).ok()?;
    let window_ns = end_ns.checked_sub(begin_ns).filter(|window_ns| *window_ns >= WINDOW_NS)?;
    let window_ns = u32::try_from(window_ns).ok()?;
    (cycles > 0).then(|| f64::from(cycles) * 1e3 / f64::from(window_ns))
}

#[allow(unsafe_code, reason = "the promise for the kernel below")]
fn kernel(module: &Module) -> Result<Kernel, MeasureFailure> {
    let parameters = [Parameter::Memory, Parameter::of::<u64>()];
    // SAFETY: `delay` takes memory and a word, and its one thread writes the first four words of the
    // memory, which is `STAMPS` long.
    Ok(unsafe { module.kernel("delay", &parameters)? })
}

const SOURCE: &str = include_str!("delay.cu");

/// How long the stream is held. Recording an event and launching takes the host some 10 us: with 40
/// the device has all of a short work's launches before it begins, as on a busy stream, while the
/// launches of a long one are submitted as it runs. And the clock is exact to about 1 %: both ends
/// of the window lie at ticks of the timer, within a reading of it, which takes less than 0.2 us.
const WINDOW_NS: u64 = 40_000;
/// Words that the kernel writes.
const STAMPS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_over_time_are_the_clock() {
        assert_eq!(clock_mhz([1000, 5000, 1000 + 79_200, 45_000]), Some(1980.0));
    }

    #[test]
    fn a_timer_that_stands_still_or_runs_backwards_gives_no_clock() {
        assert_eq!(clock_mhz([0, 5000, 1_000_000, 5000]), None);
        assert_eq!(clock_mhz([0, 50_000, 80_000, 5000]), None);
        assert_eq!(clock_mhz([80_000, 0, 0, 40_000]), None);
        assert_eq!(clock_mhz([0; STAMPS]), None);
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_kernel_compiles_for_every_architecture() {
        use gridguard::ComputeCapability;
        use gridguard::cuda::{CompileOptions, Compiler};
        for (major, minor) in [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)] {
            let options = CompileOptions::new("delay.cu", ComputeCapability::new(major, minor));
            Compiler::find().expect("NVRTC").compile(SOURCE, &options).expect("compiles");
        }
    }
}
