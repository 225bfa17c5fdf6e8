//! Drivers that are missing, too old, broken or show no device: always a typed error.

use std::path::Path;

use expect_test::expect;
use gridguard::catalog;
use gridguard::cuda::{Compiler, CudaError, CudaErrorKind, CudaLibrary, Image, driver_version};
use gridguard::{DeviceLimits, FallbackReason, Guard};
use gridguard_test_support::fake_driver::{
    Driver, initialisations, with_driver, with_each, with_fake,
};
use gridguard_test_support::fake_library;

use crate::kernels::{self, PTX};

/// Why there is no guard of device 0.
fn unavailable() -> CudaError {
    Guard::cuda(0).expect_err("there is no usable driver")
}

#[test]
fn a_missing_driver_is_an_error_with_all_names_that_were_tried() {
    with_driver(Driver::Missing, &[], || {
        let reason = unavailable();
        let text = reason.to_string();
        assert!(text.starts_with("no CUDA driver library found (tried libcuda.so.1: "), "{text}");
        assert!(text.contains("file too short"), "the loader's words are kept: {text}");
        let CudaErrorKind::LibraryMissing { tried, .. } = reason.kind() else {
            panic!("another reason: {reason:?}");
        };
        let names: Vec<_> = tried.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["libcuda.so.1", "libcuda.so"]);
        assert!(tried.iter().all(|(name, words)| words.contains(name.as_str())));
    });
}

#[test]
fn a_driver_that_cudarc_does_not_load_is_rejected_before_use() {
    with_driver(Driver::Two, &[], || {
        let reason = unavailable();
        assert_eq!(*reason.kind(), CudaErrorKind::OtherLibrary { ours: "libcuda.so.1".into() });
        expect![
            "cudarc loads another libcuda than libcuda.so.1: remove libraries that are no driver, \
             such as a toolkit's stub, from the library path"
        ]
        .assert_eq(&reason.to_string());
        let reason = FallbackReason::Cuda(reason);
        assert_eq!(Guard::best_or_host().fallback(), Some(&reason));
    });
}

#[test]
fn without_a_driver_the_best_guard_is_the_host_under_h200_limits_with_a_reason() {
    with_driver(Driver::Missing, &[], || {
        let guard = Guard::best_or_host();
        assert!(!guard.is_cuda());
        assert!(guard.context().is_none());
        let h200 = catalog::gpu("h200").expect("catalogued");
        assert_eq!(guard.limits(), &*h200.limits);
        let reason = guard.fallback().expect("no silent fallback");
        let FallbackReason::Cuda(reason) = reason else {
            panic!("another reason: {reason}");
        };
        assert!(matches!(reason.kind(), CudaErrorKind::LibraryMissing { .. }));
        let image = Image::new(PTX).expect("PTX");
        let refused = guard.load(&image).expect_err("the host loads nothing");
        assert_eq!(&refused, reason);
    });
}

#[test]
fn a_chosen_host_is_no_fallback_and_loads_nothing() {
    with_fake(&[], || {
        let guard = Guard::host(DeviceLimits::any_device());
        assert!(guard.fallback().is_none());
        let image = Image::new(PTX).expect("PTX");
        let refused = guard.load(&image).expect_err("the host loads nothing");
        assert_eq!(*refused.kind(), CudaErrorKind::OnHost);
    });
}

#[test]
fn a_driver_without_devices_is_an_error_with_the_list_of_devices_that_do_not_exist() {
    let cases =
        [(("GRIDGUARD_FAKE_INIT", "100"), None), (("CUDA_VISIBLE_DEVICES", "7"), Some("7".into()))];
    with_each(Driver::Whole, &cases, |listed: &Option<String>| {
        let cuda_visible_devices = listed.clone();
        let none = CudaErrorKind::NoDevice { cuda_visible_devices, driver_version: Some(13_000) };
        let reason = unavailable();
        assert_eq!(*reason.kind(), none);
        assert_eq!(Guard::best_or_host().fallback(), Some(&reason.into()));
    });
}

#[test]
fn the_error_of_a_driver_that_does_not_match_the_kernel_module_is_kept() {
    with_fake(&[("GRIDGUARD_FAKE_INIT", "803")], || {
        let reason = unavailable();
        expect![
            "the CUDA driver did not initialise: cuInit returned \
             CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): system has unsupported display driver / \
             cuda driver combination"
        ]
        .assert_eq(&reason.to_string());
    });
}

#[test]
fn an_error_code_without_a_name_is_still_typed() {
    with_fake(&[("GRIDGUARD_FAKE_INIT", "54321")], || {
        let reason = unavailable();
        let CudaErrorKind::InitFailed(error) = reason.kind() else {
            panic!("another reason: {reason:?}");
        };
        assert_eq!((error.call, error.code), ("cuInit", 54_321));
        assert_eq!(error.name, "unknown error");
    });
}

