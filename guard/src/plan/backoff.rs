//! Runs a plan whose launches need workspace, in chunks as large as the memory allows. Pure: the
//! memory is whoever's.

use core::fmt;
use core::num::NonZeroU64;

use crate::launch::request::LaunchRequest;
use crate::launch::violation::Violations;
use crate::limits::LaunchLimits;
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::chunk::Chunk;
use crate::plan::launches::{Plan, PlannedLaunch};

/// Something that can bring workspace and launch a chunk with it.
pub trait WorkspaceLauncher {
    /// Memory of one or several launches; let go of by dropping it.
    type Workspace;
    /// Why memory was not brought, or a launch was refused.
    type Error;

    /// Brings `bytes` of workspace.
    ///
    /// # Errors
    ///
    /// [`AllocationError::OutOfMemory`] where less might be there, [`AllocationError::Failed`]
    /// where that is not what is wrong.
    fn allocate(&mut self, bytes: u64) -> Result<Self::Workspace, AllocationError<Self::Error>>;

    /// Launches one chunk of a plan, one of so many `launches` by the plan of the moment.
    ///
    /// # Errors
    ///
    /// Whatever the backend answers; nothing is tried again.
    fn launch(
        &mut self,
        planned: &PlannedLaunch,
        launches: u64,
        workspace: &mut Self::Workspace,
    ) -> Result<(), Self::Error>;
}

/// Why there is no workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationError<E> {
    /// There is not so much: a smaller one is tried.
    OutOfMemory(E),
    /// Something else is wrong: nothing more is tried.
    Failed(E),
}

/// How long a workspace lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkspaceUse {
    /// One for all chunks, as large as the largest needs: one allocation.
    Shared,
    /// One for each chunk, of its size: others get the memory between chunks.
    PerChunk,
}

/// What a batch came to. Of one that stopped, what was done until then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkedRun {
    /// Items of the largest chunk of each plan that was tried, in order: the planner's own first,
    /// the one that it settled on last. Empty for a batch of zero items.
    pub tried: Vec<u64>,
    /// How many launches there were.
    pub launches: u64,
    /// Items of these launches, the first ones of the batch.
    pub items_done: u64,
    /// Bytes of the largest workspace that was brought.
    pub workspace_bytes: u64,
}

impl ChunkedRun {
    /// Items of the largest chunk of the last plan, the one that fitted; 0 for an empty batch.
    #[must_use]
    pub fn chunk(&self) -> u64 {
        self.tried.last().copied().unwrap_or(0)
    }
}

/// A batch that stopped before its end: where, why, and what was done. Its text has that of the
/// failure in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutOfWorkspace<E: core::error::Error + 'static> {
    /// Not even the smallest chunk has its workspace.
    NoRoom {
        /// Items of that chunk.
        chunk: u64,
        /// Bytes that it needs.
        bytes: u64,
        /// Items of the batch.
        items: u64,
        /// What was done, and tried.
        done: ChunkedRun,
        /// The refusal.
        source: E,
    },
    /// An allocation failed, and not for want of memory.
    Allocation {
        /// Bytes that were asked for.
        bytes: u64,
        /// Items of the batch.
        items: u64,
        /// What was done.
        done: ChunkedRun,
        /// The failure.
        source: E,
    },
    /// A launch was refused.
    Launch {
        /// Items of the refused launch.
        chunk: u64,
        /// Items of the batch.
        items: u64,
        /// What was done.
        done: ChunkedRun,
        /// The refusal.
        source: E,
    },
}

impl<E: core::error::Error + 'static> fmt::Display for OutOfWorkspace<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChunkedRun { launches, items_done, .. } = self.done();
        match self {
            Self::NoRoom { chunk, bytes, items, source, .. } => write!(
                f,
                "{bytes} bytes of workspace for a chunk of {chunk} items are not there, and none \
                 is smaller, after {items_done} of {items} items ({source}): free memory, or use \
                 less workspace for each item"
            ),
            Self::Allocation { bytes, items, source, .. } => write!(
                f,
                "{bytes} bytes of workspace were not allocated after {items_done} of {items} \
                 items: {source}"
            ),
            Self::Launch { chunk, items, source, .. } => write!(
                f,
                "launch {launches} of {chunk} items was refused after {items_done} of {items} \
                 items: {source}"
            ),
        }
    }
}

impl<E: core::error::Error + 'static> core::error::Error for OutOfWorkspace<E> {}

impl<E: core::error::Error + 'static> OutOfWorkspace<E> {
    /// What was done until then.
    pub const fn done(&self) -> &ChunkedRun {
        match self {
            Self::NoRoom { done, .. }
            | Self::Allocation { done, .. }
            | Self::Launch { done, .. } => done,
        }
    }

    /// What failed.
    pub const fn source_error(&self) -> &E {
        match self {
            Self::NoRoom { source, .. }
            | Self::Allocation { source, .. }
            | Self::Launch { source, .. } => source,
        }
    }
}

