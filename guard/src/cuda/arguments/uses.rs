//! The order between launches and other work on the memory that they use.

use core::cell::Cell;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use std::sync::Arc;

use arrayvec::ArrayVec;
use cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, HostSlice, PinnedHostSlice, SyncOnDrop, result, sys,
};

use crate::cuda::arguments::memory::{Memory, MemoryMut};
use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::library::{failed_earlier, handle, recorded_failure};
use crate::cuda::driver::symbols::Driver;
use crate::cuda::launch::Contract;
use crate::cuda::launch::capture::{discard, may_capture};
use crate::dim::saturated;
use crate::plan::arguments::MAX_ARGS;
use crate::record::recent::PER_THREAD;

/// The uses of memory by launches on one stream, which [`Args`](crate::cuda::Args) collects.
///
/// cudarc waits for the events of a slice before it uses or frees the slice, but only while the slice's own
/// [`CudaContext`] object has streams. If its last stream was dropped, or the launches' stream belongs to another
/// object for the same context, the stream that owns the memory orders its uses instead.
#[derive(Debug)]
pub struct MemoryUses<'a> {
    pub(crate) launches: &'a CudaStream,
    /// Whether some memory belongs to another context than the launches' stream.
    foreign: bool,
    /// Whether the caller of an unsafe launch orders what cudarc's events do not order, as with cudarc's own launch
    /// builder, and keeps kernel and memory for a graph.
    contract: Contract,
    /// Why the launches might not come after earlier work.
    failed: Option<cudarc::driver::DriverError>,
    /// Whether memory was added during a capture: the launches do not wait for earlier work on it.
    pub(crate) added_in_capture: bool,
    /// Whether launches were submitted. Without launches there are no uses.
    submitted: Cell<bool>,
    /// Streams that own memory and wait for the launches, which are on another stream.
    owners: ArrayVec<Arc<CudaStream>, MAX_ARGS>,
    /// Uses to record once the launches are submitted. Without drop glue, the borrow checker lets a launch builder
    /// outlive its arguments.
    events: ManuallyDrop<ArrayVec<Use<'a>, MAX_ARGS>>,
    /// Makes this type neither `Send` nor `Sync`.
    this_thread: PhantomData<*mut ()>,
}

/// One use of memory.
#[derive(Debug)]
struct Use<'a> {
    event: &'a CudaEvent,
    /// The stream whose work includes the use when it is recorded.
    stream: &'a CudaStream,
    /// Whether to record it even while cudarc tracks nothing.
    always: bool,
}

impl<'a> MemoryUses<'a> {
    /// No uses yet, by work on `stream`.
    pub fn new(stream: &'a CudaStream) -> Self {
        Self::of_launches(stream, Contract::Declared)
    }

    #[inline]
    pub(crate) fn of_launches(launches: &'a CudaStream, contract: Contract) -> Self {
        let (owners, events) = (ArrayVec::new(), ManuallyDrop::new(ArrayVec::new()));
        Self {
            launches,
            foreign: false,
            contract,
            failed: None,
            added_in_capture: false,
            submitted: Cell::new(false),
            owners,
            events,
            this_thread: PhantomData,
        }
    }

    /// The address of memory that the launches read.
    #[inline]
    pub fn read<T, S: Memory<T> + ?Sized>(&mut self, memory: &'a S) -> u64 {
        let owner = memory.stream();
        let waits = memory.has_one_event() || owner.context().is_managing_stream_synchronization();
        let is_elsewhere = self.order(memory.is_in_order(), owner);
        let (address, used) = memory.device_ptr(self.launches);
        if waits {
            self.check_wait();
        }
        // cudarc keeps only the event of the last read. Recorded on the launches' stream, it would hide reads on other
        // streams from a later writer. The owner's stream waits for all of them.
        let last: &'a CudaStream = if is_elsewhere { owner } else { self.launches };
        self.hold(used, last, memory.has_one_event());
        address
    }

    /// The address of pinned host memory that copies on the stream read; 0 for memory of another context.
    pub fn read_host<T>(&mut self, memory: &'a PinnedHostSlice<T>) -> u64 {
        let mut address = 0;
        if self.is_own(memory.context()) {
            // SAFETY: only the address is taken, for work on this stream.
            let (memory, used) = unsafe { memory.stream_synced_slice(self.launches) };
            address = memory.as_ptr().expose_provenance();
            self.hold_host(used);
        }
        saturated(address)
    }

    /// As [`Self::read_host`], for memory that copies write.
    pub fn write_host<T>(&mut self, memory: &'a mut PinnedHostSlice<T>) -> u64 {
        let mut address = 0;
        if self.is_own(memory.context()) {
            // SAFETY: only the address is taken, for work on this stream.
            let (memory, used) = unsafe { memory.stream_synced_mut_slice(self.launches) };
            address = memory.as_mut_ptr().expose_provenance();
            self.hold_host(used);
        }
        saturated(address)
    }

