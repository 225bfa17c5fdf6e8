//! Submits validated launches to a stream.

use core::ffi::c_void;

use arrayvec::ArrayVec;

use super::context::Watch;
use super::error::{DriverError, LaunchError};
use super::kernel::{Inner, Kernel};
use super::symbols::{
    ATTRIBUTE_CLUSTER_DIMENSION, ATTRIBUTE_COOPERATIVE, ATTRIBUTE_OVERLAP, ATTRIBUTE_PRIORITY,
    Driver, Handle, LaunchAttribute, LaunchConfigEx, Status,
};
use crate::launch::request::LaunchRequest;
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::validate;
use crate::plan::arguments::{KernelArgs, MAX_ARGS, Slot};
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::chunks::Chunk;
use crate::plan::launches::{Plan, PlannedLaunch};
use crate::plan::run::{Launcher, PartialRun, run};
use crate::record::counters::Counters;

/// Plans `request` and submits it to `stream`. The kernel's context is current.
///
/// # Safety
///
/// As [`submit`].
#[inline]
pub(super) unsafe fn plan_and_submit(
    kernel: &Kernel,
    stream: Handle,
    request: &LaunchRequest,
    batch: Option<&BatchAxis>,
    args: &KernelArgs<'_>,
    watch: Watch,
) -> Result<u64, LaunchError> {
    if let Some(batch) = batch {
        // SAFETY: this function's contract.
        return unsafe { plan_and_submit_batch(kernel, stream, request, batch, args, watch) };
    }
    // A single launch needs no plan around it.
    let (chunk, launch) = (Chunk::only(1), validate(request, kernel.limits())?);
    // SAFETY: this function's contract; validated against this kernel's limits just now.
    unsafe { submit_one(kernel, stream, &chunk, &launch, args, watch) }.map(|()| 1)
}

/// Out of line, to keep launches without a batch short.
///
/// # Safety
///
/// As [`submit`].
#[inline(never)]
unsafe fn plan_and_submit_batch(
    kernel: &Kernel,
    stream: Handle,
    request: &LaunchRequest,
    batch: &BatchAxis,
    args: &KernelArgs<'_>,
    watch: Watch,
) -> Result<u64, LaunchError> {
    let plan = Plan::new(request, Some(batch), kernel.limits(), Choice::AUTOMATIC)?;
    // SAFETY: this function's contract.
    unsafe { submit(kernel, stream, &plan, args, watch) }
}

/// Submits every launch of `plan` to `stream`. The kernel's context is current.
///
/// Neither synchronizes nor allocates, so that it works while the stream is captured.
///
/// # Safety
///
/// `stream` is a live stream of the kernel's context, or null for its default one, and the arguments
/// meet the kernel's contract. A kernel with dependent launches or overlapping chunks keeps its
/// contract of [`Kernel::with_dependent_launches`] or [`Kernel::with_overlapping_chunks`].
#[inline]
pub(super) unsafe fn submit(
    kernel: &Kernel,
    stream: Handle,
    plan: &Plan,
    args: &KernelArgs<'_>,
    watch: Watch,
) -> Result<u64, LaunchError> {
    if !plan.is_for(kernel.limits()) {
        return Err(other_kernel(kernel));
    }
    if plan.len() == 1 {
        let (chunk, launch) = (Chunk::only(plan.items()), plan.largest_launch());
        // SAFETY: this function's contract; the plan is for this kernel.
        return unsafe { submit_one(kernel, stream, &chunk, launch, args, watch) }.map(|()| 1);
    }
    // SAFETY: this function's contract; the plan is for this kernel.
    unsafe { submit_chunks(kernel, stream, plan, args, watch) }
}

