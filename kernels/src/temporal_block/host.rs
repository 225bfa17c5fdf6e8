//! The block as a pipeline on the host.

use gridguard_pipeline::{Buffer, Pipeline};

use super::error::BlockError;
use super::item::HostStages;
use super::shape::BlockShape;
use super::stages::{Between, Product, Stage, Tensors, Work, stages};
use super::weights::BlockWeights;
use crate::element::Element;

/// The block on the host, for tests and machines without a device, and the buffers of its input and output.
/// It has the stages of the pipeline on a device, each computed in f64 and rounded once.
///
/// # Errors
///
/// [`BlockError::Kernel`] if the weights are for another number of channels.
pub fn host_pipeline<'a, T: Element>(
    shape: &BlockShape,
    weights: &'a BlockWeights<T>,
) -> Result<(Pipeline<'a>, Buffer<T>, Buffer<T>), BlockError> {
    weights.check(shape)?;
    let host = HostStages::new(shape)?;
    let mut builder = Pipeline::builder(shape.items());
    let tensors = Tensors::<Buffer<T>>::declare(&mut builder, shape, true);
    for Stage { name, from, to, work } in stages(weights.tensors.each_ref()) {
        let residual = match work {
            Work::Product(Product { residual, .. }) => residual,
            _ => None,
        };
        let updates = residual == Some(to);
        let residual = residual.filter(|_| !updates).map(|residual| *tensors.get(residual));
        let (from, to) = (*tensors.get(from), *tensors.get(to));
        let stage = builder.stage(name, move |_, views| {
            let out = views.write(to)?;
            if let Some(residual) = residual {
                out.copy_from_slice(views.read(residual)?);
            }
            host.run(work, &weights.positions, views.read(from)?, out);
            Ok(())
        });
        let stage = residual.into_iter().fold(stage.read(from), |stage, buffer| stage.read(buffer));
        if updates {
            stage.update(to)
        } else {
            stage.write(to)
        };
    }
    Ok((builder.build()?, *tensors.get(Between::X), *tensors.get(Between::Y)))
}

#[cfg(test)]
mod tests {
    use gridguard::{DeviceLimits, Guard};
    use gridguard_pipeline::{Budget, ErrorKind, HostMemory};
    use half::{bf16, f16};

    use super::*;
    use crate::deviation::Deviation;
    use crate::element::to_usize;
    use crate::temporal_block::{BlockReference, tolerance};

    fn run<T: Element>(shape: &BlockShape, weights: &BlockWeights<T>, budget: Budget) -> Vec<T> {
        let (mut pipeline, x, y) = host_pipeline(shape, weights).expect("fits");
        let input: Vec<T> = crate::synthetic::synthetic(to_usize(shape.elements()), 5);
        let mut out = vec![T::narrow(f32::NAN); input.len()];
        let plan = pipeline.plan(&budget).expect("a plan");
        let memory = HostMemory::new().read(x, &input).write(y, &mut out);
        let guard = Guard::host(DeviceLimits::any_device());
        let run = pipeline.run(&guard, &plan, memory).expect("it runs");
        assert_eq!(run.items_done, shape.items());
        out
    }

    fn matches_the_reference<T: Element + PartialEq>() {
        for [items, frames, channels, heads] in [[5, 4, 16, 2], [3, 7, 40, 1], [1, 1, 8, 1]] {
            let shape = BlockShape::new(items, frames, channels, heads).expect("legal");
            let mut weights = BlockWeights::<T>::random(channels, 2).expect("legal");
            if heads == 1 {
                let positions = crate::synthetic::synthetic(to_usize(8 * channels), 6);
                weights = weights.with_positions(positions).expect("whole rows");
            }
            let whole = run(&shape, &weights, Budget::UNLIMITED);
            let reference = BlockReference::new(&shape, &weights).expect("fits");
            let input: Vec<T> = crate::synthetic::synthetic(to_usize(shape.elements()), 5);
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
        // Equal embeddings for all frames act like a bias of the norms.
        let mut biased = weights.clone();
        for bias in [1, 6] {
            biased.tensors[bias].iter_mut().for_each(|x| *x += 0.5);
        }
        let mut deviation = Deviation::new();
        let expected: Vec<f64> = run(&biased).into_iter().map(f64::from).collect();
        deviation.add(&run(&with(vec![0.5; 4 * 16])), &expected);
        assert!(deviation.relative() < 1e-6, "{:e}", deviation.relative());
        // Different frames have different embeddings.
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
        let ErrorKind::Budget { smallest, chunk: 1 } = error.kind() else {
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
        // And the padding that aligns the buffers of a chunk.
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
