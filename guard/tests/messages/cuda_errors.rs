//! Errors of the driver, of images and of the compiler.

use gridguard::ComputeCapability;
use gridguard::cuda::{CudaError, CudaLibrary, Image, LibraryUnavailable, LoadError, NvrtcError};
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
        &CudaError::from(LoadError::from(truncated.clone())),
    ])
}

fn modules() -> Vec<String> {
    texts(&[
        &LoadError::WrongArchitecture {
            image: "sm_120".into(),
            device: "NVIDIA H200".into(),
            capability: ComputeCapability::new(9, 0),
        },
        &LoadError::PtxTooNew { ptx: "9.0".into(), driver: "12.8".into() },
        &LoadError::NoSuchKernel {
            name: "attn".into(),
            known: vec!["attention".into(), "norm".into()],
        },
        &LoadError::NoSuchKernel { name: "attn".into(), known: vec![] },
    ])
}

fn drivers() -> Vec<String> {
    let tried = vec![
        ("libcuda.so.1".to_owned(), NO_FILE.to_owned()),
        ("libcuda.so".to_owned(), NO_FILE.to_owned()),
    ];
    let hidden = LibraryUnavailable::NoDevice {
        cuda_visible_devices: Some("7".into()),
        driver_version: Some(13_000),
    };
    texts(&[
        &LibraryUnavailable::LibraryMissing { of: CudaLibrary::Driver, tried },
        &LibraryUnavailable::SymbolMissing {
            of: CudaLibrary::Driver,
            library: "libcuda.so.1".into(),
            symbol: "cuLaunchKernel",
        },
        &LibraryUnavailable::TooOld { version: 11_080, oldest: 12_000 },
        &LibraryUnavailable::NoDevice { cuda_visible_devices: None, driver_version: Some(13_000) },
        &CudaError::from(hidden),
        &CudaError::NoSuchDevice { ordinal: 4, count: 4 },
    ])
}

fn compilers() -> Vec<String> {
    let missing = LibraryUnavailable::LibraryMissing {
        of: CudaLibrary::Nvrtc,
        tried: vec![("libnvrtc.so".into(), NO_FILE.into())],
    };
    let old = LibraryUnavailable::SymbolMissing {
        of: CudaLibrary::Nvrtc,
        library: "libnvrtc.so".into(),
        symbol: "nvrtcGetCUBIN",
    };
    texts(&[
        &CudaError::from(NvrtcError::from(missing)),
        &NvrtcError::from(old),
        &NvrtcError::ZeroByte { what: "the source" },
        &NvrtcError::Compilation {
            program: "attention.cu".into(),
            architecture: "sm_90".into(),
            code: 6,
            name: "NVRTC_ERROR_COMPILATION".into(),
            log: "attention.cu(1): error".into(),
        },
        &NvrtcError::Call {
            call: "nvrtcGetCUBIN",
            code: 2,
            name: "NVRTC_ERROR_INVALID_INPUT".into(),
        },
    ])
}
