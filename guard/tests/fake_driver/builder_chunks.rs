//! cudarc's launch builder in chunks, with a guard.
#![allow(unsafe_code, reason = "cudarc's launches are unsafe")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, sys};
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{LaunchBuilder, LaunchError};
use gridguard::{ArgsError, Axis, BatchAxis, Guard, LaunchRequest};
use gridguard_test_support::fake_driver::{Driver, launches, with_driver, with_fake};

use crate::kernels::{
    assert_ordered, function, guard_of, iota, loaded_by_cudarc, on_y, poisoned, read,
};

/// One more than the driver takes along y.
const ITEMS: u64 = 65_536;

fn batch(items: u64) -> BatchAxis {
    BatchAxis::new(Axis::Y, items)
}

/// Launches `fake_iota_y` over all of `out` in as many launches as it takes.
fn launch(
    guard: &Guard,
    stream: &CudaStream,
    function: &CudaFunction,
    out: &mut CudaSlice<u64>,
) -> Result<u64, LaunchError> {
    let items = u64::try_from(out.len()).expect("few items");
    let mut launch = guard.builder(stream, function);
    launch.batch(batch(items)).write_items(out, 1).offset().length();
    // SAFETY: the function takes these three, and the fake driver checks the memory.
    unsafe { launch.launch(on_y(items)) }
}

/// A function that writes a number for each item, with a first item and a length of 4 bytes.
fn narrow(context: &Arc<CudaContext>) -> CudaFunction {
    let ptx = "// fake fake_iota_y params=8,4,4\n.version 8.0\n.target sm_90\n.address_size 64\n\
               .visible .entry fake_iota_y(\n)\n";
    let module = context.load_module(Ptx::from_src(ptx)).expect("PTX");
    module.load_function("fake_iota_y").expect("it is in the PTX")
}

#[test]
fn a_launch_that_is_too_large_runs_in_chunks() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let stream = context.new_stream().expect("a stream");
        let guard = guard_of(&context);
        for function in [function(&context, "fake_iota_y"), narrow(&context)] {
            let mut out = poisoned(&stream, ITEMS);
            assert_eq!(launch(&guard, &stream, &function, &mut out), Ok(2));
            assert_eq!(read(&stream, &out), iota(ITEMS));
        }
        let counts = guard.counts();
        assert_eq!((counts.plans, counts.launches), (2, 4));
    });
}

#[test]
fn chunks_run_with_a_driver_that_does_not_know_the_parameters() {
    with_driver(Driver::Old, &[], || {
        let (_, guard, stream, function) = loaded_by_cudarc("fake_iota_y");
        let mut out = poisoned(&stream, ITEMS);
        assert_eq!(launch(&guard, &stream, &function, &mut out), Ok(2));
        assert_eq!(read(&stream, &out), iota(ITEMS));
    });
}

#[test]
fn arguments_may_be_declared_after_the_builder_and_sent_twice() {
    with_fake(&[], || {
        let (_, guard, stream, function) = loaded_by_cudarc("fake_iota_y");
        let mut out = poisoned(&stream, 8);
        {
            let mut launch = guard.builder(&stream, &function);
            let (first, items) = (0_u64, 8_u64);
            let mut whole = out.slice_mut(..);
            launch.batch(batch(8)).write_items(&mut whole, 1).arg(&first).arg(&items);
            for _ in 0..2 {
                // SAFETY: the function takes these three.
                unsafe { launch.launch(on_y(8)) }.expect("legal");
            }
        }
        assert_eq!((read(&stream, &out), launches().len()), (iota(8), 2));
    });
}

/// Launches `idle` with the argument that `fill` adds, over `items` items, `shared` of them a block.
fn launch_idle<'a>(
    guard: &'a Guard,
    stream: &'a CudaStream,
    function: &'a CudaFunction,
    (shared, items): (u64, u64),
    fill: impl FnOnce(&mut LaunchBuilder<'a, CudaFunction>),
) -> Result<u64, LaunchError> {
    let mut launch = guard.builder(stream, function);
    launch.batch(BatchAxis::new(Axis::Y, items).items_per_block(shared));
    fill(&mut launch);
    // SAFETY: the function takes eight bytes and does nothing.
    unsafe { launch.launch(on_y(items.div_ceil(shared))) }
}

