//! Sends validated launches to a stream.

use core::ffi::c_void;

use arrayvec::ArrayVec;

use super::checked::Watch;
use super::driver::{
    ATTRIBUTE_CLUSTER_DIMENSION, ATTRIBUTE_COOPERATIVE, ATTRIBUTE_OVERLAP, ATTRIBUTE_PRIORITY,
    Driver, Handle, LaunchAttribute, LaunchConfigEx, Status,
};
use super::error::{DriverError, LaunchError};
use super::kernel::{Inner, Kernel};
use crate::launch::request::LaunchRequest;
use crate::launch::validate::{ValidLaunch, validate};
use crate::plan::arguments::{KernelArgs, MAX_ARGS, Slot};
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::chunk::Chunk;
use crate::plan::launches::{Plan, PlannedLaunch};
use crate::plan::run::{Launcher, PartialRun, run};

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
        // SAFETY: the caller's promise.
        return unsafe { plan_and_submit_batch(kernel, stream, request, batch, args, watch) };
    }
    // One launch needs no plan around it, and the way of a launch is short.
    let (chunk, launch) = (Chunk::only(1), validate(request, kernel.limits())?);
    // SAFETY: the caller's promise; validated against this kernel's limits just now.
    unsafe { submit_one(kernel, stream, &chunk, &launch, args, watch) }.map(|()| 1)
}

/// Apart from the short way of launches without a batch.
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
    // SAFETY: the caller's promise.
    unsafe { submit(kernel, stream, &plan, args, watch) }
}

/// Submits every launch of `plan` to `stream`. The kernel's context is current.
///
/// Neither synchronizes nor allocates, so that it works while the stream is captured.
///
/// # Safety
///
/// `stream` is a stream of the kernel's context, or null for its default one, and the arguments
/// keep the kernel's contract.
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
        // SAFETY: the caller's promise; the plan is for this kernel.
        return unsafe { submit_one(kernel, stream, &chunk, launch, args, watch) }.map(|()| 1);
    }
    // SAFETY: the caller's promise; the plan is for this kernel.
    unsafe { submit_chunks(kernel, stream, plan, args, watch) }
}

/// Submits the launches of a plan of several, apart from the short way.
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

/// Submits the only launch of a plan: the common case, and a short way.
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
    // SAFETY: the caller's promise; the rest is checked above.
    let (call, status) = unsafe {
        send(kernel.driver(), kernel.function(), stream, launch, launch.is_dependent(), params)
    };
    let sent = kernel.driver().check(call, status);
    match sent.and_then(|()| kernel.accepted(stream, chunk, launch, 1, watch)) {
        Ok(()) => Ok(()),
        Err(source) => Err(stopped_at_once(chunk.items, source)),
    }
}

/// Submits one chunk of a plan, one of so many `launches`, after all that went before it on the
/// stream.
///
/// # Safety
///
/// As [`submit`]; the launch was validated against the limits of `kernel`, and a larger one of the
/// same plan prepared with these arguments.
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

/// All that can be checked or must be done before the first launch.
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

/// What launches need that ask for more than grid, block and shared memory.
#[cold]
fn prepare_extras(kernel: &Kernel, launch: &ValidLaunch) -> Result<(), LaunchError> {
    if launch.priority().is_some() || launch.is_dependent() {
        prepare_attributes(kernel, launch)?;
    }
    if launch.runs_together() {
        return prepare_together(kernel.inner(), launch);
    }
    Ok(())
}

/// What launches need that have a priority, or may begin early.
fn prepare_attributes(kernel: &Kernel, launch: &ValidLaunch) -> Result<(), LaunchError> {
    if launch.is_dependent() && !kernel.takes_dependent_launches() {
        return Err(LaunchError::NotDependent { kernel: kernel.name().to_owned() });
    }
    let what = if launch.is_dependent() { "dependent launches" } else { "launch priorities" };
    need_launch_kernel_ex(kernel.inner(), what)
}

/// What launches need whose blocks run together.
fn prepare_together(kernel: &Inner, launch: &ValidLaunch) -> Result<(), LaunchError> {
    if launch.cluster().is_some() {
        need_launch_kernel_ex(kernel, "clusters")?;
    }
    kernel.check_occupancy(launch)
}