#[test]
fn a_function_that_the_driver_lacks_is_named_unless_its_version_is_too_old() {
    let missing = CudaErrorKind::SymbolMissing {
        of: CudaLibrary::Driver,
        library: "libcuda.so.1".into(),
        symbol: "cuLaunchKernel",
    };
    let old = CudaErrorKind::TooOld { version: 11_080, oldest: 12_000 };
    const VERSION: &str = "GRIDGUARD_FAKE_DRIVER_VERSION";
    let cases = [((VERSION, "13000"), missing), ((VERSION, "11080"), old)];
    with_each(Driver::Broken, &cases, |kind| assert_eq!(unavailable().kind(), kind));
}

#[test]
#[allow(unsafe_code, reason = "changes the environment")]
fn a_driver_that_failed_once_is_tried_again_and_kept_once_it_works() {
    with_fake(&[("GRIDGUARD_FAKE_INIT", "999")], || {
        let set = |code: &str| {
            // SAFETY: no other thread of this process reads the environment meanwhile.
            unsafe { std::env::set_var("GRIDGUARD_FAKE_INIT", code) };
        };
        assert!(matches!(unavailable().kind(), CudaErrorKind::InitFailed(_)));
        set("100");
        assert!(matches!(unavailable().kind(), CudaErrorKind::NoDevice { .. }));
        assert!(!Guard::best_or_host().is_cuda());
        set("0");
        assert!(Guard::best_or_host().is_cuda());
        let before = initialisations();
        assert_eq!(driver_version(), Ok(13_000));
        assert_eq!(initialisations(), before);
    });
}

#[test]
#[allow(unsafe_code, reason = "changes the environment")]
fn a_compiler_that_was_missing_is_found_later() {
    with_driver(Driver::Missing, &[], || {
        if Compiler::find().is_ok() {
            // The machine has a toolkit where the environment cannot hide it.
            assert!(Path::new("/usr/local/cuda").exists());
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let [library, link, ..] = fake_library::COMPILER;
        fake_library::build(&folder.path().join("lib64"), "libnvrtc.c", library, link, None);
        // SAFETY: no other thread of this process reads the environment meanwhile.
        unsafe { std::env::set_var("CUDA_HOME", folder.path()) };
        let found = Compiler::find().expect("it is there now");
        assert!(Path::new(found.library()).starts_with(folder.path()), "{found:?}");
    });
}

#[test]
fn a_missing_compiler_is_an_error_with_all_paths_that_were_tried() {
    with_driver(Driver::Missing, &[], || {
        // The one place that the environment does not move.
        let toolkit = ["lib64", "targets/x86_64-linux/lib"]
            .map(|folder| Path::new("/usr/local/cuda").join(folder).join("libnvrtc.so"))
            .into_iter()
            .find(|path| path.exists());
        let found = Compiler::find();
        match (found.as_ref().map_err(CudaError::kind), toolkit) {
            (Ok(compiler), Some(path)) => assert_eq!(Path::new(compiler.library()), path),
            (Err(CudaErrorKind::LibraryMissing { tried, .. }), None) => {
                let names: Vec<_> = tried.iter().map(|(name, _)| name.as_str()).collect();
                assert!(names.starts_with(&["libnvrtc.so", "libnvrtc.so.13"]), "{names:?}");
                assert!(names.contains(&"/usr/local/cuda/lib64/libnvrtc.so"), "{names:?}");
            }
            (found, toolkit) => panic!("{found:?} with {toolkit:?}"),
        }
    });
}

#[test]
fn no_compiler_is_loaded_from_the_working_directory() {
    for home in ["", "toolkit", "."] {
        with_driver(Driver::Missing, &[("CUDA_HOME", home), ("CUDA_PATH", home)], || {
            let folder = tempfile::tempdir().expect("a folder");
            let home = std::env::var("CUDA_HOME").expect("it is set");
            let [library, link, ..] = fake_library::COMPILER;
            let libraries = folder.path().join(home).join("lib64");
            fake_library::build(&libraries, "libnvrtc.c", library, link, None);
            std::env::set_current_dir(folder.path()).expect("it exists");
            match Compiler::find().as_ref().map_err(CudaError::kind) {
                Ok(compiler) => {
                    assert!(Path::new(compiler.library()).is_absolute(), "{compiler:?}");
                }
                Err(CudaErrorKind::LibraryMissing { tried, .. }) => {
                    let is_file = |name: &str| name.contains("lib64") && !name.starts_with('/');
                    assert!(!tried.iter().any(|(name, _)| is_file(name)), "{tried:?}");
                }
                Err(other) => panic!("{other:?}"),
            }
        });
    }
}

#[test]
fn compiling_without_a_compiler_is_an_error_and_no_panic() {
    with_fake(&[("CUDA_HOME", "/nowhere")], || {
        let guard = kernels::guard();
        // Where the machine has a compiler, it refuses this source.
        let error =
            guard.compile("broken.cu", "this is no CUDA").expect_err("no compiler, or no program");
        match error.kind() {
            missing @ CudaErrorKind::LibraryMissing { .. } => {
                assert!(missing.to_string().contains("/nowhere/lib64/libnvrtc.so"));
            }
            CudaErrorKind::Compilation { program, log, .. } => {
                assert_eq!(program, "broken.cu");
                assert!(!log.is_empty());
            }
            other => panic!("another error: {other:?}"),
        }
    });
}
