//! The views of stages, and the result of a run.

use core::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use gridguard::Chunk;
use gridguard_pipeline::{Budget, ErrorKind, HostMemory, Pipeline, Progress, Views};

#[test]
fn a_stage_sees_the_items_of_its_chunk_and_shared_buffers_as_a_whole() {
    let mut builder = Pipeline::builder(11);
    let x = builder.input::<u16>("x", 3);
    let table = builder.shared_input::<u64>("table", 5);
    let y = builder.output::<u8>("y", 2);
    let total = builder.accumulator::<u64>("total", 1);
    let workspace = builder.fixed_scratch::<u32>("workspace", 9);
    let see = move |chunk: &Chunk, views: &mut Views<'_>| {
        let items = usize::try_from(chunk.items)?;
        let start = u16::try_from(chunk.start)?;
        assert_eq!(views.read(x)?.len(), 3 * items);
        assert_eq!(views.read(x)?[0], 3 * start);
        assert_eq!(views.read(table)?, [1, 2, 3, 4, 5]);
        assert_eq!(views.write(workspace)?.len(), 9);
        views.write(y)?.fill(u8::try_from(start)?);
        views.write(total)?[0] += chunk.items;
        Ok(())
    };
    let stage = builder.stage("see", see);
    stage.read(x).read(table).write(y).update(total).write(workspace);
    let mut pipeline = builder.build().expect("built");
    let (from, mut to, mut sum) = ((0..33).collect::<Vec<u16>>(), [9; 22], [100]);
    let plan = pipeline.plan(&Budget::UNLIMITED.at_most(4)).expect("fits");
    let memory = HostMemory::new().read(x, &from).read(table, &[1, 2, 3, 4, 5]);
    let memory = memory.write(y, &mut to).write(total, &mut sum);
    let run = crate::run(&mut pipeline, &plan, memory).expect("runs");
    assert_eq!((run.chunks, run.items_done, run.cancelled), (3, 11, false));
    assert_eq!((run.tried, run.scratch_bytes), (vec![4], 256));
    assert_eq!(sum, [111]);
    assert_eq!(to[..9], [0, 0, 0, 0, 0, 0, 0, 0, 4]);
    assert_eq!(to[15..], [4, 8, 8, 8, 8, 8, 8]);
}

#[test]
fn a_view_is_had_only_as_declared_and_to_write_only_once() {
    let mut other = Pipeline::builder(1);
    let foreign = other.input::<u8>("foreign", 1);
    let mut builder = Pipeline::builder(1);
    let (x, y) = (builder.input::<u8>("x", 1), builder.output::<u8>("y", 1));
    let z = builder.scratch::<u8>("z", 1);
    let not_read = |views: &Views<'_>, buffer, name: &str| {
        let error = views.read(buffer).expect_err("it is not declared");
        assert_eq!(error.kind(), ErrorKind::View);
        assert_eq!(error.to_string(), format!("stage one did not declare that it reads {name}"));
    };
    let not_written = |views: &mut Views<'_>, buffer, name: &str| {
        let error = views.write(buffer).expect_err("it is not declared").to_string();
        let text = "stage one did not declare that it writes";
        assert_eq!(error, format!("{text} {name}, or has taken its view already"));
    };
    let one = move |_: &Chunk, views: &mut Views<'_>| {
        not_written(views, x, "x");
        not_read(views, y, "y");
        not_read(views, z, "z");
        not_read(views, foreign, "a buffer of another pipeline");
        assert_eq!(views.read(x), Ok(&[7][..]));
        assert_eq!(views.read(x), Ok(&[7][..]));
        views.write(y)?.fill(8);
        not_written(views, y, "y");
        Ok(())
    };
    builder.stage("one", one).read(x).write(y);
    builder.stage("two", |_, _| Ok(())).write(z);
    let mut pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED).expect("fits");
    let mut to = [0];
    let memory = HostMemory::new().read(x, &[7]).write(y, &mut to);
    crate::run(&mut pipeline, &plan, memory).expect("runs");
    assert_eq!(to, [8]);
}

#[test]
fn scratch_shows_what_was_not_written() {
    let mut builder = Pipeline::builder(3);
    let (t, y) = (builder.scratch::<f32>("t", 5), builder.output::<f32>("y", 5));
    builder.stage("forgets", |_, _| Ok(())).write(t);
    let copy = move |_: &Chunk, views: &mut Views<'_>| {
        views.write(y)?.copy_from_slice(views.read(t)?);
        Ok(())
    };
    builder.stage("copies", copy).read(t).write(y);
    let mut pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED).expect("fits");
    let mut to = [0.0; 15];
    crate::run(&mut pipeline, &plan, HostMemory::new().write(y, &mut to)).expect("runs");
    assert!(to.iter().all(|y: &f32| y.is_nan()));
}

