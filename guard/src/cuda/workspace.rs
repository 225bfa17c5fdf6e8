//! Launches that allocate their own workspace, and the memory that is free for it.

use core::panic::Location;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};

use super::arguments::Args;
use super::context::{Watch, is_capturing};
use super::driver::from_cudarc;
use super::error::{CudaError, DriverError, LaunchError};
use super::kernel::Kernel;
use super::launch::{prepare, submit_chunk};
use super::query::free_memory_in;
use super::symbols::{Driver, Handle, OUT_OF_MEMORY};
use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::plan::arguments::{ArgsError, KernelArgs};
use crate::plan::backoff::{
    AllocationError, BackoffError, ChunkedRun, WorkspaceLauncher, WorkspaceUse, launch_with_backoff,
};
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::launches::PlannedLaunch;

/// The alignment in bytes that CUDA guarantees for every allocation: a kernel that needs more for its
/// workspace is rejected.
const WORKSPACE_ALIGNMENT: u64 = 256;

impl Guard {
    /// Free and total memory of the guard's device in bytes, at this moment. Freed memory that the
    /// pools of streams retain does not count as free.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the query fails, or the guard runs on the host.
    pub fn free_memory(&self) -> Result<(u64, u64), CudaError> {
        let context = self.context().ok_or_else(|| self.why_host())?;
        Ok(free_memory_in(Driver::get()?, context.cu_ctx().cast())?)
    }

    /// `batch` with `bytes_per_item` bytes of workspace for each item, within nine tenths of what is
    /// free on the device now: see [`BatchAxis::workspace_within_free`].
    ///
    /// # Errors
    ///
    /// As [`Self::free_memory`].
    pub fn workspace(&self, batch: BatchAxis, bytes_per_item: u64) -> Result<BatchAxis, CudaError> {
        Ok(batch.workspace_within_free(bytes_per_item, self.free_memory()?.0))
    }

    /// Plans `request` and launches it with a workspace that this call allocates, as large as
    /// [`BatchAxis::workspace`] declares: [`Args::workspace`] marks the kernel's parameter. The memory
    /// is allocated on the stream, not initialised, and freed there.
    ///
    /// If an allocation is out of memory, the remaining items are launched in smaller chunks; the
    /// returned [`ChunkedRun`] has their size. Any other failure ends the run. Chunks never overlap,
    /// since they may share the workspace.
    ///
    /// A [`dependent`](LaunchRequest::dependent) request is validated as such, but launched as an
    /// ordinary one: the kernel might clear its workspace before it waits, while the launch before
    /// still uses that memory, which the stream's pool reuses as soon as it is freed.
    ///
    /// During stream capture allocations and launches become nodes of the graph, in the chunks that
    /// the planner chooses: memory is reserved when the graph is instantiated or launched, which then
    /// fails if there is too little. Cap the workspace by what will be free, as [`Self::workspace`]
    /// does. Capture in a context without event tracking, as for [`Self::launch`].
    ///
    /// # Errors
    ///
    /// [`LaunchError::Backoff`] with what was done, if the smallest chunk does not fit, an
    /// allocation fails for another reason, or the driver refuses a launch;
    /// [`LaunchError::Unsupported`] during stream capture on a device without memory pools, where the
    /// memory would be freed before the graph runs; and as [`Self::plan_and_launch`]. After an error
    /// during capture discard the graph: it holds what was captured before.
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
        // SAFETY: `owner` holds the stream, whose context `bind` made current.
        let is_capturing = || unsafe { is_capturing(kernel.inner().driver(), stream) };
        if !owner.context().has_async_alloc() && is_capturing()? {
            let what = "workspaces during stream capture";
            return Err(LaunchError::Unsupported { symbol: "cuMemAllocAsync", what });
        }
        let request = &LaunchRequest { dependent: false, ..*request };
        let mut launcher = StreamLauncher { kernel, owner, stream, template, watch };
        let run =
            launch_with_backoff(request, batch, kernel.limits(), choice, usage, &mut launcher);
        match &run {
            Ok(run) => self.counters().ran(run.launches),
            Err(BackoffError::Invalid(violations)) => self.counters().rejected(violations),
            Err(error) => {
                let launched = error.failure().map_or(0, |(done, _)| done.launches);
                self.counters().stopped(launched);
            }
        }
        Ok(run?)
    }
}

impl<'a> Args<'a> {
    /// As [`Self::new`], for a launch that allocates its workspace on `stream`.
    #[must_use]
    pub fn with_workspace(stream: &'a Arc<CudaStream>) -> Self {
        Self::new(stream).allocating_on(stream)
    }

    /// The address of the launch's workspace, for each chunk at least as many bytes as the batch
    /// declares for its items. Only for [`Guard::launch_with_workspace`].
    pub fn workspace(&mut self) -> &mut Self {
        self.values_mut().workspace();
        self
    }

    /// The stream on which to allocate the workspace that an argument is for.
    fn workspace_stream(&self) -> Result<&'a Arc<CudaStream>, ArgsError> {
        let place = self.values().workspace_place().ok_or(ArgsError::WorkspaceUnused)?;
        self.allocates_on().ok_or(ArgsError::WorkspaceNotAllocated { index: place })
    }
}

impl From<BackoffError<DriverError>> for LaunchError {
    fn from(error: BackoffError<DriverError>) -> Self {
        match error {
            BackoffError::Invalid(violations) => Self::Invalid(violations),
            error => Self::Backoff(Box::new(error)),
        }
    }
}

/// Workspace of launches on one stream; freed in the order of the stream.
struct DeviceWorkspace {
    address: u64,
    #[allow(dead_code, reason = "holds the memory")]
    memory: CudaSlice<u8>,
}

struct StreamLauncher<'a> {
    kernel: &'a Kernel,
    owner: &'a Arc<CudaStream>,
    /// The handle of `owner`, which `bind` found to be a stream of the kernel's context.
    stream: Handle,
    template: &'a KernelArgs<'a>,
    watch: Watch,
}

impl WorkspaceLauncher for StreamLauncher<'_> {
    type Workspace = DeviceWorkspace;
    type Error = DriverError;

    fn allocate(&mut self, bytes: u64) -> Result<DeviceWorkspace, AllocationError<DriverError>> {
        // Report failures that cudarc recorded earlier: the allocation would return them, and they
        // might look like its own out-of-memory error.
        let (driver, context) = (self.kernel.inner().driver(), self.owner.context());
        driver.bind_cudarc(context).map_err(AllocationError::Failed)?;
        // The driver refuses allocations of no bytes.
        let len = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: any value is a valid `u8`, and the memory is only passed to the kernel, whose
        // contract covers uninitialised workspace.
        let allocated = unsafe { self.owner.alloc::<u8>(len) };
        let mut memory = allocated.map_err(|error| {
            let error = from_cudarc(Some(context), "cuMemAllocAsync", error);
            match error.code {
                OUT_OF_MEMORY => AllocationError::OutOfMemory(error),
                _ => AllocationError::Failed(error),
            }
        })?;
        // All uses are on the stream that frees it, so the use need not be recorded.
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
        // SAFETY: `bind` checked that the stream is of the kernel's context and made that current;
        // `prepare` checked the arguments against kernel and batch; the workspace is freed on the
        // stream after this launch, and has the bytes that the batch declares for the chunk's items.
        unsafe { submit_chunk(kernel, stream, planned, launches, &args, watch) }
    }
}
