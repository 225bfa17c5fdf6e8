//! Random pipelines give the results of a plain loop over the items, in chunks of any size.

use core::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use gridguard::{Axis, BatchAxis, Chunk, Dim3, LaunchRequest};
use gridguard_pipeline::{
    Budget, Buffer, Error, ErrorKind, HostMemory, Monitor, Pipeline, PipelineBuilder, PipelinePlan,
    Progress, StageResult, Views,
};
use gridguard_test_support::Random;

use crate::limits;

const PIPELINES: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Input,
    SharedInput,
    Output,
    InPlace,
    Accumulator,
    Scratch,
    FixedScratch,
}

impl Kind {
    fn is_per_item(self) -> bool {
        !matches!(self, Self::SharedInput | Self::Accumulator | Self::FixedScratch)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Read,
    Write,
    Update,
}

#[derive(Clone, Copy, Debug)]
struct Spec {
    kind: Kind,
    elements: usize,
    /// Elements of 8 bytes instead of one.
    wide: bool,
}

#[derive(Clone, Copy)]
enum Handle {
    Byte(Buffer<u8>),
    Wide(Buffer<u64>),
}

/// A pipeline as data, for both implementations.
#[derive(Debug)]
struct Model {
    items: usize,
    buffers: Vec<Spec>,
    stages: Vec<Vec<(usize, Use)>>,
}

impl Model {
    fn random(random: &mut Random) -> Self {
        let items = match random.below(10) {
            0 => 0,
            1 => 1,
            _ => small(random.below(120)),
        };
        let mut model = Self { items, buffers: Vec::new(), stages: Vec::new() };
        let mut spec = |random: &mut Random, kind: Kind| {
            let (elements, wide) = (1 + small(random.below(12)), random.percent(50));
            model.buffers.push(Spec { kind, elements, wide });
            model.buffers.len() - 1
        };
        // The readable buffers, and the updatable ones among them.
        let (mut readable, mut updatable) = (vec![spec(random, Kind::Input)], Vec::new());
        if random.percent(40) {
            readable.push(spec(random, Kind::SharedInput));
        }
        let in_place = random.percent(30).then(|| spec(random, Kind::InPlace));
        readable.extend(in_place);
        updatable.extend(in_place);
        let accumulator = random.percent(20).then(|| spec(random, Kind::Accumulator));
        let stages = 1 + random.below(8);
        let mut all = Vec::new();
        for stage in 0..stages {
            let mut uses = Vec::new();
            for buffer in &readable {
                if random.percent(40) {
                    uses.push((*buffer, Use::Read));
                }
            }
            for buffer in &updatable {
                if random.percent(20) {
                    uses.retain(|(other, _)| other != buffer);
                    uses.push((*buffer, if random.percent(50) { Use::Update } else { Use::Write }));
                }
            }
            if random.percent(30) {
                uses.push((spec(random, Kind::FixedScratch), Use::Write));
            }
            let kind = if stage + 1 == stages { Kind::Output } else { Kind::Scratch };
            let written = spec(random, kind);
            uses.push((written, Use::Write));
            readable.push(written);
            updatable.push(written);
            uses.extend(
                accumulator
                    .filter(|_| stage == 0 || random.percent(30))
                    .map(|it| (it, Use::Update)),
            );
            all.push(uses);
        }
        // What nothing else uses.
        for buffer in 0..model.buffers.len() {
            if !all.iter().flatten().any(|(used, _)| *used == buffer) {
                all[0].push((buffer, Use::Read));
            }
        }
        model.stages = all;
        model
    }

    /// The contents of every buffer before a run.
    fn memory(&self, fill: u64) -> Vec<Vec<u64>> {
        let contents = |(index, spec): (usize, &Spec)| {
            let items = if spec.kind.is_per_item() { self.items } else { 1 };
            let of_caller = !matches!(spec.kind, Kind::Scratch | Kind::FixedScratch | Kind::Output);
            let seed = if of_caller { mix(7, wide(index)) } else { fill };
            (0..items * spec.elements).map(|place| spec.truncate(mix(seed, wide(place)))).collect()
        };
        self.buffers.iter().enumerate().map(contents).collect()
    }