fn need_launch_kernel_ex(kernel: &Inner, what: &'static str) -> Result<(), LaunchError> {
    match kernel.driver().launch_kernel_ex {
        Some(_) => Ok(()),
        None => Err(LaunchError::Unsupported { symbol: "cuLaunchKernelEx", what }),
    }
}

#[cold]
fn other_kernel(kernel: &Kernel) -> LaunchError {
    LaunchError::OtherKernel { kernel: kernel.name().to_owned() }
}

#[cold]
fn stopped_at_once(items: u64, source: DriverError) -> LaunchError {
    PartialRun { chunk: 0, launches: 1, items_done: 0, items, source }.into()
}

struct StreamLauncher<'a> {
    kernel: &'a Inner,
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
        // The first chunk waits for whatever the stream was given before, unless it need not.
        let overlap = planned.launch.is_dependent() || (self.overlap && planned.chunk.index > 0);
        let params = self.packed.fill(self.args, &planned.chunk);
        let (call, status) =
            // SAFETY: the function is loaded and its context current; the launch was validated
            // against this function's limits; the parameters match where the driver can tell and
            // by the caller's promise elsewhere; the stream is of this context; chunks overlap only
            // by the promise of who loaded the kernel.
            unsafe { send(driver, function, self.stream, &planned.launch, overlap, params) };
        driver.check(call, status)?;
        let PlannedLaunch { chunk, launch } = planned;
        self.kernel.accepted(self.stream, chunk, launch, self.launches, self.watch)
    }
}

/// Argument values and the pointers to them, as the driver wants them.
struct Packed {
    values: ArrayVec<u64, MAX_ARGS>,
    pointers: ArrayVec<*mut c_void, MAX_ARGS>,
}

impl Packed {
    const fn new() -> Self {
        Self { values: ArrayVec::new_const(), pointers: ArrayVec::new_const() }
    }

    /// The arguments for `chunk`; valid until the next call, and while this does not move.
    #[inline]
    fn fill(&mut self, args: &KernelArgs<'_>, chunk: &Chunk) -> *mut *mut c_void {
        self.values.clear();
        self.pointers.clear();
        // As many slots as there is room for values.
        self.values.extend(args.slots().iter().map(|slot| slot.bits(chunk)));
        let values = self.values.iter_mut();
        self.pointers.extend(args.slots().iter().zip(values).map(|(slot, value)| match slot {
            // The driver only reads through the pointers.
            Slot::Bytes(bytes) => bytes.as_ptr().cast_mut().cast::<c_void>(),
            _ => core::ptr::from_mut(value).cast(),
        }));
        self.pointers.as_mut_ptr()
    }
}

/// One launch, which may `overlap` the one before. Plain ones take the oldest call, which every
/// driver has.
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
        // SAFETY: the caller's promise.
        return unsafe { send_extras(driver, function, stream, launch, overlap, params) };
    }
    let ([gx, gy, gz], [bx, by, bz]) = (launch.grid(), launch.block());
    let (call, shared) = (driver.launch_kernel, launch.dynamic_shared_bytes());
    let extra = core::ptr::null_mut();
    // SAFETY: the caller's promise.
    let status = unsafe { call(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra) };
    ("cuLaunchKernel", status)
}

/// One launch with more than grid, block and shared memory.
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
        // SAFETY: the configuration and its attributes live through the call; the rest is the
        // caller's promise.
        let status = unsafe { launch_ex(&raw const config, function, params, extra) };
        return ("cuLaunchKernelEx", status);
    }
    if launch.is_cooperative() {
        let call = driver.launch_cooperative_kernel;
        // SAFETY: the caller's promise.
        let status = unsafe { call(function, gx, gy, gz, bx, by, bz, shared, stream, params) };
        return ("cuLaunchCooperativeKernel", status);
    }
    // A kernel's own cluster needs no word, and older drivers know no launches that overlap.
    let (call, extra) = (driver.launch_kernel, core::ptr::null_mut());
    // SAFETY: the caller's promise.
    let status = unsafe { call(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra) };
    ("cuLaunchKernel", status)
}

/// What a launch has beyond grid and block; the first so many count.
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
