//! Bench cases on a device.

use core::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, DeviceRepr, DriverError};
use gridguard::{Choice, DeviceLimits, Plan, Strategy};
use gridguard_kernels::compare::{Compare, Difference};
use gridguard_kernels::{Element, Kernels, Prepared, Tensor, synthetic};
use rayon::prelude::{IntoParallelRefIterator, ParallelExtend, ParallelIterator};

use crate::case::{Backend, BenchCase, Case, LaunchSetup};
use crate::error::Error;
use crate::spec::{KernelSpec, PERIOD, SizedProblem, TensorSpec, to_usize};

/// A kernel on a device with inputs of `T`.
pub(crate) fn device_case<T: Element, K: KernelSpec>(
    problem: &SizedProblem,
    kernels: &Kernels,
    stream: &Arc<CudaStream>,
) -> Result<Box<dyn BenchCase>, Error> {
    let kernel = K::build(problem, kernels.guard().limits())?;
    let (items, tensors) = (kernel.batch().items(), K::tensors(problem));
    let mut inputs = Vec::new();
    for (input, seed) in tensors.inputs.iter().zip(1..) {
        let elements = to_usize(input.elements(items));
        let mut memory = stream.alloc_zeros::<T>(elements)?;
        repeat(stream, &synthetic(PERIOD.min(elements), seed), &mut memory)?;
        inputs.push(memory);
    }
    let outputs = tensors.outputs.iter().map(|elements| {
        let memory = stream.alloc_zeros(to_usize(items * elements))?;
        Ok(Output { elements: *elements, memory })
    });
    let outputs = outputs.collect::<Result<_, DriverError>>()?;
    let backend = DeviceBackend::<T, K> {
        kernels: kernels.clone(),
        stream: Arc::clone(stream),
        tensors,
        inputs,
        outputs,
    };
    Ok(Box::new(Case::new(*problem, kernel, backend)))
}

/// The tensors of a problem on a device.
struct DeviceBackend<T: Element, K: KernelSpec> {
    kernels: Kernels,
    stream: Arc<CudaStream>,
    tensors: TensorSpec,
    inputs: Vec<CudaSlice<T>>,
    outputs: Vec<Output<K::Output<T>>>,
}

/// A tensor that the kernel writes.
struct Output<O> {
    /// Elements of an item.
    elements: u64,
    memory: CudaSlice<O>,
}

impl<T: Element, K: KernelSpec> DeviceBackend<T, K> {
    /// Elements on the host; none if the memory is shorter.
    fn fetch<E: DeviceRepr>(
        &self,
        memory: &CudaSlice<E>,
        range: Range<usize>,
    ) -> Result<Vec<E>, Error> {
        match memory.try_slice(range) {
            Some(part) => Ok(self.stream.clone_dtoh(&part)?),
            None => Ok(Vec::new()),
        }
    }

    /// The launch with `parameters`. Compiles both forms of the kernel, for one launch and for several.
    fn setup(&self, kernel: &K, parameters: &[(String, u64)]) -> Result<LaunchSetup, Error> {
        let kernel = kernel.with_parameters(parameters)?;
        let setup = LaunchSetup::new(&kernel, self.kernels.limits(&kernel)?);
        // A launch that cannot be split is not prepared in chunks later either.
        let halves = Choice::at_most(setup.batch.items().div_ceil(2)).strategy(Strategy::Chunked);
        let _ = self.kernels.prepare(kernel, halves);
        Ok(setup)
    }
}

impl<T: Element, K: KernelSpec> Backend for DeviceBackend<T, K> {
    type Kernel = K;
    type Element = T;
    type Prepared = Prepared<K>;
    type Copy = Vec<CudaSlice<K::Output<T>>>;

    fn device(&self) -> &DeviceLimits {
        self.kernels.guard().limits()
    }

    fn tensors(&self) -> &TensorSpec {
        &self.tensors
    }

    fn setups(&self, kernel: &K) -> Result<Vec<LaunchSetup>, Error> {
        let mut setups = vec![self.setup(kernel, &kernel.parameters())?];
        let candidates = kernel.candidates();
        let others = candidates.get(1..).unwrap_or_default();
        let compile = |parameters: &Vec<(String, u64)>| self.setup(kernel, parameters).ok();
        // In the order of the candidates.
        setups.par_extend(others.par_iter().filter_map(compile));
        Ok(setups)
    }

    fn prepare(&self, kernel: K, choice: Choice) -> Result<Prepared<K>, Error> {
        Ok(self.kernels.prepare(kernel, choice)?)
    }

    fn plan(prepared: &Prepared<K>) -> &Plan {
        prepared.plan()
    }

    fn launch(&mut self, prepared: &Prepared<K>) -> Result<u64, Error> {
        let items = prepared.plan().items();
        let inputs = self.inputs.iter().zip(&self.tensors.inputs);
        let inputs: Vec<CudaView<'_, T>> =
            inputs.map(|(memory, input)| first(memory, input.elements(items))).collect();
        let outputs = self.outputs.iter_mut().map(|Output { elements, memory }| {
            let elements = to_usize(items * *elements).min(memory.len());
            memory.slice_mut(..elements)
        });
        let mut outputs: Vec<_> = outputs.collect();
        Ok(K::launch(prepared, &self.stream, &inputs, &mut outputs)?)
    }

    fn fill_output(&mut self, element: K::Output<T>) -> Result<(), Error> {
        for Output { memory, .. } in &mut self.outputs {
            let tile = vec![element; FILL_TILE.min(memory.len())];
            repeat(&self.stream, &tile, memory)?;
        }
        Ok(())
    }

    fn inputs(&self, parts: Vec<Range<usize>>) -> Result<Vec<Vec<T>>, Error> {
        let parts = self.inputs.iter().zip(parts);
        parts.map(|(memory, part)| self.fetch(memory, part)).collect()
    }

    fn output(&self, item: u64) -> Result<Vec<K::Output<T>>, Error> {
        let parts = self.outputs.iter().map(|Output { elements, memory }| {
            self.fetch(memory, to_usize(item * elements)..to_usize((item + 1) * elements))
        });
        Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn copy_output(&self) -> Result<Self::Copy, Error> {
        let copy = |output: &Output<_>| Ok(self.stream.clone_dtod(&output.memory)?);
        self.outputs.iter().map(copy).collect()
    }

    fn difference(&self, items: u64, golden: &Self::Copy) -> Result<Difference, Error> {
        let mut all = Difference::default();
        for (Output { elements, memory }, golden) in self.outputs.iter().zip(golden) {
            let elements = items * elements;
            let compare = Compare::<K::Output<T>>::new(elements)?;
            let prepared = self.kernels.prepare(compare, Choice::AUTOMATIC)?;
            let (out, golden) = (first(memory, elements), first(golden, elements));
            let (out, golden) = (Tensor::new(&out, [elements]), Tensor::new(&golden, [elements]));
            let one = prepared.run(&self.stream, out, golden)?;
            all.deviation.merge(&one.deviation);
            all.differing += one.differing;
        }
        Ok(all)
    }
}

/// The first elements of memory; all of it if it has fewer, which the launch then rejects.
fn first<T>(memory: &CudaSlice<T>, elements: u64) -> CudaView<'_, T> {
    memory.slice(..to_usize(elements).min(memory.len()))
}

/// Fills `memory` with repetitions of `tile`, copied from the host once and on the device from then on.
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

/// Elements that the host writes when the output is filled; a power of two copies fastest.
const FILL_TILE: usize = 1 << 20;