    /// A plain loop: item by item through all stages, with whole buffers.
    fn run_plainly(&self) -> Vec<Vec<u64>> {
        let mut memory = self.memory(0x5a5a);
        for item in 0..self.items {
            for (stage, uses) in self.stages.iter().enumerate() {
                let at = |buffer: usize, place: usize| {
                    let spec = self.buffers[buffer];
                    if spec.kind.is_per_item() { item * spec.elements + place } else { place }
                };
                let read: Vec<Vec<u64>> =
                    self.reads(uses, |buffer, place| memory[buffer][at(buffer, place)]);
                let hash = hash(stage, item, &read);
                for &(buffer, how) in uses.iter().filter(|(_, how)| *how != Use::Read) {
                    for place in 0..self.buffers[buffer].elements {
                        let element = &mut memory[buffer][at(buffer, place)];
                        *element = self.buffers[buffer].next(*element, how, hash, place);
                    }
                }
            }
        }
        memory
    }

    /// The elements of one item that a stage with `uses` reads.
    fn reads(&self, uses: &[(usize, Use)], element: impl Fn(usize, usize) -> u64) -> Vec<Vec<u64>> {
        let reads = uses.iter().filter(|(_, how)| *how == Use::Read);
        reads
            .map(|(buffer, _)| {
                (0..self.buffers[*buffer].elements).map(|place| element(*buffer, place)).collect()
            })
            .collect()
    }
}

impl Spec {
    fn truncate(self, value: u64) -> u64 {
        if self.wide { value } else { value & 0xff }
    }

    /// The value of an element after a stage whose reads have a `hash`.
    fn next(self, before: u64, how: Use, hash: u64, place: usize) -> u64 {
        let new = mix(hash, wide(place));
        self.truncate(match how {
            Use::Update => before.wrapping_add(new),
            _ => new,
        })
    }
}

/// The elements of a view.
enum Elements<'v> {
    Byte(&'v mut [u8]),
    Wide(&'v mut [u64]),
}

impl Elements<'_> {
    fn change(&mut self, place: usize, change: impl FnOnce(u64) -> u64) {
        match self {
            Self::Byte(bytes) => {
                bytes[place] = u8::try_from(change(bytes[place].into())).expect("truncated");
            }
            Self::Wide(words) => words[place] = change(words[place]),
        }
    }
}

/// A stage of the pipeline: the same as in [`Model::run_plainly`] for all items of a chunk.
fn run_stage(
    model: &Model,
    handles: &[Handle],
    stage: usize,
    chunk: &Chunk,
    views: &mut Views<'_>,
) -> StageResult {
    let uses = &model.stages[stage];
    let mut read = vec![Vec::new(); model.buffers.len()];
    for &(buffer, _) in uses.iter().filter(|(_, how)| *how == Use::Read) {
        read[buffer] = match handles[buffer] {
            Handle::Byte(handle) => views.read(handle)?.iter().map(|byte| (*byte).into()).collect(),
            Handle::Wide(handle) => views.read(handle)?.to_vec(),
        };
    }
    let mut written = Vec::new();
    for &(buffer, how) in uses.iter().filter(|(_, how)| *how != Use::Read) {
        let elements = match handles[buffer] {
            Handle::Byte(handle) => Elements::Byte(views.write(handle)?),
            Handle::Wide(handle) => Elements::Wide(views.write(handle)?),
        };
        written.push((buffer, how, elements));
    }
    for item in 0..small(chunk.items) {
        let at = |buffer: usize, place: usize| {
            let spec = model.buffers[buffer];
            if spec.kind.is_per_item() { item * spec.elements + place } else { place }
        };
        let read = model.reads(uses, |buffer, place| read[buffer][at(buffer, place)]);
        let hash = hash(stage, small(chunk.start) + item, &read);
        for (buffer, how, elements) in &mut written {
            let spec = model.buffers[*buffer];
            for place in 0..spec.elements {
                elements.change(at(*buffer, place), |before| spec.next(before, *how, hash, place));
            }
        }
    }
    Ok(())
}

/// Lets few bytes be allocated.
struct Quota(u64);

impl Monitor for Quota {
    fn progress(&mut self, progress: &Progress) -> ControlFlow<()> {
        assert!(progress.items_done <= progress.items);
        ControlFlow::Continue(())
    }

