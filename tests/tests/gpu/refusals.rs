//! What the driver refuses, and which images it takes.
#![allow(unsafe_code, reason = "launches that the guard would never let through")]

use cudarc::driver::{LaunchConfig, PushKernelArg, sys};
use gridguard::cuda::{CudaErrorKind, Image};

use super::support::{cudarc_module, guard, stream};

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
fn the_driver_s_words_about_ptx_that_it_refuses_are_kept() {
    let own = guard().limits().compute_capability.sm();
    let body = ".address_size 64\n.entry k() { frobnicate; }\n";
    let image = Image::new(format!(".version 8.0\n.target {own}\n{body}")).expect("PTX");
    let error = guard().load(&image).expect_err("no such instruction");
    let CudaErrorKind::Refused { log, .. } = error.kind() else { panic!("{error}") };
    assert!(log.contains("frobnicate"), "{error}");
}
