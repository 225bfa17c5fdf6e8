//! Each kernel's problems, tensors, reference and launch.

use cudarc::driver::{CudaStream, CudaView, CudaViewMut};
use gridguard::DeviceLimits;
use gridguard_kernels::argsort::{self, Argsort, Order};
use gridguard_kernels::geglu::{self, Geglu};
use gridguard_kernels::layer_norm::{self, LayerNorm};
use gridguard_kernels::rms_norm::{self, RmsNorm};
use gridguard_kernels::softmax::{self, Softmax};
use gridguard_kernels::temporal_attention::{
    AttentionBackward, Layout, Shape, TemporalAttention, reference, reference_gradients, tolerance,
};
use gridguard_kernels::{Element, KernelError, Prepared, Tensor, TensorMut};

use crate::spec::{Input, KernelSpec, SizedProblem, TensorSpec, to_usize};

impl KernelSpec for Argsort {
    type Output<T: Element> = u32;

    const SHIPPED: &'static str = "f16 262144x256 524288x256 1048576x64 131072x1024 100000x1000 \
        65536x4096 f32 65536x1024 131072x1024 32768x4096 4096x32768";
    const SMALL: &'static str = "f32 256x1024";

    fn build(problem: &SizedProblem, _: &DeviceLimits) -> Result<Self, KernelError> {
        let [rows, columns, ..] = problem.sizes;
        Self::new(rows, columns, problem.element, ORDER)
    }

    fn tensors(problem: &SizedProblem) -> TensorSpec {
        let [_, columns, ..] = problem.sizes;
        // An order is right or wrong.
        TensorSpec::new([Input::Items(columns)], columns, 0.0)
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        argsort::reference(inputs[0], ORDER).into_iter().map(f64::from).collect()
    }

