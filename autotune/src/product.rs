//! Makes matrix products workloads whose candidates are the algorithms of cuBLASLt.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use gridguard::Guard;
use gridguard::profile::{Key, Named, Policy};
use gridguard_pipeline::{Budget, Buffer, Pipeline, PipelinePlan};
use gridguard_pipeline::{
    DeviceMemory, PipelineScratch, Product, ProductBuffers, ProductElement, ProductShape,
};

use crate::candidate::Candidate;
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::measure::{Portion, Workload};
use crate::space::Space;

/// A [product](gridguard_pipeline::Product) of matrices that this workload allocates. The candidates are the algorithms of
/// cuBLASLt.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use gridguard::Guard;
/// use gridguard_pipeline::{ProductShape};
/// use gridguard::profile::{Document, Policy, Provenance, publish};
/// use gridguard_autotune::{
///     Budget, DeviceClock, InProcess, MeasureFailure, ProductWorkload, tune,
/// };
///
/// let guard = Arc::new(Guard::cuda(0)?);
/// let stream = guard.context().ok_or("no device")?.new_stream()?;
/// let shape =
///     ProductShape { rows: 245_760, inner: 320, columns: 2560, bias: true, residual: false };
/// let values: Vec<f32> = (0..10_007_u16).map(|n| f32::from(n).sin()).collect();
/// let workload = ProductWorkload::new(&guard, Arc::clone(&stream), shape, 4 << 20, &values)?;
/// let (mut space, key) = (workload.space(), workload.key(Policy::default()));
/// let entry_shape = workload.entry_shape();
/// let mut measurer =
///     InProcess::new(workload, DeviceClock::new(&guard, stream, Policy::default())?);
/// let outcome = tune(&mut measurer, &mut space, Default::default(), &Budget::default(), &mut ())?;
///
/// // A guard with this profile uses that algorithm for such matrices.
/// let mut document = Document::new(guard.identity(), guard.environment());
/// document.insert(outcome.entry(key, entry_shape, Provenance::default()))?;
/// publish("products.ron".as_ref(), &document)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ProductWorkload<T> {
    guard: Arc<Guard>,
    product: Product,
    workspace_bytes: u64,
    stream: Arc<CudaStream>,
    /// Activations, weight, bias and residual.
    inputs: [Option<CudaSlice<T>>; 4],
    out: CudaSlice<T>,
    /// The workspace.
    scratch: PipelineScratch,
    /// A pipeline of one product for each algorithm.
    pipelines: HashMap<u64, OneProduct<T>>,
    /// The compared rows of the default's output.
    expected: Option<Vec<T>>,
}

/// A pipeline of one item with all rows, and its buffers.
#[derive(Debug)]
struct OneProduct<T> {
    pipeline: Pipeline<'static>,
    plan: PipelinePlan,
    /// As the inputs of the workload.
    inputs: [Option<Buffer<T>>; 4],
    out: Buffer<T>,
}

impl<T: ProductElement + DeviceRepr + ValidAsZeroBits + Into<f64>> ProductWorkload<T> {
    /// The workload of a product with algorithms of at most `workspace_bytes`. The matrices repeat `values`.
    /// Use random values, because clocks are higher with zeros.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if cuBLASLt cannot be used, the matrices do not fit into memory, or `values` is empty.
    pub fn new(
        guard: &Arc<Guard>,
        stream: Arc<CudaStream>,
        shape: ProductShape,
        workspace_bytes: u64,
        values: &[T],
    ) -> Measured<Self> {
        if values.is_empty() {
            return Err(MeasureFailure::new(FailureKind::Launch, "no values for the matrices"));
        }
        let product = Product::new::<T>(guard, shape, workspace_bytes)?;
        let ProductShape { rows, inner, columns, bias, residual } = shape;
        // Each matrix begins at another value, so no two matrices are the same.
        let filled = |elements: u64, first: usize| {
            let elements = size(elements)?;
            let host: Vec<T> = values.iter().cycle().skip(first).take(elements).copied().collect();
            let copied = stream.clone_htod(&host);
            copied.map_err(MeasureFailure::in_call("cuMemAllocAsync"))
        };
        let outputs = rows.saturating_mul(columns);
        let inputs = [
            Some(filled(rows.saturating_mul(inner), 0)?),
            Some(filled(columns.saturating_mul(inner), 1)?),
            bias.then(|| filled(columns, 2)).transpose()?,
            residual.then(|| filled(outputs, 3)).transpose()?,
        ];
        let out = stream.alloc_zeros(size(outputs)?);
        let out = out.map_err(MeasureFailure::in_call("cuMemAllocAsync"))?;
        Ok(Self {
            guard: Arc::clone(guard),
            product,
            workspace_bytes,
            stream,
            inputs,
            out,
            scratch: PipelineScratch::new(),
            pipelines: HashMap::new(),
            expected: None,
        })
    }

