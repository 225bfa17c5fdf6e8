//! Products by cuBLASLt against f64, with every algorithm that the library has.

use std::sync::Arc;

use gridguard::Guard;
use gridguard::cuda::{Memory, Product, ProductElement, ProductError, ProductMemory, ProductShape};
use gridguard::profile::{Document, Objective, Policy, Profile, Provenance};
use gridguard_autotune::{Budget, DeviceClock, InProcess, ProductWorkload, tune};
use gridguard_examples::uniform;
use gridguard_kernels::{Deviation, Element, ElementType};
use half::{bf16, f16};

use super::support::{Tensorial, guard, poisoned, stream};

const WORKSPACE: u64 = 4 << 20;

fn shape<T: Element>([rows, inner, columns]: [u64; 3], bias: bool, residual: bool) -> ProductShape {
    let shape = ProductShape::new(rows, inner, columns, T::TYPE.into()).expect("legal");
    let shape = if bias { shape.with_bias() } else { shape };
    if residual { shape.with_residual() } else { shape }
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
        let (rows, inner, columns) = (shape.rows(), shape.inner(), shape.columns());
        let random = |elements, seed| uniform::<T>(len(elements), seed);
        let (x, weight) = (random(rows * inner, 1), random(columns * inner, 2));
        let (bias, residual) = (random(columns, 3), random(rows * columns, 4));
        Self { shape, x, weight, bias, residual }
    }

    fn launch(&self, product: &mut Product) -> Result<Vec<T>, ProductError> {
        let stream = stream();
        let copy = |tensor: &[T]| stream.clone_htod(tensor).expect("memory");
        let [x, weight] = [&self.x, &self.weight].map(|one| copy(one));
        let [bias, residual] = [&self.bias, &self.residual].map(|one| copy(one));
        let (bias, residual): (&dyn Memory<T>, &dyn Memory<T>) = (&bias, &residual);
        let mut out = poisoned::<T>(&stream, self.residual.len());
        let mut workspace = stream.alloc_zeros::<u8>(len(WORKSPACE)).expect("memory");
        let memory = ProductMemory {
            x: &x,
            weight: &weight,
            bias: self.shape.has_bias().then_some(bias),
            residual: self.shape.has_residual().then_some(residual),
            out: &mut out,
            workspace: &mut workspace,
        };
        product.launch(&stream, memory)?;
        Ok(stream.clone_dtoh(&out).expect("out"))
    }

    fn reference(&self) -> Vec<f64> {
        let (inner, columns) = (self.shape.inner(), self.shape.columns());
        let (bias, residual) = (self.shape.has_bias(), self.shape.has_residual());
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
    let operands = Operands::<T>::new(shape::<T>(sizes, bias, residual));
    let mut product = guard().product(operands.shape, WORKSPACE).expect("a product");
    let reference = operands.reference();
    let algorithms: Vec<_> = product.algorithms().collect();
    for (index, algorithm) in (0..).zip(&algorithms) {
        product.choose(index).expect("counted");
        assert_eq!(product.workspace_bytes(), algorithm.workspace_bytes);
        let out = operands.launch(&mut product).expect("launches");
        let mut deviation = Deviation::new();
        deviation.add(&out, &reference);
        let within = deviation.within(tolerance::<T>());
        assert!(within, "{:?} {algorithm:?}: {:e}", operands.shape, deviation.relative());
        assert!(out == operands.launch(&mut product).expect("launches"), "another result");
    }
    let count = u64::try_from(algorithms.len()).expect("few");
    let error = product.choose(count).expect_err("beyond");
    assert_eq!(error, ProductError::Algorithm { given: count, count });
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
fn mismatched_memory_is_rejected_before_any_launch() {
    let operands = Operands::<f16>::new(shape::<f16>([64, 320, 64], true, true));
    let mut plain = guard().product(shape::<f16>([64, 320, 64], false, true), WORKSPACE);
    let error = operands.launch(plain.as_mut().expect("a product")).expect_err("a bias");
    let (given, expected) = ("given", "without");
    assert_eq!(error, ProductError::Operand { tensor: "bias", given, expected });

    let mut longer = guard().product(shape::<f16>([65, 320, 64], true, true), WORKSPACE);
    let error = operands.launch(longer.as_mut().expect("a product")).expect_err("too short");
    let (given, expected) = (64 * 320 * 2, 65 * 320 * 2);
    assert_eq!(error, ProductError::Length { tensor: "x", given, expected });

    let mut wider = guard().product(shape::<f32>([64, 320, 64], true, true), WORKSPACE);
    let error = operands.launch(wider.as_mut().expect("a product")).expect_err("f16");
    let (given, expected) = (ProductElement::F16, ProductElement::F32);
    assert_eq!(error, ProductError::Element { given, expected });
    let mut bfloats = guard().product(shape::<bf16>([64, 320, 64], true, true), WORKSPACE);
    let error = operands.launch(bfloats.as_mut().expect("a product")).expect_err("f16");
    assert_eq!(error, ProductError::Element { given, expected: ProductElement::Bf16 });
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn a_residual_may_be_out_itself() {
    let operands = Operands::<f16>::new(shape::<f16>([64, 320, 320], false, true));
    let mut product = guard().product(operands.shape, WORKSPACE).expect("a product");
    let stream = stream();
    let [x, weight, mut out] = [&operands.x, &operands.weight, &operands.residual]
        .map(|one| stream.clone_htod(one).expect("memory"));
    let mut workspace = stream.alloc_zeros::<u8>(len(WORKSPACE)).expect("memory");
    in_place(&mut product, &stream, [&x, &weight], &mut out, &mut workspace);
    // Not the bits of a product into other memory: the library may add in another order.
    let mut deviation = Deviation::new();
    deviation.add(&stream.clone_dtoh(&out).expect("out"), &operands.reference());
    assert!(deviation.within(tolerance::<f16>()), "{:e}", deviation.relative());
}

#[allow(unsafe_code, reason = "memory by address")]
fn in_place(
    product: &mut Product,
    stream: &cudarc::driver::CudaStream,
    [x, weight]: [&cudarc::driver::CudaSlice<f16>; 2],
    out: &mut cudarc::driver::CudaSlice<f16>,
    workspace: &mut cudarc::driver::CudaSlice<u8>,
) {
    use cudarc::driver::{DevicePtr, DevicePtrMut};
    let ((x, _x), (weight, _weight)) = (x.device_ptr(stream), weight.device_ptr(stream));
    let (out, _out) = out.device_ptr_mut(stream);
    let (workspace, _workspace) = workspace.device_ptr_mut(stream);
    let addresses = gridguard::cuda::ProductAddresses {
        x,
        weight,
        bias: None,
        residual: Some(out),
        out,
        workspace,
        workspace_bytes: WORKSPACE,
    };
    // SAFETY: memory of the shape on this stream, borrowed until the uses above are recorded.
    unsafe { product.submit(stream, &addresses) }.expect("launches");
    let shifted = gridguard::cuda::ProductAddresses { x: x + 2, ..addresses };
    // SAFETY: rejected.
    let error = unsafe { product.submit(stream, &shifted) }.expect_err("misaligned");
    assert_eq!(error, ProductError::Misaligned { tensor: "x", address: x + 2 });
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn a_product_is_tuned_and_launches_the_algorithm_of_the_profile() {
    let sizes = shape::<f16>([4096, 320, 320], true, true);
    let (guard, stream) = (guard(), stream());
    let values = uniform::<f16>(10_007, 5);
    let workload = ProductWorkload::new(guard, Arc::clone(&stream), sizes, WORKSPACE, &values);
    let workload = workload.expect("it fits");
    let (key, entry_shape) = (workload.key(Policy::default()), workload.entry_shape());
    let mut space = workload.space();
    let algorithms = guard.product(sizes, WORKSPACE).expect("a product").algorithms().len();
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
    let product = tuned.product(sizes, WORKSPACE).expect("a product");
    assert_eq!(product.algorithm(), last);
    // Other rows, another workspace and an algorithm that there is not have the library's choice.
    let others = sizes.with_rows(4080).expect("legal");
    assert_eq!(tuned.product(others, WORKSPACE).expect("a product").algorithm(), 0);
    assert_eq!(tuned.product(sizes, WORKSPACE / 2).expect("a product").algorithm(), 0);
    entry.parameters = vec![("algorithm".to_owned(), last + 1)];
    let wrong = with(entry);
    assert_eq!(wrong.product(sizes, WORKSPACE).expect("a product").algorithm(), 0);
    assert_eq!(wrong.profile().expect("a profile").counts().refused, 1);
}