    fn may_allocate(&mut self, bytes: u64) -> bool {
        bytes <= self.0
    }
}

/// What the stages of a model need of chunks, and how often memory runs out in one.
struct Constraints {
    /// The items of a block and the alignment of chunks, for each stage.
    stages: Vec<(u64, u64)>,
    /// A multiple of all these.
    unit: u64,
    failing: usize,
    failures: AtomicU64,
}

impl Constraints {
    fn random(random: &mut Random, model: &Model) -> Self {
        let one = |random: &mut Random, percent, most| match random.percent(percent) {
            true => 1 + random.below(most),
            false => 1,
        };
        let stages = model.stages.iter().map(|_| (one(random, 20, 4), one(random, 10, 6)));
        let stages: Vec<(u64, u64)> = stages.collect();
        let unit = stages.iter().fold(1, |unit, (block, align)| {
            let fits = |all: &u64| [unit, *block, *align].iter().all(|it| all.is_multiple_of(*it));
            (unit..).find(fits).expect("at most their product")
        });
        let changes = |spec: &Spec| matches!(spec.kind, Kind::InPlace | Kind::Accumulator);
        let can_run_again = !model.buffers.iter().any(changes);
        let failures = one(random, 20, 3) - 1 + u64::from(random.percent(10));
        let failures = AtomicU64::new(if can_run_again { failures } else { 0 });
        let failing = small(random.below(wide(model.stages.len())));
        Self { stages, unit, failing, failures }
    }

    /// Whether memory runs out in a stage now.
    fn fail(&self, stage: usize, chunk: &Chunk) -> bool {
        let fewer = |left: u64| left.checked_sub(1);
        let update = || self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        stage == self.failing && chunk.items > self.unit && update().is_ok()
    }
}

fn build<'a>(model: &'a Model, constraints: &'a Constraints) -> (Pipeline<'a>, Vec<Handle>) {
    let items = wide(model.items);
    let mut builder = Pipeline::builder(items);
    let buffers = model.buffers.iter().enumerate();
    let handles: Vec<_> = buffers.map(|(index, spec)| declare(&mut builder, index, spec)).collect();
    for ((index, spec), handle) in model.buffers.iter().enumerate().zip(&handles) {
        let may_be = matches!(spec.kind, Kind::Input | Kind::Output | Kind::InPlace);
        if may_be && mix(items, wide(index)).is_multiple_of(4) {
            match handle {
                Handle::Byte(buffer) => builder.in_host_memory(*buffer),
                Handle::Wide(buffer) => builder.in_host_memory(*buffer),
            }
        }
    }
    for (stage, uses) in model.stages.iter().enumerate() {
        let own = handles.clone();
        let mut declared = builder.stage(format!("s{stage}"), move |chunk, views| {
            if constraints.fail(stage, chunk) {
                return Err(Error::out_of_memory("a library's").into());
            }
            run_stage(model, &own, stage, chunk, views)
        });
        for (buffer, how) in uses {
            declared = match (handles[*buffer], how) {
                (Handle::Byte(buffer), Use::Read) => declared.read(buffer),
                (Handle::Byte(buffer), Use::Write) => declared.write(buffer),
                (Handle::Byte(buffer), Use::Update) => declared.update(buffer),
                (Handle::Wide(buffer), Use::Read) => declared.read(buffer),
                (Handle::Wide(buffer), Use::Write) => declared.write(buffer),
                (Handle::Wide(buffer), Use::Update) => declared.update(buffer),
            };
        }
        let (block, align) = constraints.stages[stage];
        if block > 1 {
            let batch = BatchAxis::new(Axis::Y, items).items_per_block(block);
            let blocks = batch.blocks(items).expect("few");
            let request = LaunchRequest::new(Dim3::new(1, blocks, 1), Dim3::new(32, 1, 1));
            declared = declared.launches(request, batch, &limits("k"));
        }
        declared.align(align);
    }
    (builder.build().expect("a pipeline"), handles)
}

/// The smallest budget that works, which no smaller one does.
fn smallest_budget(pipeline: &Pipeline<'_>) -> u64 {
    let Err(error) = pipeline.plan(&Budget::bytes(0)) else { return 0 };
    let ErrorKind::Budget { smallest, .. } = error.kind() else { panic!("{error}") };
    assert!(pipeline.plan(&Budget::bytes(smallest - 1)).is_err());
    smallest
}

