//! Guarded launches by raw handles.
#![allow(unsafe_code, reason = "raw handles")]

use core::ffi::c_void;
use core::ptr;

use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, result, sys};
use gridguard::cuda::{Kernel, LaunchError, LaunchErrorKind, RawLaunch};
use gridguard::{ArgsError, Axis, BatchAxis, Guard, LaunchRequest, RawArgs, Rule};
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{
    PTX, context, function, guard, guard_of, iota, items_along, kernel, plan_along, poisoned, read,
};

/// A guard in `context`, given by its handle, and the kernel of `function`.
fn raw(context: &CudaContext, function: &CudaFunction) -> (Guard, Kernel) {
    // SAFETY: the context lives in the caller.
    let guard = unsafe { Guard::with_raw_context(context.cu_ctx().cast()) }.expect("it is alive");
    let kernel = crate::kernels::raw(&guard, function, Some("fake_iota_y"));
    (guard, kernel)
}

/// The arguments of `fake_iota_y` over `out`.
fn args(stream: &CudaStream, out: &CudaSlice<u64>, items: u64) -> RawArgs<'static> {
    let (address, _sync) = out.device_ptr(stream);
    let mut args = RawArgs::new();
    args.items_within(address, 8, 8, 8 * items).offset().length();
    args
}

/// The context that is current on this thread.
fn current() -> Option<sys::CUcontext> {
    result::ctx::get_current().expect("the query succeeds")
}

/// Launches `fake_iota_y` by `launch` over 76,800 items on a stream, and checks the output.
fn writes_every_item(launch: impl Fn(&Guard, &Kernel, *mut c_void, &RawArgs<'_>)) {
    let context = CudaContext::new(0).expect("a device");
    let function = function(&context, "fake_iota_y");
    let stream = context.new_stream().expect("a stream");
    let out = poisoned(&stream, 76_800);
    let args = args(&stream, &out, 76_800);
    let (guard, kernel) = raw(&context, &function);
    launch(&guard, &kernel, stream.cu_stream().cast(), &args);
    assert_eq!(read(&stream, &out), iota(76_800));
}

/// The `CUkernel` called `name` of a library, as CUDA runtimes launch since version 12.
fn library_kernel(name: &std::ffi::CStr) -> *mut c_void {
    let (image, mut library, mut kernel) =
        (std::ffi::CString::new(PTX).expect("text"), ptr::null_mut(), ptr::null_mut());
    let (none, nones) = (ptr::null_mut(), ptr::null_mut());
    let image = image.as_ptr().cast();
    // SAFETY: the image is zero-terminated, and there are no options.
    let loaded = unsafe {
        sys::cuLibraryLoadData(&raw mut library, image, none, nones, 0, ptr::null_mut(), nones, 0)
    };
    // SAFETY: the library is never unloaded.
    let found = unsafe { sys::cuLibraryGetKernel(&raw mut kernel, library, name.as_ptr()) };
    assert_eq!((loaded, found), (sys::CUresult::CUDA_SUCCESS, sys::CUresult::CUDA_SUCCESS));
    kernel.cast()
}

#[test]
fn a_guards_kernel_launches_by_address_and_stream_handle() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let (guard, stranger) = (guard(), Guard::cuda(1).expect("another device"));
        let (kernel, stream) = (kernel(&guard, "fake_iota_y"), context(&guard).default_stream());
        let out = poisoned(&stream, 76_800);
        let (args, plan) = (args(&stream, &out, 76_800), plan_along(&kernel, Axis::Y, 76_800));
        // Another device's context is current, and stays so.
        context(&stranger).bind_to_thread().expect("it is alive");
        let before = current();
        let launch = |guard: &Guard| {
            // SAFETY: the stream is of the kernel's context, and the arguments fit the kernel.
            unsafe {
                guard.launch_raw(&kernel, stream.cu_stream().cast(), RawLaunch::Plan(&plan, &args))
            }
        };
        assert_eq!((launch(&guard), current()), (Ok(2), before));
        assert_eq!(guard.counts().launches, 2);
        let (what, of) = ("the guard", "fake_iota_y".to_owned());
        assert_eq!(
            launch(&stranger),
            Err(LaunchErrorKind::OtherContext { what, kernel: of }.into())
        );
        assert_eq!(read(&stream, &out), iota(76_800));
    });
}

#[test]
fn functions_and_kernels_of_libraries_have_the_names_that_the_driver_knows() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let (guard, function) = (guard_of(&context), function(&context, "wide"));
        for function in [function.cu_function().cast(), library_kernel(c"wide")] {
            // SAFETY: the function lives, and is of the guard's context.
            let raw = unsafe { guard.raw_kernel(function, None) };
            let limits = raw.expect("it is alive").limits().kernel().clone();
            assert_eq!((&*limits.name, limits.registers_per_thread), ("wide", 210));
        }
    });
}

