//! The temporal transformer block on a device against its f64 reference: whole, in chunks, on several
//! streams, and as a graph.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use gridguard_examples::uniform;
use gridguard_kernels::temporal_block::{
    BLOCK_TENSORS, BlockAddresses, BlockReference, BlockShape, BlockWeights, TemporalBlock,
    tolerance,
};
use gridguard_kernels::{Deviation, Element};
use gridguard_pipeline::{Budget, PipelinePlan};
use half::{bf16, f16};

use super::support::{Tensorial, guard, kernels, poisoned, stream};

/// A block with an input.
struct Case<T> {
    shape: BlockShape,
    block: TemporalBlock<T>,
    stream: Arc<CudaStream>,
    input: Vec<T>,
    x: CudaSlice<T>,
    /// What the reference gives.
    expected: Vec<f64>,
}

impl<T: Tensorial> Case<T> {
    fn new([items, frames, channels, heads]: [u64; 4]) -> Self {
        let shape = BlockShape::new(items, frames, channels, heads).expect("legal");
        let mut weights = BlockWeights::<T>::random(channels, 3).expect("legal");
        // More than there are frames, as models have them.
        if heads > 1 {
            let elements = usize::try_from((frames + 8) * channels).expect("elements");
            weights = weights.with_positions(uniform(elements, 5)).expect("whole rows");
        }
        let stream = stream();
        let input = uniform::<T>(usize::try_from(shape.elements()).expect("elements"), 4);
        let reference = BlockReference::new(&shape, &weights).expect("fits");
        let per_item = usize::try_from(shape.elements_per_item()).expect("elements");
        let expected = input.chunks(per_item).flat_map(|x| reference.item(x)).collect();
        let block = TemporalBlock::new(kernels(), &stream, shape, &weights).expect("a block");
        let x = stream.clone_htod(&input).expect("memory");
        Self { shape, block, stream, input, x, expected }
    }

    /// Runs the block, as launches or as a graph that is launched twice, and returns the output, which is
    /// within the tolerance.
    fn run(&self, budget: Budget, in_graph: bool) -> Vec<T> {
        let (mut pipeline, memory) = self.block.pipeline().expect("a pipeline");
        let plan = pipeline.plan(&budget).expect("a plan");
        let more: Vec<_> = (1..plan.in_flight()).map(|_| stream()).collect();
        let mut y = poisoned::<T>(&self.stream, self.input.len());
        let plan = if in_graph { plan.as_graph() } else { plan };
        for _ in 0..if in_graph { 2 } else { 1 } {
            let bound = memory.bind(&self.stream, &self.x, &mut y).on_streams(&more);
            let run = pipeline.run(guard(), &plan, bound).expect("it runs");
            let done = (run.items_done, run.scratch_bytes, run.tried.len());
            assert_eq!(done, (self.shape.items(), plan.bytes(), 1));
        }
        let out = self.stream.clone_dtoh(&y).expect("out");
        let mut deviation = Deviation::new();
        deviation.add(&out, &self.expected);
        let within = deviation.within(tolerance(T::TYPE));
        assert!(within, "{} {:?} {plan}: {:e}", T::TYPE, self.shape, deviation.relative());
        assert!(self.stream.clone_dtoh(&self.x).expect("x") == self.input, "the input changed");
        out
    }
}

