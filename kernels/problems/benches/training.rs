//! Times attention and its gradients over the shapes of models that train on short rows, and as their limit the fastest
//! kernel that only moves the same bytes. Needs a CUDA device.
//!
//! The results are compared with the f64 reference before anything is timed.

mod support;

use cudarc::driver::CudaSlice;
use gridguard::{Choice, DeviceLimits};
use gridguard_kernels::temporal_attention::{
    AttentionBackward, Shape, TemporalAttention, reference, reference_gradients, tolerance,
};
use gridguard_kernels::{
    Deviation, Element, ElementType, Extent, KernelError, Prepared, Tensor, TensorMut,
};
use gridguard_problems::Traffic;
use half::{bf16, f16};

use support::{Bench, Case, Device, Failure, within};

/// Attention over one shape.
#[derive(Clone, Copy)]
struct Setup {
    items: u64,
    heads: u64,
    rows: u64,
    head_dim: u64,
    causal: bool,
    /// A mask for each item, as for shifted windows.
    masked: bool,
}

const fn plain([items, heads, rows, head_dim]: [u64; 4]) -> Setup {
    Setup { items, heads, rows, head_dim, causal: false, masked: false }
}

const fn causal(dims: [u64; 4]) -> Setup {
    Setup { causal: true, ..plain(dims) }
}

const fn masked(dims: [u64; 4]) -> Setup {
    Setup { masked: true, ..plain(dims) }
}

/// Temporal attention, rows of tables (`TabPFN`, `TabICL`), windows (Swin).
const HALF: [Setup; 7] = [
    plain([15_360, 5, 16, 64]),
    plain([70_000, 1, 16, 64]),
    plain([200_000, 6, 11, 32]),
    plain([100_000, 8, 64, 16]),
    plain([16_384, 6, 49, 32]),
    masked([16_384, 6, 49, 32]),
    plain([4096, 6, 144, 32]),
];
/// Autoencoders of video (Mochi, Cosmos), and longer rows.
const BRAIN: [Setup; 6] = [
    causal([25_440, 8, 82, 32]),
    causal([50_880, 4, 163, 32]),
    plain([40_000, 4, 16, 256]),
    plain([15_360, 5, 81, 64]),
    plain([15_360, 5, 128, 64]),
    plain([8000, 5, 256, 64]),
];
const SINGLE: [Setup; 2] = [plain([15_360, 5, 16, 64]), plain([9216, 10, 24, 80])];

fn main() {
    let mut bench = Bench::new();
    match Device::new() {
        Ok(device) => {
            HALF.into_iter().for_each(|setup| measure::<f16>(&mut bench, &device, setup));
            BRAIN.into_iter().for_each(|setup| measure::<bf16>(&mut bench, &device, setup));
            SINGLE.into_iter().for_each(|setup| measure::<f32>(&mut bench, &device, setup));
        }
        Err(reason) => eprintln!("no CUDA device ({reason}): nothing is measured"),
    }
    bench.finish();
}

fn measure<T: Element>(bench: &mut Bench, device: &Device, setup: Setup) {
    let forward = setup.case(T::TYPE, "attention", 3, 1);
    bench.measure(&forward, || {
        let prepared = device
            .kernels()
            .prepare(setup.attention(T::TYPE, device.limits())?, Choice::AUTOMATIC)?;
        let mut tensors = Tensors::<T>::new(device, setup)?;
        tensors.forward(device, &prepared)?;
        let error = tensors.error_of_forward(device, prepared.operation())?;
        Ok(device.repeated(move || tensors.forward(device, &prepared)).with_error(error))
    });
    device.measure_limit::<T>(bench, forward);
    let limits = device.limits();
    let operation =
        setup.attention(T::TYPE, limits).and_then(|one| AttentionBackward::new(one, limits));
    let operation = match operation {
        Ok(operation) => operation,
        Err(error) => {
            eprintln!("no gradients of {}: {error}", setup.name());
            return;
        }
    };
    let backward = setup.case(T::TYPE, "attention backward", 4, 3);
    bench.measure(&backward, || {
        let prepared = device.kernels().prepare(operation, Choice::AUTOMATIC)?;
        let mut tensors = Tensors::<T>::new(device, setup)?;
        tensors.backward(device, &prepared)?;
        let error = tensors.error_of_backward(device, prepared.operation())?;
        Ok(device.repeated(move || tensors.backward(device, &prepared)).with_error(error))
    });
    device.measure_limit::<T>(bench, backward);
}

impl Setup {
    fn shape(&self) -> Result<Shape, KernelError> {
        Shape::new(self.items, self.heads, self.rows, self.head_dim)
    }

    fn attention(
        &self,
        element: ElementType,
        device: &DeviceLimits,
    ) -> Result<TemporalAttention, KernelError> {
        let attention = TemporalAttention::new(self.shape()?, element, device)?;
        let attention = if self.causal { attention.causal() } else { attention };
        Ok(if self.masked { attention.with_bias().with_strides() } else { attention })
    }

    fn name(&self) -> String {
        let Self { items, heads, rows, head_dim, causal, masked } = *self;
        let option = if causal {
            "-causal"
        } else if masked {
            "-masked"
        } else {
            ""
        };
        format!("{items}x{heads}x{rows}x{head_dim}{option}")
    }

