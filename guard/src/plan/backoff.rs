//! Launches a batch with workspace, in smaller chunks where an allocation runs out of memory.
//!
//! Pure: a [`WorkspaceLauncher`] allocates and launches.

use core::fmt;
use core::num::NonZeroU64;

use crate::launch::request::LaunchRequest;
use crate::launch::violation::Violations;
use crate::limits::launch::LaunchLimits;
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::chunks::Chunk;
use crate::plan::launches::{Plan, PlannedLaunch};

/// Allocates workspace and launches chunks with it.
pub trait WorkspaceLauncher {
    /// The memory of one or several launches, freed when dropped.
    type Workspace;
    /// Why an allocation or a launch failed.
    type Error;

    /// Allocates `bytes` of workspace.
    ///
    /// # Errors
    ///
    /// [`AllocationError::OutOfMemory`] if a smaller allocation may succeed,
    /// [`AllocationError::Failed`] otherwise.
    fn allocate(&mut self, bytes: u64) -> Result<Self::Workspace, AllocationError<Self::Error>>;

    /// Launches one chunk of a plan of `launches` launches.
    ///
    /// # Errors
    ///
    /// The backend's error; nothing is retried.
    fn launch(
        &mut self,
        planned: &PlannedLaunch,
        launches: u64,
        workspace: &mut Self::Workspace,
    ) -> Result<(), Self::Error>;
}

/// Why an allocation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationError<E> {
    /// Out of memory: a smaller allocation is tried.
    OutOfMemory(E),
    /// Another reason: nothing more is tried.
    Failed(E),
}

/// How long a workspace lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkspaceUse {
    /// One workspace for all chunks, as large as the largest needs: one allocation.
    Shared,
    /// One workspace per chunk, of its size: others can use the memory between chunks.
    PerChunk,
}

/// The launches of a batch, all of them or those before a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkedRun {
    /// Items of the largest chunk of each plan that was tried, in order: the planner's first, the one
    /// that fitted last. Empty for a batch of zero items.
    pub tried: Vec<u64>,
    /// The number of launches.
    pub launches: u64,
    /// Items of these launches, the first ones of the batch.
    pub items_done: u64,
    /// Bytes of the largest workspace.
    pub workspace_bytes: u64,
}

impl ChunkedRun {
    /// Items of the largest chunk of the last plan, the one that fitted; 0 for an empty batch.
    #[must_use]
    pub fn chunk(&self) -> u64 {
        self.tried.last().copied().unwrap_or(0)
    }
}

/// Why a batch was not launched, or not to its end. The message includes that of the `source`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackoffError<E: core::error::Error + 'static> {
    /// The request breaks rules; nothing was allocated or launched.
    Invalid(Violations),
    /// The smallest possible chunk has no workspace.
    OutOfWorkspace {
        /// Items of that chunk.
        chunk: u64,
        /// Bytes of workspace that it needs.
        bytes: u64,
        /// Items of the batch.
        items: u64,
        /// What was launched before, and tried.
        done: ChunkedRun,
        /// Why the allocation failed.
        source: E,
    },
    /// An allocation failed for another reason than memory.
    Allocation {
        /// Bytes of the allocation.
        bytes: u64,
        /// Items of the batch.
        items: u64,
        /// What was launched before.
        done: ChunkedRun,
        /// Why the allocation failed.
        source: E,
    },
    /// A launch failed.
    Launch {
        /// Items of the failed launch.
        chunk: u64,
        /// Items of the batch.
        items: u64,
        /// What was launched before.
        done: ChunkedRun,
        /// Why the launch failed.
        source: E,
    },
}

impl<E: core::error::Error + 'static> fmt::Display for BackoffError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(violations) => violations.fmt(f),
            Self::OutOfWorkspace { chunk, bytes, items, done, source } => write!(
                f,
                "cannot allocate {bytes} bytes for the smallest possible chunk of {chunk} items, \
                 after {done} of {items} items ({source}): free memory, or use less workspace per \
                 item",
                done = done.items_done
            ),
            Self::Allocation { bytes, items, done, source } => write!(
                f,
                "cannot allocate {bytes} bytes of workspace, after {done} of {items} items: {source}",
                done = done.items_done
            ),
            Self::Launch { chunk, items, done, source } => write!(
                f,
                "launch {launch} ({chunk} items) was refused after {done} of {items} items: \
                 {source}",
                launch = done.launches,
                done = done.items_done
            ),
        }
    }
}

impl<E: core::error::Error + 'static> core::error::Error for BackoffError<E> {}

impl<E: core::error::Error + 'static> From<Violations> for BackoffError<E> {
    fn from(violations: Violations) -> Self {
        Self::Invalid(violations)
    }
}

impl<E: core::error::Error + 'static> BackoffError<E> {
    /// What was launched before the failure, and why it failed; `None` for an invalid request.
    pub const fn failure(&self) -> Option<(&ChunkedRun, &E)> {
        match self {
            Self::Invalid(_) => None,
            Self::OutOfWorkspace { done, source, .. }
            | Self::Allocation { done, source, .. }
            | Self::Launch { done, source, .. } => Some((done, source)),
        }
    }
}