/// Submits a plan of several launches; out of line, to keep single launches short.
///
/// # Safety
///
/// As [`submit`], and the plan is for this kernel.
#[inline(never)]
unsafe fn submit_chunks(
    kernel: &Kernel,
    stream: Handle,
    plan: &Plan,
    args: &KernelArgs<'_>,
    watch: Watch,
) -> Result<u64, LaunchError> {
    prepare(kernel, plan.largest_launch(), plan.items(), args)?;
    let mut packed = Packed::new();
    let overlap = kernel.overlaps_chunks();
    let (kernel, packed, launches) = (kernel.inner(), &mut packed, plan.len());
    let mut launcher = StreamLauncher { kernel, overlap, stream, args, packed, launches, watch };
    Ok(run(plan, &mut launcher)?)
}

/// Submits the only launch of a plan: the common case.
///
/// # Safety
///
/// As [`submit`], and `launch` was validated against the limits of `kernel`.
#[inline]
unsafe fn submit_one(
    kernel: &Kernel,
    stream: Handle,
    chunk: &Chunk,
    launch: &ValidLaunch,
    args: &KernelArgs<'_>,
    watch: Watch,
) -> Result<(), LaunchError> {
    prepare(kernel, launch, chunk.items, args)?;
    let mut packed = Packed::new();
    let params = packed.fill(args, chunk);
    let kernel = kernel.inner();
    // SAFETY: this function's contract; `prepare` checked the arguments against the signature, and
    // `params` points to as many values.
    let (call, status) = unsafe {
        send(kernel.driver(), kernel.function(), stream, launch, launch.is_dependent(), params)
    };
    let accepted = kernel.driver().check(call, status).and_then(|()| {
        // SAFETY: the stream by this function's contract; the kernel's context is current.
        unsafe { kernel.accepted(stream, chunk, launch, 1, watch) }
    });
    match accepted {
        Ok(()) => Ok(()),
        Err(source) => Err(stopped_at_once(chunk.items, source)),
    }
}

/// Submits one chunk of a plan of `launches`, after all earlier work on the stream.
///
/// # Safety
///
/// As [`submit`]; the launch was validated against the limits of `kernel`, and [`prepare`] called with
/// these arguments and the largest launch of the plan.
pub(super) unsafe fn submit_chunk(
    kernel: &Kernel,
    stream: Handle,
    planned: &PlannedLaunch,
    launches: u64,
    args: &KernelArgs<'_>,
    watch: Watch,
) -> Result<(), DriverError> {
    let (kernel, packed) = (kernel.inner(), &mut Packed::new());
    let overlap = false;
    StreamLauncher { kernel, overlap, stream, args, packed, launches, watch }.launch(planned)
}

/// Checks the arguments, opts in to shared memory and checks occupancy before the first launch.
#[inline]
pub(super) fn prepare(
    kernel: &Kernel,
    launch: &ValidLaunch,
    items: u64,
    args: &KernelArgs<'_>,
) -> Result<(), LaunchError> {
    args.check(items)?;
    kernel.signature().check(kernel.name(), args)?;
    kernel.inner().opt_in(launch.dynamic_shared_bytes())?;
    if launch.is_plain() { Ok(()) } else { prepare_extras(kernel, launch) }
}

/// Checks launches that request more than grid, block and shared memory.
#[cold]
fn prepare_extras(kernel: &Kernel, launch: &ValidLaunch) -> Result<(), LaunchError> {
    if launch.priority().is_some() || launch.is_dependent() {
        prepare_attributes(kernel, launch)?;
    }
    if launch.is_co_resident() {
        return prepare_co_resident(kernel.inner(), launch);
    }
    Ok(())
}

/// Checks launches with a priority, and dependent ones.
fn prepare_attributes(kernel: &Kernel, launch: &ValidLaunch) -> Result<(), LaunchError> {
    if launch.is_dependent() && !kernel.takes_dependent_launches() {
        return Err(LaunchError::NotDependent { kernel: kernel.name().to_owned() });
    }
    let what = if launch.is_dependent() { "dependent launches" } else { "launch priorities" };
    require_launch_kernel_ex(kernel.inner(), what)
}

/// Checks cooperative launches and those in clusters.
fn prepare_co_resident(kernel: &Inner, launch: &ValidLaunch) -> Result<(), LaunchError> {
    if launch.cluster().is_some() {
        require_launch_kernel_ex(kernel, "clusters")?;
    }
    kernel.check_occupancy(launch)
}

