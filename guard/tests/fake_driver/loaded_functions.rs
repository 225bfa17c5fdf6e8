//! Functions that cudarc loaded: as kernels of a guard, and as builders keep them.
#![allow(unsafe_code, reason = "cudarc's launches are unsafe")]

use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::nvrtc::Ptx;
use gridguard::Parameter;
use gridguard::cuda::{CudaErrorKind, Kernel, MAX_KEPT_FUNCTIONS, forget_module_of};
use gridguard_test_support::fake_driver::with_fake;

use crate::kernels::{function, guard_of};

#[test]
fn a_function_of_other_parameters_is_no_kernel_of_the_guard() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let function = function(&context, "fake_iota_y");
        // SAFETY: refused.
        let kernel = unsafe { Kernel::from_cudarc(&context, &function, &[Parameter::Memory]) };
        let (known, declared) = (vec![8; 3], vec![8]);
        let refused = CudaErrorKind::Parameters { name: "fake_iota_y".into(), known, declared };
        assert_eq!(kernel.map(drop), Err(refused.into()));
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