    /// The single event of pinned memory. cudarc makes the stream wait for it, and waits for it on the host before it
    /// lends or frees the memory.
    fn hold_host(&mut self, used: SyncOnDrop<'a>) {
        self.check_wait();
        self.hold(used, self.launches, true);
    }

    /// Whether some memory belongs to another context than the stream.
    pub const fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Reports the error of a wait for earlier work on the memory, or an earlier error in the context.
    ///
    /// # Errors
    ///
    /// [`DriverError`] of the driver.
    #[inline]
    pub fn check(&self) -> Result<(), DriverError> {
        let context = self.launches.context();
        match self.failed {
            Some(error) => Err(failed_earlier(context, error)),
            None => recorded_failure(context),
        }
    }

    /// The address of memory that the launches write.
    #[inline]
    pub fn write<T, S: MemoryMut<T> + ?Sized>(&mut self, memory: &'a mut S) -> u64 {
        let (owner, has_one_event) = (memory.stream(), memory.has_one_event());
        let waits = has_one_event || owner.context().is_managing_stream_synchronization();
        self.order(memory.is_in_order(), owner);
        let (address, used) = memory.device_ptr_mut(self.launches);
        if waits {
            self.check_wait();
        }
        self.hold(used, self.launches, has_one_event);
        address
    }

    /// Orders the launches after the work of `owner` on its memory, and that stream's later work after the launches,
    /// unless the memory is in order. Returns whether `owner` will wait for the launches.
    #[inline]
    fn order(&mut self, is_in_order: bool, owner: &Arc<CudaStream>) -> bool {
        let is_own = self.is_own(owner.context());
        if !is_own || is_in_order || self.contract == Contract::Launched {
            return false;
        }
        let is_same = owner.cu_stream() == self.launches.cu_stream();
        if is_same && (!is_of_thread(owner) || self.is_tracked(owner)) {
            return false;
        }
        self.add(owner);
        true
    }

    /// Whether memory is of the launches' context.
    #[inline]
    fn is_own(&mut self, context: &Arc<CudaContext>) -> bool {
        let is_own = context == self.launches.context();
        self.foreign |= !is_own;
        is_own
    }

    /// Takes over the failed wait for earlier work that cudarc has just recorded. Other code that asks cudarc for
    /// recorded failures before the launch would clear it.
    #[inline]
    fn check_wait(&mut self) {
        if let Err(error) = self.launches.context().check_err() {
            self.failed = Some(error);
        }
    }

