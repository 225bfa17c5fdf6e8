//! The kernels of the fake driver, and helpers that launch them.
#![allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]

use std::sync::Arc;

use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig};
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{Args, Image, Kernel, Launch, LaunchError, MemoryMut};
use gridguard::{Axis, BatchAxis, Choice, Dim3, Guard, LaunchRequest, Parameter, Plan};
use gridguard_test_support::fake_driver::{Driver, in_process_of, launches, races};

/// Kernels that the fake driver knows, as PTX.
pub(crate) const PTX: &str = "\
// fake fake_iota_x params=8,8,8
// fake fake_iota_y params=8,8,8
// fake fake_spill_y params=8,8,8,8
// fake idle params=8
// fake look params=8
// fake parts params=8,8,8,8
// fake wide regs=210
// fake clustered cluster=2,1,1
.version 8.0
.target sm_90
.address_size 64
.visible .entry fake_iota_x(
)
.visible .entry fake_iota_y(
)
.visible .entry fake_spill_y(
)
.visible .entry idle(
)
.visible .entry look(
)
.visible .entry parts(
)
.visible .entry wide(
)
.visible .entry clustered(
)
";

/// What memory holds that no kernel wrote.
pub(crate) const POISON: u64 = 0xdead_dead_dead_dead;

/// The guard of the fake driver's first device.
pub(crate) fn guard() -> Guard {
    Guard::cuda(0).expect("the fake driver has a device")
}

/// A guard in `context`.
pub(crate) fn guard_of(context: &Arc<CudaContext>) -> Guard {
    Guard::with_context(Arc::clone(context)).expect("its limits")
}

/// The kernel of `function` by its handle, whose parameters are not declared.
pub(crate) fn raw(guard: &Guard, function: &CudaFunction, name: Option<&str>) -> Kernel {
    // SAFETY: the caller's function lives, and is of the guard's context.
    unsafe { guard.raw_kernel(function.cu_function().cast(), name) }.expect("it is alive")
}

/// The parameters of the kernel `name` of [`PTX`].
pub(crate) const fn parameters(name: &str) -> &'static [Parameter] {
    const U64: Parameter = Parameter::of::<u64>();
    match name.as_bytes() {
        b"fake_iota_x" | b"fake_iota_y" => &[Parameter::Memory, U64, U64],
        b"fake_spill_y" => &[Parameter::Memory, U64, U64, Parameter::AlignedMemory { bytes: 256 }],
        b"idle" => &[U64],
        b"look" => &[Parameter::Memory],
        b"parts" => &[Parameter::Memory, Parameter::Memory, Parameter::Memory, U64],
        _ => &[],
    }
}

/// The kernel `name` of [`PTX`] on the guard's device.
pub(crate) fn kernel(guard: &Guard, name: &str) -> Kernel {
    let image = Image::new(PTX).expect("PTX");
    let module = guard.load(&image).expect("the fake driver takes it");
    // SAFETY: the fake driver's kernels write their items and nothing else, and most do nothing.
    unsafe { module.kernel(name, parameters(name)) }.expect("it is in the PTX")
}

/// The guard of the first device, its kernel `name`, and its default stream.
pub(crate) fn loaded(name: &str) -> (Guard, Kernel, Arc<CudaStream>) {
    let guard = guard();
    let (kernel, stream) = (kernel(&guard, name), context(&guard).default_stream());
    (guard, kernel, stream)
}

/// Runs the body of a test with the guard of the whole fake driver's first device.
pub(crate) fn with_guard<B: FnOnce(Guard)>(settings: &[(&str, &str)], body: B) {
    in_process_of::<B>(Driver::Whole, settings, || body(guard()));
}

/// The same with the default stream of that device.
pub(crate) fn with_stream<B: FnOnce(Guard, Arc<CudaStream>)>(settings: &[(&str, &str)], body: B) {
    in_process_of::<B>(Driver::Whole, settings, || {
        let guard = guard();
        let stream = context(&guard).default_stream();
        body(guard, stream);
    });
}

/// The same with what [`loaded`] returns.
pub(crate) fn with_kernel<B>(settings: &[(&str, &str)], name: &str, body: B)
where
    B: FnOnce(Guard, Kernel, Arc<CudaStream>),
{
    in_process_of::<B>(Driver::Whole, settings, || {
        let (guard, kernel, stream) = loaded(name);
        body(guard, kernel, stream);
    });
}

