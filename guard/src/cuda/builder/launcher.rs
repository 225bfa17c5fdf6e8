//! Makes the launches of cudarc's launch builder, whole or chunk by chunk.

use cudarc::driver::{CudaEvent, CudaStream, LaunchArgs, LaunchConfig};

use crate::cuda::arguments::uses::Uses;
use crate::cuda::builder::chunk_arg::ChunkArg;
use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::history::Watch;
use crate::cuda::driver::library::{failed_earlier, from_cudarc};
use crate::cuda::driver::suspects::FaultSuspects;
use crate::cuda::driver::symbols::Handle;
use crate::cuda::error::{LaunchError, Launches};
use crate::cuda::kernel::Inner;
use crate::cuda::launch::accepted;
use crate::launch::request::LaunchRequest;
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::validate;
use crate::observe;
use crate::plan::arguments::{ArgsError, MAX_ARGS, check_slot};
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::chunks::Chunk;
use crate::plan::launches::{Plan, PlannedLaunch};
use crate::plan::run::{Launcher, run};
use crate::record::counters::Counters;

/// Events before and after a launch, if asked for.
pub(crate) type Events = Option<(CudaEvent, CudaEvent)>;

/// Makes one launch after another through cudarc's builder.
pub(crate) struct BuilderLauncher<'b, 'a, S> {
    pub(crate) kernel: &'b Inner,
    pub(crate) stream: &'a CudaStream,
    pub(crate) inner: &'b mut LaunchArgs<'a>,
    /// Arguments in `inner`.
    pub(crate) given: usize,
    /// Those that follow the chunk.
    pub(crate) arguments: &'b [ChunkArg<'a>],
    /// The places of integers among the others, and their bits.
    pub(crate) integers: &'b [(usize, u64)],
    pub(crate) submit: &'b S,
    /// Launches of the plan.
    pub(crate) launches: u64,
    pub(crate) watch: Watch,
    /// Those of the launches so far.
    pub(crate) events: &'b mut Events,
}

