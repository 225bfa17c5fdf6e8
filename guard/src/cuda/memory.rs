//! Device memory: how much is free, and launches that bring their own workspace.

use core::panic::Location;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut};

use super::args::Args;
use super::checked::{Watch, is_capturing};
use super::current::Pushed;
use super::driver::{Driver, Handle, Status};
use super::error::{CudaError, DriverError, LaunchError};
use super::kernel::Kernel;
use super::launch::{prepare, submit_chunk};
use super::query;
use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::plan::arguments::{ArgsError, KernelArgs};
use crate::plan::backoff::{
    AllocationError, BackoffError, ChunkedRun, WorkspaceLauncher, WorkspaceUse, launch_with_backoff,
};
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::launches::PlannedLaunch;

/// What CUDA aligns every allocation to, at least, in bytes: a kernel that wants more of its
/// workspace is refused, since it would not always get it.
const WORKSPACE_ALIGNMENT: u64 = 256;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: Status = 2;

/// Free and total memory of device `ordinal` in bytes. Brings up the device's primary context for
/// the query where no one else has.
///
/// # Errors
///
/// [`CudaError`] where there is no driver, no such device, or the context cannot be made.
pub fn free_memory(ordinal: usize) -> Result<(u64, u64), CudaError> {
    let driver = Driver::get()?;
    let device = query::device_handle(ordinal)?;
    let mut context = core::ptr::null_mut();
    // SAFETY: the device is one that the driver named; the pointer is to a live handle.
    let status = unsafe { (driver.primary_ctx_retain)(&raw mut context, device) };
    driver.check("cuDevicePrimaryCtxRetain", status)?;
    let answer = memory_of(driver, context);
    // SAFETY: retained above, once.
    let status = unsafe { (driver.primary_ctx_release)(device) };
    let answer = answer?;
    driver.check("cuDevicePrimaryCtxRelease", status)?;
    Ok(answer)
}

/// Free and total memory of the device of `context` in bytes.
fn free_memory_of(context: &CudaContext) -> Result<(u64, u64), CudaError> {
    Ok(memory_of(Driver::get()?, context.cu_ctx().cast())?)
}

/// `context` is retained by the caller. One that is current need not be made so: it may be destroyed
/// already, and the driver says so where it is not handed in again.
fn memory_of(driver: &'static Driver, context: Handle) -> Result<(u64, u64), DriverError> {
    let (mut free, mut total) = (0, 0);
    // Also while the answer is looked at: launches there can be to blame for it.
    let _current = Pushed::new(driver, context)?;
    // SAFETY: both pointers are to live integers, and a context is current.
    let status = unsafe { (driver.mem_get_info)(&raw mut free, &raw mut total) };
    driver.check("cuMemGetInfo", status)?;
    let wide = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
    Ok((wide(free), wide(total)))
}

impl Guard {
    /// Free and total memory of the guard's device in bytes, at this moment. What streams have
    /// freed but keep for themselves does not count as free.
    ///
    /// # Errors
    ///
    /// [`CudaError`] where the driver does not answer, or the guard serves the host.
    pub fn free_memory(&self) -> Result<(u64, u64), CudaError> {
        let context = self.context().ok_or_else(|| self.why_host())?;
        free_memory_of(context)
    }

    /// `batch` with so many bytes of workspace an item, out of what is free on the device, of
    /// which a tenth stays so: see [`BatchAxis::workspace_within_free`]. A plan then has chunks
    /// that fit, unless others take the memory first.
    ///
    /// # Errors
    ///
    /// As [`Self::free_memory`].
    pub fn workspace(&self, batch: BatchAxis, bytes_per_item: u64) -> Result<BatchAxis, CudaError> {
        Ok(batch.workspace_within_free(bytes_per_item, self.free_memory()?.0))
    }

