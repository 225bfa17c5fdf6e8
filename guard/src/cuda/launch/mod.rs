//! The path of every launch: a plan or a request and its arguments enter, calls to the driver and their records leave.
//!
//! [`Guard::launch`](crate::Guard::launch), builders and [`Guard::launch_raw`](crate::Guard::launch_raw) differ in how
//! arguments arrive. Each validates its launches (`planned.rs`), and makes a [`Submission`] in the kernel's context,
//! which prepares, sends and records them.

pub(crate) mod capture;
pub(crate) mod guarded;
pub(crate) mod planned;
pub(crate) mod raw;
#[cfg(feature = "ptx")]
pub(crate) mod rewritten;
pub(crate) mod send;
pub(crate) mod workspace;

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use crate::cuda::arguments::packed::PackedArgs;
use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::history::Watch;
use crate::cuda::driver::symbols::Handle;
use crate::cuda::error::{LaunchError, LaunchErrorKind};
use crate::cuda::kernel::{Inner, Kernel};
use crate::cuda::launch::capture::{is_captured, refuse_rest};
use crate::cuda::launch::planned::ValidLaunches;
use crate::cuda::launch::send::send;
use crate::launch::valid::ValidLaunch;
use crate::plan::arguments::ArgumentList;
use crate::plan::chunks::Chunk;
use crate::plan::launches::{Plan, PlannedLaunch};
use crate::plan::run::{PartialRun, run};

/// The launches of one call: a kernel on a stream, with the same arguments.
///
/// Launching neither synchronises, unless launches are checked, nor allocates, so that it works while the
/// stream is captured.
#[derive(Clone, Copy)]
pub(crate) struct Submission<'a> {
    kernel: &'a Kernel,
    stream: Handle,
    values: Values<'a>,
    watch: Watch,
    contract: Contract,
}

/// Who guarantees that a launch keeps the kernel's contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// The caller that declared the kernel's parameters. A stream that is being captured is refused, except within
    /// [`capture_launches`](crate::cuda::capture_launches).
    Declared,
    /// The caller of this unsafe launch, also for a graph that captures it.
    Launched,
}

/// Where the values of a kernel's parameters are.
#[derive(Clone, Copy)]
pub(crate) enum Values<'a> {
    Args(&'a ArgumentList<'a>),
    /// The caller's own pointers to them, for a request without a batch.
    Pointers(*mut *mut c_void),
}

impl<'a> Submission<'a> {
    /// # Safety
    ///
    /// - `stream` is a live stream of the kernel's context, or null for its default one, and that context is
    ///   current, for as long as this is used.
    /// - The values keep the kernel's contract: if it is [`Contract::Launched`], also when a graph runs that captured
    ///   them. Pointers lead to as many values as the function has parameters.
    /// - A kernel with dependent launches or overlapping chunks keeps its contract of
    ///   [`Kernel::with_dependent_launches`] or [`Kernel::with_overlapping_chunks`].
    #[inline]
    pub(crate) unsafe fn new(
        kernel: &'a Kernel,
        stream: Handle,
        values: Values<'a>,
        watch: Watch,
        contract: Contract,
    ) -> Self {
        Self { kernel, stream, values, watch, contract }
    }

    /// Prepares, sends and records every launch.
    #[inline]
    pub(crate) fn submit(&self, launches: ValidLaunches<'_>) -> Result<u64, LaunchError> {
        let (chunk, launch, items) = match launches {
            ValidLaunches::Whole(launch) => (Chunk::only(1), launch, None),
            ValidLaunches::Plan(plan) => {
                let launch = plan.largest_launch();
                if plan.chunks.launches() != 1 || !launch.is_for(self.kernel.limits()) {
                    return self.submit_chunks(plan);
                }
                (Chunk::only(plan.items()), launch, plan.batch_items())
            }
        };
        self.prepare(launch, items)?;
        // SAFETY: validated against the limits of the kernel, and prepared just now.
        let sent = unsafe {
            self.send_and_record(&chunk, &[], (&chunk, launch), launch.is_dependent(), 1)
        };
        match sent {
            Ok(()) => Ok(1),
            Err(source) => Err(stopped_at_once(1, chunk.items, source)),
        }
    }

