//! The functions that launch builders have launched, kept with their limits.

use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use cudarc::driver::{CudaFunction, CudaStream};
use hashbrown::HashMap;
use parking_lot::RwLock;

use crate::cuda::driver::symbols::Driver;
use crate::cuda::error::CudaError;
use crate::cuda::kernel::Kernel;

/// The most functions that are kept. When one more is launched, all are dropped, and each is queried again at its next
/// use. A program that loads modules without end therefore does not keep them all loaded.
pub const MAX_KEPT_FUNCTIONS: usize = 4096;

/// Kernels by handles. A kernel holds its function and its context, so neither handle is reused while the kernel is in
/// the map.
static KNOWN: LazyLock<RwLock<HashMap<Handles, Kernel>>> = LazyLock::new(RwLock::default);

/// How often functions were removed from [`KNOWN`]; changed under its lock.
static FORGOTTEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What this thread found in [`KNOWN`], so that threads that launch at once share no lock.
    ///
    /// Holds no function. The launching code holds it, and its handle is reused only after the function was forgotten.
    static SEEN: RefCell<ThreadTable> = RefCell::default();
}

#[derive(Default)]
struct ThreadTable {
    /// [`FORGOTTEN`] at the time.
    forgotten: u64,
    kernels: HashMap<Handles, Kernel>,
}

/// A function, and the context that it was launched in, which need not be its own.
type Handles = (usize, usize);

/// Drops every function that a [`LaunchBuilder`](crate::cuda::LaunchBuilder) has launched, so that their modules
/// can be unloaded. They are queried again at their next use.
pub fn forget_functions() {
    let mut known = KNOWN.write();
    let functions = forget(&mut known);
    drop(known);
    // Dropping unloads modules, so it happens without the lock.
    drop(functions);
}

/// Empties the table, whose lock the caller holds. Counted before a function is unloaded and its handle reused.
fn forget(known: &mut HashMap<Handles, Kernel>) -> HashMap<Handles, Kernel> {
    if !known.is_empty() {
        FORGOTTEN.fetch_add(1, Ordering::Release);
    }
    core::mem::take(known)
}

/// Calls `f` with the kernel of `function`, without touching its reference count if this thread has
/// seen it before.
#[inline]
pub(crate) fn with_kernel<R>(
    stream: &CudaStream,
    function: &CudaFunction,
    mut f: impl FnMut(&Kernel) -> R,
) -> Result<R, CudaError> {
    let handles = handles_of(stream, function);
    let seen = SEEN.try_with(|seen| {
        let seen = seen.try_borrow().ok()?;
        let is_current = seen.forgotten == FORGOTTEN.load(Ordering::Acquire);
        seen.kernels.get(&handles).filter(|_| is_current).map(&mut f)
    });
    match seen {
        Ok(Some(result)) => Ok(result),
        _ => Ok(f(&find_kernel(stream, function)?)),
    }
}

fn handles_of(stream: &CudaStream, function: &CudaFunction) -> Handles {
    (function.cu_function().addr(), stream.context().cu_ctx().addr())
}

/// The kernel of `function`, which this thread has seen from now on.
#[cold]
pub(crate) fn find_kernel(
    stream: &CudaStream,
    function: &CudaFunction,
) -> Result<Kernel, CudaError> {
    let handles = handles_of(stream, function);
    let find = |known: &HashMap<Handles, Kernel>| {
        Some((known.get(&handles)?.clone(), FORGOTTEN.load(Ordering::Relaxed)))
    };
    let found = find(&KNOWN.read());
    let (kernel, forgotten) = match found {
        Some(found) => found,
        None => add(handles, query_kernel(stream, function)?),
    };
    let unheld = kernel.unheld();
    // A thread that is ending, or in the middle of a launch, looks it up again the next time.
    let _ = SEEN.try_with(|seen| {
        let mut seen = seen.try_borrow_mut().ok()?;
        if seen.forgotten != forgotten {
            *seen = ThreadTable { forgotten, ..ThreadTable::default() };
        }
        seen.kernels.insert(handles, unheld)
    });
    Ok(kernel)
}

/// Adds a kernel to [`KNOWN`], unless another thread was first, and returns the one in the table.
fn add(handles: Handles, kernel: Kernel) -> (Kernel, u64) {
    let mut known = KNOWN.write();
    let mut forgotten = HashMap::new();
    if known.len() >= MAX_KEPT_FUNCTIONS && !known.contains_key(&handles) {
        forgotten = forget(&mut known);
    }
    // Two threads may get here at once; the first one's kernel stays.
    let kernel = known.entry(handles).or_insert(kernel).clone();
    let added = (kernel, FORGOTTEN.load(Ordering::Relaxed));
    drop(known);
    drop(forgotten);
    added
}

fn query_kernel(stream: &CudaStream, function: &CudaFunction) -> Result<Kernel, CudaError> {
    let (driver, context) = (Driver::get()?, stream.context());
    driver.bind_cudarc(context)?;
    let keep = (function.clone(), Arc::clone(context));
    let (function, context) = (function.cu_function().cast(), context.cu_ctx().cast());
    // SAFETY: `keep` holds the function, loaded, and the context that it is launched in, which need not
    // be the module's and is current.
    let kernel = unsafe {
        let name = driver.name_of(function);
        Kernel::undeclared(driver, function, context, name, keep)?
    };
    Ok(kernel)
}
