//! Kernels of a pipeline that read several parts of a buffer, and count the parts of their items.

use gridguard::Axis;
use gridguard_pipeline::{Budget, DeviceMemory, ErrorKind, Pipeline};

use crate::kernels::{items_along, kernel, poisoned, with_guard, with_stream};
use crate::spilling::launched_arguments;

const ITEMS: u64 = 10;
/// Elements of an item.
const WIDTH: u64 = 6;

#[test]
fn parts_of_a_buffer_follow_the_chunk_with_their_offsets() {
    with_stream(&[], |guard, stream| {
        let mut builder = Pipeline::builder(ITEMS);
        let x = builder.input::<u64>("x", WIDTH);
        let t = builder.scratch::<u64>("t", WIDTH);
        let w = builder.shared_input::<u64>("w", 4);
        let y = builder.output::<u64>("y", WIDTH);
        let (request, batch) = items_along(Axis::Y, ITEMS);
        let kernel = kernel(&guard, "parts");
        let stage = builder.kernel("spread", &kernel, request, batch);
        stage.read_from(x, 0).read_from(x, 2).write(t).parts(3);
        let stage = builder.kernel("gather", &kernel, request, batch);
        // In any order with an ordinary use.
        stage.read(t).read_from(t, 5).write(y).parts(3);
        let stage = builder.kernel("shared", &kernel, request, batch);
        stage.read_from(w, 1).read_from(w, 3).update(y).parts(1);
        let mut pipeline = builder.build().expect("three stages");
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(4)).expect("it fits");
        let [from, weights, mut to] =
            [ITEMS * WIDTH, 4, ITEMS * WIDTH].map(|n| poisoned(&stream, n));
        let memory = DeviceMemory::new(&stream).read(x, &from).read(w, &weights).write(y, &mut to);
        pipeline.run(&guard, &plan, memory).expect("it runs");
        let launched = launched_arguments();
        let (x, t, y, w) = (launched[0][0], launched[1][0], launched[1][2], launched[2][0] - 8);
        let mut expected = Vec::new();
        for (start, items) in [(0, 4), (4, 4), (8, 2)] {
            let [x, y] = [x, y].map(|base| base + start * WIDTH * 8);
            expected.push(vec![x, x + 16, t, 3 * items]);
            expected.push(vec![t, t + 40, y, 3 * items]);
            expected.push(vec![w + 8, w + 24, y, items]);
        }
        assert_eq!(launched, expected);
    });
}

#[test]
fn parts_past_the_end_and_of_written_buffers_are_refused_when_the_pipeline_is_built() {
    with_guard(&[], |guard| {
        let kernel = kernel(&guard, "parts");
        let refused = |first: u64, also_written: bool| {
            let mut builder = Pipeline::builder(ITEMS);
            let t = builder.in_place::<u32>("t", WIDTH);
            let (request, batch) = items_along(Axis::Y, ITEMS);
            let stage = builder.kernel("spread", &kernel, request, batch);
            let stage = stage.read_from(t, first);
            if also_written {
                stage.write(t);
            }
            builder.build().map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(refused(WIDTH - 1, false), Ok(()));
        for first in [WIDTH, u64::MAX] {
            let past = format!("stage spread reads t from element {first} on, it has 6");
            assert_eq!(refused(first, false), Err(past));
        }
        let twice = refused(1, true).expect_err("it is read and written");
        assert!(twice.starts_with("stage spread declares buffer t twice"), "{twice}");
        let mut others = Pipeline::builder(ITEMS);
        let foreign = others.input::<u64>("x", 1);
        let mut builder = Pipeline::builder(ITEMS);
        let (request, batch) = items_along(Axis::Y, ITEMS);
        builder.kernel("spread", &kernel, request, batch).read_from(foreign, 0);
        let error = builder.build().map(|_| ()).expect_err("another pipeline's");
        assert_eq!(error.to_string(), "stage spread uses a buffer of another pipeline");
    });
}

#[test]
fn a_part_that_is_not_aligned_as_its_kernel_requires_fails_before_anything_runs() {
    with_stream(&[], |guard, stream| {
        let mut builder = Pipeline::builder(ITEMS);
        // 256 bytes an item.
        let x = builder.input::<u64>("x", 32);
        let y = builder.output::<u64>("y", 1);
        let (request, batch) = items_along(Axis::Y, ITEMS);
        let kernel = kernel(&guard, "fake_spill_y");
        let stage = builder.kernel("spill", &kernel, request, batch);
        stage.write(y).offset().length().read_from(x, 1);
        let mut pipeline = builder.build().expect("one stage");
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let (from, mut to) = (poisoned(&stream, 32 * ITEMS), poisoned(&stream, ITEMS));
        let memory = DeviceMemory::new(&stream).read(x, &from).write(y, &mut to);
        let error = pipeline.run(&guard, &plan, memory).expect_err("misaligned");
        assert_eq!(error.kind(), ErrorKind::Stage);
        assert!(error.to_string().contains("must be aligned to 256 bytes"), "{error}");
        let done = error.done().expect("it was prepared").items_done;
        assert_eq!((done, launched_arguments().len()), (0, 0));
    });
}
