//! Stages and allocations that fail: kept results, and the text of errors.

use core::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use gridguard::Chunk;
use gridguard_pipeline::{
    Budget, Error, ErrorKind, HostMemory, Monitor, Pipeline, PipelineRun, Progress, StageResult,
    Views,
};

/// Refuses allocations of more bytes.
struct AtMost(u64);

impl Monitor for AtMost {
    fn progress(&mut self, _: &Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn may_allocate(&mut self, bytes: u64) -> bool {
        bytes <= self.0
    }
}

/// 100 items: `y` is 3 times `x`, by way of 1,024 bytes of scratch an item. The body of its second
/// stage comes first.
fn tripled<'a>(
    before: impl Fn(&Chunk) -> StageResult + Send + Sync + 'a,
) -> impl FnMut(Budget, &mut dyn Monitor, &mut [u64]) -> Result<PipelineRun, Error> {
    let mut builder = Pipeline::builder(100);
    let (x, y) = (builder.input::<u64>("x", 1), builder.output::<u64>("y", 1));
    let t = builder.scratch::<u64>("t", 128);
    let spread = move |_: &Chunk, views: &mut Views<'_>| {
        let rows = views.write(t)?.chunks_exact_mut(128);
        rows.zip(views.read(x)?).for_each(|(row, x)| row.fill(*x));
        Ok(())
    };
    builder.stage("spread", spread).read(x).write(t);
    let sum = move |chunk: &Chunk, views: &mut Views<'_>| {
        before(chunk)?;
        let rows = views.read(t)?.chunks_exact(128);
        views.write(y)?.iter_mut().zip(rows).for_each(|(y, row)| *y = row[0] + row[1] + row[127]);
        Ok(())
    };
    builder.stage("sum", sum).read(t).write(y);
    let mut pipeline = builder.build().expect("built");
    move |budget, monitor, to| {
        let from: Vec<u64> = (0..100).collect();
        let plan = pipeline.plan(&budget).expect("fits");
        let memory = HostMemory::new().read(x, &from).write(y, to).monitor(monitor);
        crate::run(&mut pipeline, &plan, memory)
    }
}

fn is_tripled(to: &[u64]) -> bool {
    to.iter().zip(0..).all(|(y, x)| *y == 3 * x)
}

#[test]
fn an_allocation_that_fails_halves_the_chunk() {
    for in_flight in 1..=3 {
        let mut to = [0; 100];
        let budget = Budget::UNLIMITED.in_flight(in_flight);
        let run = tripled(|_| Ok(()))(budget, &mut AtMost(20 << 10), &mut to).expect("runs");
        assert_eq!((run.items_done, &run.tried[..2]), (100, &[100, 50][..]));
        assert!(run.scratch_bytes <= 20 << 10 && run.chunks >= 5);
        assert!(is_tripled(&to));
    }
}

#[test]
fn the_smallest_chunk_that_cannot_be_allocated_ends_the_run() {
    let mut to = [0; 100];
    let budget = Budget::UNLIMITED.in_flight(2).at_most(4);
    let error = tripled(|_| Ok(()))(budget, &mut AtMost(1023), &mut to).expect_err("no item fits");
    assert_eq!((error.kind(), error.stage()), (ErrorKind::OutOfMemory, None));
    let done = error.done().expect("it began");
    assert_eq!((done.items_done, &done.tried), (0, &vec![4, 2, 1, 1]));
    assert_eq!(
        error.to_string(),
        "cannot allocate 1024 bytes of scratch for a chunk of 1 item, after 0 of 100 items: refused \
         by the monitor"
    );
}

#[test]
fn an_allocation_larger_than_the_address_space_is_out_of_memory() {
    let mut builder = Pipeline::builder(1);
    let t = builder.scratch::<u8>("t", 1 << 62);
    builder.stage("stage", |_, _| Ok(())).write(t);
    let mut pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED).expect("planned");
    let error = crate::run(&mut pipeline, &plan, HostMemory::new()).expect_err("4 EiB");
    assert_eq!((error.kind(), error.stage()), (ErrorKind::OutOfMemory, None));
}