    /// Plans `request` and launches it with workspace of its own, as [`BatchAxis::workspace`]
    /// declares it: [`Args::workspace`] is where the kernel takes it. The memory is allocated on
    /// the stream, not initialised, and let go of there.
    ///
    /// Where an allocation is out of memory, what is not launched yet follows in smaller chunks;
    /// the report says on which it settled. Any other failure ends it. Chunks do not overlap, not
    /// even of kernels that allow it, since they may share the workspace.
    ///
    /// A [`dependent`](LaunchRequest::dependent) request is checked as such, and then makes no use of
    /// what it may: also its first chunk waits for the launch before it. That one may still use the
    /// memory, which the stream hands on as soon as it is let go of, and the kernel may clear its
    /// workspace before it waits.
    ///
    /// Under stream capture allocations and launches become nodes of the graph, in the chunks that
    /// the planner chooses: the memory is taken when the graph is instantiated or launched, and that
    /// it is not there is the answer then, which nothing settles. Cap the workspace by what will be
    /// free, as [`Self::workspace`] does. Capture in a context without event tracking, as for
    /// [`Self::launch`].
    ///
    /// # Errors
    ///
    /// [`LaunchError::OutOfWorkspace`] with what was done, where not even the smallest chunk fits, an
    /// allocation fails for another reason than memory, or the driver refuses a launch;
    /// [`LaunchError::Unsupported`] under stream capture on a device without memory pools, whose
    /// memory would be gone before the graph runs; and as [`Self::plan_and_launch`]. What a capture
    /// took up before an error stays in its graph: let go of that.
    #[track_caller]
    pub fn launch_with_workspace(
        &self,
        kernel: &Kernel,
        request: &LaunchRequest,
        batch: &BatchAxis,
        choice: Choice,
        usage: WorkspaceUse,
        args: Args<'_>,
    ) -> Result<ChunkedRun, LaunchError> {
        let watch = self.watch(Location::caller());
        let plan = self.plan(request, Some(batch), kernel.limits(), choice)?;
        let owner = args.workspace_stream()?;
        let stream = self.bind(kernel, &args)?;
        let template = args.values();
        let placed = template.with_workspace_at(WORKSPACE_ALIGNMENT);
        prepare(kernel, plan.largest_launch(), plan.items(), &placed)?;
        if !owner.context().has_async_alloc() && is_capturing(kernel.inner().driver(), stream)? {
            let what = "workspaces under stream capture";
            return Err(LaunchError::Unsupported { symbol: "cuMemAllocAsync", what });
        }
        let request = &LaunchRequest { dependent: false, ..*request };
        let mut launcher = Bringer { kernel, owner, stream, template, watch };
        let settled =
            launch_with_backoff(request, batch, kernel.limits(), choice, usage, &mut launcher);
        match &settled {
            Ok(done) => self.counters().ran(done.launches),
            Err(BackoffError::OutOfWorkspace(end)) => self.counters().stopped(end.done().launches),
            Err(BackoffError::Invalid(violations)) => self.counters().rejected(violations),
        }
        Ok(settled?)
    }
}

impl<'a> Args<'a> {
    /// As [`Self::new`], for a launch that brings workspace of its own on `stream`.
    #[must_use]
    pub fn with_workspace(stream: &'a Arc<CudaStream>) -> Self {
        Self::new(stream).bringing(stream)
    }

    /// Where the launch's own workspace goes, for each chunk at least as many bytes as the batch
    /// declares for its items. Only for [`Guard::launch_with_workspace`].
    pub fn workspace(&mut self) -> &mut Self {
        self.values_mut().workspace();
        self
    }

    /// The stream on which the launch brings what an argument takes.
    fn workspace_stream(&self) -> Result<&'a Arc<CudaStream>, ArgsError> {
        let place = self.values().workspace_place().ok_or(ArgsError::WorkspaceNotTaken)?;
        self.brings().ok_or(ArgsError::WorkspaceNotBrought { index: place })
    }
}

impl From<BackoffError<DriverError>> for LaunchError {
    fn from(error: BackoffError<DriverError>) -> Self {
        match error {
            BackoffError::Invalid(violations) => Self::Invalid(violations),
            BackoffError::OutOfWorkspace(end) => Self::OutOfWorkspace(Box::new(end)),
        }
    }
}

/// Memory of launches on one stream; let go of in the order of the stream.
struct DeviceWorkspace {
    address: u64,
    #[allow(dead_code, reason = "holds the memory")]
    memory: CudaSlice<u8>,
}

struct Bringer<'a> {
    kernel: &'a Kernel,
    owner: &'a Arc<CudaStream>,
    /// The same stream, which `bind` found to be of the kernel's context.
    stream: Handle,
    template: &'a KernelArgs<'a>,
    watch: Watch,
}

impl WorkspaceLauncher for Bringer<'_> {
    type Workspace = DeviceWorkspace;
    type Error = DriverError;

    fn allocate(&mut self, bytes: u64) -> Result<DeviceWorkspace, AllocationError<DriverError>> {
        // First what cudarc recorded of earlier calls: it would come out of the allocation, and
        // might look like one that is out of memory.
        let (driver, context) = (self.kernel.inner().driver(), self.owner.context());
        query::bind_context(driver, context).map_err(AllocationError::Failed)?;
        // The driver has no memory of no bytes.
        let len = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: bytes have no invalid value; what a kernel makes of memory that no one wrote is
        // part of its contract.
        let allocated = unsafe { self.owner.alloc::<u8>(len) };
        let mut memory = allocated.map_err(|error| {
            let error = DriverError::from_cudarc(Some(context), "cuMemAllocAsync", error);
            match error.code {
                OUT_OF_MEMORY => AllocationError::OutOfMemory(error),
                _ => AllocationError::Failed(error),
            }
        })?;
        // All uses are on the stream that lets go of it, so there is nothing to wait for.
        let (address, _) = memory.device_ptr_mut(self.owner);
        Ok(DeviceWorkspace { address, memory })
    }

    fn launch(
        &mut self,
        planned: &PlannedLaunch,
        launches: u64,
        workspace: &mut DeviceWorkspace,
    ) -> Result<(), DriverError> {
        let args = self.template.with_workspace_at(workspace.address);
        let Self { kernel, stream, watch, .. } = *self;
        // SAFETY: the stream is of the kernel's context, which is current; the arguments were
        // checked against kernel and batch; the workspace lives until the stream lets go of it
        // after this launch, and has the bytes that the batch declares for the chunk's items.
        unsafe { submit_chunk(kernel, stream, planned, launches, &args, watch) }
    }
}