    /// The space of the algorithms. The first is the choice of cuBLASLt.
    #[must_use]
    pub fn space(&self) -> Space {
        let algorithms = (0..).zip(self.product.workspace_bytes());
        let rows = self.product.shape().rows;
        let candidates = algorithms.map(|(index, scratch_bytes)| Candidate {
            scratch_bytes,
            ..Candidate::whole(vec![(Product::ALGORITHM.to_owned(), index)], rows)
        });
        Space::listed(candidates.collect())
    }

    /// The key of its profile entry. Guards look up the default policy.
    #[must_use]
    pub fn key(&self, policy: Policy) -> Key {
        self.product.key(policy)
    }

    /// The shape of its entry.
    #[must_use]
    pub fn entry_shape(&self) -> Named {
        self.product.entry_shape()
    }

    fn run(&mut self, algorithm: u64) -> Measured<()> {
        self.build(algorithm)?;
        let Self { guard, stream, inputs, out, scratch, pipelines, .. } = self;
        let Some(one) = pipelines.get_mut(&algorithm) else { return Ok(()) };
        let memory = DeviceMemory::new(stream).scratch(scratch).write(one.out, out);
        let inputs = one.inputs.iter().flatten().zip(inputs.iter().flatten());
        let memory = inputs.fold(memory, |memory, (buffer, tensor)| memory.read(*buffer, tensor));
        one.pipeline.run(guard, &one.plan, memory)?;
        Ok(())
    }

    /// Builds the pipeline of this algorithm, unless it was built before.
    fn build(&mut self, algorithm: u64) -> Measured<()> {
        if self.pipelines.contains_key(&algorithm) {
            return Ok(());
        }
        let shape = *self.product.shape();
        let ProductShape { rows, inner, columns, bias, residual } = shape;
        let mut builder = Pipeline::builder(1);
        let x = builder.input("x", rows.saturating_mul(inner));
        let weight = builder.shared_input("weight", columns.saturating_mul(inner));
        let bias = bias.then(|| builder.shared_input("bias", columns));
        let elements = rows.saturating_mul(columns);
        let residual = residual.then(|| builder.input("residual", elements));
        let out = builder.output("out", elements);
        let workspace = builder.fixed_scratch("workspace", self.workspace_bytes.max(1));
        let buffers = ProductBuffers {
            x,
            weight,
            bias,
            residual,
            out,
            workspace,
            algorithm: Some(algorithm),
        };
        builder.product("product", &self.guard, shape, buffers)?;
        let pipeline = builder.build()?;
        let plan = pipeline.plan(&Budget::UNLIMITED)?;
        let inputs = [Some(x), Some(weight), bias, residual];
        let one = OneProduct { pipeline, plan, inputs, out };
        self.pipelines.insert(algorithm, one);
        Ok(())
    }

    /// The first, middle and last rows of the output of this algorithm.
    fn output(&mut self, algorithm: u64) -> Measured<Vec<T>> {
        self.stream
            .memset_zeros(&mut self.out)
            .map_err(MeasureFailure::in_call("cuMemsetD8Async"))?;
        self.run(algorithm)?;
        let ProductShape { rows, columns, .. } = *self.product.shape();
        let part = size(rows.min(COMPARED_ROWS).saturating_mul(columns))?;
        let all = self.out.len();
        let mut compared = Vec::new();
        for start in [0, (all - part) / 2, all - part] {
            let copied = self.stream.clone_dtoh(&self.out.slice(start..start + part));
            compared.extend(copied.map_err(MeasureFailure::in_call("cuMemcpyDtoHAsync"))?);
        }
        Ok(compared)
    }
}