    fn case(
        &self,
        element: ElementType,
        operation: &'static str,
        read: u128,
        written: u128,
    ) -> Case {
        let product = |sizes: &[u64]| sizes.iter().copied().map(u128::from).product::<u128>();
        let tensor = product(&[self.items, self.heads, self.rows, self.head_dim, element.bytes()]);
        let mask = if self.masked {
            product(&[self.items, self.rows, self.rows, element.bytes()])
        } else {
            0
        };
        let traffic = Traffic { read: read * tensor + mask, written: written * tensor };
        Case { operation, shape: self.name(), element, name: "ours", traffic }
    }

    /// The extent of the masks, one for all heads of an item.
    fn mask(&self) -> Extent<4> {
        let Self { items, heads, rows, .. } = *self;
        Extent::strided([items, heads, rows, rows], [rows * rows, 0, rows, 1])
    }
}

struct Tensors<T> {
    setup: Setup,
    inputs: [CudaSlice<T>; 4],
    mask: Option<CudaSlice<T>>,
    outputs: [CudaSlice<T>; 3],
    extent: Extent<4>,
    scale: f32,
}

impl<T: Element> Tensors<T> {
    fn new(device: &Device, setup: Setup) -> Result<Self, Failure> {
        let shape = setup.shape()?;
        let len = usize::try_from(shape.elements())?;
        let mask = usize::try_from(setup.items * setup.rows * setup.rows)?;
        let filled = |seed| device.filled(len, seed);
        Ok(Self {
            setup,
            inputs: [filled(1)?, filled(2)?, filled(3)?, filled(4)?],
            mask: setup.masked.then(|| device.filled(mask, 5)).transpose()?,
            outputs: [device.zeros(len)?, device.zeros(len)?, device.zeros(len)?],
            extent: Extent::contiguous(shape.dims()),
            scale: shape.scale(),
        })
    }

    fn forward(
        &mut self,
        device: &Device,
        prepared: &Prepared<TemporalAttention>,
    ) -> Result<(), Failure> {
        let [q, k, v, _] =
            self.inputs.each_ref().map(|memory| Tensor::with_extent(memory, self.extent));
        let mask = self.mask.as_ref().map(|mask| Tensor::with_extent(mask, self.setup.mask()));
        let [out, ..] = self.outputs.each_mut();
        let out = TensorMut::with_extent(out, self.extent);
        prepared.launch(device.stream(), [q, k, v], mask, self.scale, out)?;
        Ok(())
    }

    fn backward(
        &mut self,
        device: &Device,
        prepared: &Prepared<AttentionBackward>,
    ) -> Result<(), Failure> {
        let inputs = self.inputs.each_ref().map(|memory| Tensor::with_extent(memory, self.extent));
        let mask = self.mask.as_ref().map(|mask| Tensor::with_extent(mask, self.setup.mask()));
        let outputs =
            self.outputs.each_mut().map(|memory| TensorMut::with_extent(memory, self.extent));
        prepared.launch(device.stream(), inputs, mask, self.scale, outputs, None)?;
        Ok(())
    }

    fn error_of_forward(
        &self,
        device: &Device,
        operation: &TemporalAttention,
    ) -> Result<f64, Failure> {
        let mut deviation = Deviation::new();
        for problem in self.ends() {
            let ([q, k, v, _], [out, ..], mask) = self.problem(device, problem)?;
            let expected = reference(operation, self.scale, [&q, &k, &v], mask.as_deref());
            deviation.add(&out, &expected);
        }
        within(&deviation, tolerance(T::TYPE))
    }

    fn error_of_backward(
        &self,
        device: &Device,
        operation: &AttentionBackward,
    ) -> Result<f64, Failure> {
        let mut deviation = Deviation::new();
        for problem in self.ends() {
            let (inputs, outputs, mask) = self.problem(device, problem)?;
            let inputs = inputs.each_ref().map(Vec::as_slice);
            let expected = reference_gradients(operation, self.scale, inputs, mask.as_deref());
            for (found, expected) in outputs.iter().zip(&expected) {
                deviation.add(found, expected);
            }
        }
        within(&deviation, tolerance(T::TYPE))
    }

    /// The first and the last problem.
    const fn ends(&self) -> [u64; 2] {
        [0, self.setup.items * self.setup.heads - 1]
    }

    /// Copies one problem to the host: inputs, outputs and its mask.
    #[allow(clippy::type_complexity, reason = "three kinds of tensors of one problem")]
    fn problem(
        &self,
        device: &Device,
        problem: u64,
    ) -> Result<([Vec<T>; 4], [Vec<T>; 3], Option<Vec<T>>), Failure> {
        let Setup { heads, rows, head_dim, .. } = self.setup;
        let range = |number: u64, len: u64| -> Result<_, Failure> {
            Ok(usize::try_from(number * len)?..usize::try_from((number + 1) * len)?)
        };
        let fetch = |memory| device.fetch(memory, range(problem, rows * head_dim)?);
        let [q, k, v, grad] = &self.inputs;
        let [dq, dk, dv] = &self.outputs;
        let mask = match &self.mask {
            Some(mask) => Some(device.fetch(mask, range(problem / heads, rows * rows)?)?),
            None => None,
        };
        let inputs = [fetch(q)?, fetch(k)?, fetch(v)?, fetch(grad)?];
        Ok((inputs, [fetch(dq)?, fetch(dk)?, fetch(dv)?], mask))
    }
}