    /// Submits a plan of several launches, or of launches of a form. Out of line, to keep single launches short.
    #[inline(never)]
    fn submit_chunks(&self, plan: &Plan) -> Result<u64, LaunchError> {
        let (launch, items) = (plan.largest_launch(), plan.batch_items());
        if launch.is_for(self.kernel.limits()) {
            if let Values::Args(args) = self.values
                && plan.shares_blocks()
            {
                args.check_values(plan.items())?;
            }
            self.prepare(launch, items)?;
            return self.send_chunks(plan, |planned| (planned.chunk, []));
        }
        #[cfg(feature = "ptx")]
        if let Some((form, words)) = self.kernel.form_of(plan) {
            let of_form = Submission { kernel: form, ..*self };
            of_form.prepare(launch, items)?;
            // In each part, arguments that follow items get the whole batch.
            let chunk = Chunk::only(items.unwrap_or(1));
            return of_form.send_chunks(plan, |planned| (chunk, words.at(planned.first_block)));
        }
        Err(LaunchErrorKind::OtherKernel { kernel: self.kernel.name().to_owned() }.into())
    }

    /// Sends the launches of a plan for this kernel, which is prepared. `values_of` returns the chunk that a
    /// launch's arguments are for, and the words that a form takes as one parameter more.
    fn send_chunks<const WORDS: usize>(
        &self,
        plan: &Plan,
        values_of: impl Fn(&PlannedLaunch) -> (Chunk, [u32; WORDS]),
    ) -> Result<u64, LaunchError> {
        let launches = plan.len();
        let ran = run(plan, |planned| {
            let PlannedLaunch { chunk, launch, .. } = planned;
            let is_later = chunk.index > 0;
            if is_later {
                // SAFETY: stream and context by the contract of `Self::new`.
                unsafe { self.check_capture() }?;
            }
            // The first launch waits for earlier work on the stream, unless it is dependent.
            let overlap = launch.is_dependent() || is_later && self.kernel.overlap;
            let (of_values, words) = values_of(planned);
            // SAFETY: `submit_chunks` prepared the plan, which is for this kernel. Chunks overlap only if the kernel
            // declares it. A form takes the kernel's arguments and a pointer to its words. It runs some of the
            // blocks of the whole launch. The arguments are valid for all of them.
            unsafe { self.send_and_record(&of_values, &words, (chunk, launch), overlap, launches) }
        });
        Ok(ran?)
    }

    /// Refuses further launches of a plan if another thread has begun to capture the stream.
    ///
    /// # Safety
    ///
    /// Stream and context as [`Self::new`].
    #[inline]
    pub(crate) unsafe fn check_capture(&self) -> Result<(), DriverError> {
        let (driver, stream) = (self.kernel.inner.driver, self.stream);
        // SAFETY: this function's contract.
        if self.contract == Contract::Declared && unsafe { is_captured(driver, stream) } {
            // SAFETY: stream and context by this function's contract.
            return Err(unsafe { refuse_rest(driver, stream) });
        }
        Ok(())
    }

    /// Makes one launch of a plan of `launches`, which may `overlap` the one before, and records it. Its arguments
    /// are for the chunk `of_values`, with `words` as one parameter more unless there are none.
    ///
    /// # Safety
    ///
    /// The launch was validated against the limits of the kernel, and [`prepare`] called with the
    /// arguments and the largest launch of the plan. A launch that is not dependent overlaps only an
    /// earlier chunk of its plan, and only where the kernel's chunks may. A form has the parameter of the words.
    #[inline]
    pub(crate) unsafe fn send_and_record(
        &self,
        of_values: &Chunk,
        words: &[u32],
        (chunk, launch): (&Chunk, &ValidLaunch),
        overlap: bool,
        launches: u64,
    ) -> Result<(), DriverError> {
        let (kernel, stream) = (&self.kernel.inner, self.stream);
        let overlap = overlap && self.may_overlap();
        let mut packed = PackedArgs::new();
        let params = match self.values {
            Values::Args(args) => packed.fill(args, of_values, words),
            Values::Pointers(params) => params,
        };
        kernel.history.prefetch();
        // SAFETY: stream and context by the contract of `new`; `prepare` checked the arguments against the
        // signature, and `params` points to as many values; the rest is this function's contract.
        let (call, status) =
            unsafe { send(kernel.driver, kernel.function, stream, launch, overlap, params) };
        let sent = kernel.driver.check(call, status);
        sent.map_err(|error| error.of_launch(&kernel.limits))?;
        let Watch { call_site, checked } = self.watch;
        kernel.history.record(kernel.number, stream, chunk, launch, launches, call_site);
        if !checked {
            return Ok(());
        }
        // SAFETY: stream and context by the contract of `new`.
        unsafe { check_launch(kernel, stream) }
    }