/// Plans `request` and runs it through `launcher`, each launch with the workspace that `batch`
/// declares for its items.
///
/// Where an allocation runs out of memory, the remaining items are planned again in chunks of half the
/// size, down to the smallest that the batch allows. No item is launched twice, and none is left out.
///
/// # Errors
///
/// [`BackoffError::Invalid`] if no plan is legal; otherwise what was launched before the smallest
/// possible chunk ran out of memory, or before anything else failed.
pub fn launch_with_backoff<L>(
    request: &LaunchRequest,
    batch: &BatchAxis,
    limits: &LaunchLimits,
    choice: Choice,
    usage: WorkspaceUse,
    launcher: &mut L,
) -> Result<ChunkedRun, BackoffError<L::Error>>
where
    L: WorkspaceLauncher,
    L::Error: core::error::Error + 'static,
{
    let items = batch.items();
    // Workspace is declared by item.
    let limits = &*limits.without_forms();
    let mut plan = Plan::new(request, Some(batch), limits, choice)?;
    let mut done = ChunkedRun::default();
    loop {
        if plan.is_empty() {
            return Ok(done);
        }
        done.tried.push(plan.largest_chunk());
        let (chunk, source) = match run_plan(&plan, batch, usage, launcher, &mut done) {
            Ok(()) => return Ok(done),
            Err(Failure::Memory { chunk, source }) => (chunk, source),
            Err(Failure::Allocation { bytes, source }) => {
                return Err(BackoffError::Allocation { bytes, items, done, source });
            }
            Err(Failure::Launch { chunk, source }) => {
                return Err(BackoffError::Launch { chunk, items, done, source });
            }
        };
        plan = match smaller(request, batch, limits, choice, done.items_done, chunk) {
            Some(plan) => plan,
            None => {
                let bytes = workspace_bytes(batch, chunk);
                return Err(BackoffError::OutOfWorkspace { chunk, bytes, items, done, source });
            }
        };
    }
}

/// Why a plan was not run to its end.
enum Failure<E> {
    Memory { chunk: u64, source: E },
    Allocation { bytes: u64, source: E },
    Launch { chunk: u64, source: E },
}

/// Runs `plan`, which is for the items that are not `done`.
fn run_plan<L: WorkspaceLauncher>(
    plan: &Plan,
    batch: &BatchAxis,
    usage: WorkspaceUse,
    launcher: &mut L,
    done: &mut ChunkedRun,
) -> Result<(), Failure<L::Error>> {
    let (first, launches) = (done.items_done, done.launches.saturating_add(plan.len()));
    let mut shared = match usage {
        WorkspaceUse::Shared => Some(allocate(plan.largest_chunk(), batch, launcher, done)?),
        WorkspaceUse::PerChunk => None,
    };
    for PlannedLaunch { chunk: Chunk { start, items, .. }, launch, .. } in plan.launches() {
        let chunk = Chunk { index: done.launches, start: first.saturating_add(start), items };
        let planned = PlannedLaunch { chunk, launch, first_block: [0; 3] };
        let launched = match &mut shared {
            Some(workspace) => launcher.launch(&planned, launches, workspace),
            None => {
                let mut own = allocate(items, batch, launcher, done)?;
                launcher.launch(&planned, launches, &mut own)
            }
        };
        launched.map_err(|source| Failure::Launch { chunk: items, source })?;
        done.launches = done.launches.saturating_add(1);
        done.items_done = chunk.end();
    }
    Ok(())
}

/// Allocates the workspace of a chunk of `items`.
fn allocate<L: WorkspaceLauncher>(
    items: u64,
    batch: &BatchAxis,
    launcher: &mut L,
    done: &mut ChunkedRun,
) -> Result<L::Workspace, Failure<L::Error>> {
    let bytes = workspace_bytes(batch, items);
    let workspace = launcher.allocate(bytes).map_err(|error| match error {
        AllocationError::OutOfMemory(source) => Failure::Memory { chunk: items, source },
        AllocationError::Failed(source) => Failure::Allocation { bytes, source },
    })?;
    done.workspace_bytes = done.workspace_bytes.max(bytes);
    Ok(workspace)
}

/// A plan for the items after the first `done`, in chunks of half of `chunk`, or of the smallest unit;
/// `None` if the launch cannot be divided further.
fn smaller(
    request: &LaunchRequest,
    batch: &BatchAxis,
    limits: &LaunchLimits,
    choice: Choice,
    done: u64,
    chunk: u64,
) -> Option<Plan> {
    let axis = batch.axis();
    let cluster = request.cluster_with(limits.kernel());
    let unit = batch.cluster_unit(cluster.map_or(1, |cluster| cluster.along(axis)))?;
    let most = (chunk / 2).max(unit);
    if most >= chunk {
        return None;
    }
    // All chunks but the last are whole units, so the rest starts with a block of its own.
    let rest = batch.after(done);
    let grid = request.grid.with(axis, rest.blocks(rest.items())?);
    // Later chunks depend on the chunks before them.
    let dependent = request.dependent && done == 0;
    let request = LaunchRequest { grid, dependent, ..*request };
    let choice = Choice { max_items: NonZeroU64::new(most), ..choice };
    let plan = Plan::new(&request, Some(&rest), limits, choice).ok()?;
    // A strategy of one launch ignores the cap.
    (plan.largest_chunk() < chunk).then_some(plan)
}

fn workspace_bytes(batch: &BatchAxis, items: u64) -> u64 {
    u64::try_from(batch.workspace_bytes(items)).unwrap_or(u64::MAX)
}
