//! What a pipeline on a device refuses: arguments, memory, contexts and places that do not fit.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use gridguard::{Axis, BatchAxis, Chunk, DeviceLimits, Dim3, Guard, LaunchRequest};
use gridguard_pipeline::{
    Budget, DeviceMemory, DeviceViews, Error, ErrorKind, HostMemory, Pipeline, PipelineRun,
};
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{context, guard, items_along, kernel, poisoned, with_stream};
use crate::spilling::{ITEMS, spilling, streams};

#[track_caller]
fn assert_text(ran: Result<PipelineRun, Error>, text: &str) {
    assert_eq!(ran.expect_err(text).to_string(), text);
}

#[test]
fn arguments_that_do_not_fit_are_refused_with_their_stage_before_any_launch() {
    with_stream(&[], |guard, stream| {
        let (iota, idle) = (kernel(&guard, "fake_iota_y"), kernel(&guard, "idle"));
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
    with_stream(&[], |guard, stream| {
        let idle = kernel(&guard, "idle");
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
        let mut spilling = spilling(&guard, false, |_| Ok(()));
        let plan = spilling.pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let pipeline = &mut spilling.pipeline;
        let out = spilling.out;
        let (mut here, mut there) = (poisoned(&own, ITEMS), poisoned(&foreign, ITEMS));

        let a_stream = "a stream belongs to another CUDA context than the guard";
        let memory = DeviceMemory::new(&foreign).write(out, &mut there);
        assert_text(pipeline.run(&guard, &plan, memory), a_stream);
        let more = [Arc::clone(&foreign)];
        let memory = DeviceMemory::new(&own).on_streams(&more).write(out, &mut here);
        assert_text(pipeline.run(&guard, &plan, memory), a_stream);
        let memory = DeviceMemory::new(&own).write(out, &mut there);
        let a_memory = "memory belongs to another CUDA context than the guard";
        assert_text(pipeline.run(&guard, &plan, memory), a_memory);
        let memory = DeviceMemory::new(&foreign).write(out, &mut there);
        let text = "the guard and kernel fake_spill_y belong to different contexts";
        assert_text(pipeline.run(&other, &plan, memory), text);
        let host = Guard::host(DeviceLimits::any_device());
        let memory = DeviceMemory::new(&own).write(out, &mut here);
        let error = pipeline.run(&host, &plan, memory).expect_err("no device");
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn too_few_streams_or_wrong_memory_are_refused() {
    with_stream(&[], |guard, stream| {
        let mut spilling = spilling(&guard, false, |_| Ok(()));
        let budget = Budget::UNLIMITED.at_most(10).in_flight(3);
        let (run, _) = spilling.run(&guard, budget, &streams(&guard, 1));
        assert_text(run, "the plan has 3 chunks in flight, but only 2 streams");
        let plan = spilling.pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let run = spilling.pipeline.run(&guard, &plan, DeviceMemory::new(&stream));
        assert_text(run, "buffer out has no memory");
        let mut short = poisoned(&stream, ITEMS - 1);
        let memory = DeviceMemory::new(&stream).write(spilling.out, &mut short);
        let run = spilling.pipeline.run(&guard, &plan, memory);
        assert_text(run, "buffer out has 792 bytes, the items of the pipeline need 800");
        let many =
            (0..33).fold(DeviceMemory::new(&stream), |memory, _| memory.read(spilling.out, &short));
        let run = spilling.pipeline.run(&guard, &plan, many);
        assert_text(run, "the pipeline has 33 buffers of the caller, the limit is 32");
    });
}

#[test]
fn a_view_is_had_only_as_declared() {
    with_stream(&[], |guard, stream| {
        let mut builder = Pipeline::builder(1);
        let (x, y) = (builder.input::<u64>("x", 1), builder.output::<u64>("y", 1));
        let look = move |_: &Arc<CudaStream>, _: &Chunk, views: &DeviceViews<'_>| {
            let not_written = views.write(x).expect_err("x is read").to_string();
            let text = "stage look did not declare that it writes x, or has taken its view already";
            assert_eq!(not_written, text);
            let not_read = views.read(y).expect_err("y is written").to_string();
            assert_eq!(not_read, "stage look did not declare that it reads y");
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
    with_stream(&[], |guard, stream| {
        let mut on_device = spilling(&guard, false, |_| Ok(()));
        let plan = on_device.pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let mut memory = vec![0; 100];
        let bound = HostMemory::new().write(on_device.out, &mut memory);
        let refused = on_device.pipeline.run(&guard, &plan, bound);
        assert_text(refused, "stage spill runs on a device, the memory given is on the host");
        let mut builder = Pipeline::builder(ITEMS);
        builder.stage("host", |_, _| panic!("it is not called"));
        let mut on_host = builder.build().expect("built");
        let plan = on_host.plan(&Budget::UNLIMITED).expect("it fits");
        let refused = on_host.run(&guard, &plan, DeviceMemory::new(&stream));
        assert_text(refused, "stage host runs on the host, the memory given is on a device");
    });
}

#[test]
fn arguments_of_a_stage_without_a_kernel_are_refused_when_the_pipeline_is_built() {
    let mut builder = Pipeline::builder(ITEMS);
    let x = builder.in_place::<u64>("x", 1);
    builder.call("copy", |_, _, _| Ok(())).update(x).length();
    let error = builder.build().map(|_| ()).expect_err("no kernel");
    let text = "stage copy launches no kernel: remove its arguments, or declare it with kernel";
    assert_eq!(error.to_string(), text);
}
