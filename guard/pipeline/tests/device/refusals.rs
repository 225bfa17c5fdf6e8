//! What a pipeline on a device refuses: arguments, memory, contexts and places that do not fit.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use gridguard::{Axis, BatchAxis, Chunk, DeviceLimits, Dim3, Guard, LaunchRequest};
use gridguard_pipeline::{
    Budget, BufferUse, BuildError, DeviceMemory, DeviceViews, HostMemory, MemoryError, Pipeline,
    RunError, StageError,
};
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::chunks::{ITEMS, spilling, streams};
use crate::kernels::{context, guard, items_along, kernel, poisoned};

#[test]
fn arguments_that_do_not_fit_are_refused_with_their_stage_before_any_launch() {
    with_fake(&[], || {
        let guard = guard();
        let (iota, idle) = (kernel(&guard, "fake_iota_y"), kernel(&guard, "idle"));
        let stream = context(&guard).default_stream();
        let mut builder = Pipeline::builder(ITEMS);
        let y = builder.output::<u64>("y", 1);
        let (request, batch) = items_along(Axis::Y, ITEMS);
        builder.kernel("first", &iota, request, batch).write(y).offset().length();
        builder.kernel("second", &idle, request, batch).update(y);
        let mut pipeline = builder.build().expect("built");
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(10)).expect("it fits");
        let mut memory = poisoned(&stream, ITEMS);
        let bound = DeviceMemory::new(&stream).write(y, &mut memory);
        let error = pipeline.run(&guard, &plan, bound).expect_err("a value");
        assert_eq!(
            error.to_string(),
            "stage second failed at chunk 0 (items 0..10), after 0 of 100 items: parameter 0 of \
             kernel idle is a value, the argument is memory"
        );
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn a_total_by_value_is_refused_where_blocks_share_items() {
    with_fake(&[], || {
        let guard = guard();
        let idle = kernel(&guard, "idle");
        let stream = context(&guard).default_stream();
        let mut builder = Pipeline::builder(ITEMS);
        let request = LaunchRequest::new(Dim3::new(1, 25, 1), Dim3::new(32, 1, 1));
        let batch = BatchAxis::new(Axis::Y, ITEMS).items_per_block(4);
        builder.kernel("total", &idle, request, batch).value(ITEMS);
        let mut pipeline = builder.build().expect("built");
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(10)).expect("it fits");
        let error = pipeline.run(&guard, &plan, DeviceMemory::new(&stream));
        let text = error.expect_err("the total").to_string();
        assert!(text.contains("kernel argument 0 (100) looks like the batch size"), "{text}");
    });
}

#[test]
fn what_belongs_to_another_context_is_refused() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let (guard, other) = (guard(), Guard::cuda(1).expect("a second device"));
        let own = context(&guard).default_stream();
        let foreign = context(&other).default_stream();
        let mut spilling = spilling(&kernel(&guard, "fake_spill_y"), |_, _| Ok(()));
        let plan = spilling.pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let pipeline = &mut spilling.pipeline;
        let out = spilling.out;
        let (mut here, mut there) = (poisoned(&own, ITEMS), poisoned(&foreign, ITEMS));

        let a_stream = RunError::Memory(MemoryError::OtherContext("a stream"));
        let memory = DeviceMemory::new(&foreign).write(out, &mut there);
        assert_eq!(pipeline.run(&guard, &plan, memory), Err(a_stream.clone()));
        let more = [Arc::clone(&foreign)];
        let memory = DeviceMemory::new(&own).on_streams(&more).write(out, &mut here);
        assert_eq!(pipeline.run(&guard, &plan, memory), Err(a_stream));
        let memory = DeviceMemory::new(&own).write(out, &mut there);
        let a_memory = RunError::Memory(MemoryError::OtherContext("memory"));
        assert_eq!(pipeline.run(&guard, &plan, memory), Err(a_memory));
        let memory = DeviceMemory::new(&foreign).write(out, &mut there);
        let error = pipeline.run(&other, &plan, memory).expect_err("the kernel's");
        let text = "the guard and kernel fake_spill_y belong to different contexts";
        assert_eq!(error.to_string(), text);
        let host = Guard::host(DeviceLimits::any_device());
        let memory = DeviceMemory::new(&own).write(out, &mut here);
        let error = pipeline.run(&host, &plan, memory).expect_err("no device");
        assert!(matches!(error, RunError::Device { .. }), "{error:?}");
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn too_few_streams_or_wrong_memory_are_refused() {
    with_fake(&[], || {
        let guard = guard();
        let stream = context(&guard).default_stream();
        let mut spilling = spilling(&kernel(&guard, "fake_spill_y"), |_, _| Ok(()));
        let budget = Budget::UNLIMITED.at_most(10).in_flight(3);
        let few = MemoryError::TooFewStreams { in_flight: 3, streams: 2 };
        let (run, _) = spilling.run(&guard, budget, &streams(&guard, 1));
        assert_eq!(run, Err(RunError::Memory(few)));
        let plan = spilling.pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let missing = MemoryError::Missing("out".to_owned());
        let run = spilling.pipeline.run(&guard, &plan, DeviceMemory::new(&stream));
        assert_eq!(run, Err(RunError::Memory(missing)));
        let mut short = poisoned(&stream, ITEMS - 1);
        let buffer = "out".to_owned();
        let wrong = MemoryError::WrongLength { buffer, needed: 800, given: 792 };
        let memory = DeviceMemory::new(&stream).write(spilling.out, &mut short);
        let run = spilling.pipeline.run(&guard, &plan, memory);
        assert_eq!(run, Err(RunError::Memory(wrong)));
    });
}

#[test]
fn a_view_is_had_only_as_declared() {
    with_fake(&[], || {
        let guard = guard();
        let stream = context(&guard).default_stream();
        let mut builder = Pipeline::builder(1);
        let (x, y) = (builder.input::<u64>("x", 1), builder.output::<u64>("y", 1));
        let look = move |_: &Arc<CudaStream>, _: &Chunk, views: &DeviceViews<'_>| {
            let (stage, buffer) = ("look".to_owned(), "x".to_owned());
            assert_eq!(
                views.write(x),
                Err(StageError::NotWritten(BufferUse { stage, buffer }.into()))
            );
            let (stage, buffer) = ("look".to_owned(), "y".to_owned());
            assert_eq!(views.read(y), Err(StageError::NotRead(BufferUse { stage, buffer }.into())));
            assert_eq!((views.read(x)?.bytes, views.write(y)?.bytes), (8, 8));
            Ok(())
        };
        builder.call("look", look).read(x).write(y);
        let mut pipeline = builder.build().expect("built");
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let (from, mut to) = (poisoned(&stream, 1), poisoned(&stream, 1));
        let memory = DeviceMemory::new(&stream).read(x, &from).write(y, &mut to);
        pipeline.run(&guard, &plan, memory).expect("it runs");
    });
}