#[test]
fn the_total_of_a_batch_whose_blocks_share_items_is_refused_in_chunks() {
    with_fake(&[], || {
        let (_, guard, stream, function) = loaded_by_cudarc("idle");
        let total = 4 * ITEMS;
        let (signed, other, float) = (total.cast_signed(), total - 1, f64::from_bits(total));
        let (guard, stream, function) = (&guard, &*stream, &function);
        let wrong = Err(ArgsError::TotalInChunks { index: 0, items: total }.into());
        let shared = (4, total);
        assert_eq!(launch_idle(guard, stream, function, shared, |it| _ = it.arg(&total)), wrong);
        assert_eq!(launch_idle(guard, stream, function, shared, |it| _ = it.arg(&signed)), wrong);
        assert_eq!(launches().len(), 0);
        let two = Ok(2);
        assert_eq!(launch_idle(guard, stream, function, shared, |it| _ = it.arg(&other)), two);
        assert_eq!(launch_idle(guard, stream, function, shared, |it| _ = it.arg(&float)), two);
        assert_eq!(launch_idle(guard, stream, function, shared, |it| _ = it.constant(total)), two);
        assert_eq!(launch_idle(guard, stream, function, shared, |it| _ = it.length()), two);
        // A block of one item never has fewer, and in one launch it is the number of items.
        let alone =
            |shared| launch_idle(guard, stream, function, (shared, ITEMS), |it| _ = it.arg(&ITEMS));
        assert_eq!((alone(1), alone(4)), (Ok(2), Ok(1)));
    });
}

#[test]
fn uses_of_items_are_ordered_between_streams() {
    with_fake(&[], || {
        let (context, guard, _, function) = loaded_by_cudarc("fake_iota_y");
        let [one, two] = [(); 2].map(|()| context.new_stream().expect("a stream"));
        let mut out = poisoned(&one, ITEMS);
        for stream in [&two, &one, &two] {
            launch(&guard, stream, &function, &mut out).expect("splits");
        }
        drop(out);
        assert_ordered();
    });
}

#[test]
fn an_offset_of_4_bytes_takes_no_batch_past_31_bits() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let guard = guard_of(&context);
        let (stream, function) = (context.default_stream(), narrow(&context));
        let mut out = poisoned(&stream, 8);
        let mut launch = guard.builder(&stream, &function);
        let items = 1_u64 << 31;
        launch.batch(BatchAxis::new(Axis::Y, items).items_per_block(1 << 20));
        launch.arg(&mut out).offset().length();
        // SAFETY: nothing is launched.
        let error = unsafe { launch.launch(on_y(2048)) }.expect_err("too many items");
        assert_eq!(error, ArgsError::ItemsPast32Bits { index: 1, signed: true, items }.into());
    });
}

/// The code of cudarc's error that `error` becomes.
fn code(error: LaunchError) -> sys::CUresult {
    cudarc::driver::DriverError::from(error).0
}

#[test]
fn errors_become_those_that_the_driver_returns() {
    with_fake(&[], || {
        let (_, guard, stream, wide) = loaded_by_cudarc("wide");
        let refused = |config: LaunchConfig, cooperative: bool| {
            let mut launch = guard.builder(&stream, &wide);
            let mut request = LaunchRequest::from(config);
            request.cooperative = cooperative;
            // SAFETY: nothing is launched.
            let launched = unsafe { launch.launch(request) };
            code(launched.expect_err("refused"))
        };
        let with_block = |threads| LaunchConfig { block_dim: (threads, 1, 1), ..on_y(1) };
        assert_eq!(refused(on_y(ITEMS), false), sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        let registers = sys::CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
        assert_eq!(refused(with_block(320), false), registers);
        let too_large = sys::CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
        assert_eq!(refused(with_block(320), true), too_large);
        let shared = LaunchConfig { shared_mem_bytes: 1 << 20, ..on_y(1) };
        assert_eq!(refused(shared, true), too_large);
        // `?` in a function that returns cudarc's errors.
        let returns = || -> Result<(), cudarc::driver::DriverError> {
            // SAFETY: nothing is launched.
            unsafe { guard.builder(&stream, &wide).launch(on_y(0))? };
            Ok(())
        };
        assert_eq!(returns().expect_err("refused").0, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn a_builder_that_launches_nothing_records_no_use() {
    with_fake(&[], || {
        let (context, guard, _, look) = loaded_by_cudarc("look");
        let [one, two] = [(); 2].map(|()| context.new_stream().expect("a stream"));
        let memory = poisoned(&one, 8);
        let mut launch = guard.builder(&two, &look);
        launch.batch(batch(8)).read_items(&memory, 1);
        // SAFETY: the function takes a pointer.
        unsafe { launch.launch(on_y(8)) }.expect("legal");
        guard.builder(&one, &look).read_items(&memory, 1);
        drop(memory);
        assert_ordered();
    });
}
