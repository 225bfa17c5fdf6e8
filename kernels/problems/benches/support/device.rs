//! Memory and timing on a CUDA device.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use gridguard::cuda::Module;
use gridguard::{DeviceLimits, Guard};
use gridguard_kernels::synthetic;
use gridguard_kernels::{Element, Kernels};

use super::limit::{self, Limit};
use super::{Bench, Case, Failure, Repeated};

/// Elements generated on the host; longer memory repeats them.
const TILE: usize = 1 << 20;

/// The first device.
pub(crate) struct Device {
    kernels: Kernels,
    stream: Arc<CudaStream>,
    limit: OnceCell<Module>,
}

impl Device {
    pub(crate) fn new() -> Result<Self, Failure> {
        let guard = Guard::cuda(0)?;
        // With a single stream, cudarc records no events between launches.
        let stream = guard.context().ok_or("no context")?.default_stream();
        Ok(Self { kernels: Kernels::new(guard), stream, limit: OnceCell::new() })
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    pub(crate) fn guard(&self) -> &Guard {
        self.kernels.guard()
    }

    pub(crate) fn limits(&self) -> &DeviceLimits {
        self.guard().limits()
    }

    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(crate) fn zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        len: usize,
    ) -> Result<CudaSlice<T>, Failure> {
        Ok(self.stream.alloc_zeros(len)?)
    }

    /// Memory of synthetic elements.
    pub(crate) fn filled<T: Element>(
        &self,
        len: usize,
        seed: u64,
    ) -> Result<CudaSlice<T>, Failure> {
        let mut memory = self.zeros(len)?;
        let tile = synthetic::<T>(len.min(TILE), seed);
        self.stream.memcpy_htod(&tile, &mut memory)?;
        let mut filled = tile.len();
        while filled < len {
            let part = filled.min(len - filled);
            let split = memory.try_split_at_mut(filled);
            let (from, mut rest) = split.ok_or("beyond the memory")?;
            self.stream.memcpy_dtod(&from.slice(..part), &mut rest)?;
            filled += part;
        }
        Ok(memory)
    }

    /// The elements at `range`, on the host.
    pub(crate) fn fetch<T: DeviceRepr>(
        &self,
        memory: &CudaSlice<T>,
        range: core::ops::Range<usize>,
    ) -> Result<Vec<T>, Failure> {
        let part = memory.try_slice(range).ok_or("beyond the memory")?;
        Ok(self.stream.clone_dtoh(&part)?)
    }

    /// Launches back to back between two events.
    ///
    /// One more launch precedes the first event, so that the device is busy while the rest are submitted
    /// and the latency of submission is not measured.
    pub(crate) fn repeated<'a>(
        &'a self,
        mut launch: impl FnMut() -> Result<(), Failure> + 'a,
    ) -> Repeated<'a> {
        Repeated::new(move |launches| {
            launch()?;
            let start = self.event()?;
            for _ in 0..launches {
                launch()?;
            }
            let end = self.event()?;
            let seconds = f64::from(start.elapsed_ms(&end)?) / 1e3;
            Ok(Duration::try_from_secs_f64(seconds)?)
        })
    }

    pub(crate) fn event(&self) -> Result<CudaEvent, Failure> {
        Ok(self.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?)
    }

    /// Measures the fastest of several kernels that only move the bytes of `case`. They are launched back to back
    /// over the same memory as the case itself, so both find the same data in the L2 cache.
    pub(crate) fn measure_limit<T: Element>(&self, bench: &mut Bench, case: Case) {
        let traffic = case.traffic;
        bench.measure(&Case { name: "limit", ..case }, || {
            let mut limit = Limit::<T>::fastest(self, traffic)?;
            let name = limit.name().to_owned();
            Ok(self.repeated(move || limit.launch(self)).made_by(name))
        });
    }

    /// The kernels of `limit`, compiled once.
    pub(super) fn limit_module(&self) -> Result<&Module, Failure> {
        if let Some(module) = self.limit.get() {
            return Ok(module);
        }
        let module = self.guard().compile("limit.cu", limit::SOURCE)?;
        Ok(self.limit.get_or_init(|| module))
    }
}
