//! A kernel that keeps the device busy while work is submitted, and measures the SM clock.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{Args, Kernel, Module};
use gridguard::{Choice, Dim3, Guard, LaunchRequest, Parameter, Plan};

use crate::failure::{MeasureFailure, Measured};

pub(super) struct Delay {
    guard: Arc<Guard>,
    stream: Arc<CudaStream>,
    kernel: Kernel,
    plan: Plan,
    stamps: CudaSlice<u64>,
}

impl Delay {
    pub(super) fn new(guard: Arc<Guard>, stream: Arc<CudaStream>) -> Measured<Self> {
        let kernel = kernel(&guard.compile("delay.cu", SOURCE)?)?;
        let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
        let plan = guard.plan(&request, None, kernel.limits(), Choice::AUTOMATIC)?;
        let stamps =
            stream.alloc_zeros(STAMPS).map_err(MeasureFailure::in_call("cuMemAllocAsync"))?;
        Ok(Self { guard, stream, kernel, plan, stamps })
    }

    /// Holds the stream for this time.
    pub(super) fn submit(&mut self, window_ns: u64) -> Measured<()> {
        let mut args = Args::new(&self.stream);
        args.write(&mut self.stamps).value(window_ns);
        self.guard.launch(&self.kernel, &self.plan, args)?;
        Ok(())
    }

    /// The SM clock during the last delay, after all work on the stream is done.
    pub(super) fn clock_mhz(&self) -> Measured<Option<f64>> {
        let mut stamps = [0; STAMPS];
        let copied = self.stream.memcpy_dtoh(&self.stamps, &mut stamps);
        copied.map_err(MeasureFailure::in_call("cuMemcpyDtoHAsync"))?;
        Ok(clock_mhz(stamps))
    }
}

/// Cycles over time between the stamps; `None` if the timer measured less than the window.
fn clock_mhz([begin_cycles, begin_ns, end_cycles, end_ns]: [u64; STAMPS]) -> Option<f64> {
    let cycles = u32::try_from(end_cycles.checked_sub(begin_cycles)?).ok()?;
    let window_ns = end_ns.checked_sub(begin_ns).filter(|window_ns| *window_ns >= WINDOW_NS)?;
    let window_ns = u32::try_from(window_ns).ok()?;
    (cycles > 0).then(|| f64::from(cycles) * 1e3 / f64::from(window_ns))
}

#[allow(unsafe_code, reason = "the contract of the delay kernel")]
fn kernel(module: &Module) -> Measured<Kernel> {
    let parameters = [Parameter::Memory, Parameter::of::<u64>()];
    // SAFETY: `delay` takes a pointer and a 64-bit word, and its one thread writes the first four
    // words of the memory, which has `STAMPS` words.
    Ok(unsafe { module.kernel("delay", &parameters)? })
}

const SOURCE: &str = include_str!("delay.cu");

/// How long the stream is held. The host takes about 10 us to record an event and launch, so 40 us are
/// enough to queue short work, as on a busy stream. The clock is accurate to about 1 %: reading the timer
/// takes less than 0.2 us.
pub(super) const WINDOW_NS: u64 = 40_000;
/// The 64-bit words that the kernel writes.
const STAMPS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_cycles_over_time() {
        assert_eq!(clock_mhz([1000, 5000, 1000 + 79_200, 45_000]), Some(1980.0));
    }

    #[test]
    fn a_stopped_or_backward_timer_gives_no_clock() {
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
