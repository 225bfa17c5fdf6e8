//! The candidates of a pipeline: plans by chunk size and chunks in flight.

use std::rc::Rc;

use gridguard::Strategy;
use gridguard::profile::{Named, Objective, StoredChoice};
use gridguard_pipeline::{Budget, IN_FLIGHT, Pipeline, PipelinePlan};

use crate::candidate::{Candidate, MAX_CHUNK_SIZES, chunked, halves};

/// A pipeline with a limit on its chunks in flight.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    /// The chunks in flight, then the pipeline's parameters.
    pub(crate) parameters: Named,
    pipeline: Rc<Pipeline<'static>>,
    budget: Budget,
}

impl Variant {
    /// Each pipeline with each number of chunks in flight worth measuring, the most first.
    pub(crate) fn all(pipelines: Vec<Pipeline<'static>>, budget: &Budget) -> Vec<Self> {
        let most = budget.max_in_flight();
        let fewer = core::iter::successors(Some(1_u64), |chunks| chunks.checked_mul(2));
        let counts = || [most].into_iter().chain(fewer.clone().take_while(|chunks| *chunks < most));
        let with = |pipeline: Pipeline<'static>| {
            let pipeline = Rc::new(pipeline);
            counts().map(move |chunks| Self {
                parameters: parameters(&pipeline, chunks),
                pipeline: Rc::clone(&pipeline),
                budget: budget.in_flight(chunks),
            })
        };
        pipelines.into_iter().flat_map(with).collect()
    }

    /// The pipeline's candidates within `objective`, the largest chunk first.
    pub(crate) fn candidates(&self, objective: Objective) -> Vec<Candidate> {
        let largest = self.candidate(StoredChoice::Automatic, objective);
        let most = largest.as_ref().map_or(0, |largest| largest.largest_chunk);
        let smaller = halves(self.pipeline.items()).filter(|items| *items < most);
        let smaller = smaller.take(MAX_CHUNK_SIZES).map(chunked);
        let smaller = smaller.filter_map(|choice| self.candidate(choice, objective));
        largest.clone().into_iter().chain(smaller).collect()
    }

    /// The candidate for `choice`, if legal and within `objective`.
    pub(crate) fn candidate(
        &self,
        choice: StoredChoice,
        objective: Objective,
    ) -> Option<Candidate> {
        let at_most = match choice {
            StoredChoice::Chunked { max_items } => max_items.get(),
            _ => u64::MAX,
        };
        let bytes = match objective {
            Objective::Memory { bytes, .. } => bytes,
            Objective::Throughput | Objective::Latency { .. } => u64::MAX,
        };
        let Self { pipeline, budget, .. } = self;
        let limited = Budget::bytes(bytes.min(budget.max_bytes()))
            .in_flight(budget.max_in_flight())
            .at_most(at_most.min(budget.max_items()));
        let plan = pipeline.plan(&limited).ok()?;
        Some(candidate_of(pipeline, &plan)).filter(|one| one.is_within(objective))
    }

    /// The items of the smallest possible chunk, at least one.
    pub(crate) fn unit(&self) -> u64 {
        self.pipeline.plan(&self.budget).map_or(1, |plan| plan.smallest_chunk().max(1))
    }
}

pub(crate) fn candidate_of(pipeline: &Pipeline<'static>, plan: &PipelinePlan) -> Candidate {
    let largest_chunk = plan.chunk_items();
    let (choice, strategy) = match plan.len() {
        0 | 1 => (StoredChoice::Whole, Strategy::Whole),
        _ => (chunked(largest_chunk), Strategy::Chunked),
    };
    Candidate {
        parameters: parameters(pipeline, plan.in_flight()),
        choice,
        strategy,
        launches: plan.len(),
        largest_chunk,
        block_threads: 0,
        scratch_bytes: plan.bytes(),
    }
}

fn parameters(pipeline: &Pipeline<'static>, in_flight: u64) -> Named {
    let in_flight = (IN_FLIGHT.to_owned(), in_flight);
    [in_flight].into_iter().chain(pipeline.parameters().iter().cloned()).collect()
}
