//! Errors of the driver, of images and of the compiler.

use gridguard::ComputeCapability;
use gridguard::cuda::{CudaError, CudaErrorKind, CudaLibrary, Image};
use gridguard_test_support::{Section, texts};

/// The loader's words for a library that is not there.
const NO_FILE: &str = "cannot open shared object file: No such file or directory";

pub(crate) fn sections() -> Vec<Section> {
    vec![
        ("images", images()),
        ("modules", modules()),
        ("drivers", drivers()),
        ("compilers", compilers()),
    ]
}

fn images() -> Vec<String> {
    let image = |bytes: &[u8]| Image::new(bytes).expect_err("no image");
    let truncated = image(b"\x7fELF\x02");
    let mut big_endian = [0; 64];
    big_endian[..6].copy_from_slice(b"\x7fELF\x02\x02");
    big_endian[18] = 190;
    texts(&[
        &image(b""),
        &image(b"<html>no"),
        &truncated,
        &image(&big_endian),
        &image(b".version 8.0\n\0.target sm_90"),
        &CudaError::from(truncated.clone()),
    ])
}

fn modules() -> Vec<String> {
    texts(&[
        &CudaErrorKind::WrongArchitecture {
            image: "sm_120".into(),
            device: "NVIDIA H200".into(),
            capability: ComputeCapability::new(9, 0),
        },
        &CudaErrorKind::PtxTooNew { ptx: "9.0".into(), driver: "12.8".into() },
        &CudaErrorKind::NoSuchKernel {
            name: "attn".into(),
            known: vec!["attention".into(), "norm".into()],
        },
        &CudaErrorKind::NoSuchKernel { name: "attn".into(), known: vec![] },
    ])
}

fn drivers() -> Vec<String> {
    let tried = vec![
        ("libcuda.so.1".to_owned(), NO_FILE.to_owned()),
        ("libcuda.so".to_owned(), NO_FILE.to_owned()),
    ];
    let hidden = CudaErrorKind::NoDevice {
        cuda_visible_devices: Some("7".into()),
        driver_version: Some(13_000),
    };
    texts(&[
        &CudaErrorKind::LibraryMissing { of: CudaLibrary::Driver, tried },
        &CudaErrorKind::SymbolMissing {
            of: CudaLibrary::Driver,
            library: "libcuda.so.1".into(),
            symbol: "cuLaunchKernel",
        },
        &CudaErrorKind::TooOld { version: 11_080, oldest: 12_000 },
        &CudaErrorKind::NoDevice { cuda_visible_devices: None, driver_version: Some(13_000) },
        &CudaError::from(hidden),
        &CudaErrorKind::NoSuchDevice { ordinal: 4, count: 4 },
    ])
}

fn compilers() -> Vec<String> {
    let missing = CudaErrorKind::LibraryMissing {
        of: CudaLibrary::Nvrtc,
        tried: vec![("libnvrtc.so".into(), NO_FILE.into())],
    };
    let old = CudaErrorKind::SymbolMissing {
        of: CudaLibrary::Nvrtc,
        library: "libnvrtc.so".into(),
        symbol: "nvrtcGetCUBIN",
    };
    texts(&[
        &CudaError::from(missing),
        &old,
        &CudaErrorKind::ZeroByte { what: "the source" },
        &CudaErrorKind::Compilation {
            program: "attention.cu".into(),
            architecture: "sm_90".into(),
            code: 6,
            name: "NVRTC_ERROR_COMPILATION".into(),
            log: "attention.cu(1): error".into(),
        },
        &CudaErrorKind::Compiler {
            call: "nvrtcGetCUBIN",
            code: 2,
            name: "NVRTC_ERROR_INVALID_INPUT".into(),
        },
    ])
}
