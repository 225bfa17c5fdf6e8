//! cudarc's launch builder with a guard: `launch_builder_guarded` in place of `launch_builder`.

pub(crate) mod chunk_arg;
pub(crate) mod codes;
pub(crate) mod kernel;
pub(crate) mod launcher;

use core::panic::Location;
#[cfg(feature = "profile")]
use std::borrow::Cow;
use std::rc::Rc;

use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaStream, LaunchArgs, LaunchConfig, PushKernelArg, sys,
};

use crate::cuda::arguments::memory::{Memory, MemoryMut, bytes_of, wide};
use crate::cuda::builder::chunk_arg::{ChunkArg, ChunkValue, Tracked, discard};
use crate::cuda::builder::launcher::{BuilderLauncher, Events};
use crate::cuda::driver::history::{ContextHistory, Watch};
use crate::cuda::error::{CudaError, LaunchError};
use crate::cuda::kernel::Kernel;
use crate::cuda::kernel::functions::{find_kernel, with_kernel};
#[cfg(feature = "profile")]
use crate::cuda::kernel::tuning::KernelTuning;
use crate::cuda::launch::planned::count;
use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::plan::arguments::ArgsError;
use crate::plan::batch::BatchAxis;
use crate::plan::slot::{Scalar, Slot, Width};
#[cfg(feature = "profile")]
use crate::profile::model::Key;
use crate::record::counters::Counts;

/// Launch builders with a guard, on cudarc's streams.
#[allow(private_bounds, reason = "only cudarc's streams implement it, so that it may grow")]
pub trait GuardedStream: Sealed {
    /// As `launch_builder`, with every launch validated against the limits of device and function,
    /// and split into chunks where it declares a [`batch`](GuardedLaunchArgs::batch).
    ///
    /// The limits of a function are queried at its first use and kept. The function's module stays
    /// loaded for as long, see [`forget_module_of`](crate::cuda::forget_module_of). What is launched and
    /// rejected is counted for each context, see [`counts_without_guard`], or by the
    /// [`guard`](GuardedLaunchArgs::guard) that is given.
    ///
    /// ```no_run
    /// # use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
    /// use gridguard::cuda::GuardedStream;
    /// use gridguard::{Axis, BatchAxis};
    /// # fn run(
    /// #     stream: &CudaStream, attention: &CudaFunction, q: &CudaSlice<f32>, out: &mut CudaSlice<f32>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // 15,360 items of 5 blocks each: 76,800 blocks on y, which takes 65,535.
    /// let config =
    ///     LaunchConfig { grid_dim: (1, 76_800, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };
    /// let scale = 0.125_f32;
    /// let mut launch = stream.launch_builder_guarded(attention); // was: launch_builder(attention)
    /// launch.batch(BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5));
    /// launch.items(q, 5_120).items_mut(out, 5_120).arg(&scale).chunk_length();
    /// // SAFETY: the function takes two pointers, a float and the number of items behind the pointers.
    /// let launched = unsafe { launch.launch(config)? };
    /// assert_eq!(launched.launches, 2);
    /// # Ok(())
    /// # }
    /// ```
    fn launch_builder_guarded<'a>(&'a self, function: &'a CudaFunction) -> GuardedLaunchArgs<'a>;
}

trait Sealed {}

impl Sealed for CudaStream {}

impl GuardedStream for CudaStream {
    fn launch_builder_guarded<'a>(&'a self, function: &'a CudaFunction) -> GuardedLaunchArgs<'a> {
        let inner = self.launch_builder(function);
        GuardedLaunchArgs {
            stream: self,
            function,
            inner,
            given: 0,
            guard: None,
            batch: None,
            #[cfg(feature = "profile")]
            tuning: None,
            chunk_args: Vec::new(),
            integers: Vec::new(),
        }
    }
}

