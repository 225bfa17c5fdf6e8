//! The block as a pipeline on the host.

use gridguard::pipeline::{Buffer, HostPipeline, HostStage, PipelineBuilder};

use super::error::BlockError;
use super::item::{HostStages, Sum};
use super::shape::{BlockShape, Tensors};
use super::weights::{AttentionPart, BlockWeights, FeedForwardPart, parts};
use crate::element::Element;

/// The block on the host, for tests and for machines without a device, and the buffers of its input and its
/// output: [`HostPipeline::run`]. It has the stages of the pipeline on a device, each in f64, rounded once.
///
/// # Errors
///
/// [`BlockError::Kernel`] if the weights are for another number of channels.
pub fn host_pipeline<'a, T: Element>(
    shape: &BlockShape,
    weights: &'a BlockWeights<T>,
) -> Result<(HostPipeline<'a>, Buffer<T>, Buffer<T>), BlockError> {
    weights.check(shape)?;
    let stages = HostStages::new(shape)?;
    let mut builder = HostPipeline::builder(shape.items());
    let tensors = Tensors::declare(&mut builder, shape);
    let ([first, second], last) = parts(weights.tensors.each_ref());
    for (number, part, residual) in [("1", first, tensors.x), ("2", second, tensors.y)] {
        attention(&mut builder, stages, &tensors, (number, part, &weights.positions, residual));
    }
    let up = Tensors::up(&mut builder, shape);
    feed_forward(&mut builder, stages, (&tensors, up), last);
    let pipeline = builder.build()?;
    Ok((pipeline, tensors.x, tensors.y))
}

fn norm<'a, T: Element>(
    builder: &mut PipelineBuilder<HostStage<'a>>,
    stages: HostStages,
    name: String,
    (weights, positions): ([&'a Vec<T>; 2], &'a [T]),
    [from, to]: [Buffer<T>; 2],
) {
    let stage = builder.stage(name, move |_, views| {
        stages.norm(views.read(from)?, weights, positions, views.write(to)?);
        Ok(())
    });
    stage.reads(from).writes(to);
}

/// Adds the attention of this number, of positions with embeddings if there are some. It is added to `residual`:
/// the input, or what the output holds.
fn attention<'a, T: Element>(
    builder: &mut PipelineBuilder<HostStage<'a>>,
    stages: HostStages,
    tensors: &Tensors<T>,
    (number, part, positions, residual): (&str, AttentionPart<&'a Vec<T>>, &'a [T], Buffer<T>),
) {
    let Tensors { x, y, normed, qkv, attended, .. } = *tensors;
    let name = format!("norm{number}");
    norm(builder, stages, name, (part.norm, positions), [residual, normed]);
    let stage = builder.stage(format!("qkv{number}"), move |_, views| {
        stages.product(views.read(normed)?, part.qkv, None, Sum::New, views.write(qkv)?);
        Ok(())
    });
    stage.reads(normed).writes(qkv);
    let stage = builder.stage(format!("attention{number}"), move |_, views| {
        stages.attend(views.read(qkv)?, views.write(attended)?);
        Ok(())
    });
    stage.reads(qkv).writes(attended);
    let is_first = number == "1";
    let stage = builder.stage(format!("out{number}"), move |_, views| {
        let (attended, out) = (views.read(attended)?, views.write(y)?);
        if is_first {
            out.copy_from_slice(views.read(x)?);
        }
        stages.product(attended, part.out, Some(part.out_bias), Sum::Added, out);
        Ok(())
    });
    let stage = stage.reads(attended);
    if is_first {
        stage.reads(x).writes(y)
    } else {
        stage.updates(y)
    };
}

fn feed_forward<'a, T: Element>(
    builder: &mut PipelineBuilder<HostStage<'a>>,
    stages: HostStages,
    (tensors, up): (&Tensors<T>, Buffer<T>),
    part: FeedForwardPart<&'a Vec<T>>,
) {
    let Tensors { y, normed, gated, .. } = *tensors;
    norm(builder, stages, "norm3".to_owned(), (part.norm, &[]), [y, normed]);
    let stage = builder.stage("up", move |_, views| {
        let (normed, up) = (views.read(normed)?, views.write(up)?);
        stages.product(normed, part.up, Some(part.up_bias), Sum::New, up);
        Ok(())
    });
    stage.reads(normed).writes(up);
    let stage = builder.stage("gate", move |_, views| {
        stages.gate(views.read(up)?, views.write(gated)?);
        Ok(())
    });
    stage.reads(up).writes(gated);
    let stage = builder.stage("down", move |_, views| {
        let (gated, y) = (views.read(gated)?, views.write(y)?);
        stages.product(gated, part.down, Some(part.down_bias), Sum::Added, y);
        Ok(())
    });
    stage.reads(gated).updates(y);
}

#[cfg(test)]
mod tests {
    use gridguard::pipeline::{Budget, HostMemory, PlanError};
    use half::{bf16, f16};

    use super::*;
    use crate::deviation::Deviation;
    use crate::element::to_usize;
    use crate::temporal_block::{BlockReference, tolerance};