    fn launch<T: Element>(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: &[CudaView<'_, T>],
        outputs: &mut [CudaViewMut<'_, u32>],
    ) -> Result<u64, KernelError> {
        let dims = prepared.operation().dims();
        let (x, out) = (Tensor::new(&inputs[0], dims), TensorMut::new(&mut outputs[0], dims));
        prepared.launch(stream, x, out)
    }
}

/// The order of all problems.
const ORDER: Order = Order::Ascending;

impl KernelSpec for Geglu {
    type Output<T: Element> = T;

    // Rows are positions times frames of video diffusion models, columns four times their channels.
    const SHIPPED: &'static str = "f16 245760x1280 122880x1280 61440x2560 92160x2560 15360x5120 \
        71680x5120 184320x1280 131072x2560 bf16 245760x1280 f32 122880x1280";
    const SMALL: &'static str = "f32 256x1280";

    fn build(problem: &SizedProblem, _: &DeviceLimits) -> Result<Self, KernelError> {
        let [rows, columns, ..] = problem.sizes;
        Self::new(rows, columns, problem.element)
    }

    fn tensors(problem: &SizedProblem) -> TensorSpec {
        let [_, columns, ..] = problem.sizes;
        // The erf of f32 is accurate to 2 units; that of the shorter types errs by 2^-16 at most.
        let tolerance = problem.element.rounding_error();
        TensorSpec::new([Input::Items(2 * columns)], columns, tolerance)
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        geglu::reference(inputs[0])
    }

    fn launch<T: Element>(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: &[CudaView<'_, T>],
        outputs: &mut [CudaViewMut<'_, T>],
    ) -> Result<u64, KernelError> {
        let gate = prepared.operation();
        let input = Tensor::new(&inputs[0], gate.input_dims());
        prepared.launch(stream, input, TensorMut::new(&mut outputs[0], gate.output_dims()))
    }
}

impl KernelSpec for LayerNorm {
    type Output<T: Element> = T;

    // Rows are positions times frames of video diffusion models.
    const SHIPPED: &'static str = "f16 245760x320 368640x320 61440x640 92160x640 15360x1280 \
        1966080x320 491520x1280 131072x4096 bf16 245760x320 f32 983040x320";
    const SMALL: &'static str = "f32 1024x320";

    fn build(problem: &SizedProblem, _: &DeviceLimits) -> Result<Self, KernelError> {
        let [rows, columns, ..] = problem.sizes;
        Self::new(rows, columns, problem.element)
    }

    fn tensors(problem: &SizedProblem) -> TensorSpec {
        let [_, columns, ..] = problem.sizes;
        let shared = Input::Shared(columns);
        // Sums of a thread have errors that average out; differences from the mean are exact where it is large.
        let tolerance = problem.element.rounding_error();
        TensorSpec::new([Input::Items(columns), shared, shared], columns, tolerance)
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        layer_norm::reference(inputs[0], inputs[1], inputs[2], LAYER_NORM_EPSILON)
    }

    fn launch<T: Element>(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: &[CudaView<'_, T>],
        outputs: &mut [CudaViewMut<'_, T>],
    ) -> Result<u64, KernelError> {
        let dims = prepared.operation().dims();
        let [_, columns] = dims;
        let x = Tensor::new(&inputs[0], dims);
        let affine = [1, 2].map(|input| Tensor::new(&inputs[input], [columns]));
        let out = TensorMut::new(&mut outputs[0], dims);
        prepared.launch(stream, x, affine, LAYER_NORM_EPSILON, out)
    }
}

/// As PyTorch's default.
const LAYER_NORM_EPSILON: f32 = 1e-5;

impl KernelSpec for RmsNorm {
    type Output<T: Element> = T;

    const SHIPPED: &'static str = "f16 65536x4096 131072x4096 131072x1024 1048576x128 98304x5120 \
        32768x4096 262144x1024 65536x8192 bf16 131072x4096 f32 65536x4096";
    const SMALL: &'static str = "f32 256x4096 262144x8";

    fn build(problem: &SizedProblem, _: &DeviceLimits) -> Result<Self, KernelError> {
        let [rows, columns, ..] = problem.sizes;
        Self::new(rows, columns, problem.element)
    }

    fn tensors(problem: &SizedProblem) -> TensorSpec {
        let [_, columns, ..] = problem.sizes;
        // Sums of squares err by 2^-24 for each of up to a few thousand elements of a thread, which averages out.
        let tolerance = problem.element.rounding_error();
        TensorSpec::new([Input::Items(columns), Input::Shared(columns)], columns, tolerance)
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        rms_norm::reference(inputs[0], inputs[1], RMS_NORM_EPSILON)
    }

    fn launch<T: Element>(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: &[CudaView<'_, T>],
        outputs: &mut [CudaViewMut<'_, T>],
    ) -> Result<u64, KernelError> {
        let dims = prepared.operation().dims();
        let [_, columns] = dims;
        let (x, weight) = (Tensor::new(&inputs[0], dims), Tensor::new(&inputs[1], [columns]));
        let out = TensorMut::new(&mut outputs[0], dims);
        prepared.launch(stream, x, weight, RMS_NORM_EPSILON, out)
    }
}

/// Keeps the root of a row of zeros finite.
const RMS_NORM_EPSILON: f32 = 1e-6;

impl KernelSpec for Softmax {
    type Output<T: Element> = T;

    // 77 text tokens are not a whole number of vectors.
    const SHIPPED: &'static str = "f16 1228800x128 2457600x128 262144x1024 524288x1024 76800x4096 \
        131072x2048 4915200x77 65536x8192 bf16 262144x1024 f32 65536x4096";
    const SMALL: &'static str = "f32 512x1024";

    fn build(problem: &SizedProblem, _: &DeviceLimits) -> Result<Self, KernelError> {
        let [rows, columns, ..] = problem.sizes;
        Self::new(rows, columns, problem.element)
    }

    fn tensors(problem: &SizedProblem) -> TensorSpec {
        let [_, columns, ..] = problem.sizes;
        let tolerance = softmax::tolerance(problem.element, columns);
        TensorSpec::new([Input::Items(columns)], columns, tolerance)
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        softmax::reference(inputs[0])
    }

    fn launch<T: Element>(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: &[CudaView<'_, T>],
        outputs: &mut [CudaViewMut<'_, T>],
    ) -> Result<u64, KernelError> {
        let dims = prepared.operation().dims();
        let (x, out) = (Tensor::new(&inputs[0], dims), TensorMut::new(&mut outputs[0], dims));
        prepared.launch(stream, x, out)
    }
}

impl KernelSpec for TemporalAttention {
    type Output<T: Element> = T;

    const SHIPPED: &'static str = "f16 15360x5x16x64 15360x5x8x64 61440x5x16x64 25440x15x16x72 \
        15360x5x128x64 15360x5x25x64 15360x5x32x64 9216x10x24x80 bf16 15360x5x16x64 f32 \
        15360x5x16x64";
    const SMALL: &'static str = "f16 64x5x16x64 f32 128x5x16x64";

    /// On grid y, the layout that overflows.
    fn build(problem: &SizedProblem, device: &DeviceLimits) -> Result<Self, KernelError> {
        let [items, heads, frames, head_dim] = problem.sizes;
        let shape = Shape::new(items, heads, frames, head_dim)?;
        Ok(Self::new(shape, problem.element, device)?.with_layout(Layout::FoldedY))
    }

    fn tensors(problem: &SizedProblem) -> TensorSpec {
        let elements = elements_per_item(problem);
        TensorSpec::new([Input::Items(elements); 3], elements, tolerance(problem.element))
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        let head = to_usize(self.shape().elements_per_problem());
        let [q, k, v] = [0, 1, 2].map(|tensor| inputs[tensor].chunks(head));
        let heads = q.zip(k).zip(v);
        let out = heads.map(|((q, k), v)| reference(self, self.shape().scale(), [q, k, v], None));
        out.flatten().collect()
    }

    fn launch<T: Element>(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: &[CudaView<'_, T>],
        outputs: &mut [CudaViewMut<'_, T>],
    ) -> Result<u64, KernelError> {
        let shape = prepared.operation().shape();
        let qkv = [0, 1, 2].map(|input| Tensor::new(&inputs[input], shape.dims()));
        let out = TensorMut::new(&mut outputs[0], shape.dims());
        prepared.launch(stream, qkv, None, shape.scale(), out)
    }
}

impl KernelSpec for AttentionBackward {
    type Output<T: Element> = T;

    // Rows of video, tables, windows of images and volumes.
    const SHIPPED: &'static str = "f16 15360x5x16x64 200000x6x11x32 90000x8x64x16 16384x6x49x32 \
        4096x6x144x32 bf16 25440x8x82x32 15360x5x128x64 8000x5x256x64 40000x4x16x256 f32 \
        15360x5x16x64";
    const SMALL: &'static str = "f16 64x5x16x64 f32 128x5x16x64";

    /// As attention, on grid y.
    fn build(problem: &SizedProblem, device: &DeviceLimits) -> Result<Self, KernelError> {
        Self::new(TemporalAttention::build(problem, device)?, device)
    }

    fn tensors(problem: &SizedProblem) -> TensorSpec {
        let elements = elements_per_item(problem);
        let tolerance = tolerance(problem.element);
        TensorSpec {
            inputs: vec![Input::Items(elements); 4],
            outputs: vec![elements; 3],
            tolerance,
        }
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        let shape = self.attention().shape();
        let head = to_usize(shape.elements_per_problem());
        let [q, k, v, grad] = [0, 1, 2, 3].map(|tensor| inputs[tensor].chunks(head));
        let mut gradients = [Vec::new(), Vec::new(), Vec::new()];
        for (((q, k), v), grad) in q.zip(k).zip(v).zip(grad) {
            let of_head = reference_gradients(self, shape.scale(), [q, k, v, grad], None);
            gradients.iter_mut().zip(of_head).for_each(|(all, one)| all.extend(one));
        }
        gradients.concat()
    }

    fn launch<T: Element>(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: &[CudaView<'_, T>],
        outputs: &mut [CudaViewMut<'_, T>],
    ) -> Result<u64, KernelError> {
        let shape = prepared.operation().attention().shape();
        let inputs = [0, 1, 2, 3].map(|input| Tensor::new(&inputs[input], shape.dims()));
        let [dq, dk, dv] = outputs else {
            let (argument, given, expected) = ("a gradient", "missing", "with");
            return Err(KernelError::Argument { argument, given, expected });
        };
        let gradients = [dq, dk, dv].map(|out| TensorMut::new(out, shape.dims()));
        prepared.launch(stream, inputs, None, shape.scale(), gradients, None)
    }
}

/// Elements of an item of attention in each tensor.
const fn elements_per_item(problem: &SizedProblem) -> u64 {
    let [_, heads, frames, head_dim] = problem.sizes;
    heads * frames * head_dim
}
