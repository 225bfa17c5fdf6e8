//! Errors of the driver, of images and of the compiler.

use gridguard::ComputeCapability;
use gridguard::cuda::{
    CudaError, CudaLibrary, Image, LibraryUnavailable, LoadError, NvrtcError, ProductError,
    ProductShape,
};

use crate::read_as;

/// The loader's words for a library that is not there.
const NO_FILE: &str = "cannot open shared object file: No such file or directory";

#[test]
fn images_that_are_none_say_what_is_wrong_with_them() {
    let image = |bytes: &[u8]| Image::new(bytes).expect_err("no image");
    let truncated = image(b"\x7fELF\x02");
    let mut big_endian = [0; 64];
    big_endian[..6].copy_from_slice(b"\x7fELF\x02\x02");
    big_endian[18] = 190;
    read_as(&[
        (&image(b""), "the image is empty"),
        (
            &image(b"<html>no"),
            "the image is not PTX, a cubin or a fatbin: it begins with [3c, 68, 74, 6d, 6c, 3e, \
             6e, 6f]",
        ),
        (&truncated, "the image is truncated: its ELF header ends at byte 64, but it has 5 bytes"),
        (
            &image(&big_endian),
            "the image is damaged: the byte order of its ELF header is invalid (2)",
        ),
        (&image(b".version 8.0\n\0.target sm_90"), "the PTX contains a zero byte at offset 13"),
        (
            &CudaError::from(LoadError::from(truncated.clone())),
            "the image is truncated: its ELF header ends at byte 64, but it has 5 bytes",
        ),
    ]);
}

#[test]
fn a_module_that_does_not_load_has_a_reason() {
    read_as(&[
        (
            &LoadError::WrongArchitecture {
                image: "sm_120".into(),
                device: "NVIDIA H200".into(),
                capability: ComputeCapability::new(9, 0),
            },
            "the image is for sm_120, but NVIDIA H200 has compute capability 9.0",
        ),
        (
            &LoadError::PtxTooNew { ptx: "9.0".into(), driver: "12.8".into() },
            "the PTX version 9.0 is newer than the driver, which supports CUDA 12.8: update the \
             driver, or compile with an older toolkit",
        ),
        (
            &LoadError::NoSuchKernel {
                name: "attn".into(),
                known: vec!["attention".into(), "norm".into()],
            },
            "the module has no kernel \"attn\": it has attention, norm",
        ),
        (
            &LoadError::NoSuchKernel { name: "attn".into(), known: vec![] },
            "the module has no kernel \"attn\"",
        ),
    ]);
}

#[test]
fn a_driver_that_is_not_there_is_told_from_one_that_is_too_old() {
    let tried = vec![
        ("libcuda.so.1".to_owned(), NO_FILE.to_owned()),
        ("libcuda.so".to_owned(), NO_FILE.to_owned()),
    ];
    let hidden = LibraryUnavailable::NoDevice {
        cuda_visible_devices: Some("7".into()),
        driver_version: Some(13_000),
    };
    read_as(&[
        (
            &LibraryUnavailable::LibraryMissing { of: CudaLibrary::Driver, tried },
            "no CUDA driver library found (tried libcuda.so.1, libcuda.so)",
        ),
        (
            &LibraryUnavailable::SymbolMissing {
                of: CudaLibrary::Driver,
                library: "libcuda.so.1".into(),
                symbol: "cuLaunchKernel",
            },
            "libcuda.so.1 has no cuLaunchKernel: it is too old, or not the CUDA driver",
        ),
        (
            &LibraryUnavailable::TooOld { version: 11_080, oldest: 12_000 },
            "the driver supports CUDA 11.8, at least 12.0 is needed: update the driver",
        ),
        (
            &LibraryUnavailable::NoDevice {
                cuda_visible_devices: None,
                driver_version: Some(13_000),
            },
            "the CUDA driver sees no device",
        ),
        (
            &CudaError::from(hidden),
            "the CUDA driver sees no device under CUDA_VISIBLE_DEVICES=\"7\": unset it, or name a \
             device that exists",
        ),
        (
            &CudaError::NoSuchDevice { ordinal: 4, count: 4 },
            "there is no device 4: 4 are visible, devices 0 to 3",
        ),
    ]);
}