    fn run<T: Element>(shape: &BlockShape, weights: &BlockWeights<T>, budget: Budget) -> Vec<T> {
        let (mut pipeline, x, y) = host_pipeline(shape, weights).expect("fits");
        let input: Vec<T> = crate::bench::synthetic(to_usize(shape.elements()), 5);
        let mut out = vec![T::narrow(f32::NAN); input.len()];
        let plan = pipeline.plan(&budget).expect("a plan");
        let memory = HostMemory::new().read(x, &input).write(y, &mut out);
        let run = pipeline.run(&plan, memory).expect("it runs");
        assert_eq!(run.items_done, shape.items());
        out
    }

    fn matches_the_reference<T: Element + PartialEq>() {
        for [items, frames, channels, heads] in [[5, 4, 16, 2], [3, 7, 40, 1], [1, 1, 8, 1]] {
            let shape = BlockShape::new(items, frames, channels, heads).expect("legal");
            let mut weights = BlockWeights::<T>::random(channels, 2).expect("legal");
            if heads == 1 {
                let positions = crate::bench::synthetic(to_usize(8 * channels), 6);
                weights = weights.with_positions(positions).expect("whole rows");
            }
            let whole = run(&shape, &weights, Budget::UNLIMITED);
            let reference = BlockReference::new(&shape, &weights).expect("fits");
            let input: Vec<T> = crate::bench::synthetic(to_usize(shape.elements()), 5);
            let per_item = to_usize(shape.elements_per_item());
            let mut deviation = Deviation::new();
            for (x, out) in input.chunks(per_item).zip(whole.chunks(per_item)) {
                deviation.add(out, &reference.item(x));
            }
            assert!(deviation.within(tolerance(T::TYPE)), "{shape:?}: {:e}", deviation.relative());
            for budget in [Budget::UNLIMITED.at_most(1), Budget::UNLIMITED.at_most(2).in_flight(2)]
            {
                assert!(run(&shape, &weights, budget) == whole, "{shape:?} in chunks");
            }
        }
    }

    #[test]
    fn the_block_matches_its_reference_whole_and_in_chunks() {
        matches_the_reference::<f16>();
        matches_the_reference::<bf16>();
        matches_the_reference::<f32>();
    }

    #[test]
    fn embeddings_of_positions_are_added_to_what_the_attentions_read() {
        let shape = BlockShape::new(3, 4, 16, 2).expect("legal");
        let weights = BlockWeights::<f32>::random(16, 2).expect("legal");
        let run = |weights: &_| run(&shape, weights, Budget::UNLIMITED);
        let with =
            |positions: Vec<f32>| weights.clone().with_positions(positions).expect("whole rows");
        let plain = run(&weights);
        assert_eq!(run(&with(vec![0.0; 5 * 16])), plain);
        // The same for each frame, they are as much as the bias of the norms.
        let mut biased = weights.clone();
        for bias in [1, 6] {
            biased.tensors[bias].iter_mut().for_each(|x| *x += 0.5);
        }
        let mut deviation = Deviation::new();
        let expected: Vec<f64> = run(&biased).into_iter().map(f64::from).collect();
        deviation.add(&run(&with(vec![0.5; 4 * 16])), &expected);
        assert!(deviation.relative() < 1e-6, "{:e}", deviation.relative());
        // Other frames have others.
        let frames: Vec<f32> = (0_u8..64).map(|element| f32::from(element / 16)).collect();
        assert_ne!(run(&with(frames)), plain);
    }

    #[test]
    fn weights_that_are_nan_give_nan_and_no_error() {
        let shape = BlockShape::new(2, 2, 16, 1).expect("legal");
        let mut weights = BlockWeights::<f16>::random(16, 2).expect("legal");
        weights.tensors[0][0] = f16::NAN;
        let out = run(&shape, &weights, Budget::UNLIMITED);
        assert!(out.iter().all(|x| x.is_nan()));
    }

    #[test]
    fn a_budget_smaller_than_an_item_is_an_error_with_the_smallest_that_works() {
        let shape = BlockShape::new(2, 2, 16, 1).expect("legal");
        let weights = BlockWeights::<f16>::random(16, 2).expect("legal");
        let (pipeline, ..) = host_pipeline(&shape, &weights).expect("fits");
        let error = pipeline.plan(&Budget::bytes(100)).expect_err("too small");
        let PlanError::BudgetTooSmall { smallest, chunk: 1, .. } = error else {
            panic!("{error:?}");
        };
        assert!(pipeline.plan(&Budget::bytes(smallest - 1)).is_err());
        assert_eq!(pipeline.plan(&Budget::bytes(smallest)).expect("it fits").chunk_items(), 1);
    }

    #[test]
    fn scratch_is_what_the_gate_reads_and_writes() {
        let shape = BlockShape::new(15_360, 16, 320, 5).expect("legal");
        let weights = BlockWeights::<f16>::random(320, 2).expect("legal");
        let (pipeline, ..) = host_pipeline(&shape, &weights).expect("fits");
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("a plan");
        // And what aligns the buffers of a chunk.
        let least = 12 * 2 * shape.elements();
        assert!((least..least + 10 * 256).contains(&plan.bytes()), "{plan}");
    }

    #[test]
    fn zero_items_are_done_at_once() {
        let shape = BlockShape::new(0, 2, 16, 1).expect("legal");
        let weights = BlockWeights::<f16>::random(16, 2).expect("legal");
        assert_eq!(run(&shape, &weights, Budget::UNLIMITED), []);
    }
}