#[test]
fn a_stage_that_runs_out_of_memory_runs_again_in_halves_and_keeps_what_is_done() {
    for in_flight in 1..=3 {
        // From item 40 on, no chunk of more than 3 items.
        let (firsts, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        let before = |chunk: &Chunk| {
            firsts.fetch_add(u64::from(chunk.start == 0), Ordering::Relaxed);
            if chunk.end() > 40 && chunk.items > 3 {
                refused.fetch_add(1, Ordering::Relaxed);
                return Err(Error::out_of_memory("the library's workspace").into());
            }
            Ok(())
        };
        let mut to = [0; 100];
        let budget = Budget::UNLIMITED.at_most(10).in_flight(in_flight);
        let run = tripled(before)(budget, &mut AtMost(u64::MAX), &mut to).expect("runs");
        assert_eq!((run.items_done, run.tried), (100, vec![10, 5, 2]));
        assert_eq!(run.chunks, 4 + 30);
        assert!(is_tripled(&to));
        assert_eq!(firsts.into_inner(), 1, "what is done is not done again");
        assert!(refused.into_inner() >= 2);
    }
}

#[test]
fn a_chunk_that_was_changed_in_place_does_not_run_again() {
    let mut builder = Pipeline::builder(10);
    let x = builder.in_place::<u64>("x", 1);
    let add = move |_: &Chunk, views: &mut Views<'_>| {
        views.write(x)?.iter_mut().for_each(|x| *x += 1);
        Ok(())
    };
    builder.stage("add", add).update(x);
    let fail = |chunk: &Chunk, _: &mut Views<'_>| match chunk.start {
        4.. => Err(Error::out_of_memory("a library").into()),
        _ => Ok(()),
    };
    builder.stage("fail", fail).read(x);
    let mut pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED.at_most(2)).expect("fits");
    let mut memory = [0; 10];
    let error = crate::run(&mut pipeline, &plan, HostMemory::new().write(x, &mut memory))
        .expect_err("fails");
    assert_eq!((error.kind(), error.stage()), (ErrorKind::OutOfMemory, Some("fail")));
    assert_eq!(error.done().map(|done| done.items_done), Some(4));
    assert_eq!(memory, [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]);
}

#[test]
fn a_stage_that_fails_is_named_with_its_chunk_and_the_items_done() {
    for in_flight in 1..=4 {
        let before = |chunk: &Chunk| match chunk.start {
            30.. => Err(format!("no item {}", chunk.start).into()),
            _ => Ok(()),
        };
        let mut run = tripled(before);
        let mut to = [0; 100];
        let budget = Budget::UNLIMITED.at_most(10).in_flight(in_flight);
        let error = run(budget, &mut AtMost(u64::MAX), &mut to).expect_err("fails");
        assert_eq!(
            error.to_string(),
            "stage sum failed at chunk 3 (items 30..40), after 30 of 100 items: no item 30"
        );
        assert_eq!(error.done().map(|done| done.chunks), Some(3));
        assert!(is_tripled(&to[..30]));
        // It is not poisoned, so it can be tried again.
        let again = run(budget, &mut AtMost(u64::MAX), &mut to).expect_err("fails again");
        assert_eq!(again, error);
    }
}

#[test]
fn a_panic_poisons_the_pipeline_and_nothing_hangs() {
    for in_flight in 1..=4 {
        let before = |chunk: &Chunk| {
            assert!(chunk.start < 30, "no item {}", chunk.start);
            Ok(())
        };
        let mut run = tripled(before);
        let mut to = [0; 100];
        let budget = Budget::UNLIMITED.at_most(10).in_flight(in_flight);
        let error = run(budget, &mut AtMost(u64::MAX), &mut to).expect_err("panics");
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Panicked, Some("sum")));
        let text = "stage sum failed at chunk 3 (items 30..40), after 30 of 100 items: it panicked: \
                    no item 30";
        assert_eq!(error.to_string(), text);
        assert!(is_tripled(&to[..30]));
        let poisoned = run(budget, &mut AtMost(u64::MAX), &mut to).expect_err("poisoned");
        let text = "stage sum panicked in an earlier run: build the pipeline again to run it";
        assert_eq!((poisoned.kind(), &*poisoned.to_string()), (ErrorKind::Panicked, text));
    }
}