impl<T: ProductElement + DeviceRepr + ValidAsZeroBits + Into<f64>> Workload for ProductWorkload<T> {
    fn prepare(&mut self, candidate: &Candidate) -> Measured<()> {
        self.build(algorithm_of(candidate)?)
    }

    fn launch(&mut self, candidate: &Candidate, _: Portion) -> Measured<()> {
        self.run(algorithm_of(candidate)?)
    }

    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        let expected = match self.expected.take() {
            Some(expected) => expected,
            None => self.output(0)?,
        };
        let out = self.output(algorithm_of(candidate)?)?;
        let error = relative_error(&out, &expected);
        self.expected = Some(expected);
        let tolerance = tolerance::<T>();
        if error <= tolerance {
            return Ok(());
        }
        let message = format!(
            "the output differs from the default's: the relative error is {error:e}, the tolerance \
             {tolerance:e}"
        );
        Err(MeasureFailure::new(FailureKind::Mismatch, message))
    }
}

fn algorithm_of(candidate: &Candidate) -> Measured<u64> {
    match candidate.parameters.as_slice() {
        [(name, algorithm)] if name == Product::ALGORITHM => Ok(*algorithm),
        _ => {
            let message = format!("no algorithm of a product: {candidate}");
            Err(MeasureFailure::new(FailureKind::Illegal, message))
        }
    }
}

/// The Frobenius norm of the difference, divided by the norm of `expected`; NaN if an element is NaN.
fn relative_error<T: Copy + Into<f64>>(out: &[T], expected: &[T]) -> f64 {
    let (mut difference, mut norm) = (0.0, 0.0);
    for (out, expected) in out.iter().zip(expected) {
        let (out, expected): (f64, f64) = ((*out).into(), (*expected).into());
        difference += (out - expected) * (out - expected);
        norm += expected * expected;
    }
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

/// Algorithms add f32 sums in different orders, and each rounds the result by half a unit in the last place.
/// Some also round before they add a residual.
fn tolerance<T: ProductElement>() -> f64 {
    let unit = match T::NAME {
        "f16" => -10,
        "bf16" => -7,
        // The f32 sums differ.
        _ => -17,
    };
    2.0_f64.powi(unit)
}

fn size(elements: u64) -> Measured<usize> {
    usize::try_from(elements).map_err(|_| {
        MeasureFailure::new(FailureKind::Launch, format!("no memory has {elements} elements"))
    })
}

/// Compared rows at the start, in the middle and at the end of the output.
const COMPARED_ROWS: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_relative_to_the_expected_output() {
        assert_eq!(relative_error(&[3.0_f32, 4.0], &[3.0, 4.0]), 0.0);
        assert_eq!(relative_error(&[3.0_f32, 5.0], &[3.0, 4.0]), 0.2);
        assert_eq!(relative_error(&[0.0_f32, 0.0], &[0.0, 0.0]), 0.0);
        assert_eq!(relative_error(&[1.0_f32], &[0.0]), f64::INFINITY);
    }

    #[test]
    fn a_nan_in_the_output_is_within_no_tolerance() {
        assert!(relative_error(&[f32::NAN, 1.0], &[1.0, 1.0]).is_nan());
    }

    #[test]
    fn other_candidates_are_refused() {
        let candidate = |parameters| Candidate::whole(parameters, 1);
        let named = |name: &str, value| (name.to_owned(), value);
        assert_eq!(algorithm_of(&candidate(vec![named("algorithm", 3)])), Ok(3));
        for parameters in
            [vec![], vec![named("block", 3)], vec![named("algorithm", 1), named("x", 1)]]
        {
            let failure = algorithm_of(&candidate(parameters)).expect_err("no algorithm");
            assert_eq!(failure.kind, FailureKind::Illegal);
        }
    }
}
