//! Images that cannot be loaded, and kernels that are not in them.
#![allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]

use cudarc::driver::{result, sys::CUresult};
use expect_test::expect;
use gridguard::cuda::{CudaError, CudaErrorKind, Image, Kernel};
use gridguard::{Axis, ComputeCapability, Guard, Parameter};
use gridguard_test_support::fake_driver::{races, unloads, with_fake};

use crate::kernels::{
    PTX, context, guard, kernel, launch_iota, parameters, plan_along, poisoned, with_guard,
    with_kernel,
};

/// A complete CUDA ELF without sections or segments.
fn empty_cubin() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[18] = 190; // EM_CUDA
    bytes
}

fn load_error(ptx: &str) -> CudaError {
    let image = Image::new(ptx).expect("it is complete");
    guard().load(&image).expect_err("it cannot be loaded")
}

#[test]
fn ptx_for_a_later_architecture_is_refused_with_both_names() {
    with_fake(&[], || {
        let error = load_error(&PTX.replace("sm_90", "sm_120"));
        let wrong = CudaErrorKind::WrongArchitecture {
            image: "sm_120".into(),
            device: "NVIDIA H200".into(),
            capability: ComputeCapability::new(9, 0),
        };
        assert_eq!(*error.kind(), wrong);
    });
}

#[test]
fn ptx_newer_than_the_driver_is_refused_with_both_versions() {
    with_fake(&[("GRIDGUARD_FAKE_DRIVER_VERSION", "12020")], || {
        let error = load_error(&PTX.replace(".version 8.0", ".version 99.0"));
        let new = CudaErrorKind::PtxTooNew { ptx: "99.0".into(), driver: "12.2".into() };
        assert_eq!(*error.kind(), new);
    });
}

#[test]
fn the_error_of_an_image_that_the_driver_rejects_has_the_compiler_s_log() {
    with_fake(&[], || {
        // A fatbin whose header says that nothing follows.
        let mut fatbin = vec![0; 16];
        fatbin[..4].copy_from_slice(&0xba55_ed50_u32.to_le_bytes());
        fatbin[6] = 16;
        let image = Image::new(fatbin).expect("it is complete");
        let error = guard().load(&image).expect_err("the driver refuses it");
        expect![
            "cuModuleLoadDataEx returned CUDA_ERROR_INVALID_IMAGE (200): device kernel image is \
             invalid\nfake: image refused (200)"
        ]
        .assert_eq(&error.to_string());
        let CudaErrorKind::Refused { error, log } = error.kind() else {
            panic!("another error: {error:?}");
        };
        assert_eq!((error.code, log.as_str()), (200, "fake: image refused (200)"));
    });
}

#[test]
fn an_unknown_kernel_is_refused_with_the_names_of_the_others() {
    with_fake(&[], || {
        let image = Image::new(PTX).expect("PTX");
        let module = guard().load(&image).expect("it is for this device");
        // SAFETY: there is no such kernel to launch.
        let error = unsafe { module.kernel("attention", &[]) }.expect_err("no such kernel");
        assert!(matches!(error.kind(), CudaErrorKind::NoSuchKernel { name, known }
            if name == "attention" && known.len() == 8));
        for given in ["", "fake\0iota"] {
            // SAFETY: as above.
            let error = unsafe { module.kernel(given, &[]) }.expect_err("no name of a kernel");
            assert!(
                matches!(error.kind(), CudaErrorKind::NoSuchKernel { name, .. } if name == given)
            );
        }
    });
}

#[test]
fn the_kernels_of_a_cubin_are_not_known() {
    with_fake(&[], || {
        let image = Image::new(empty_cubin()).expect("it is complete");
        let module = guard().load(&image).expect("the fake driver takes any");
        // SAFETY: there is no such kernel to launch.
        let error = unsafe { module.kernel("attention", &[]) }.expect_err("no such kernel");
        expect!["the module has no kernel \"attention\""].assert_eq(&error.to_string());
    });
}

#[test]
fn declared_parameters_that_differ_from_the_driver_s_are_refused() {
    with_fake(&[], || {
        let module = guard().load(&Image::new(PTX).expect("PTX")).expect("it is for this device");
        // SAFETY: the declaration is wrong, and refused.
        let error = unsafe { module.kernel("fake_iota_y", &[Parameter::Memory]) };
        assert_eq!(
            error.expect_err("two are missing").to_string(),
            "kernel fake_iota_y takes parameters of [8, 8, 8] bytes, but [8] are declared"
        );
    });
}

#[test]
fn a_loaded_kernel_has_its_name_and_its_limits() {
    with_guard(&[], |guard| {
        let iota = kernel(&guard, "fake_iota_y");
        assert_eq!(iota.name(), "fake_iota_y");
        assert_eq!(iota.limits().device(), guard.limits());
        let wide = kernel(&guard, "wide");
        assert_eq!(wide.limits().kernel().registers_per_thread, 210);
        assert_eq!(wide.limits().kernel().max_threads_per_block, Some(256));
    });
}

#[test]
fn a_failed_query_of_parameters_is_an_error() {
    with_fake(&[("GRIDGUARD_FAKE_FAIL_PARAMETERS", "999")], || {
        let module = guard().load(&Image::new(PTX).expect("PTX")).expect("it is for this device");
        // SAFETY: it is not launched.
        let kernel = unsafe { module.kernel("fake_iota_y", parameters("fake_iota_y")) };
        let error = kernel.expect_err("the query fails");
        let CudaErrorKind::Driver(error) = error.kind() else {
            panic!("another error: {error:?}");
        };
        assert_eq!((error.call, error.code), ("cuFuncGetParamInfo", 999));
    });
}

#[test]
fn dropping_a_module_keeps_the_failure_that_cudarc_recorded() {
    with_kernel(&[], "idle", |guard, kernel, _| {
        let failed = cudarc::driver::DriverError(CUresult::CUDA_ERROR_UNKNOWN);
        context(&guard).record_err::<()>(Err(failed));
        drop(kernel);
        assert_eq!(unloads(), ["0"], "and goes all the same");
        assert_eq!(context(&guard).check_err(), Err(failed));
    });
}

#[test]
fn dropping_a_module_leaves_the_current_context() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let (guard, other) = (guard(), Guard::cuda(1).expect("a second device"));
        let kernel = kernel(&guard, "idle");
        context(&other).bind_to_thread().expect("alive");
        drop(kernel);
        assert_eq!(unloads(), ["0"]);
        let current = result::ctx::get_current().expect("the query succeeds");
        assert_eq!(current, Some(context(&other).cu_ctx()));
    });
}

#[test]
fn a_function_that_cudarc_loaded_is_unloaded_after_its_launches() {
    with_guard(&[], |guard| {
        let module = context(&guard).load_module(PTX.into()).expect("PTX");
        let function = module.load_function("fake_iota_y").expect("it is in the PTX");
        let declared = parameters("fake_iota_y");
        // SAFETY: it writes its items and nothing else.
        let kernel = unsafe { Kernel::from_cudarc(context(&guard), &function, declared) };
        let kernel = kernel.expect("these are its parameters");
        let stream = context(&guard).new_stream().expect("a stream");
        let mut out = poisoned(&stream, 8);
        let plan = plan_along(&kernel, Axis::Y, 8);
        assert_eq!(launch_iota(&guard, &kernel, &plan, &stream, &mut out), Ok(1));
        drop((module, function, kernel));
        assert_eq!((unloads().len(), races()), (1, Vec::new()));
    });
}