/// Runs a block without weights, whose memory is given by address, and returns its output.
fn run_by_address<T: Tensorial>(
    shape: BlockShape,
    (tensors, positions): (&[CudaSlice<T>; 16], &CudaSlice<T>),
    x: &CudaSlice<T>,
    (stream, budget): (&Arc<CudaStream>, Budget),
) -> Vec<T> {
    let frames = u64::try_from(positions.len()).expect("elements") / shape.channels();
    let block = TemporalBlock::<T>::without_weights(kernels(), shape, Some(frames));
    let block = block.expect("a block");
    let (mut pipeline, memory) = block.pipeline().expect("a pipeline");
    let plan = pipeline.plan(&budget).expect("a plan");
    let address = |memory: &CudaSlice<T>| memory.device_ptr(stream).0;
    let y = poisoned::<T>(stream, x.len());
    let bytes = usize::try_from(plan.bytes()).expect("bytes");
    let scratch = stream.alloc_zeros::<u8>(bytes).expect("memory");
    let addresses = BlockAddresses {
        x: address(x),
        y: address(&y),
        tensors: tensors.each_ref().map(address),
        positions: address(positions),
    };
    let more: Vec<_> = (1..plan.in_flight()).map(|_| super::support::stream()).collect();
    // SAFETY: all memory is of the block's sizes, and lives and is used on this stream alone until it is read.
    #[allow(unsafe_code, reason = "memory by its address")]
    let bound = unsafe {
        let bound = memory.bind_raw(stream, &addresses).on_streams(&more);
        bound.scratch_raw(scratch.device_ptr(stream).0, plan.bytes())
    };
    pipeline.run(guard(), &plan, bound).expect("it runs");
    stream.clone_dtoh(&y).expect("out")
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_block_whose_weights_are_given_by_address_computes_the_same() {
    let [items, frames, channels, heads] = [300, 16, 320, 5];
    let shape = BlockShape::new(items, frames, channels, heads).expect("legal");
    let stream = stream();
    let elements = |count: u64| usize::try_from(count).expect("elements");
    let mut seed = 10;
    let tensors: [Vec<f16>; 16] = BLOCK_TENSORS.map(|tensor| {
        seed += 1;
        let columns = if tensor.columns == 0 { 1 } else { tensor.columns * channels };
        let scale = f16::from_f32(0.05);
        let random = uniform::<f16>(elements(tensor.rows * channels * columns), seed);
        random.into_iter().map(|x| x * scale).collect()
    });
    let positions = uniform::<f16>(elements(24 * channels), 5);
    let input = uniform::<f16>(elements(shape.elements()), 4);
    let copy = |tensor: &Vec<f16>| stream.clone_htod(tensor).expect("memory");
    let (on_device, x) = (tensors.each_ref().map(copy), copy(&input));
    let embedded = copy(&positions);

    let weights = BlockWeights::from_tensors(channels, tensors).expect("the sizes");
    let weights = weights.with_positions(positions).expect("whole rows");
    let reference = BlockReference::new(&shape, &weights).expect("fits");
    let per_item = elements(shape.elements_per_item());
    let expected: Vec<f64> = input.chunks(per_item).flat_map(|x| reference.item(x)).collect();
    let budgets = [Budget::UNLIMITED, Budget::UNLIMITED.at_most(150).in_flight(2)];
    for budget in budgets {
        let out = run_by_address(shape, (&on_device, &embedded), &x, (&stream, budget));
        let mut deviation = Deviation::new();
        deviation.add(&out, &expected);
        assert!(deviation.within(tolerance(f16::TYPE)), "{:e}", deviation.relative());
    }
}

/// The plan of the smallest possible chunks.
fn smallest<T: Tensorial>(block: &TemporalBlock<T>, in_flight: u64) -> PipelinePlan {
    let (pipeline, _) = block.pipeline().expect("a pipeline");
    let plan = |chunk| pipeline.plan(&Budget::UNLIMITED.at_most(chunk).in_flight(in_flight)).ok();
    (1..=block.shape().items()).find_map(plan).expect("one chunk at least")
}

fn matches_the_reference<T: Tensorial>(sizes: [u64; 4]) {
    let case = Case::<T>::new(sizes);
    let whole = case.run(Budget::UNLIMITED, false);
    assert!(case.run(Budget::UNLIMITED, true) == whole, "as a graph: {sizes:?}");
    let smallest = smallest(&case.block, 1).chunk_items();
    for chunk in [case.shape.items().div_ceil(2).max(smallest), smallest] {
        // The algorithm of a product follows from its rows, so all of these are the same.
        let budget = Budget::UNLIMITED.at_most(chunk);
        let one = case.run(budget, false);
        for in_flight in [1, 2, 3] {
            for in_graph in [false, true] {
                let other = case.run(budget.in_flight(in_flight), in_graph);
                assert!(
                    other == one,
                    "{sizes:?}, {chunk} items, {in_flight} in flight, {in_graph}"
                );
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn the_block_matches_its_reference_whole_in_chunks_and_as_a_graph() {
    matches_the_reference::<f16>([61, 16, 320, 5]);
    matches_the_reference::<bf16>([37, 16, 320, 5]);
    matches_the_reference::<f16>([29, 24, 320, 5]);
    matches_the_reference::<f16>([26, 16, 640, 10]);
    // Wide heads, as in the lower levels of motion modules.
    matches_the_reference::<f16>([26, 16, 320, 2]);
    matches_the_reference::<bf16>([20, 33, 320, 2]);
    matches_the_reference::<f32>([20, 24, 160, 1]);
    // Several chunks of blocks that multiply for many items.
    matches_the_reference::<f16>([340, 16, 64, 2]);
    matches_the_reference::<bf16>([250, 24, 128, 1]);
    matches_the_reference::<bf16>([50, 7, 40, 1]);
    matches_the_reference::<f16>([40, 33, 64, 8]);
    matches_the_reference::<f32>([40, 8, 64, 2]);
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn one_item_and_a_remainder_of_one_run() {
    let one = Case::<f16>::new([1, 16, 320, 5]);
    assert!(one.run(Budget::UNLIMITED, false) == one.run(Budget::UNLIMITED.in_flight(2), true));
    // A large batch, without its reference.
    let weights = BlockWeights::<f16>::random(320, 3).expect("legal");
    let shape = BlockShape::new(4096, 16, 320, 5).expect("legal");
    let block = TemporalBlock::new(kernels(), &stream(), shape, &weights).expect("a block");
    let unit = smallest(&block, 1).chunk_items();
    let case = Case::<f16>::new([2 * unit + 1, 16, 320, 5]);
    let plan = smallest(&case.block, 2);
    assert_eq!(plan.chunks().last().map(|chunk| chunk.items), Some(1), "{plan}");
    case.run(Budget::UNLIMITED.at_most(plan.chunk_items()).in_flight(2), true);
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn a_nan_stays_within_its_item() {
    let case = Case::<f16>::new([6, 16, 320, 5]);
    let finite = case.run(Budget::UNLIMITED, false);
    let (mut pipeline, memory) = case.block.pipeline().expect("a pipeline");
    let plan = pipeline.plan(&Budget::UNLIMITED).expect("a plan");
    let (mut input, per_item) = (case.input.clone(), case.input.len() / 6);
    input[2 * per_item + 5] = f16::NAN;
    let x = case.stream.clone_htod(&input).expect("memory");
    let mut y = case.stream.alloc_zeros::<f16>(input.len()).expect("memory");
    let bound = memory.bind(&case.stream, &x, &mut y);
    pipeline.run(guard(), &plan, bound).expect("it runs");
    let out = case.stream.clone_dtoh(&y).expect("out");
    let items = out.chunks(per_item).zip(finite.chunks(per_item)).enumerate();
    for (item, (out, finite)) in items {
        let is_nan = item == 2 && out.iter().all(|y| y.is_nan());
        assert!(is_nan || (item != 2 && out == finite), "item {item}");
    }
}