/// Why a batch was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackoffError<E: core::error::Error + 'static> {
    /// The request breaks rules; nothing was allocated or launched.
    #[error(transparent)]
    Invalid(#[from] Violations),
    /// It stopped before its end.
    #[error(transparent)]
    OutOfWorkspace(#[from] OutOfWorkspace<E>),
}

/// Plans `request` and runs it through `launcher`, each launch with the workspace that `batch`
/// declares for its items.
///
/// Where an allocation is out of memory, what is not done yet is planned anew in chunks of half
/// the size, down to the batch's unit. No item is launched twice, and none is left out.
///
/// # Errors
///
/// [`BackoffError::Invalid`] where no plan is legal; [`BackoffError::OutOfWorkspace`] where not even the
/// smallest chunk fits, or anything else fails than memory: with the items done until then.
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
    let mut plan = Plan::new(request, Some(batch), limits, choice)?;
    let mut done = ChunkedRun::default();
    loop {
        if plan.is_empty() {
            return Ok(done);
        }
        done.tried.push(plan.largest_chunk());
        let (chunk, source) = match attempt(&plan, batch, usage, launcher, &mut done) {
            Ok(()) => return Ok(done),
            Err(Halt::Memory { chunk, source }) => (chunk, source),
            Err(Halt::Allocation { bytes, source }) => {
                let items = batch.items();
                return Err(OutOfWorkspace::Allocation { bytes, items, done, source }.into());
            }
            Err(Halt::Launch { chunk, source }) => {
                let items = batch.items();
                return Err(OutOfWorkspace::Launch { chunk, items, done, source }.into());
            }
        };
        plan = match smaller(request, batch, limits, choice, done.items_done, chunk) {
            Some(plan) => plan,
            None => {
                let (bytes, items) = (bytes_of(batch, chunk), batch.items());
                return Err(OutOfWorkspace::NoRoom { chunk, bytes, items, done, source }.into());
            }
        };
    }
}

/// Why an attempt came to an end before the batch did.
enum Halt<E> {
    Memory { chunk: u64, source: E },
    Allocation { bytes: u64, source: E },
    Launch { chunk: u64, source: E },
}

/// Runs `plan`, which is of the items that are not done yet, as far as memory lasts.
fn attempt<L: WorkspaceLauncher>(
    plan: &Plan,
    batch: &BatchAxis,
    usage: WorkspaceUse,
    launcher: &mut L,
    done: &mut ChunkedRun,
) -> Result<(), Halt<L::Error>> {
    let (first, launches) = (done.items_done, done.launches.saturating_add(plan.len()));
    let mut shared = match usage {
        WorkspaceUse::Shared => Some(bring(plan.largest_chunk(), batch, launcher, done)?),
        WorkspaceUse::PerChunk => None,
    };
    for PlannedLaunch { chunk: Chunk { start, items, .. }, launch } in plan.launches() {
        let chunk = Chunk { index: done.launches, start: first.saturating_add(start), items };
        let planned = PlannedLaunch { chunk, launch };
        let launched = match &mut shared {
            Some(workspace) => launcher.launch(&planned, launches, workspace),
            None => {
                let mut own = bring(items, batch, launcher, done)?;
                launcher.launch(&planned, launches, &mut own)
            }
        };
        launched.map_err(|source| Halt::Launch { chunk: items, source })?;
        done.launches = done.launches.saturating_add(1);
        done.items_done = chunk.end();
    }
    Ok(())
}

/// The workspace of a chunk of so many items.
fn bring<L: WorkspaceLauncher>(
    chunk: u64,
    batch: &BatchAxis,
    launcher: &mut L,
    done: &mut ChunkedRun,
) -> Result<L::Workspace, Halt<L::Error>> {
    let bytes = bytes_of(batch, chunk);
    let workspace = launcher.allocate(bytes).map_err(|error| match error {
        AllocationError::OutOfMemory(source) => Halt::Memory { chunk, source },
        AllocationError::Failed(source) => Halt::Allocation { bytes, source },
    })?;
    done.workspace_bytes = done.workspace_bytes.max(bytes);
    Ok(workspace)
}

/// The items from `items_done` on in chunks of half of `chunk`, or of the smallest unit; `None`
/// where the launch cannot be cut so.
fn smaller(
    request: &LaunchRequest,
    batch: &BatchAxis,
    limits: &LaunchLimits,
    choice: Choice,
    items_done: u64,
    chunk: u64,
) -> Option<Plan> {
    let axis = batch.axis();
    let cluster = request.cluster_with(limits.kernel());
    let unit = batch.cluster_unit(cluster.map_or(1, |cluster| cluster.along(axis)))?;
    let most = (chunk / 2).max(unit);
    if most >= chunk {
        return None;
    }
    // Chunks but the last are whole units, so what is left starts at a block of its own.
    let rest = batch.after(items_done);
    let blocks = rest.blocks(rest.items())?;
    let grid = request.grid.with(axis, blocks);
    // What follows a chunk of the same batch waits for it.
    let dependent = request.dependent && items_done == 0;
    let request = LaunchRequest { grid, dependent, ..*request };
    let choice = Choice { max_items: NonZeroU64::new(most), ..choice };
    let plan = Plan::new(&request, Some(&rest), limits, choice).ok()?;
    // Whoever insists on one launch gets no smaller one.
    (plan.largest_chunk() < chunk).then_some(plan)
}

fn bytes_of(batch: &BatchAxis, items: u64) -> u64 {
    u64::try_from(batch.workspace_bytes(items)).unwrap_or(u64::MAX)
}
