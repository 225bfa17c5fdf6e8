//! The driver's errors for images that cannot be loaded, and the guard's.
#![allow(unsafe_code, reason = "launches that the guard would never let through")]

use cudarc::driver::{LaunchConfig, PushKernelArg, sys};
use gridguard::cuda::{
    Args, CompileOptions, Compiler, CudaErrorKind, Image, ImageError, LaunchError,
};
use gridguard::{ArgsError, Axis, Choice, ComputeCapability, Parameter};

use super::support::{SOURCE, cudarc_module, guard, kernel, module, plan, stream};

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_naive_launch_is_refused_by_the_driver_and_leaves_no_trace() {
    let function = cudarc_module().load_function("count_y").expect("a function");
    let stream = stream();
    let mut out = stream.alloc_zeros::<u64>(76_800).expect("memory");
    let mut launch = stream.launch_builder(&function);
    launch.arg(&mut out).arg(&0_u64).arg(&76_800_u64);
    let config =
        LaunchConfig { grid_dim: (1, 76_800, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments match count_y.
    let refused = unsafe { launch.launch(config) }.expect_err("65,535 blocks on y");
    assert_eq!(refused.0, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    stream.synchronize().expect("no sticky error");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn images_of_no_use_are_told_apart() {
    let load = |image: &str| guard().load(&Image::new(image).expect("PTX"));
    let ptx = |version: &str, target: &str| {
        format!(".version {version}\n.target {target}\n.address_size 64\n.entry k() {{ ret; }}\n")
    };
    let own = guard().limits().compute_capability.sm();
    assert!(load(&ptx("8.0", &own)).is_ok());

    let error = load(&ptx("8.7", "sm_121")).expect_err("a later architecture");
    assert!(matches!(error.kind(), CudaErrorKind::WrongArchitecture { .. }), "{error}");
    let error = load(&ptx("99.0", &own)).expect_err("from the future");
    assert!(matches!(error.kind(), CudaErrorKind::PtxTooNew { .. }), "{error}");
    let broken = ptx("8.0", &own).replace("ret", "frobnicate");
    let error = load(&broken).expect_err("no such instruction");
    let CudaErrorKind::Refused { log, .. } = error.kind() else {
        panic!("{error}");
    };
    assert!(log.contains("frobnicate"), "the driver's own words are kept: {error}");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_driver_takes_every_ptx_that_is_an_image() {
    let own = guard().limits().compute_capability.sm();
    let body = format!(".target {own}\n.address_size 64\n.visible .entry k() {{ ret; }}\n");
    let version = b".version 8.0\n".as_slice();
    for before in [
        b"".as_slice(),
        b"\xef\xbb\xbf",
        b"\n\n \t\x0c\r\n",
        b"// \xe9\n",
        b"/* a\n * b \xff */ ",
        b"/* /*/",
        b"// /*/\n",
    ] {
        for after in [b"".as_slice(), b".file 1 \"/\xe9t\xe9/a.cu\"\n", b"// \xff", b"\0\0"] {
            let text = [before, version, body.as_bytes(), after].concat();
            let lines = text.split(|byte| *byte == b'\n').collect::<Vec<_>>().join(&b"\r\n"[..]);
            for text in [text, lines] {
                let image = Image::new(text.clone()).expect("PTX");
                let shown = String::from_utf8_lossy(&text);
                guard().load(&image).unwrap_or_else(|error| panic!("{shown:?}: {error}"));
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_cubin_for_another_architecture_and_a_cut_one_are_told_apart() {
    let compiler = Compiler::find().expect("NVRTC");
    let other = ComputeCapability::new(8, 0);
    let compiled = compiler.compile(SOURCE, &CompileOptions::new("support.cu", other));
    let image = compiled.expect("compiles").image;
    let foreign = guard().limits().compute_capability.major != 8;
    let error = guard().load(&image).map(drop);
    if foreign {
        let error = error.expect_err("another architecture");
        assert!(matches!(error.kind(), CudaErrorKind::WrongArchitecture { .. }), "{error}");
    } else {
        error.expect("its own architecture");
    }
    let bytes = image.bytes();
    for len in [5, 64, bytes.len() / 2, bytes.len() - 1] {
        let error = Image::new(&bytes[..len]).expect_err("cut");
        assert!(matches!(error, ImageError::Truncated { .. }), "{len}: {error}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_kernel_that_is_not_there_is_named() {
    // SAFETY: there is no such kernel to make a promise for.
    let error = unsafe { module().kernel("frobnicate", &[]) }.expect_err("no such kernel");
    assert!(
        matches!(error.kind(), CudaErrorKind::NoSuchKernel { name, .. } if name == "frobnicate")
    );
    // SAFETY: the declaration is wrong, and refused.
    let error = unsafe { module().kernel("add_one", &[Parameter::of::<u32>()]) };
    let error = error.expect_err("another size");
    let CudaErrorKind::Parameters { known, declared, .. } = error.kind() else {
        panic!("{error:?}");
    };
    assert_eq!((&known[..], &declared[..]), (&[8][..], &[4][..]));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn arguments_that_do_not_fit_are_refused_before_the_driver_sees_them() {
    let kernel = kernel("count_y");
    let stream = stream();
    let plan = plan(&kernel, Axis::Y, 100, Choice::AUTOMATIC);
    let mut out = stream.alloc_zeros::<u64>(99).expect("memory");

    let mut args = Args::new(&stream);
    args.write_items(&mut out, 1).offset().length();
    let short = ArgsError::BufferTooSmall { index: 0, needed: 800, available: 792 };
    assert_eq!(guard().launch(&kernel, &plan, args), Err(LaunchError::Args(short)));

    let mut args = Args::new(&stream);
    args.write(&mut out).offset();
    let refused = guard().launch(&kernel, &plan, args).expect_err("one is missing");
    assert!(matches!(
        refused,
        LaunchError::Args(ArgsError::WrongCount { expected: 3, given: 2, .. })
    ));

    let mut args = Args::new(&stream);
    args.value(0xdead_u64).offset().length();
    let refused = guard().launch(&kernel, &plan, args).expect_err("a number for memory");
    assert!(matches!(refused, LaunchError::Args(ArgsError::WrongKind { index: 0, .. })));

    let mut args = Args::new(&stream);
    args.write(&mut out).offset().length_as::<u32>();
    let refused = guard().launch(&kernel, &plan, args).expect_err("four bytes for eight");
    assert!(matches!(
        refused,
        LaunchError::Args(ArgsError::WrongSize { index: 2, expected: 8, given: 4, .. })
    ));
}