#[test]
fn a_compiler_that_is_not_there_is_told_from_a_source_that_is_refused() {
    let missing = LibraryUnavailable::LibraryMissing {
        of: CudaLibrary::Nvrtc,
        tried: vec![("libnvrtc.so".into(), NO_FILE.into())],
    };
    let old = LibraryUnavailable::SymbolMissing {
        of: CudaLibrary::Nvrtc,
        library: "libnvrtc.so".into(),
        symbol: "nvrtcGetCUBIN",
    };
    read_as(&[
        (
            &CudaError::from(NvrtcError::from(missing)),
            "no NVRTC library found (tried libnvrtc.so): install the CUDA toolkit's libnvrtc, or \
             add its folder to the library path",
        ),
        (&NvrtcError::from(old), "libnvrtc.so has no nvrtcGetCUBIN: it is too old, or not NVRTC"),
        (&NvrtcError::ZeroByte { what: "the source" }, "the source contains a zero byte"),
        (
            &NvrtcError::Compilation {
                program: "attention.cu".into(),
                architecture: "sm_90".into(),
                code: 6,
                name: "NVRTC_ERROR_COMPILATION".into(),
                log: "attention.cu(1): error".into(),
            },
            "attention.cu did not compile for sm_90: NVRTC_ERROR_COMPILATION (6)\n\
             attention.cu(1): error",
        ),
        (
            &NvrtcError::Call {
                call: "nvrtcGetCUBIN",
                code: 2,
                name: "NVRTC_ERROR_INVALID_INPUT".into(),
            },
            "nvrtcGetCUBIN returned NVRTC_ERROR_INVALID_INPUT (2)",
        ),
    ]);
}

#[test]
fn products_say_which_tensor_or_size_does_not_fit() {
    let shape = ProductShape { rows: 16, inner: 320, columns: 960, bias: true, residual: false };
    let tried = vec![("libcublasLt.so".to_owned(), NO_FILE.to_owned())];
    read_as(&[
        (
            &ProductError::from(LibraryUnavailable::SymbolMissing {
                of: CudaLibrary::CublasLt,
                library: "libc.so.6".to_owned(),
                symbol: "cublasLtGetVersion",
            }),
            "libc.so.6 has no cublasLtGetVersion: it is too old, or not cuBLASLt",
        ),
        (
            &ProductError::from(LibraryUnavailable::LibraryMissing {
                of: CudaLibrary::CublasLt,
                tried,
            }),
            "no cuBLASLt library found (tried libcublasLt.so): install the CUDA toolkit's \
             libcublasLt, or add its folder to the library path",
        ),
        (
            &ProductError::Call {
                call: "cublasLtMatmul",
                code: 7,
                name: "CUBLAS_STATUS_INVALID_VALUE".to_owned(),
            },
            "cublasLtMatmul returned CUBLAS_STATUS_INVALID_VALUE (7)",
        ),
        (
            &ProductError::Size { size: "rows", given: 0, most: 2_147_483_647 },
            "rows is 0, cuBLASLt takes 1 to 2147483647",
        ),
        (
            &ProductError::NoAlgorithm { shape, element: "f16", workspace_bytes: 0 },
            "cuBLASLt has no algorithm for a f16 product of 16 x 320 and 320 x 960 with 0 bytes of \
             workspace",
        ),
        (
            &ProductError::Algorithm { given: 4, count: 4 },
            "algorithm is 4, the product has 4, counted from 0",
        ),
        (
            &ProductError::Buffer {
                tensor: "x",
                given: "640 bytes an item".to_owned(),
                expected: "10240 bytes an item".to_owned(),
            },
            "x has 640 bytes an item, the product takes 10240 bytes an item",
        ),
        (
            &ProductError::MisalignedItems { tensor: "out", bytes: 24 },
            "out has 24 bytes an item, which is not a multiple of 16",
        ),
        (
            &ProductError::Operand { tensor: "bias", given: "not given", expected: "with" },
            "bias was not given, the product was made with it",
        ),
        (
            &ProductError::Misaligned { tensor: "x", address: 0x7f02 },
            "x is at 0x7f02, which is not a multiple of 16 bytes",
        ),
    ]);
}