#[test]
fn a_raw_kernel_plans_and_launches_in_one() {
    let launch = |guard: &Guard, kernel: &Kernel, stream, args: &RawArgs<'_>| {
        let launch = |items, batch: Option<&BatchAxis>| {
            let (request, _) = items_along(Axis::Y, items);
            // SAFETY: the stream is of the same context, the arguments are the kernel's.
            unsafe { guard.launch_raw(kernel, stream, RawLaunch::Request(&request, batch, args)) }
        };
        let refused = launch(76_800, None).expect_err("no batch to split");
        assert!(
            matches!(refused.kind(), LaunchErrorKind::Invalid(v) if v.contains(Rule::GridDimY))
        );
        assert_eq!(launch(0, Some(&BatchAxis::new(Axis::Y, 0))), Ok(0));
        assert!(launches().is_empty());
        assert_eq!(launch(76_800, Some(&BatchAxis::new(Axis::Y, 76_800))), Ok(2));
        let unknown = ArgsError::NoBatch { index: 0 };
        assert_eq!(launch(8, None), Err(unknown.into()));
    };
    with_fake(&[], || writes_every_item(launch));
}

#[test]
fn the_thread_s_current_context_is_the_same_afterwards() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let context = CudaContext::new(0).expect("a device");
        let function = function(&context, "fake_iota_y");
        let stream = context.default_stream();
        let out = poisoned(&stream, 70_000);
        let args = args(&stream, &out, 70_000);
        let other = CudaContext::new(1).expect("a second device");
        let both = || {
            let (guard, kernel) = raw(&context, &function);
            let plan = plan_along(&kernel, Axis::Y, 70_000);
            // SAFETY: null is the default stream, the arguments are the kernel's.
            let launched = unsafe {
                guard.launch_raw(&kernel, ptr::null_mut(), RawLaunch::Plan(&plan, &args))
            };
            assert_eq!(launched, Ok(2));
        };
        other.bind_to_thread().expect("alive");
        both();
        assert_eq!(current(), Some(other.cu_ctx()));
        context.bind_to_thread().expect("alive");
        both();
        assert_eq!(current(), Some(context.cu_ctx()));
        std::thread::scope(|scope| {
            let fresh = scope.spawn(|| {
                assert_eq!(current(), None);
                both();
                assert_eq!(current(), None);
            });
            fresh.join().expect("it launches");
        });
        assert!(launches().iter().all(|line| !line.contains(" device=")));
    });
}

/// Launches `fake_iota_y` over 100 items, with the values of its parameters by address.
fn by_address(
    (guard, kernel): (&Guard, &Kernel),
    (stream, out): (&CudaStream, u64),
    request: &LaunchRequest,
) -> Result<u64, LaunchError> {
    let mut values = [out, 0, 100];
    let mut params = values.each_mut().map(|value| ptr::from_mut(value).cast::<c_void>());
    // SAFETY: the kernel takes three numbers of 8 bytes, and the memory lives until the caller reads it.
    unsafe {
        guard.launch_raw(
            kernel,
            stream.cu_stream().cast(),
            RawLaunch::Pointers(request, params.as_mut_ptr()),
        )
    }
}

#[test]
fn values_by_address_are_launched_or_the_request_is_refused() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let function = function(&context, "fake_iota_y");
        let (guard, kernel) = raw(&context, &function);
        let stream = context.new_stream().expect("a stream");
        let out = poisoned(&stream, 100);
        let at = (&*stream, out.device_ptr(&stream).0);
        let rows = |blocks| items_along(Axis::Y, blocks).0;
        // SAFETY: no context is a valid one to make current.
        unsafe { result::ctx::set_current(ptr::null_mut()) }.expect("none is current");
        assert_eq!(by_address((&guard, &kernel), at, &rows(100)), Ok(1));
        let error = by_address((&guard, &kernel), at, &rows(65_536)).expect_err("too many");
        assert!(error.violations().expect("rules").contains(Rule::GridDimY), "{error}");
        let dependent = by_address((&guard, &kernel), at, &rows(100).dependent());
        assert_eq!((dependent, current()), (Ok(1), None));
        assert_eq!(read(&stream, &out), iota(100));
        let counts = guard.counts();
        assert_eq!((counts.launches, counts.rejections), (2, vec![(Rule::GridDimY, 1)]));
        assert!(launches()[1].ends_with("overlap=1"), "{:?}", launches());
    });
}
