//! Products by cuBLASLt against f64, with every algorithm that the library has.

use std::sync::Arc;

use gridguard::Guard;
use gridguard::profile::{Document, Objective, Policy, Profile, Provenance};
use gridguard_autotune::{Budget, DeviceClock, InProcess, ProductWorkload, tune};
use gridguard_examples::uniform;
use gridguard_kernels::{Deviation, Element, ElementType};
use gridguard_pipeline::{DeviceMemory, Error, ErrorKind, Product, ProductBuffers, ProductShape};
use gridguard_tests::product::OneProduct;
use half::{bf16, f16};

use super::support::{Tensorial, guard, poisoned, stream};

const WORKSPACE: u64 = 4 << 20;

const fn shape([rows, inner, columns]: [u64; 3], bias: bool, residual: bool) -> ProductShape {
    ProductShape { rows, inner, columns, bias, residual }
}

fn len(elements: u64) -> usize {
    usize::try_from(elements).expect("elements")
}

/// Random operands.
struct Operands<T> {
    shape: ProductShape,
    x: Vec<T>,
    weight: Vec<T>,
    bias: Vec<T>,
    residual: Vec<T>,
}

impl<T: Tensorial> Operands<T> {
    fn new(shape: ProductShape) -> Self {
        let ProductShape { rows, inner, columns, .. } = shape;
        let random = |elements, seed| uniform::<T>(len(elements), seed);
        let (x, weight) = (random(rows * inner, 1), random(columns * inner, 2));
        let (bias, residual) = (random(columns, 3), random(rows * columns, 4));
        Self { shape, x, weight, bias, residual }
    }

    /// The output by this algorithm.
    fn run(&self, algorithm: Option<u64>) -> Result<Vec<T>, Error> {
        let stream = stream();
        let one = OneProduct::new(guard(), self.shape, WORKSPACE, algorithm, false);
        let OneProduct { mut pipeline, plan, buffers } = one.expect("a product");
        let ProductBuffers { x, weight, bias, residual, out, .. } = buffers;
        let tensors = [&self.x, &self.weight, &self.bias, &self.residual];
        let tensors = tensors.map(|tensor| stream.clone_htod(tensor).expect("memory"));
        let mut written = poisoned::<T>(&stream, self.residual.len());
        let pairs = [Some(x), Some(weight), bias, residual].into_iter().zip(&tensors);
        let memory = DeviceMemory::new(&stream).write(out, &mut written);
        let memory = pairs.fold(memory, |memory, (buffer, tensor)| match buffer {
            Some(buffer) => memory.read(buffer, tensor),
            None => memory,
        });
        pipeline.run(guard(), &plan, memory)?;
        Ok(stream.clone_dtoh(&written).expect("out"))
    }

    fn reference(&self) -> Vec<f64> {
        let ProductShape { inner, columns, bias, residual, .. } = self.shape;
        let wide = |x: &T| f64::from(x.widen());
        let rows = self.x.chunks(len(inner)).zip(self.residual.chunks(len(columns)));
        let row = |(x, added): (&[T], &[T])| {
            let places = self.weight.chunks(len(inner)).zip(added.iter().zip(&self.bias));
            let one = |(weight, (added, one)): (&[T], (&T, &T))| {
                let sum: f64 = x.iter().zip(weight).map(|(x, y)| wide(x) * wide(y)).sum();
                let (added, one) = (f64::from(u8::from(residual)) * wide(added), wide(one));
                sum + added + f64::from(u8::from(bias)) * one
            };
            places.map(one).collect::<Vec<f64>>()
        };
        rows.flat_map(row).collect()
    }
}

/// Sums are f32 in any order, over up to 1,280 products, and the output is rounded once; before a bias or
/// residual is added some algorithms round, too.
fn tolerance<T: Element>() -> f64 {
    match T::TYPE {
        ElementType::F16 => 1e-3,
        ElementType::Bf16 => 8e-3,
        // f32 may be multiplied by tensor cores only if it is asked for.
        ElementType::F32 => 1e-5,
    }
}