    /// Whether a launch that may overlap the one before will: older drivers cannot capture overlapping launches.
    #[inline]
    fn may_overlap(&self) -> bool {
        let kernel = &self.kernel.inner;
        // SAFETY: the stream is alive and its context current, by the contract of `new`.
        let captures = || unsafe { kernel.driver.captures(self.stream) };
        kernel.captures_overlap || captures() == Ok(false)
    }

    #[inline]
    fn prepare(&self, launch: &ValidLaunch, items: Option<u64>) -> Result<(), LaunchError> {
        let Self { kernel, stream, values, .. } = *self;
        // SAFETY: stream and context by the contract of `new`.
        unsafe { prepare(kernel, stream, launch, items, values) }
    }
}

/// Checks arguments for the `items` of the batch, if any, opts in to shared memory and checks
/// occupancy before the first launch on `stream`.
///
/// # Safety
///
/// The kernel's context is current, and `stream` a live stream of it or null.
#[inline]
pub(crate) unsafe fn prepare(
    kernel: &Kernel,
    stream: Handle,
    launch: &ValidLaunch,
    items: Option<u64>,
    values: Values<'_>,
) -> Result<(), LaunchError> {
    let Inner { signature, occupancy, limits, .. } = &*kernel.inner;
    if let Values::Args(args) = values {
        args.check(items, signature, limits.kernel())?;
    }
    occupancy.opt_in(limits, launch.dynamic_shared_bytes())?;
    if launch.is_plain() {
        return Ok(());
    }
    // SAFETY: this function's contract.
    unsafe { prepare_extras(kernel, stream, launch) }
}

/// Checks launches that request more than grid, block and shared memory.
///
/// # Safety
///
/// As [`prepare`].
#[cold]
unsafe fn prepare_extras(
    kernel: &Kernel,
    stream: Handle,
    launch: &ValidLaunch,
) -> Result<(), LaunchError> {
    let needs_launch_kernel_ex = if launch.is_dependent() {
        Some("dependent launches")
    } else if launch.priority().is_some() {
        Some("launch priorities")
    } else {
        launch.cluster().map(|_| "clusters")
    };
    if launch.is_dependent() && !kernel.dependent {
        return Err(LaunchErrorKind::NotDependent { kernel: kernel.name().to_owned() }.into());
    }
    if let Some(what) = needs_launch_kernel_ex
        && kernel.inner.driver.launch_kernel_ex.is_none()
    {
        return Err(LaunchErrorKind::Unsupported { symbol: "cuLaunchKernelEx", what }.into());
    }
    if !launch.is_co_resident() {
        return Ok(());
    }
    let Inner { occupancy, limits, .. } = &*kernel.inner;
    // SAFETY: this function's contract.
    unsafe { occupancy.check(limits, stream, launch) }
}

/// Synchronises a launch that was just recorded, unless its stream is being captured.
///
/// # Safety
///
/// `stream` is a live stream of the kernel's context, or null; the context is current.
#[cold]
unsafe fn check_launch(kernel: &Inner, stream: Handle) -> Result<(), DriverError> {
    let (driver, history) = (kernel.driver, &kernel.history);
    // SAFETY: the stream is alive, by this function's contract.
    let synchronized = match unsafe { driver.is_capturing(stream) } {
        Ok(true) => {
            history.unchecked_in_capture.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        // SAFETY: the stream is alive and its context current, by this function's contract.
        Ok(false) => unsafe { driver.synchronize(history, stream) },
        // The query already returns a fault that happened quickly.
        Err(error) => Err(error),
    };
    synchronized.map_err(DriverError::after_checked_launch)?;
    history.checked.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

#[cold]
fn stopped_at_once(launches: u64, items: u64, source: DriverError) -> LaunchError {
    PartialRun { chunk: 0, launches, items_done: 0, items, source }.into()
}