fn require_launch_kernel_ex(kernel: &Inner, what: &'static str) -> Result<(), LaunchError> {
    match kernel.driver().launch_kernel_ex {
        Some(_) => Ok(()),
        None => Err(LaunchError::Unsupported { symbol: "cuLaunchKernelEx", what }),
    }
}

/// Counts a plan that was launched or not.
#[inline]
pub(super) fn count(
    counters: &Counters,
    launched: Result<u64, LaunchError>,
) -> Result<u64, LaunchError> {
    match &launched {
        Ok(launches) => counters.ran(*launches),
        Err(LaunchError::Stopped(stopped)) => counters.stopped(stopped.chunk),
        Err(LaunchError::Invalid(violations)) => counters.rejected(violations),
        Err(_) => {}
    }
    launched
}

#[cold]
fn other_kernel(kernel: &Kernel) -> LaunchError {
    LaunchError::OtherKernel { kernel: kernel.name().to_owned() }
}

#[cold]
fn stopped_at_once(items: u64, source: DriverError) -> LaunchError {
    PartialRun { chunk: 0, launches: 1, items_done: 0, items, source }.into()
}

/// Submits chunk after chunk. Code that makes one upholds the contract of [`submit`].
struct StreamLauncher<'a> {
    kernel: &'a Inner,
    /// Whether a chunk may begin before the one before it has ended.
    overlap: bool,
    stream: Handle,
    args: &'a KernelArgs<'a>,
    packed: &'a mut Packed,
    launches: u64,
    watch: Watch,
}

impl Launcher for StreamLauncher<'_> {
    type Error = DriverError;

    #[inline]
    fn launch(&mut self, planned: &PlannedLaunch) -> Result<(), DriverError> {
        let (driver, function) = (self.kernel.driver(), self.kernel.function());
        // The first chunk waits for earlier work on the stream, unless it is dependent.
        let overlap = planned.launch.is_dependent() || (self.overlap && planned.chunk.index > 0);
        let params = self.packed.fill(self.args, &planned.chunk);
        let (call, status) =
            // SAFETY: the code that made this launcher upholds `submit`'s contract for stream and
            // arguments; `prepare` checked them against the signature, and `params` points to as
            // many values; the launch was validated against this kernel's limits; chunks overlap
            // only by the contract of `with_overlapping_chunks`.
            unsafe { send(driver, function, self.stream, &planned.launch, overlap, params) };
        driver.check(call, status)?;
        let PlannedLaunch { chunk, launch } = planned;
        // SAFETY: the stream as above; the kernel's context is current.
        unsafe { self.kernel.accepted(self.stream, chunk, launch, self.launches, self.watch) }
    }
}

/// Argument values, and pointers to them, as `cuLaunchKernel` takes them.
struct Packed {
    values: ArrayVec<u64, MAX_ARGS>,
    pointers: ArrayVec<*mut c_void, MAX_ARGS>,
}

impl Packed {
    const fn new() -> Self {
        Self { values: ArrayVec::new_const(), pointers: ArrayVec::new_const() }
    }

    /// The arguments for `chunk`. The pointer is valid until the next call, and until this moves.
    #[inline]
    fn fill(&mut self, args: &KernelArgs<'_>, chunk: &Chunk) -> *mut *mut c_void {
        self.values.clear();
        self.pointers.clear();
        // Both arrays are large enough: `KernelArgs` has at most `MAX_ARGS` slots.
        self.values.extend(args.slots().iter().map(|slot| slot.bits(chunk)));
        let values = self.values.iter_mut();
        self.pointers.extend(args.slots().iter().zip(values).map(|(slot, value)| match slot {
            // `cuLaunchKernel` takes mutable pointers, but only reads through them.
            Slot::Bytes(bytes) => bytes.as_ptr().cast_mut().cast::<c_void>(),
            _ => core::ptr::from_mut(value).cast(),
        }));
        self.pointers.as_mut_ptr()
    }
}