fn matches_the_reference<T: Tensorial>(sizes: [u64; 3], bias: bool, residual: bool) {
    let operands = Operands::<T>::new(shape(sizes, bias, residual));
    let product = Product::new::<T>(guard(), operands.shape, WORKSPACE).expect("a product");
    let reference = operands.reference();
    let count = u64::try_from(product.workspace_bytes().len()).expect("few");
    for algorithm in 0..count {
        let out = operands.run(Some(algorithm)).expect("launches");
        let mut deviation = Deviation::new();
        deviation.add(&out, &reference);
        let within = deviation.within(tolerance::<T>());
        assert!(within, "{:?} {algorithm}: {:e}", operands.shape, deviation.relative());
        assert!(out == operands.run(Some(algorithm)).expect("launches"), "another result");
    }
    let error = operands.run(Some(count)).expect_err("beyond");
    assert_eq!(error.kind(), ErrorKind::Product);
    let expected = format!("algorithm is {count}, the product has {count}, counted from 0");
    assert!(error.to_string().ends_with(&expected), "{error}");
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn products_match_f64_with_every_algorithm() {
    for (bias, residual) in [(false, false), (true, false), (false, true), (true, true)] {
        for sizes in [[64, 320, 960], [48, 1280, 320], [16, 64, 64], [1, 320, 320]] {
            matches_the_reference::<f16>(sizes, bias, residual);
            matches_the_reference::<bf16>(sizes, bias, residual);
            matches_the_reference::<f32>(sizes, bias, residual);
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn a_residual_may_be_out_itself() {
    let operands = Operands::<f16>::new(shape([64, 320, 320], false, true));
    let stream = stream();
    let [x, weight, mut out] = [&operands.x, &operands.weight, &operands.residual]
        .map(|one| stream.clone_htod(one).expect("memory"));
    let one = OneProduct::new(guard(), operands.shape, WORKSPACE, None, true);
    let OneProduct { mut pipeline, plan, buffers } = one.expect("a product");
    let memory = DeviceMemory::new(&stream).read(buffers.x, &x).read(buffers.weight, &weight);
    let memory = memory.write(buffers.out, &mut out);
    pipeline.run(guard(), &plan, memory).expect("launches");
    // Not the bits of a product into other memory: the library may add in another order.
    let mut deviation = Deviation::new();
    deviation.add(&stream.clone_dtoh(&out).expect("out"), &operands.reference());
    assert!(deviation.within(tolerance::<f16>()), "{:e}", deviation.relative());
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn a_product_is_tuned_and_launches_the_algorithm_of_the_profile() {
    let sizes = shape([4096, 320, 320], true, true);
    let (guard, stream) = (guard(), stream());
    let values = uniform::<f16>(10_007, 5);
    let workload = ProductWorkload::new(guard, Arc::clone(&stream), sizes, WORKSPACE, &values);
    let workload = workload.expect("it fits");
    let (key, entry_shape) = (workload.key(Policy::default()), workload.entry_shape());
    let mut space = workload.space();
    let algorithms =
        Product::new::<f16>(guard, sizes, WORKSPACE).expect("a product").workspace_bytes().len();
    assert_eq!(space.candidates().len(), algorithms);
    let clock = DeviceClock::new(guard, stream, Policy::default()).expect("a clock");
    let mut measurer = InProcess::new(workload, clock);
    let budget = Budget { evaluations: Some(200), ..Budget::default() };
    let outcome = tune(&mut measurer, &mut space, Objective::Throughput, &budget, &mut ());
    let outcome = outcome.expect("the default runs");
    let failed = outcome.candidates.iter().filter_map(|one| one.failure.as_ref());
    assert_eq!(failed.collect::<Vec<_>>(), Vec::<&gridguard_autotune::MeasureFailure>::new());

    // The last algorithm, whichever won, so that the choice shows.
    let last = u64::try_from(algorithms - 1).expect("few");
    let mut entry = outcome.entry(key, entry_shape, Provenance::default());
    entry.parameters = vec![("algorithm".to_owned(), last)];
    let with = |entry| {
        let (identity, environment) = (guard.identity(), guard.environment());
        let mut document = Document::new(identity.clone(), environment.clone());
        document.insert(entry).expect("valid");
        let (profile, _) = Profile::from_document(document, &identity, &environment);
        let context = Arc::clone(guard.context().expect("a device"));
        Guard::with_context(context).expect("a guard").with_profile(Arc::new(profile))
    };
    let tuned = with(entry.clone());
    let product = Product::new::<f16>(&tuned, sizes, WORKSPACE).expect("a product");
    assert_eq!(product.algorithm(), last);
    // Other rows, another workspace and an algorithm that there is not have the library's choice.
    let others = ProductShape { rows: 4080, ..sizes };
    assert_eq!(Product::new::<f16>(&tuned, others, WORKSPACE).expect("a product").algorithm(), 0);
    assert_eq!(
        Product::new::<f16>(&tuned, sizes, WORKSPACE / 2).expect("a product").algorithm(),
        0
    );
    entry.parameters = vec![("algorithm".to_owned(), last + 1)];
    let wrong = with(entry);
    assert_eq!(Product::new::<f16>(&wrong, sizes, WORKSPACE).expect("a product").algorithm(), 0);
}