impl<'a, S> BuilderLauncher<'_, 'a, S>
where
    S: Fn(&mut LaunchArgs<'a>, LaunchConfig) -> Result<Events, cudarc::driver::DriverError>,
{
    #[inline]
    pub(crate) fn launch_whole(
        &mut self,
        request: &LaunchRequest,
        counters: &Counters,
    ) -> Launches {
        // By reference, here and below: a copy right after it was written waits for the writes.
        match &ValidLaunch::plain(request, &self.kernel.limits) {
            Some(launch) => self.launch_valid(launch, counters),
            None => self.validate_and_launch(request, counters),
        }
    }

    #[inline(never)]
    fn validate_and_launch(&mut self, request: &LaunchRequest, counters: &Counters) -> Launches {
        self.launch_valid(&validate(request, &self.kernel.limits)?, counters)
    }

    #[inline]
    fn launch_valid(&mut self, launch: &ValidLaunch, counters: &Counters) -> Launches {
        self.prepare(launch)?;
        match self.launch_chunk(&Chunk::only(1), launch) {
            Ok(()) => Ok(1),
            Err(error) => {
                counters.stopped(0);
                Err(error.into())
            }
        }
    }

    /// Launches the `tuned` plan, or else the planner's. Out of line, to keep launches without a batch
    /// short.
    #[inline(never)]
    pub(crate) fn launch_batch(
        &mut self,
        request: &LaunchRequest,
        batch: &BatchAxis,
        tuned: Option<Plan>,
    ) -> Launches {
        let limits = &self.kernel.limits;
        let plan = match tuned {
            Some(plan) => plan,
            None => {
                observe::planning(|| Plan::new(request, Some(batch), limits, Choice::AUTOMATIC))?
            }
        };
        self.prepare(plan.largest_launch())?;
        self.check(plan.items())?;
        if plan.shares_blocks() && plan.len() > 1 {
            self.check_values(plan.items())?;
        }
        self.launches = plan.len();
        let used = self.use_memory()?;
        let launches = run(&plan, self)?;
        used.end();
        observe::launched(Some(&self.kernel.limits.kernel().name), &plan);
        Ok(launches)
    }

    /// Checks the number of arguments, opts in to shared memory and checks occupancy.
    #[inline]
    fn prepare(&self, launch: &ValidLaunch) -> Result<(), LaunchError> {
        let Self { kernel, stream, .. } = *self;
        kernel.signature.check_count(&kernel.limits.kernel().name, self.given)?;
        let co_resident = launch.is_co_resident();
        if co_resident || kernel.needs_opt_in(launch.dynamic_shared_bytes()) {
            kernel.driver.bind(kernel.context)?;
            kernel.opt_in(launch.dynamic_shared_bytes())?;
        }
        if !co_resident {
            return Ok(());
        }
        // SAFETY: `stream` is alive and of the kernel's context, which is current.
        unsafe { kernel.check_occupancy(stream.cu_stream().cast(), launch) }
    }

    /// Checks that the arguments that follow the chunk can do so for a batch of `items`.
    fn check(&self, items: u64) -> Result<(), ArgsError> {
        let kernel = &self.kernel.limits.kernel().name;
        self.arguments.iter().try_for_each(|ChunkArg { index, slot, .. }| {
            let slot = slot.narrowed_to(self.kernel.signature.bytes_of(*index));
            self.kernel.signature.check_slot(kernel, *index, &slot)?;
            check_slot(&slot, *index, items)
        })
    }

    /// Checks that no integer is the number of `items` of a batch that is split and whose blocks share
    /// items.
    fn check_values(&self, items: u64) -> Result<(), ArgsError> {
        match self.integers.iter().find(|(_, bits)| *bits == items) {
            Some(&(index, _)) => Err(ArgsError::TotalInChunks { index, items }),
            None => Ok(()),
        }
    }

    /// Has the stream wait for earlier uses of the memory; what is returned records this one.
    fn use_memory(&self) -> Result<Uses<'a>, LaunchError> {
        // `Uses` holds no more.
        if self.arguments.len() > MAX_ARGS {
            return Err(ArgsError::TooMany { given: self.arguments.len() }.into());
        }
        let mut uses = Uses::new(self.stream);
        let memory = self.arguments.iter().filter_map(|argument| argument.memory);
        memory.for_each(|memory| memory.use_in(&mut uses));
        if uses.has_foreign_memory() {
            return Err(self.other_context("an argument's memory"));
        }
        if let Some(error) = uses.failed() {
            return Err(failed_earlier(self.stream.context(), error).into());
        }
        // The caller of an unsafe launch keeps kernel and memory alive for a graph.
        uses.begin_unsafe();
        Ok(uses)
    }

    #[cold]
    pub(crate) fn other_context(&self, what: &'static str) -> LaunchError {
        LaunchError::OtherContext { what, kernel: self.kernel.limits.kernel().name.clone() }
    }

    #[inline]
    fn launch_chunk(&mut self, chunk: &Chunk, launch: &ValidLaunch) -> Result<(), DriverError> {
        let Self { kernel, stream, launches, watch, .. } = *self;
        for ChunkArg { slot, value, .. } in self.arguments {
            value.set(slot.bits(chunk));
        }
        let config = LaunchConfig {
            grid_dim: launch.grid().into(),
            block_dim: launch.block().into(),
            shared_mem_bytes: launch.dynamic_shared_bytes(),
        };
        match (self.submit)(self.inner, config) {
            Ok(None) => {}
            Ok(Some(events)) => self.add_events(events),
            Err(error) => return Err(self.failed(error, chunk, launch)),
        }
        // SAFETY: `stream` holds the stream, and cudarc has made its context current.
        unsafe { accepted(kernel, stream.cu_stream().cast(), chunk, launch, launches, watch) }
    }

    /// The error of a launch, which is one of its suspects.
    #[cold]
    fn failed(
        &self,
        error: cudarc::driver::DriverError,
        chunk: &Chunk,
        launch: &ValidLaunch,
    ) -> DriverError {
        let Self { kernel, stream, launches, watch, .. } = *self;
        let call =
            if launch.is_cooperative() { "cuLaunchCooperativeKernel" } else { "cuLaunchKernel" };
        let error = from_cudarc(Some(stream.context()), call, error).of_launch(&kernel.limits);
        let stream = stream.cu_stream().cast();
        with_launch_as_suspect(error, kernel, stream, chunk, launch, launches, watch)
    }

    /// Keeps the first event of the first launch and the last one of the last.
    #[cold]
    fn add_events(&mut self, (first, last): (CudaEvent, CudaEvent)) {
        let first = self.events.take().map_or(first, |(first, _)| first);
        *self.events = Some((first, last));
    }
}

impl<'a, S> Launcher for BuilderLauncher<'_, 'a, S>
where
    S: Fn(&mut LaunchArgs<'a>, LaunchConfig) -> Result<Events, cudarc::driver::DriverError>,
{
    type Error = DriverError;

    fn launch(&mut self, planned: &PlannedLaunch) -> Result<(), DriverError> {
        self.launch_chunk(&planned.chunk, &planned.launch)
    }
}

/// Adds `launch` to the suspects of `error`, which a call returned that does more than launch, such as
/// record events afterwards: a quick fault of the launch itself surfaces there.
#[cold]
fn with_launch_as_suspect(
    error: DriverError,
    kernel: &Inner,
    stream: Handle,
    chunk: &Chunk,
    launch: &ValidLaunch,
    launches: u64,
    watch: Watch,
) -> DriverError {
    let name = &kernel.limits.kernel().name;
    // Repeated launches in a broken context must not crowd out the other suspects.
    let is_listed = |suspects: &FaultSuspects| {
        let mut recorded = suspects.launches().iter();
        recorded.any(|one| {
            *one.kernel == **name && one.call_site == watch.call_site && one.chunk == *chunk
        })
    };
    match error.suspects() {
        Some(suspects) if !is_listed(suspects) => {
            kernel.history.record(kernel.number, stream, chunk, launch, launches, watch.call_site);
            error.with_current_suspects(kernel.driver, kernel.context)
        }
        _ => error,
    }
}