/// Makes one launch, which may `overlap` the one before. Plain launches use `cuLaunchKernel`, which
/// every driver has.
///
/// # Safety
///
/// As [`submit`], and `params` points to as many values as the function has parameters.
#[inline]
unsafe fn send(
    driver: &Driver,
    function: Handle,
    stream: Handle,
    launch: &ValidLaunch,
    overlap: bool,
    params: *mut *mut c_void,
) -> (&'static str, Status) {
    if overlap || !launch.is_plain() {
        // SAFETY: this function's contract.
        return unsafe { send_extras(driver, function, stream, launch, overlap, params) };
    }
    let ([gx, gy, gz], [bx, by, bz]) = (launch.grid(), launch.block());
    let (call, shared) = (driver.launch_kernel, launch.dynamic_shared_bytes());
    let extra = core::ptr::null_mut();
    // SAFETY: this function's contract; `extra` may be null where `params` is not.
    let status = unsafe { call(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra) };
    ("cuLaunchKernel", status)
}

/// Makes one launch with more than grid, block and shared memory.
///
/// # Safety
///
/// As [`send`].
#[inline(never)]
unsafe fn send_extras(
    driver: &Driver,
    function: Handle,
    stream: Handle,
    launch: &ValidLaunch,
    overlap: bool,
    params: *mut *mut c_void,
) -> (&'static str, Status) {
    let ([gx, gy, gz], [bx, by, bz]) = (launch.grid(), launch.block());
    let shared = launch.dynamic_shared_bytes();
    let needs_ex = launch.cluster().is_some() || overlap || launch.priority().is_some();
    if needs_ex && let Some(launch_ex) = driver.launch_kernel_ex {
        let (mut attributes, attribute_count) = attributes(launch, overlap);
        let config = LaunchConfigEx {
            grid: launch.grid(),
            block: launch.block(),
            shared_bytes: shared,
            stream,
            attributes: attributes.as_mut_ptr(),
            attribute_count,
        };
        let extra = core::ptr::null_mut();
        // SAFETY: the configuration and its attributes outlive the call; the rest is this function's
        // contract.
        let status = unsafe { launch_ex(&raw const config, function, params, extra) };
        return ("cuLaunchKernelEx", status);
    }
    if launch.is_cooperative() {
        let call = driver.launch_cooperative_kernel;
        // SAFETY: this function's contract.
        let status = unsafe { call(function, gx, gy, gz, bx, by, bz, shared, stream, params) };
        return ("cuLaunchCooperativeKernel", status);
    }
    // A kernel's compiled-in cluster needs no attribute, and drivers without cuLaunchKernelEx
    // cannot overlap launches.
    let (call, extra) = (driver.launch_kernel, core::ptr::null_mut());
    // SAFETY: this function's contract; `extra` may be null where `params` is not.
    let status = unsafe { call(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra) };
    ("cuLaunchKernel", status)
}

/// The attributes of a launch, and how many of the array are used.
fn attributes(launch: &ValidLaunch, overlap: bool) -> ([LaunchAttribute; 4], u32) {
    let mut attributes = [LaunchAttribute::NONE; 4];
    let cluster = launch.cluster().map(|cluster| (ATTRIBUTE_CLUSTER_DIMENSION, cluster));
    let cooperative = launch.is_cooperative().then_some((ATTRIBUTE_COOPERATIVE, [1, 0, 0]));
    let overlap = overlap.then_some((ATTRIBUTE_OVERLAP, [1, 0, 0]));
    let priority = launch.priority();
    let priority = priority.map(|first| (ATTRIBUTE_PRIORITY, [first.cast_unsigned(), 0, 0]));
    let wanted = [cluster, cooperative, overlap, priority].into_iter().flatten();
    let mut count = 0;
    for (place, (id, value)) in attributes.iter_mut().zip(wanted) {
        *place = LaunchAttribute::new(id, value);
        count += 1;
    }
    (attributes, count)
}

#[cfg(test)]
mod tests;
