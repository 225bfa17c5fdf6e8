//! Chunks whose workspace can be allocated: halved if an allocation is out of memory.

use core::num::NonZeroU64;

use crate::launch::request::LaunchRequest;
use crate::launch::violation::count;
use crate::limits::launch::LaunchLimits;
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::launches::Plan;

/// Why an allocation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationError<E> {
    /// Out of memory: a smaller allocation is tried.
    OutOfMemory(E),
    /// Another reason: nothing more is tried.
    Failed(E),
}

/// The workspace of a launch could not be allocated. The message includes the message of `source`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot allocate {bytes} bytes of workspace for a chunk of {chunk} of {}: {source}{}",
    count(*items, "item"),
    if *is_smallest { ": free memory, or use less workspace per item" } else { "" }
)]
#[non_exhaustive]
pub struct WorkspaceError<E: core::error::Error + 'static> {
    /// Items of the largest chunk.
    pub chunk: u64,
    /// Bytes of its workspace.
    pub bytes: u64,
    /// Items of the batch.
    pub items: u64,
    /// Whether memory ran out, and the batch allows no smaller chunk.
    pub is_smallest: bool,
    /// Why the allocation failed.
    #[source]
    pub source: E,
}

/// Allocates the workspace of the largest chunk of `plan`, a plan of `request` with at least one launch. If memory runs
/// out, plans chunks of half the size, down to the smallest that the batch allows. Returns the plan that fits, and its
/// workspace.
///
/// # Errors
///
/// [`WorkspaceError`] if the smallest chunk does not fit, or an allocation fails for another reason.
pub fn fit_workspace<W, E: core::error::Error + 'static>(
    mut plan: Plan,
    request: &LaunchRequest,
    batch: &BatchAxis,
    limits: &LaunchLimits,
    mut allocate: impl FnMut(u64) -> Result<W, AllocationError<E>>,
) -> Result<(Plan, W), WorkspaceError<E>> {
    let items = batch.items();
    loop {
        let chunk = plan.largest_chunk();
        let bytes = u64::try_from(batch.workspace_bytes(chunk)).unwrap_or(u64::MAX);
        let (source, is_smallest) = match allocate(bytes) {
            Ok(workspace) => return Ok((plan, workspace)),
            Err(AllocationError::Failed(source)) => (source, false),
            Err(AllocationError::OutOfMemory(source)) => {
                if let Some(smaller) = smaller(request, batch, limits, chunk) {
                    plan = smaller;
                    continue;
                }
                (source, true)
            }
        };
        return Err(WorkspaceError { chunk, bytes, items, is_smallest, source });
    }
}

/// A plan in chunks of half of `chunk`, or of the smallest unit; `None` if the launch cannot be divided further.
fn smaller(
    request: &LaunchRequest,
    batch: &BatchAxis,
    limits: &LaunchLimits,
    chunk: u64,
) -> Option<Plan> {
    let unit = batch.smallest_chunk(request, limits)?;
    let most = (chunk / 2).max(unit);
    if most >= chunk {
        return None;
    }
    let choice = Choice { max_items: NonZeroU64::new(most), ..Choice::AUTOMATIC };
    let plan = Plan::new(request, Some(batch), limits, choice).ok()?;
    // A strategy of one launch ignores the cap.
    (plan.largest_chunk() < chunk).then_some(plan)
}
