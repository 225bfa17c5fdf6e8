//! The attributes that images state equal the attributes that the driver reports once they are loaded.
#![allow(unsafe_code, reason = "queries that the guard does not make")]

use core::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::{env, fs};

use cudarc::driver::CudaFunction;
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{CompileOptions, Compiler, device_limits};
use gridguard::image::{FileImage, Image, ImageFile, KernelAttributes};
use gridguard::{DeviceLimits, Dim3, LaunchLimits};
use gridguard_kernels::argsort::{Argsort, Order};
use gridguard_kernels::compare::Compare;
use gridguard_kernels::geglu::Geglu;
use gridguard_kernels::layer_norm::LayerNorm;
use gridguard_kernels::rms_norm::RmsNorm;
use gridguard_kernels::softmax::Softmax;
use gridguard_kernels::temporal_attention::{Shape, TemporalAttention};
use gridguard_kernels::{Code, ElementType, KernelError, Operation};
use libloading::Library;

use super::support::{SOURCE, context};

/// The driver's queries about functions.
struct Queries {
    attribute: unsafe extern "C" fn(*mut c_int, c_int, *mut c_void) -> c_int,
    /// Since CUDA 12.4.
    parameter: Option<unsafe extern "C" fn(*mut c_void, usize, *mut usize, *mut usize) -> c_int>,
    _library: Library,
}

impl Queries {
    fn new() -> Self {
        // SAFETY: the driver is already loaded, and the signatures match cuda.h.
        unsafe {
            let library = Library::new("libcuda.so.1").expect("the driver");
            let attribute = *library.get(b"cuFuncGetAttribute").expect("in every driver");
            let parameter = library.get(b"cuFuncGetParamInfo").ok().map(|symbol| *symbol);
            Self { attribute, parameter, _library: library }
        }
    }

    fn attribute(&self, function: &CudaFunction, number: c_int) -> u64 {
        let mut value = 0;
        // SAFETY: the function is loaded, and the pointer is to a live integer.
        let status = unsafe { (self.attribute)(&mut value, number, function.cu_function().cast()) };
        assert_eq!(status, 0, "attribute {number}");
        u64::try_from(value).expect("a size")
    }

    /// Where the last parameter ends, if the driver tells.
    fn parameter_bytes(&self, function: &CudaFunction) -> Option<u64> {
        let (mut end, mut index) = (0, 0);
        loop {
            let (mut offset, mut size) = (0, 0);
            let function = function.cu_function().cast();
            // SAFETY: the function is loaded, and both pointers are to live integers.
            let status = unsafe { self.parameter?(function, index, &mut offset, &mut size) };
            if status != 0 {
                return Some(u64::try_from(end).expect("a size"));
            }
            (end, index) = (offset + size, index + 1);
        }
    }

    /// What the driver reports, where the image states it.
    fn reported(
        &self,
        stated: &KernelAttributes,
        function: &CudaFunction,
        device: &DeviceLimits,
    ) -> KernelAttributes {
        // As in cuda.h: `CU_FUNC_ATTRIBUTE_` MAX_THREADS_PER_BLOCK, SHARED_SIZE_BYTES, LOCAL_SIZE_BYTES,
        // NUM_REGS, CLUSTER_SIZE_MUST_BE_SET, and REQUIRED_CLUSTER_WIDTH, _HEIGHT and _DEPTH.
        let [threads, shared, local, registers, must] =
            [0, 1, 3, 4, 10].map(|number| self.attribute(function, number));
        let [x, y, z] = [11, 12, 13].map(|number| self.attribute(function, number));
        // The driver's number is the least of the launch bounds, the registers' and the device's.
        let mut unbounded = stated.limits();
        (unbounded.registers_per_thread, unbounded.max_threads_per_block) = (registers, None);
        let most = most_threads(device, unbounded);
        let expected = stated.max_threads_per_block.map_or(most, |bound| bound.min(most));
        let agrees = threads == expected;
        KernelAttributes {
            registers_per_thread: stated.registers_per_thread.map(|_| registers),
            static_shared_bytes: stated.static_shared_bytes.map(|_| shared),
            local_bytes_per_thread: stated.local_bytes_per_thread.map(|_| local),
            parameter_bytes: self.parameter_bytes(function).or(stated.parameter_bytes),
            max_threads_per_block: if agrees {
                stated.max_threads_per_block
            } else {
                Some(threads)
            },
            required_cluster: (x > 0).then(|| Dim3::new(x, y, z)),
            cluster_must_be_set: must != 0,
            ..stated.clone()
        }
    }
}