#[test]
fn stages_and_memory_are_in_the_same_place() {
    with_fake(&[], || {
        let guard = guard();
        let stream = context(&guard).default_stream();
        let mut on_device = spilling(&kernel(&guard, "fake_spill_y"), |_, _| Ok(()));
        let plan = on_device.pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let mut memory = vec![0; 100];
        let bound = HostMemory::new().write(on_device.out, &mut memory);
        let refused = on_device.pipeline.run(&guard, &plan, bound);
        let (runs_on, memory_on) = ("a device", "the host");
        let stage = "spill".to_owned();
        assert_eq!(refused, Err(RunError::OtherBackend { stage, runs_on, memory_on }));
        let mut builder = Pipeline::builder(ITEMS);
        builder.stage("host", |_, _| panic!("it is not called"));
        let mut on_host = builder.build().expect("built");
        let plan = on_host.plan(&Budget::UNLIMITED).expect("it fits");
        let refused = on_host.run(&guard, &plan, DeviceMemory::new(&stream));
        let (runs_on, memory_on) = ("the host", "a device");
        let stage = "host".to_owned();
        assert_eq!(refused, Err(RunError::OtherBackend { stage, runs_on, memory_on }));
    });
}

#[test]
fn arguments_of_a_stage_without_a_kernel_are_refused_when_the_pipeline_is_built() {
    let mut builder = Pipeline::builder(ITEMS);
    let x = builder.in_place::<u64>("x", 1);
    builder.call("copy", |_, _, _| Ok(())).update(x).length();
    let error = builder.build().map(|_| ()).expect_err("no kernel");
    assert_eq!(error, BuildError::NoKernel("copy".to_owned()));
}