    /// Keeps the record of a use that ends when `stream` has done its work: recorded `always`, or only while cudarc
    /// tracks memory.
    #[inline]
    fn hold(&mut self, mut used: SyncOnDrop<'a>, stream: &'a CudaStream, always: bool) {
        // Device memory records nothing but events.
        if let SyncOnDrop::Record(recorded) = &mut used
            && let Some((event, _)) = recorded.take()
        {
            // The launch rejects more than `MAX_ARGS` arguments.
            let _ = self.events.try_push(Use { event, stream, always });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.owners.is_empty()
    }

    /// Launches are submitted from now on to the current context. The stream is not being captured, except within
    /// [`capture_launches`](crate::cuda::capture_launches) or by an unsafe launch. [`Self::end`] is called when the
    /// returned value is dropped, if not before.
    #[inline]
    pub fn begin(&self) -> InUse<'_, 'a> {
        self.submitted.set(true);
        InUse(self)
    }

    /// The launches have run: later work need not wait for them.
    pub fn done(&self) {
        self.submitted.set(false);
    }

    /// All launches are submitted, and the context is current: orders later work after them. Returns whether another
    /// thread had begun to capture the stream. That capture is discarded, and may have contained launches.
    #[inline]
    pub fn end(&self) -> bool {
        self.submitted.replace(false) && !self.is_empty() && self.order_later_work()
    }

    #[inline(never)]
    fn order_later_work(&self) -> bool {
        // The legacy default stream cannot be captured. The query fails while another stream is.
        let refuses_captures =
            self.refuses_captures() && self.launches.cu_stream().addr() > LEGACY_STREAM;
        // An owner that waits for a capturing stream joins its capture.
        let mut captured = refuses_captures && !self.owners.is_empty() && self.is_capturing();
        if captured && !self.discard_capture() {
            return true;
        }
        self.wait();
        self.record(None);
        // Events that were recorded in a capture do not order anything after the launches.
        if refuses_captures && self.is_capturing() {
            captured = true;
            if self.discard_capture() {
                self.wait();
                self.record(None);
            }
        }
        captured
    }

    /// Ends the capture of the launches' stream. If that must be left to another stream, the launches have run, and
    /// uses of the memory need no order.
    #[cold]
    fn discard_capture(&self) -> bool {
        let Ok(driver) = Driver::get() else { return true };
        // SAFETY: the stream is alive in `self`, and its context was made current to ask.
        let ended = unsafe { discard(driver, handle(self.launches)) };
        if !ended {
            // Nothing can wait for an event that was recorded in the capture.
            match result::stream::create(result::stream::StreamKind::NonBlocking) {
                Ok(stream) => {
                    self.record(Some(stream));
                    // SAFETY: created just now, and used by nothing else.
                    let _ = unsafe { result::stream::destroy(stream) };
                }
                Err(error) => self.launches.context().record_err(Err::<(), _>(error)),
            }
        }
        ended
    }

    /// Records the uses on their streams, or on one that stands for them.
    #[inline]
    fn record(&self, stand_in: Option<sys::CUstream>) {
        for Use { event, stream, always } in self.events.iter() {
            // The memory's own object, whose streams wait for the event.
            let context = event.context();
            if *always || context.is_managing_stream_synchronization() {
                let on = stand_in.unwrap_or_else(|| stream.cu_stream());
                // SAFETY: event and stream are alive in `self` or by the caller, and of the context that is current
                // since the launches. cudarc's own function would query the current context again for each event.
                let recorded = unsafe { result::event::record(event.cu_event(), on) };
                if recorded.is_err() {
                    // Nothing else would wait for the use.
                    context.record_err(stream.synchronize());
                }
                context.record_err(recorded);
            }
        }
    }

    /// Whether cudarc's events order launches and the work of `owner`.
    fn is_tracked(&self, owner: &CudaStream) -> bool {
        Arc::ptr_eq(owner.context(), self.launches.context())
            && owner.context().is_managing_stream_synchronization()
    }

    #[cold]
    fn add(&mut self, owner: &Arc<CudaStream>) {
        // Objects for the same context may differ in what cudarc tracks.
        let is_owner = |other: &Arc<CudaStream>| {
            other.cu_stream() == owner.cu_stream() && Arc::ptr_eq(other.context(), owner.context())
        };
        if self.owners.iter().any(is_owner) {
            return;
        }
        let is_tracked = self.is_tracked(owner);
        self.make_current();
        if !is_tracked && self.is_capturing() {
            // The capture would become invalid.
            self.added_in_capture = true;
        } else if !is_tracked {
            let ordered = if is_of_thread(owner) {
                // The handle names a per-thread stream, so wait for the whole context.
                owner.context().synchronize()
            } else {
                self.launches.join(owner)
            };
            self.failed = ordered.err().or(self.failed);
        }
        // The launch rejects more than `MAX_ARGS` arguments.
        let _ = self.owners.try_push(Arc::clone(owner));
    }

    /// Orders later work of the owners after the launches.
    fn wait(&self) {
        if self.owners.is_empty() || !self.refuses_captures() && self.is_capturing() {
            return;
        }
        for owner in &self.owners {
            // On another thread the same handle means another stream, which may free the memory.
            if is_of_thread(owner) {
                owner.context().record_err(self.launches.synchronize());
            } else {
                join(owner, self.launches);
            }
        }
    }

    fn refuses_captures(&self) -> bool {
        self.contract == Contract::Declared && !may_capture()
    }

    /// Avoids cudarc's own query, which would clear a failure that cudarc recorded. The context is current.
    fn is_capturing(&self) -> bool {
        let Ok(driver) = Driver::get() else { return false };
        // SAFETY: the stream is alive in `self`, and its context current.
        let captures = unsafe { driver.captures(handle(self.launches)) };
        captures == Ok(true)
    }

    fn make_current(&self) {
        if let Ok(driver) = Driver::get() {
            // If this fails, the calls that need it fail too.
            let _ = driver.bind(self.launches.context().cu_ctx().cast());
        }
    }

    /// As [`Self::end`], where the caller's code may have made another context current.
    #[cold]
    fn end_early(&self) {
        self.make_current();
        self.end();
    }
}

/// Memory whose uses have begun.
#[derive(Debug)]
#[must_use]
pub struct InUse<'u, 'a>(&'u MemoryUses<'a>);

impl Drop for InUse<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.submitted.get() {
            self.0.end_early();
        }
    }
}

/// The largest handle of the legacy default stream: 0, and `CU_STREAM_LEGACY`.
const LEGACY_STREAM: usize = 1;

/// Makes `stream` wait for the work of `other`. If that fails, the caller waits.
fn join(stream: &CudaStream, other: &CudaStream) {
    let joined = stream.join(other);
    let context = stream.context();
    if joined.is_err() {
        context.record_err(other.synchronize());
    }
    context.record_err(joined);
}

/// Whether the stream is another one on each thread.
fn is_of_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == PER_THREAD
}