/// The most threads of a block that device and registers allow.
fn most_threads(device: &DeviceLimits, kernel: gridguard::KernelLimits) -> u64 {
    let limits = LaunchLimits::new(device.clone(), kernel);
    let fits = |warps: &u64| {
        let block = Dim3::new(warps * device.warp_size, 1, 1);
        gridguard::validate(&gridguard::LaunchRequest::new(Dim3::ONE, block), &limits).is_ok()
    };
    let most = device.max_threads_per_block / device.warp_size;
    (1..=most).rev().find(fits).expect("one warp fits") * device.warp_size
}

/// Loads an image, and adds the kernels with other attributes in the driver to `differing`. Returns the number of
/// kernels.
fn compare(
    queries: &Queries,
    device: &DeviceLimits,
    (what, image): (&str, &FileImage<'_>),
    bytes: &[u8],
    differing: &mut Vec<String>,
) -> usize {
    let loadable = match Image::new(bytes).expect("an image").ptx() {
        Some(text) => Ptx::from_src(text.to_owned()),
        None => Ptx::from_binary(bytes.to_vec()),
    };
    let module = context().load_module(loadable).unwrap_or_else(|error| panic!("{what}: {error}"));
    let kernels = image.kernels().unwrap_or_else(|error| panic!("{what}: {error}"));
    for stated in &kernels {
        let function = module.load_function(&stated.name).expect("a kernel");
        let reported = queries.reported(stated, &function, device);
        if reported != *stated {
            differing.push(format!("{what}: {stated:?}, but the driver reports {reported:?}"));
        }
    }
    kernels.len()
}

fn assert_none(differing: &[String], kernels: usize) {
    assert!(kernels > 0);
    let shown = differing.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(differing.is_empty(), "{} of {kernels} kernels:\n{shown}", differing.len());
    println!("{kernels} kernels, all attributes equal");
}

/// The code of operations of this workspace, in every type of element that the device supports.
fn codes(device: &DeviceLimits) -> Vec<Code> {
    let mut codes = Vec::new();
    let mut add = |code: Result<Code, KernelError>| match code {
        Err(KernelError::Unsupported { .. }) => {}
        code => codes.push(code.expect("legal")),
    };
    for element in ElementType::ALL {
        for columns in [63, 4096] {
            add(RmsNorm::new(1 << 10, columns, element).and_then(|one| one.code(device)));
            add(LayerNorm::new(1 << 10, columns, element).and_then(|one| one.code(device)));
            add(Geglu::new(1 << 10, columns, element).and_then(|one| one.code(device)));
            add(Softmax::new(1 << 10, columns, element).and_then(|one| one.code(device)));
            let sort = Argsort::new(1 << 10, columns, element, Order::Ascending);
            add(sort.and_then(|one| one.code(device)));
        }
        for (frames, head_dim) in [(16, 64), (16, 40), (16, 160), (25, 64), (81, 64), (300, 77)] {
            let shape = Shape::new(1000, 5, frames, head_dim).expect("legal");
            let attention = TemporalAttention::new(shape, element, device);
            add(attention.and_then(|one| one.causal().with_bias().code(device)));
        }
    }
    add(Compare::<u32>::new(1 << 10).and_then(|one| one.code(device)));
    codes
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn images_of_this_workspace_s_kernels_state_what_the_driver_reports() {
    let (device, queries) = (device_limits(0).expect("a device"), Queries::new());
    let compiler = Compiler::find().expect("NVRTC");
    let (mut differing, mut kernels) = (Vec::new(), 0);
    let mut check = |what: &str, source: &str, options: &CompileOptions| {
        let compiled = compiler.compile(source, options).expect("compiles");
        let file = ImageFile::parse(compiled.image.bytes()).expect("an image");
        let image = file.images_for(device.compute_capability).next().expect("for the device");
        let bytes = compiled.image.bytes();
        kernels += compare(&queries, &device, (what, image), bytes, &mut differing);
    };
    for code in codes(&device) {
        let options = code.compile_options(device.compute_capability).define("OVERLAP", 0);
        check(code.kernel, code.source, &options);
    }
    check("support.cu", SOURCE, &CompileOptions::new("support.cu", device.compute_capability));
    assert_none(&differing, kernels);
}

#[test]
#[ignore = "needs a CUDA GPU, and images in the folder that GRIDGUARD_IMAGES names"]
fn images_of_a_folder_state_what_the_driver_reports() {
    let folder = PathBuf::from(env::var_os("GRIDGUARD_IMAGES").expect("GRIDGUARD_IMAGES"));
    let (device, queries) = (device_limits(0).expect("a device"), Queries::new());
    let (mut differing, mut kernels) = (Vec::new(), 0);
    for entry in fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("a file").path();
        let bytes = fs::read(&path).expect("readable");
        let file = ImageFile::parse(&bytes).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        // The file may also have images for other devices.
        if let Some(image) = file.images_for(device.compute_capability).next() {
            let what = path.display().to_string();
            kernels += compare(&queries, &device, (&what, image), &bytes, &mut differing);
        }
    }
    assert_none(&differing, kernels);
}