/// A function that cudarc loaded.
pub(crate) fn function(context: &Arc<CudaContext>, name: &str) -> CudaFunction {
    let module = context.load_module(Ptx::from_src(PTX)).expect("PTX");
    module.load_function(name).expect("it is in the PTX")
}

/// A context, a guard in it, its default stream, and a function that cudarc loaded there.
pub(crate) fn loaded_by_cudarc(
    name: &str,
) -> (Arc<CudaContext>, Guard, Arc<CudaStream>, CudaFunction) {
    let context = CudaContext::new(0).expect("a device");
    let (guard, stream) = (guard_of(&context), context.default_stream());
    let function = function(&context, name);
    (context, guard, stream, function)
}

/// cudarc's form of a launch.
pub(crate) const fn config(grid_dim: (u32, u32, u32), threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim, block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// The same for blocks of 128 threads on y.
pub(crate) fn on_y(blocks: u64) -> LaunchConfig {
    config((1, u32::try_from(blocks).expect("few blocks"), 1), 128)
}

/// One block an item along `axis`, and the declaration that goes with it.
pub(crate) fn items_along(axis: Axis, items: u64) -> (LaunchRequest, BatchAxis) {
    let request = LaunchRequest::new(Dim3::ONE.with(axis, items), Dim3::new(128, 1, 1));
    (request, BatchAxis::new(axis, items))
}

/// The planner's own plan of one block an item along `axis`.
pub(crate) fn plan_along(kernel: &Kernel, axis: Axis, items: u64) -> Plan {
    let (request, batch) = items_along(axis, items);
    Plan::new(&request, Some(&batch), kernel.limits(), Choice::AUTOMATIC).expect("it splits")
}

/// Memory for `items` numbers that no kernel has written yet.
pub(crate) fn poisoned(stream: &Arc<CudaStream>, items: u64) -> CudaSlice<u64> {
    let items = usize::try_from(items).expect("few items");
    stream.clone_htod(&vec![POISON; items]).expect("memory")
}

/// Launches `fake_iota` over `out`.
#[track_caller]
pub(crate) fn launch_iota<'l>(
    guard: &Guard,
    kernel: &Kernel,
    launch: impl Into<Launch<'l>>,
    stream: &CudaStream,
    out: &mut impl MemoryMut<u64>,
) -> Result<u64, LaunchError> {
    let mut args = Args::new(stream);
    args.write_items(out, 1).offset().length();
    guard.launch(kernel, launch, args)
}

/// Launches `fake_iota` over memory of its own, and checks each item. Returns the number of launches.
#[track_caller]
pub(crate) fn iota_launches<'l>(
    guard: &Guard,
    kernel: &Kernel,
    launch: impl Into<Launch<'l>>,
    stream: &Arc<CudaStream>,
    items: u64,
) -> u64 {
    let mut out = poisoned(stream, items);
    let launched = launch_iota(guard, kernel, launch, stream, &mut out).expect("legal");
    assert_eq!(read(stream, &out), iota(items), "{items} items");
    launched
}

/// What `out` holds.
pub(crate) fn read(stream: &Arc<CudaStream>, out: &CudaSlice<u64>) -> Vec<u64> {
    stream.clone_dtoh(out).expect("the memory is readable")
}

/// 0, 1, 2 and so on up to `items`.
pub(crate) fn iota(items: u64) -> Vec<u64> {
    (0..items).collect()
}

/// The guard's context.
pub(crate) fn context(guard: &Guard) -> &Arc<CudaContext> {
    guard.context().expect("the guard serves a device")
}

/// Asserts that everything ran in an order that the program asked for.
#[track_caller]
pub(crate) fn assert_ordered() {
    assert_eq!(races(), Vec::<String>::new());
}

/// Ends the capture of the stream, and launches its graph, which must be empty.
#[track_caller]
pub(crate) fn assert_nothing_is_captured(stream: &Arc<CudaStream>) {
    // It would return what cudarc recorded, and end nothing.
    let _ = stream.context().check_err();
    if let Ok(Some(graph)) = stream.end_capture(CUgraphInstantiate_flags(0)) {
        let _ = graph.launch();
    }
    let replayed = launches().into_iter().find(|line| line.contains("stream=graph"));
    assert_eq!(replayed, None);
    assert_ordered();
}
