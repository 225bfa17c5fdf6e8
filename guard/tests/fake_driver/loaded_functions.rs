//! Functions that cudarc loaded: as kernels of a guard, by their handles, and as builders keep them.
#![allow(unsafe_code, reason = "cudarc's launches are unsafe")]

use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{
    Args, CudaError, Kernel, LaunchError, LoadError, MAX_KEPT_FUNCTIONS, RawLaunch,
    forget_module_of,
};
use gridguard::{Axis, Guard, Parameter, RawArgs};
use gridguard_test_support::fake_driver::with_fake;

use crate::builder::function;
use crate::kernels::{guard_of, iota, items_along, parameters, poisoned, raw, read};

/// One more than the driver takes along y.
const ITEMS: u64 = 65_536;

#[test]
fn a_function_that_cudarc_loaded_is_a_kernel_of_the_guard() {
    with_fake(&[], || {
        let guard = Guard::cuda(0).expect("a device");
        let context = guard.context().expect("on the device");
        let function = function(context, "fake_iota_y");
        let declared = parameters("fake_iota_y");
        // SAFETY: the fake driver's kernel writes its items and nothing else.
        let kernel = unsafe { Kernel::from_cudarc(context, &function, declared) };
        let kernel = kernel.expect("it takes them");
        drop(function);
        let stream = context.new_stream().expect("a stream");
        let mut out = poisoned(&stream, ITEMS);
        let (request, batch) = items_along(Axis::Y, ITEMS);
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length();
        let launched = guard.launch(&kernel, (&request, &batch), args);
        assert_eq!((launched, kernel.name()), (Ok(2), "fake_iota_y"));
        assert_eq!(read(&stream, &out), iota(ITEMS));
    });
}

#[test]
fn a_function_of_other_parameters_is_no_kernel_of_the_guard() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let function = function(&context, "fake_iota_y");
        // SAFETY: refused.
        let kernel = unsafe { Kernel::from_cudarc(&context, &function, &[Parameter::Memory]) };
        let (known, declared) = (vec![8; 3], vec![8]);
        let refused = LoadError::Parameters { name: "fake_iota_y".into(), known, declared };
        assert_eq!(kernel.map(drop), Err(CudaError::Load(refused)));
    });
}

#[test]
fn a_guard_counts_what_it_launches_by_handles() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let guard = Guard::cuda(0).expect("a device");
        let context = guard.context().expect("on the device");
        let (stream, function) = (context.default_stream(), function(context, "fake_iota_y"));
        let kernel = raw(&guard, &function, None);
        let mut out = poisoned(&stream, ITEMS);
        let (request, batch) = items_along(Axis::Y, ITEMS);
        let launch = |guard: &Guard, args: &RawArgs<'_>| {
            let stream = stream.cu_stream().cast();
            let launch = RawLaunch::Request(&request, Some(&batch), args);
            // SAFETY: the stream is of the context, and the arguments fit the function.
            unsafe { guard.launch_raw(&kernel, stream, launch) }
        };
        {
            use cudarc::driver::DevicePtrMut;
            let (address, _used) = out.device_ptr_mut(&stream);
            let mut args = RawArgs::new();
            args.items_within(address, 8, 8, 8 * ITEMS).offset().length();
            assert_eq!(launch(&guard, &args), Ok(2));
            let stranger = Guard::cuda(1).expect("another device");
            assert!(matches!(launch(&stranger, &args), Err(LaunchError::OtherContext { .. })));
        }
        assert_eq!(guard.counts().launches, 2);
        assert_eq!(read(&stream, &out), iota(ITEMS));
    });
}

#[test]
fn functions_of_one_module_are_forgotten_alone() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let guard = guard_of(&context);
        let stream = context.default_stream();
        let module = || context.load_module(Ptx::from_src(crate::kernels::PTX)).expect("PTX");
        let functions = |names: [&str; 2]| {
            let module = module();
            names.map(|name| module.load_function(name).expect("it is in the PTX"))
        };
        let (of_one, of_other) = (functions(["wide", "idle"]), functions(["wide", "idle"]));
        for function in of_one.iter().chain(&of_other) {
            guard.builder(&stream, function).kernel().expect("known");
        }
        let held = || Arc::strong_count(&context);
        forget_module_of(&of_one[0]);
        let before = held();
        drop(of_one);
        assert_eq!(held(), before - 1, "nothing else holds the module");
        let before = held();
        drop(of_other);
        assert_eq!(held(), before, "the table holds the other");
    });
}

#[test]
fn a_program_that_loads_functions_without_end_does_not_keep_them_all() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let guard = guard_of(&context);
        let stream = context.default_stream();
        let before = Arc::strong_count(&context);
        let mut most = 0;
        for _ in 0..MAX_KEPT_FUNCTIONS + 8 {
            let function = function(&context, "wide");
            guard.builder(&stream, &function).kernel().expect("known");
            most = most.max(Arc::strong_count(&context));
        }
        assert!(most <= before + 2 * (MAX_KEPT_FUNCTIONS + 1), "{most}");
        assert!(Arc::strong_count(&context) <= before + 2 * 8, "forgotten when full");
    });
}
