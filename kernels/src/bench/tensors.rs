//! What a kernel's launches take, on a device.

use core::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, DriverError};
use gridguard::Choice;

use super::BenchError;
use super::launched::{Launched, first};
use super::subject::{Input, Tensorial, place};
use super::synthetic::{TILE, synthetic};
use crate::compare::{Compare, Compared, Difference, Sums};
use crate::kernels::{Kernels, Prepared};
use crate::tensor::Tensor;

/// Elements of poison that the host makes; the device copies the rest, fastest in powers of two.
const POISON: usize = 1 << 20;

/// The tensors of a problem.
pub(super) struct Tensors<T: Tensorial, S: Launched<T, N>, const N: usize> {
    stream: Arc<CudaStream>,
    /// As many as the kernel reads.
    inputs: Vec<CudaSlice<T>>,
    companion: S::Companion,
    out: CudaSlice<S::Output>,
}

impl<T: Tensorial, S: Launched<T, N>, const N: usize> Tensors<T, S, N> {
    /// Made-up inputs and an output for `subject`.
    pub(super) fn new(stream: &Arc<CudaStream>, subject: &S) -> Result<Self, BenchError> {
        let (items, specified) = (subject.batch().items(), subject.specification());
        let inputs = specified.inputs.into_iter().zip(1..);
        let made = |(input, seed): (Input, u64)| filled(stream, input.elements(items), seed);
        Ok(Self {
            stream: Arc::clone(stream),
            inputs: inputs.map(made).collect::<Result<_, _>>()?,
            companion: subject.companion(stream)?,
            out: stream.alloc_zeros(specified.output(items))?,
        })
    }

    /// Submits what was prepared, over as many items as it is for.
    pub(super) fn launch(&mut self, prepared: &Prepared<S>) -> Result<u64, BenchError> {
        let operation = prepared.operation();
        let (items, specified) = (operation.batch().items(), operation.specification());
        let input = |n: usize| first(&self.inputs[n], specified.inputs[n].elements(items));
        let inputs = core::array::from_fn(input);
        let elements = specified.output(items).min(self.out.len());
        let out = self.out.slice_mut(..elements);
        Ok(S::launch(prepared, &self.stream, inputs, &mut self.companion, out)?)
    }

    /// Fills the output with what no kernel writes.
    pub(super) fn spoil(&mut self, poison: S::Output) -> Result<(), DriverError> {
        let poison = vec![poison; POISON.min(self.out.len())];
        repeat(&self.stream, &poison, &mut self.out)
    }

    /// The part of each input that `item` reads, on the host.
    pub(super) fn parts(&self, subject: &S, item: u64) -> Result<[Vec<T>; N], DriverError> {
        let mut parts = core::array::from_fn(|_| Vec::new());
        let specified = self.inputs.iter().zip(subject.specification().inputs);
        for (part, (memory, input)) in parts.iter_mut().zip(specified) {
            *part = self.fetch(memory, input.part(item))?;
        }
        Ok(parts)
    }

    /// The output's elements at `range`, on the host.
    pub(super) fn output(&self, range: Range<usize>) -> Result<Vec<S::Output>, DriverError> {
        self.fetch(&self.out, range)
    }

    /// A copy of the output.
    pub(super) fn copy_output(&self) -> Result<CudaSlice<S::Output>, DriverError> {
        self.stream.clone_dtod(&self.out)
    }

    /// How far the first elements of the output are from the golden ones. Waits for it.
    pub(super) fn difference(
        &self,
        kernels: &Kernels,
        elements: u64,
        golden: &CudaSlice<S::Output>,
    ) -> Result<Difference, BenchError> {
        let compare = Compare::new(elements, S::Output::COMPARED)?;
        let prepared = kernels.prepare(compare, Choice::AUTOMATIC)?;
        let mut sums = Sums::new(&self.stream)?;
        let (out, golden) = (first(&self.out, elements), first(golden, elements));
        let (out, golden) = (Tensor::new(&out, [elements]), Tensor::new(&golden, [elements]));
        prepared.launch(&self.stream, out, golden, &mut sums)?;
        Ok(sums.read(&self.stream)?)
    }

    /// Elements on the host; none where the memory has no such place.
    fn fetch<E: DeviceRepr>(
        &self,
        memory: &CudaSlice<E>,
        range: Range<usize>,
    ) -> Result<Vec<E>, DriverError> {
        match memory.try_slice(range) {
            Some(part) => self.stream.clone_dtoh(&part),
            None => Ok(Vec::new()),
        }
    }
}

/// Memory of made-up elements.
fn filled<T: Tensorial>(
    stream: &Arc<CudaStream>,
    elements: u64,
    seed: u64,
) -> Result<CudaSlice<T>, DriverError> {
    let mut memory = stream.alloc_zeros(place(elements))?;
    repeat(stream, &synthetic(TILE.min(place(elements)), seed), &mut memory)?;
    Ok(memory)
}

/// Fills `memory` with `tile` again and again; copies on the device what is there already.
fn repeat<T: DeviceRepr>(
    stream: &Arc<CudaStream>,
    tile: &[T],
    memory: &mut CudaSlice<T>,
) -> Result<(), DriverError> {
    let (mut filled, len) = (tile.len(), memory.len());
    if filled == 0 {
        return Ok(());
    }
    stream.memcpy_htod(tile, memory)?;
    while filled < len {
        let more = filled.min(len - filled);
        let (from, mut rest) = memory.split_at_mut(filled);
        stream.memcpy_dtod(&from.slice(..more), &mut rest.slice_mut(..more))?;
        filled += more;
    }
    Ok(())
}
