//! What the C interface adds: each call through the shared library, beside the same call in Rust.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench")]
#![allow(unsafe_code, reason = "calls of a shared library")]

use core::ffi::c_char;
use core::hint::black_box;
use core::ptr::null_mut;

use criterion::{Criterion, criterion_group, criterion_main};
use gridguard::{
    Axis, BatchAxis, Choice, Dim3, KernelLimits, LaunchLimits, LaunchRequest, Plan, catalog,
    validate,
};
use gridguard_capi::{
    GG_AXIS_Y, gg_batch, gg_chunk, gg_config, gg_dim3, gg_error, gg_kernel_info, gg_limits,
    gg_plan_info, gg_status,
};
use libloading::Library;

type LimitsOfGpu = unsafe extern "C" fn(
    *const c_char,
    *const gg_kernel_info,
    *mut *mut gg_limits,
    *mut *mut gg_error,
) -> gg_status;
type Validate =
    unsafe extern "C" fn(*const gg_limits, *const gg_config, *mut *mut gg_error) -> gg_status;
type PlanLaunches = unsafe extern "C" fn(
    *const gg_limits,
    *const gg_config,
    *const gg_batch,
    *mut gg_plan_info,
    u64,
    *mut gg_chunk,
    usize,
    *mut *mut gg_error,
) -> gg_status;

fn limits() -> LaunchLimits {
    let device = &catalog::gpu("h200").expect("catalogued").limits;
    LaunchLimits::new(device.clone(), KernelLimits::unknown("attention"))
}

fn request(blocks: u64) -> LaunchRequest {
    LaunchRequest::new(Dim3::new(1, blocks, 1), Dim3::new(128, 1, 1)).dynamic_shared_bytes(24_832)
}

/// All bytes zero, which every structure of the interface may have.
fn zeroed<T: Copy>() -> T {
    // SAFETY: structures of the interface consist of numbers and pointers.
    unsafe { core::mem::zeroed() }
}

fn config(blocks: u64) -> gg_config {
    gg_config {
        struct_size: size_of::<gg_config>(),
        grid: gg_dim3 { x: 1, y: blocks, z: 1 },
        block: gg_dim3 { x: 128, y: 1, z: 1 },
        dynamic_shared_bytes: 24_832,
        ..zeroed()
    }
}

fn batch() -> gg_batch {
    let struct_size = size_of::<gg_batch>();
    gg_batch { struct_size, axis: GG_AXIS_Y, items: 15_360, blocks_per_item: 5, ..zeroed() }
}

/// The library that cargo built beside this bench, with a handle of the limits.
fn load() -> (Library, *mut gg_limits) {
    let path = std::env::current_exe().expect("this bench");
    let path = path.with_file_name("libgridguard_capi.so");
    // SAFETY: loading it runs no code of its own.
    let library = unsafe { Library::new(&path) }.expect("cargo built it");
    let mut limits = null_mut();
    let (none, error) = (core::ptr::null(), null_mut());
    // SAFETY: the function has this type; the text ends with a zero byte.
    let status = unsafe {
        let of_gpu = library.get::<LimitsOfGpu>("gg_limits_of_gpu").expect("exported");
        of_gpu(c"h200".as_ptr(), none, &raw mut limits, error)
    };
    assert_eq!(status, gg_status::GG_OK);
    (library, limits)
}

fn validating(criterion: &mut Criterion) {
    let (limits, (library, handle)) = (limits(), load());
    // SAFETY: the function has this type.
    let call = unsafe { library.get::<Validate>("gg_validate") }.expect("exported");
    let call = *call;
    let (request, config) = (request(38_400), config(38_400));
    let mut group = criterion.benchmark_group("validate a legal launch");
    group.bench_function("in Rust", |bencher| {
        bencher.iter(|| validate(black_box(&request), black_box(&limits)).is_ok());
    });
    group.bench_function("through the C interface", |bencher| {
        bencher.iter(|| {
            // SAFETY: a live handle and a whole structure.
            unsafe { call(black_box(handle), black_box(&raw const config), null_mut()) }
        });
    });
    group.finish();
}

fn planning(criterion: &mut Criterion) {
    let (limits, (library, handle)) = (limits(), load());
    // SAFETY: the function has this type.
    let call = unsafe { library.get::<PlanLaunches>("gg_plan") }.expect("exported");
    let call = *call;
    let (request, config) = (request(76_800), config(76_800));
    let axis = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5);
    let mut group = criterion.benchmark_group("plan two chunks and read them");
    group.bench_function("in Rust", |bencher| {
        bencher.iter(|| {
            let (request, axis) = (black_box(&request), black_box(&axis));
            let plan = Plan::new(request, Some(axis), &limits, Choice::AUTOMATIC);
            plan.map_or(0, |plan| plan.launches().map(|one| one.launch.grid()[1]).sum::<u32>())
        });
    });
    let batch = batch();
    let mut info = gg_plan_info { struct_size: size_of::<gg_plan_info>(), ..zeroed() };
    let mut chunks: [gg_chunk; 2] = zeroed();
    group.bench_function("through the C interface", |bencher| {
        bencher.iter(|| {
            let (config, batch) = (black_box(&raw const config), black_box(&raw const batch));
            let (info, chunks) = (&raw mut info, (&raw mut chunks).cast());
            // SAFETY: a live handle, whole structures, and memory for two launches.
            let status = unsafe { call(handle, config, batch, info, 0, chunks, 2, null_mut()) };
            assert_eq!(status, gg_status::GG_OK);
        });
    });
    group.finish();
}

criterion_group!(benches, validating, planning);
criterion_main!(benches);