#[test]
fn chunks_in_flight_run_at_the_same_time() {
    let mut builder = Pipeline::builder(8);
    let y = builder.output::<u64>("y", 1);
    let both = Barrier::new(2);
    let meet = |chunk: &Chunk, views: &mut Views<'_>| {
        // Deadlocks unless two chunks are in this stage.
        both.wait();
        views.write(y)?.fill(chunk.start);
        Ok(())
    };
    builder.stage("meet", meet).write(y);
    let mut pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED.in_flight(2).at_most(2)).expect("fits");
    assert_eq!((plan.len(), plan.in_flight()), (4, 2));
    let mut to = [0; 8];
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("two threads");
    pool.install(|| crate::run(&mut pipeline, &plan, HostMemory::new().write(y, &mut to)))
        .expect("runs");
    assert_eq!(to, [0, 0, 2, 2, 4, 4, 6, 6]);
}

#[test]
fn memory_that_does_not_fit_is_refused_before_anything_runs() {
    let ran = AtomicU64::new(0);
    let count = |_: &Chunk, _: &mut Views<'_>| {
        ran.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let mut builder = Pipeline::builder(4);
    let (x, y) = (builder.input::<u32>("x", 2), builder.output::<u32>("y", 1));
    let t = builder.scratch::<u32>("t", 1);
    builder.stage("count", count).read(x).write(y).write(t);
    let mut pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED).expect("fits");
    let (from, mut to) = ([0_u32; 8], [0_u32; 4]);
    let mut other = Pipeline::builder(4);
    let foreign = other.input::<u32>("x", 2);
    let mut refused = |memory: HostMemory<'_>, text: &str| {
        let error = crate::run(&mut pipeline, &plan, memory).expect_err(text);
        assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::Memory, text));
    };
    let complete = || HostMemory::new().read(x, &from);
    refused(complete(), "buffer y has no memory");
    refused(complete().read(x, &from), "buffer x has memory twice");
    let text = "memory was given for a buffer of another pipeline";
    refused(complete().read(foreign, &from), text);
    let short = HostMemory::new().read(x, &from[..7]);
    refused(short, "buffer x has 28 bytes, the items of the pipeline need 32");
    let text = "buffer x takes memory to read, not memory to write";
    refused(HostMemory::new().write(x, &mut [0; 8]), text);
    let text = "buffer y takes memory to write, not memory to read";
    refused(HostMemory::new().read(y, &to), text);
    let text = "buffer t takes none, since it is scratch, not memory to read";
    refused(HostMemory::new().read(t, &to), text);
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    crate::run(&mut pipeline, &plan, complete().write(y, &mut to)).expect("runs");
    assert_eq!(ran.load(Ordering::Relaxed), 1);
}

#[test]
fn a_plan_of_another_pipeline_is_refused() {
    let build = || {
        let mut builder = Pipeline::builder(4);
        builder.stage("stage", |_, _| Ok(()));
        builder.build().expect("built")
    };
    let (mut one, other) = (build(), build());
    let plan = other.plan(&Budget::UNLIMITED).expect("fits");
    let error = crate::run(&mut one, &plan, HostMemory::new()).expect_err("another's");
    assert_eq!(error.to_string(), "the plan was made for another pipeline");
}

#[test]
fn progress_is_reported_between_chunks_and_can_cancel() {
    let mut builder = Pipeline::builder(10);
    let (x, y) = (builder.input::<u32>("x", 2), builder.output::<u8>("y", 1));
    let t = builder.scratch::<u64>("t", 7);
    let copy = move |chunk: &Chunk, views: &mut Views<'_>| {
        views.write(y)?.fill(u8::try_from(chunk.index)?);
        Ok(())
    };
    builder.stage("copy", copy).read(x).write(y).write(t);
    let mut pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED.at_most(3)).expect("fits");
    let from = [0; 20];
    for cancel_at in [3, 6, 9, 10, 11] {
        let (mut to, mut seen) = ([9; 10], Vec::new());
        let mut watch = |progress: &Progress| {
            assert_eq!(progress.items, 10);
            assert_eq!(progress.bytes_done, 9 * progress.items_done);
            assert!(progress.remaining().is_some());
            seen.push(progress.items_done);
            if progress.items_done >= cancel_at {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let memory = HostMemory::new().read(x, &from).write(y, &mut to);
        let run = crate::run(&mut pipeline, &plan, memory.monitor(&mut watch)).expect("runs");
        let done = cancel_at.min(10);
        assert_eq!((run.items_done, run.cancelled), (done, done < 10));
        assert_eq!(seen.last(), Some(&done));
        let untouched = to.iter().filter(|element| **element == 9).count();
        assert_eq!(untouched, usize::try_from(10 - done).expect("few"));
    }
}

#[test]
fn an_outline_is_planned_but_does_not_run() {
    let mut builder = Pipeline::builder(4);
    builder.stage("works", |_, _| Ok(()));
    builder.outline("planned");
    let mut pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED).expect("fits");
    let mut outline = pipeline.outline();
    for (pipeline, stage) in [(&mut pipeline, "planned"), (&mut outline, "works")] {
        let error = crate::run(pipeline, &plan, HostMemory::new()).expect_err("it has no work");
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Unrunnable, Some(stage)));
        let text = format!("stage {stage} has no work: an outline can be planned, but not run");
        assert_eq!(error.to_string(), text);
    }
}
