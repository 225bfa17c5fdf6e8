//! Launches with a workspace, which is allocated on the launch's stream. If memory is short, chunks become smaller.

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, result};

use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::library::{not_allocated, recorded_failure};
use crate::cuda::error::{LaunchError, LaunchErrorKind};
use crate::cuda::launch::guarded::GuardedCall;
use crate::cuda::launch::planned::{PlanInput, ValidLaunches};
use crate::cuda::launch::{Values, prepare, stopped_at_once};
use crate::guard::Guard;
use crate::observe;
use crate::plan::arguments::ArgsError;
use crate::plan::backoff::{AllocationError, fit_workspace};
use crate::plan::slot::Slot;

impl Guard {
    /// Plans a request and launches it with the workspace that its batch declares.
    ///
    /// A dependent request is launched as an ordinary one. The stream's pool may return memory that the launch
    /// before still uses, and the kernel might write to it before `griddepcontrol.wait`.
    #[cold]
    pub(crate) fn launch_with_workspace(
        &self,
        call: &GuardedCall<'_, '_>,
        input: &PlanInput<'_>,
    ) -> Result<u64, LaunchError> {
        let (args, template) = (call.args, &call.args.list);
        let Some(batch) = input.batch else {
            let is_workspace = |slot: &Slot<'_>| matches!(slot, Slot::Workspace);
            let index = template.slots().iter().position(is_workspace).unwrap_or(0);
            return Err(ArgsError::WorkspaceNotAllocated { index }.into());
        };
        // Workspace is declared for each item.
        let limits = &*input.limits.without_forms();
        let plan = self.choose(&PlanInput { limits, ..*input });
        let mut plan = plan.map_err(|violations| self.count_failure(violations.into()))?;
        // Chunks share the workspace.
        let mut kernel = call.kernel.clone();
        kernel.overlap = false;
        let kernel = &kernel;
        let call = &GuardedCall { kernel, ..*call };
        let mut submit = || -> Result<u64, LaunchError> {
            let (stream, in_use) = self.bind(call)?;
            let placed = template.with_workspace_at(WORKSPACE_ALIGNMENT);
            if plan.shares_blocks() {
                // Even one launch may be split, if its workspace does not fit.
                template.check_values(plan.items())?;
            }
            // SAFETY: `args` hold the stream, whose context `bind` made current.
            unsafe {
                let (largest, items) = (plan.largest_launch(), plan.batch_items());
                prepare(kernel, stream, largest, items, Values::Args(&placed))
            }?;
            let context = args.stream().context();
            // SAFETY: `args` hold the stream, whose context `bind` made current.
            let is_capturing = || unsafe { kernel.inner.driver.is_capturing(stream) };
            if !context.has_async_alloc() && is_capturing()? {
                let what = "workspaces during stream capture";
                return Err(LaunchErrorKind::Unsupported { symbol: "cuMemAllocAsync", what }.into());
            }
            // The allocation would return this earlier error, and it might look like the allocation's own out-of-memory
            // error.
            recorded_failure(context)?;
            let mut workspace = None;
            if !plan.is_empty() {
                let allocate = |bytes| Workspace::new(args.stream(), bytes);
                let (fits, memory) = fit_workspace(plan, input.request, batch, limits, allocate)?;
                (plan, workspace) = (fits, Some(memory));
            }
            plan.launch = plan.launch.independent();
            let address = workspace.as_ref().map_or(WORKSPACE_ALIGNMENT, |memory| memory.address);
            let values = template.with_workspace_at(address);
            // SAFETY: `bind` returned the stream, whose uses have not ended. The workspace has the bytes that the
            // batch declares, and is freed in the order of the stream.
            let submission = unsafe { self.submission(call, stream, &values) };
            // SAFETY: `bind` returned the stream, whose uses have not ended.
            unsafe { submission.check_capture() }
                .map_err(|source| stopped_at_once(plan.len(), plan.items(), source))?;
            let launched = submission.submit(ValidLaunches::Plan(&plan));
            drop(workspace);
            let launched = call.end(launched);
            drop(in_use);
            launched
        };
        let launched = submit();
        let launched = self.count(launched)?;
        observe::launched(Some(kernel.name()), &plan);
        Ok(launched)
    }
}

/// Memory that is freed in the order of its stream.
struct Workspace<'s> {
    stream: &'s CudaStream,
    address: CUdeviceptr,
}

impl<'s> Workspace<'s> {
    /// Allocates memory on `stream`, whose context is current.
    fn new(stream: &'s CudaStream, bytes: u64) -> Result<Self, AllocationError<DriverError>> {
        // The driver refuses allocations of no bytes.
        let bytes = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: the stream is alive, and its context current. The memory is only passed to kernels, whose
        // contract covers uninitialised memory.
        let allocated = unsafe {
            match stream.context().has_async_alloc() {
                true => result::malloc_async(stream.cu_stream(), bytes),
                false => result::malloc_sync(bytes),
            }
        };
        match allocated {
            Ok(address) => Ok(Self { stream, address }),
            Err(error) => Err(not_allocated(stream.context(), error)),
        }
    }
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        let Self { stream, address } = *self;
        let context = stream.context();
        // SAFETY: allocated by `new` in the same way, and used by nothing but earlier work on the stream.
        let freed = unsafe {
            match context.has_async_alloc() {
                true => result::free_async(address, stream.cu_stream()),
                false => {
                    context.record_err(stream.synchronize());
                    result::free_sync(address)
                }
            }
        };
        context.record_err(freed);
    }
}

/// The alignment in bytes that CUDA guarantees for every allocation: a kernel that needs more for its
/// workspace is rejected.
const WORKSPACE_ALIGNMENT: u64 = 256;