/// Runs one random pipeline; returns its plan, and whether it was tried more than once.
fn run_random(seed: u64) -> (PipelinePlan, bool) {
    let mut random = Random::new(seed);
    let model = Model::random(&mut random);
    let constraints = Constraints::random(&mut random, &model);
    let (mut pipeline, handles) = build(&model, &constraints);
    let smallest = smallest_budget(&pipeline);
    let bytes = smallest + random.below(8) * random.below(5000);
    let mut budget = Budget::bytes(bytes).in_flight(1 + random.below(4));
    if random.percent(60) {
        budget = budget.at_most(constraints.unit + random.below(30));
    }
    let plan = pipeline.plan(&budget).expect("the smallest fits");
    assert!(plan.bytes() <= bytes, "{seed}");

    let mut memory = Memory::new(&model);
    let quota = if random.percent(30) { smallest.max(plan.bytes() / 3) } else { u64::MAX };
    let mut quota = Quota(quota);
    let bound = memory.bind(&handles, &model).monitor(&mut quota);
    let run = crate::run(&mut pipeline, &plan, bound);
    let run = run.unwrap_or_else(|error| panic!("{seed}: {error}"));
    assert_eq!(run.items_done, wide(model.items), "{seed}");
    let expected = model.run_plainly();
    for (index, spec) in model.buffers.iter().enumerate() {
        if !matches!(spec.kind, Kind::Scratch | Kind::FixedScratch) {
            assert_eq!(memory.elements(index, spec), expected[index], "{seed}: buffer {index}");
        }
    }
    (plan, run.tried.len() > 1)
}

#[test]
fn a_thousand_random_pipelines_give_the_results_of_a_plain_loop() {
    let (mut in_chunks, mut together, mut backed_off) = (0, 0, 0);
    for seed in 0..PIPELINES {
        let (plan, again) = run_random(seed);
        in_chunks += u64::from(plan.len() > 1);
        together += u64::from(plan.in_flight() > 1);
        backed_off += u64::from(again);
    }
    // The cases are the interesting ones.
    assert!(in_chunks > 500, "{in_chunks} in chunks");
    assert!(together > 200, "{together} with several in flight");
    assert!(backed_off > 100, "{backed_off} in smaller chunks");
}

/// The caller's memory.
struct Memory {
    bytes: Vec<Vec<u8>>,
    words: Vec<Vec<u64>>,
}

impl Memory {
    fn new(model: &Model) -> Self {
        let words = model.memory(0xa5a5);
        let narrow = |words: &Vec<u64>| {
            words.iter().map(|word| u8::try_from(word & 0xff).expect("a byte")).collect()
        };
        Self { bytes: words.iter().map(narrow).collect(), words }
    }

    fn bind<'m>(&'m mut self, handles: &[Handle], model: &Model) -> HostMemory<'m> {
        let mut memory = HostMemory::new();
        let buffers = handles.iter().zip(&model.buffers).zip(&mut self.bytes).zip(&mut self.words);
        for (((handle, spec), bytes), words) in buffers {
            memory = match (spec.kind, handle) {
                (Kind::Scratch | Kind::FixedScratch, _) => memory,
                (Kind::Input | Kind::SharedInput, Handle::Byte(buffer)) => {
                    memory.read(*buffer, bytes)
                }
                (Kind::Input | Kind::SharedInput, Handle::Wide(buffer)) => {
                    memory.read(*buffer, words)
                }
                (_, Handle::Byte(buffer)) => memory.write(*buffer, bytes),
                (_, Handle::Wide(buffer)) => memory.write(*buffer, words),
            };
        }
        memory
    }

    fn elements(&self, index: usize, spec: &Spec) -> Vec<u64> {
        match spec.wide {
            true => self.words[index].clone(),
            false => self.bytes[index].iter().map(|byte| (*byte).into()).collect(),
        }
    }
}

fn declare(builder: &mut PipelineBuilder<'_>, index: usize, spec: &Spec) -> Handle {
    fn typed<T: Pod>(builder: &mut PipelineBuilder<'_>, index: usize, spec: &Spec) -> Buffer<T> {
        let (name, elements) = (format!("b{index}"), wide(spec.elements));
        match spec.kind {
            Kind::Input => builder.input(name, elements),
            Kind::SharedInput => builder.shared_input(name, elements),
            Kind::Output => builder.output(name, elements),
            Kind::InPlace => builder.in_place(name, elements),
            Kind::Accumulator => builder.accumulator(name, elements),
            Kind::Scratch => builder.scratch(name, elements),
            Kind::FixedScratch => builder.fixed_scratch(name, elements),
        }
    }
    match spec.wide {
        true => Handle::Wide(typed(builder, index, spec)),
        false => Handle::Byte(typed(builder, index, spec)),
    }
}

fn hash(stage: usize, item: usize, read: &[Vec<u64>]) -> u64 {
    read.iter().flatten().fold(mix(wide(stage), wide(item)), |hash, value| mix(hash, *value))
}

fn mix(one: u64, other: u64) -> u64 {
    Random::new(one.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ other).next()
}

fn small(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).expect("64 bits")
}