/// cudarc's [`LaunchArgs`] with a guard.
///
/// Each `arg` stands for one parameter: an implementation of [`PushKernelArg`] of your own that adds several
/// is rejected with [`ArgsError::WrongCount`].
#[derive(Debug)]
pub struct GuardedLaunchArgs<'a> {
    stream: &'a CudaStream,
    function: &'a CudaFunction,
    inner: LaunchArgs<'a>,
    /// Arguments so far.
    given: usize,
    guard: Option<&'a Guard>,
    batch: Option<BatchAxis>,
    #[cfg(feature = "profile")]
    tuning: Option<Box<KernelTuning<'a>>>,
    chunk_args: Vec<ChunkArg<'a>>,
    /// The places of integers that were given after the batch, and their bits.
    integers: Vec<(usize, u64)>,
}

// SAFETY: passes every argument on to cudarc's own implementation, unchanged.
unsafe impl<'a, T> PushKernelArg<T> for GuardedLaunchArgs<'a>
where
    LaunchArgs<'a>: PushKernelArg<T>,
{
    #[inline(always)]
    fn arg(&mut self, arg: T) -> &mut Self {
        if self.batch.is_some()
            && let Some(bits) = integer(&arg)
        {
            self.integers.push((self.given, bits));
        }
        self.constant(arg)
    }
}

/// The result of a launch through a builder.
#[derive(Debug)]
#[non_exhaustive]
pub struct Launched {
    /// How many launches it took: one, or the number of chunks.
    pub launches: u64,
    /// Events before the first launch and after the last one, if
    /// [`GuardedLaunchArgs::record_kernel_launch`] asked for them.
    pub events: Option<(CudaEvent, CudaEvent)>,
}

impl<'a> GuardedLaunchArgs<'a> {
    /// Declares the batch along one axis of the grid: a launch that is too large is split into chunks
    /// of its items. Arguments that follow the chunk are those of [`Self::items`], [`Self::items_mut`],
    /// [`Self::chunk_offset`] and [`Self::chunk_length`]; all others are the same for every chunk.
    ///
    /// Declare the batch before the arguments: an integer that is then passed with `arg` and equals the
    /// number of items is rejected where blocks share items and the launch is split, see
    /// [`BatchAxis`](BatchAxis#what-a-kernel-sees-of-a-chunk). Pass [`Self::chunk_length`] instead, or
    /// [`Self::constant`].
    pub const fn batch(&mut self, batch: BatchAxis) -> &mut Self {
        self.batch = Some(batch);
        self
    }

    /// Has `guard` count and check the launches, and plans them by its profile if they are
    /// [`tuned`](Self::tuned). It must be a guard of the stream's context.
    pub const fn guard(&mut self, guard: &'a Guard) -> &mut Self {
        self.guard = Some(guard);
        self
    }

    /// Plans the launch as the profile of the [`guard`](Self::guard) says for `key` and these sizes, as
    /// [`Kernel::with_tuning`] does. Without a guard or a batch the planner chooses.
    #[cfg(feature = "profile")]
    pub fn tuned(&mut self, key: &'a Key, items: &'a str, sizes: &[(&'a str, u64)]) -> &mut Self {
        self.tuning = Some(Box::new(KernelTuning::new(Cow::Borrowed(key), items, sizes)));
        self
    }

    /// Memory of `elements` elements an item that the kernel reads: each chunk gets the address of its
    /// first item. For items that are not consecutive use [`Kernel::from_cudarc`] and
    /// [`Args::read_strided_items`](crate::cuda::Args::read_strided_items).
    pub fn items<T, S>(&mut self, memory: &'a S, elements: u64) -> &mut Self
    where
        S: Memory<T>,
    {
        let (base, used) = memory.device_ptr(self.stream);
        discard(used);
        let bytes = wide(memory.num_bytes());
        self.chunk_items::<T>(base, elements, bytes, Tracked::read(memory))
    }

    /// Memory of `elements` elements an item that the kernel writes, or reads and writes: each chunk
    /// gets the address of its first item.
    pub fn items_mut<T, S>(&mut self, memory: &'a mut S, elements: u64) -> &mut Self
    where
        S: MemoryMut<T>,
    {
        let bytes = wide(memory.num_bytes());
        let (base, used) = memory.device_ptr_mut(self.stream);
        discard(used);
        self.chunk_items::<T>(base, elements, bytes, Tracked::written(memory))
    }

    /// The chunk's first item, for a parameter of 4 or 8 bytes. One of 4 bytes, or of unknown size
    /// (drivers before CUDA 12.4), takes batches of up to 2^31 - 1 items.
    pub fn chunk_offset(&mut self) -> &mut Self {
        self.chunk_arg(Slot::Offset { width: Width::U64 }, None)
    }

    /// The chunk's number of items, for a parameter as [`Self::chunk_offset`] takes.
    pub fn chunk_length(&mut self) -> &mut Self {
        self.chunk_arg(Slot::Length { width: Width::U64 }, None)
    }

    /// As `arg`, for an integer that may equal the number of items: the kernel does not take it for the
    /// end of its chunk.
    #[inline(always)]
    pub fn constant<T>(&mut self, arg: T) -> &mut Self
    where
        LaunchArgs<'a>: PushKernelArg<T>,
    {
        self.inner.arg(arg);
        self.given += 1;
        self
    }

    /// The kernel with its limits.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the limits cannot be queried, at the function's first use.
    pub fn kernel(&self) -> Result<Kernel, CudaError> {
        find_kernel(self.stream, self.function)
    }

    /// As [`LaunchArgs::record_kernel_launch`], around all chunks of a launch.
    pub fn record_kernel_launch(&mut self, flags: sys::CUevent_flags) -> &mut Self {
        self.inner.record_kernel_launch(flags);
        self
    }

    /// As [`LaunchArgs::launch`], after validation, in as many launches as it takes. Opts in to large
    /// dynamic shared memory where that is legal.
    ///
    /// Launches with a cluster or a priority need [`Kernel::from_cudarc`] and
    /// [`Guard::plan_and_launch`]: cudarc's builder, which holds the arguments, has neither.
    ///
    /// # Safety
    ///
    /// As [`LaunchArgs::launch`]. With a [`batch`](Self::batch), the kernel also does for each chunk
    /// what it does for a batch of the chunk's items, see [`BatchAxis`]. Where the stream is being
    /// captured, function and memory live until the graph can run no more.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Invalid`] with every violation, before anything is launched;
    /// [`LaunchError::Unknown`] if the limits cannot be queried; [`LaunchError::Args`] if there are
    /// more or fewer arguments than parameters, or they do not fit the batch;
    /// [`LaunchError::OtherContext`] if the guard is of another context; [`LaunchError::Driver`] if the
    /// driver refuses a valid launch, [`LaunchError::Stopped`] if that is one of a batch.
    #[inline]
    #[track_caller]
    pub unsafe fn launch(&mut self, config: LaunchConfig) -> Result<Launched, LaunchError> {
        // SAFETY: this function's contract.
        let submit = |inner: &mut LaunchArgs<'_>, config| unsafe { inner.launch(config) };
        self.validate_and(config, false, submit, Location::caller())
    }

    /// As [`LaunchArgs::launch_cooperative`], after validation. A cooperative launch is never split.
    ///
    /// # Safety
    ///
    /// As [`Self::launch`].
    ///
    /// # Errors
    ///
    /// As [`Self::launch`].
    #[inline]
    #[track_caller]
    pub unsafe fn launch_cooperative(
        &mut self,
        config: LaunchConfig,
    ) -> Result<Launched, LaunchError> {
        // SAFETY: this function's contract.
        let submit =
            |inner: &mut LaunchArgs<'_>, config| unsafe { inner.launch_cooperative(config) };
        self.validate_and(config, true, submit, Location::caller())
    }

    fn chunk_items<T>(
        &mut self,
        base: u64,
        elements: u64,
        reach_bytes: u64,
        memory: Tracked<'a>,
    ) -> &mut Self {
        let stride_bytes = bytes_of::<T>(elements);
        let slot = Slot::Items { base, stride_bytes, span_bytes: stride_bytes, reach_bytes };
        self.chunk_arg(slot, Some(memory))
    }

    fn chunk_arg(&mut self, slot: Slot<'static>, memory: Option<Tracked<'a>>) -> &mut Self {
        let value = Rc::<ChunkValue>::default();
        // SAFETY: `inner` keeps only the address. It is dropped with `self`, which holds the value.
        let kept: &'a ChunkValue = unsafe { &*Rc::as_ptr(&value) };
        self.chunk_args.push(ChunkArg { index: self.given, slot, value, memory });
        self.constant(kept)
    }

    /// Calls `submit` for each launch if all are valid, then records and counts them.
    #[inline]
    fn validate_and<S>(
        &mut self,
        config: LaunchConfig,
        cooperative: bool,
        submit: S,
        call_site: &'static Location<'static>,
    ) -> Result<Launched, LaunchError>
    where
        S: Fn(&mut LaunchArgs<'a>, LaunchConfig) -> Result<Events, cudarc::driver::DriverError>,
    {
        let LaunchConfig { grid_dim, block_dim, shared_mem_bytes } = config;
        let mut request = LaunchRequest::new(grid_dim.into(), block_dim.into())
            .dynamic_shared_bytes(shared_mem_bytes.into());
        request.cooperative = cooperative;
        let Self { stream, function, guard, .. } = *self;
        let watch = guard.map_or_else(|| Watch::at(call_site), |guard| guard.watch(call_site));
        let mut events = None;
        let launched = with_kernel(stream, function, |kernel| {
            let counters = guard.map_or(&kernel.history.without_guard, |guard| &guard.counters);
            let (inner, arguments) = (&mut self.inner, self.chunk_args.as_slice());
            let integers = self.integers.as_slice();
            let mut launcher = BuilderLauncher {
                kernel,
                stream,
                inner,
                given: self.given,
                arguments,
                integers,
                submit: &submit,
                launches: 1,
                watch,
                events: &mut events,
            };
            if guard.is_some_and(|guard| guard.context() != Some(stream.context())) {
                return Err(launcher.other_context("the guard").into());
            }
            let launches = match (&self.batch, arguments) {
                (None, []) => launcher.launch_whole(&request, counters),
                (None, [first, ..]) => Err(ArgsError::NoBatch { index: first.index }.into()),
                (Some(batch), _) => {
                    #[cfg(feature = "profile")]
                    let tuned = guard.zip(self.tuning.as_deref()).and_then(|(guard, tuning)| {
                        guard.tuned_plan(tuning, &request, Some(batch), &kernel.limits)
                    });
                    #[cfg(not(feature = "profile"))]
                    let tuned = None;
                    launcher.launch_batch(&request, batch, tuned)
                }
            };
            count(counters, launches)
        });
        match launched {
            Ok(Ok(launches)) => Ok(Launched { launches, events }),
            Ok(Err(failed)) => Err(failed.into_error()),
            Err(error) => Err(LaunchError::Unknown(Box::new(error))),
        }
    }
}

/// The bits of `arg`, if it is a reference to an integer.
#[inline(always)]
fn integer<T>(arg: &T) -> Option<u64> {
    /// The integer behind `arg`, if it is a reference to a `U`.
    #[inline(always)]
    fn as_a<T, U: Scalar>(arg: &T) -> Option<u64> {
        if typeid::of::<T>() != typeid::of::<&U>() {
            return None;
        }
        // SAFETY: `T` is `&U`, up to its lifetime, which is not used beyond this call.
        let value = unsafe { *core::ptr::from_ref(arg).cast::<&U>() };
        Some(value.bits())
    }
    let narrow = as_a::<T, u32>(arg).or_else(|| as_a::<T, i32>(arg));
    let wide = || as_a::<T, u64>(arg).or_else(|| as_a::<T, i64>(arg));
    narrow.or_else(wide).or_else(|| as_a::<T, usize>(arg))
}

/// What was counted in `context` of launches without a [`Guard`]: those through
/// [`GuardedStream::launch_builder_guarded`] and [`RawKernel`](crate::cuda::RawKernel).
///
/// A guard counts its own launches, in [`Guard::counts`]. Counting starts anew when no guard or kernel
/// of the context is left, after [`forget_functions`](crate::cuda::forget_functions) also of launch builders.
#[must_use]
pub fn counts_without_guard(context: &CudaContext) -> Counts {
    ContextHistory::of(context.cu_ctx().cast()).counts_without_guard()
}
