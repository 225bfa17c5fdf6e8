//! Compiles the kernels for one device on first use, caches them, and prepares launches.

use core::ffi::c_void;
use core::num::NonZeroUsize;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use gridguard::cuda::{Args, Compiler, CudaError, Image, Kernel, RawLaunch};
use gridguard::{Choice, Dim3, Guard, KernelLimits, LaunchLimits, LaunchRequest, Plan, RawArgs};
use lru::LruCache;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use crate::cubin_cache::{CubinCache, CubinCacheError, CubinKey};
use crate::element::{Element, ElementType, Plain};
use crate::error::KernelError;
use crate::operation::{Code, Operation};
use crate::tensor::{Tensor, TensorMut, check_element};
use gridguard::profile::{Key, Match, Objective, Policy};

/// The kernels for one guard's device.
///
/// Each is compiled once, on first use, then kept in memory and in the cubin cache. Beyond
/// [`MAX_KEPT_KERNELS`] the least recently prepared kernel is dropped from memory, and loaded or compiled
/// again at its next use. A [`Prepared`] launch keeps its kernel loaded. Usable from any thread; clones share
/// the compiled code.
#[derive(Clone, Debug)]
pub struct Kernels(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    guard: Arc<Guard>,
    /// The device's limits for a kernel not yet compiled, to tell whether a plan has several chunks.
    any_kernel: LaunchLimits,
    cache: Option<CubinCache>,
    loaded: Mutex<LruCache<Specialisation, Arc<OnceCell<Kernel>>>>,
    counts: Mutex<CodeCounts>,
}

/// The most kernels that [`Kernels`] keep in memory. Each new size needs new code, so a program with many
/// sizes would load code without end.
pub const MAX_KEPT_KERNELS: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// A kernel's name and macros, which identify its code.
type Specialisation = (&'static str, Vec<(&'static str, u64)>);

/// Where device code came from, counted since the [`Kernels`] were created.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CodeCounts {
    /// Compiled by NVRTC.
    pub compiled: u64,
    /// Read from the cache on disk.
    pub read: u64,
    /// Cache entries that could not be read or written, or are not trusted; their code was compiled.
    pub failed: u64,
    /// The last such error. Until it is fixed, each process compiles again.
    pub last_failure: Option<CubinCacheError>,
}

impl Kernels {
    /// Kernels for `guard`'s device, with the user's cubin cache
    /// ([`CubinCache::for_user`]), if there is one.
    pub fn new(guard: impl Into<Arc<Guard>>) -> Self {
        Self::with_cache(guard, CubinCache::for_user())
    }

    /// Like [`Self::new`], with the given cache or none.
    pub fn with_cache(guard: impl Into<Arc<Guard>>, cache: Option<CubinCache>) -> Self {
        let guard = guard.into();
        let any_kernel = guard.limits_for(KernelLimits::unknown("any")).with_automatic_opt_in();
        Self(Arc::new(Shared {
            guard,
            any_kernel,
            cache,
            loaded: Mutex::new(LruCache::new(MAX_KEPT_KERNELS)),
            counts: Mutex::default(),
        }))
    }

    /// The guard.
    pub fn guard(&self) -> &Arc<Guard> {
        &self.0.guard
    }

    /// How much code was compiled and how much came from the cache.
    pub fn counts(&self) -> CodeCounts {
        self.0.counts.lock().clone()
    }

    /// The limits of `operation`'s kernel. Compiles and loads it on first use; concurrent callers wait
    /// for one compilation.
    ///
    /// # Errors
    ///
    /// [`KernelError::Unsupported`] if the device lacks instructions, [`KernelError::Cuda`] if the
    /// guard runs on the host, NVRTC is missing, or the driver reports an error.
    pub fn limits(&self, operation: &impl Operation) -> Result<LaunchLimits, KernelError> {
        Ok(self.kernel(operation, false)?.limits().clone())
    }

    /// The kernel of `operation`, compiled on first use; `overlap` lets its chunks overlap.
    ///
    /// The caller must launch it with memory of the operation's types and sizes.
    pub(crate) fn kernel(
        &self,
        operation: &impl Operation,
        overlap: bool,
    ) -> Result<Kernel, KernelError> {
        let mut code = operation.code(self.guard().limits())?;
        code.defines.push(("OVERLAP", overlap.into()));
        let name = (code.kernel, code.defines.clone());
        self.kept(name).get_or_try_init(|| self.load(&code, overlap)).cloned()
    }

    fn kept(&self, name: Specialisation) -> Arc<OnceCell<Kernel>> {
        let mut loaded = self.0.loaded.lock();
        if let Some(kernel) = loaded.get(&name) {
            return Arc::clone(kernel);
        }
        let kernel = Arc::default();
        let dropped = loaded.push(name, Arc::clone(&kernel));
        // Unloading code takes time.
        drop(loaded);
        drop(dropped);
        kernel
    }

    /// Compiles `operation`'s kernel and plans its launch. If the plan has several chunks, they
    /// overlap on devices that support it.
    ///
    /// # Errors
    ///
    /// [`KernelError::Violations`] if no plan is legal, and the errors of [`Self::limits`].
    pub fn prepare<O: Operation>(
        &self,
        operation: O,
        choice: Choice,
    ) -> Result<Prepared<O>, KernelError> {
        let (request, batch) = operation.grid();
        // Planned before compilation, so that only one of the two forms is compiled.
        let overlap = self.guard().limits().dependent_launch()
            && Plan::new(&request, Some(&batch), &self.0.any_kernel, choice)
                .is_ok_and(|plan| plan.len() > 1);
        let kernel = self.kernel(&operation, overlap)?;
        if operation.keeps_cache() {
            self.keep_cache(&kernel, &request)?;
        }
        let plan = self.guard().plan(&request, Some(&batch), kernel.limits(), choice)?;
        Ok(Prepared { operation, kernel, plan, guard: Arc::clone(self.guard()) })
    }

    /// Prepares `operation` with the launch parameters and plan of the guard's profile. Uses the defaults if
    /// the profile has no entry. An entry that is not legal on this device also gives the defaults, and counts
    /// as a miss.
    ///
    /// `policy` and `objective` select among the profile's entries.
    ///
    /// # Errors
    ///
    /// As [`Self::prepare`].
    pub fn prepare_tuned<O: Operation>(
        &self,
        operation: O,
        policy: Policy,
        objective: Objective,
    ) -> Result<TunedLaunch<O>, KernelError> {
        let key = operation.key(self.guard().limits(), policy, objective)?;
        self.prepare_by(&key, &operation.clone(), operation)
    }

    /// Prepares `operation` with the profile's entry for `key`, or else `default`, as [`Self::prepare_tuned`].
    pub(crate) fn prepare_by<O: Operation>(
        &self,
        key: &Key,
        operation: &O,
        default: O,
    ) -> Result<TunedLaunch<O>, KernelError> {
        let (names, sizes): (Vec<&str>, Vec<u64>) = operation.sizes().into_iter().unzip();
        let found = self.guard().tuned(key, &names, &sizes);
        let matched = found.matched;
        let mut rejected = None;
        if found.entry.is_some() {
            let tuned = operation.with_parameters(found.parameters());
            match tuned.and_then(|tuned| self.prepare(tuned, found.choice())) {
                Ok(prepared) => return Ok(TunedLaunch { prepared, matched, rejected }),
                Err(
                    error @ (KernelError::Violations(_)
                    | KernelError::LaunchParameter { .. }
                    | KernelError::UnknownParameter { .. }),
                ) => rejected = Some(error),
                Err(error) => return Err(error),
            }
            found.refused();
        }
        let prepared = self.prepare(default, Choice::AUTOMATIC)?;
        Ok(TunedLaunch { prepared, matched, rejected })
    }

    /// Reserves a quarter of the L1 cache for loads of `kernel`, if the shared memory of all blocks that registers and
    /// threads allow would take the whole cache.
    ///
    /// The driver does not count the shared memory that it reserves for each block. Measured on an NVIDIA H200
    /// (`NOTES.md`).
    fn keep_cache(&self, kernel: &Kernel, request: &LaunchRequest) -> Result<(), KernelError> {
        let device = self.guard().limits();
        let without_shared = LaunchRequest::new(Dim3::ONE, request.block).cooperative();
        let blocks = kernel.occupancy(&without_shared).map_err(CudaError::from)?.blocks;
        let blocks = blocks.unwrap_or(0) / device.multiprocessors.max(1);
        let wanted = blocks.saturating_mul(request.dynamic_shared_bytes);
        if wanted > device.shared_bytes_per_multiprocessor / 100 * MOST_SHARED_PERCENT {
            kernel.prefer_shared_memory(Some(SHARED_PERCENT)).map_err(CudaError::from)?;
        }
        Ok(())
    }

    fn load(&self, code: &Code, overlap: bool) -> Result<Kernel, KernelError> {
        let guard = self.guard();
        if !guard.is_cuda() {
            // Fails with the reason why the guard runs on the host.
            guard.compile(code.kernel, "")?;
        }
        let image = self.image(code)?;
        let module = guard.load(&image)?;
        let kernel = crate::device::kernel(&module, code.kernel, &code.parameters, overlap);
        Ok(kernel?)
    }

    /// The machine code from the cache, or else compiled and stored there.
    fn image(&self, code: &Code) -> Result<Image, KernelError> {
        let options = code.compile_options(self.guard().limits().compute_capability);
        let compiler = Compiler::find()?;
        let version = compiler.version()?;
        let cache = self.0.cache.as_ref();
        let entry = cache.map(|cache| (cache, CubinKey::new(code.source, &options, version)));
        if let Some((cache, key)) = &entry {
            match cache.get(key) {
                Ok(Some(image)) => {
                    self.0.counts.lock().read += 1;
                    return Ok(image);
                }
                Ok(None) => {}
                Err(error) => self.failed(error),
            }
        }
        let image = compiler.compile(code.source, &options)?.image;
        self.0.counts.lock().compiled += 1;
        if let Some((cache, key)) = &entry
            && let Err(error) = cache.put(key, &image)
        {
            self.failed(error);
        }
        Ok(image)
    }

    /// Records a failure of the cache, which costs time only.
    fn failed(&self, error: CubinCacheError) {
        let mut counts = self.0.counts.lock();
        counts.failed += 1;
        counts.last_failure = Some(error);
    }
}

/// The share of a multiprocessor's shared memory to use if loads need the L1 cache. An H200 gives 196 of its 228 KiB.
const SHARED_PERCENT: u8 = 75;
/// The largest share of shared memory that leaves L1 cache: 196 of 228 KiB.
const MOST_SHARED_PERCENT: u64 = 86;

/// An operation with its compiled kernel and plan, ready to launch any number of times.
#[derive(Clone, Debug)]
pub struct Prepared<O> {
    operation: O,
    kernel: Kernel,
    plan: Plan,
    guard: Arc<Guard>,
}

impl<O> Prepared<O> {
    /// The operation.
    pub const fn operation(&self) -> &O {
        &self.operation
    }

    /// The kernel's limits on its device.
    pub fn limits(&self) -> &LaunchLimits {
        self.kernel.limits()
    }

    /// The plan: one launch or several chunks.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Checks and submits a kernel with the parameters input, output, and items of the chunk. Items are the first
    /// axis of both tensors.
    #[track_caller]
    pub(crate) fn launch_items<T: Element, U: Plain, const N: usize>(
        &self,
        stream: &CudaStream,
        element: ElementType,
        (name, input, input_dims): (&'static str, Tensor<'_, T, N>, [u64; N]),
        (out, out_dims): (TensorMut<'_, U, N>, [u64; N]),
    ) -> Result<u64, KernelError> {
        let per_item = |dims: [u64; N]| dims.iter().skip(1).product();
        check_element::<T>(element)?;
        let input = input.contiguous(name, input_dims)?;
        let out = out.contiguous("out", out_dims)?;
        let mut args = Args::new(stream);
        args.read_items(input, per_item(input_dims)).write_items(out, per_item(out_dims)).length();
        self.submit(args)
    }

    /// Submits all launches of the plan and returns their number.
    #[track_caller]
    pub(crate) fn submit(&self, args: Args<'_>) -> Result<u64, KernelError> {
        Ok(self.guard.launch(&self.kernel, &self.plan, args)?)
    }

    /// As [`Self::submit`], with arguments by address and the handle of a stream.
    ///
    /// # Safety
    ///
    /// As [`Guard::launch_raw`].
    #[track_caller]
    #[allow(unsafe_code, reason = "memory and streams of other CUDA bindings")]
    pub(crate) unsafe fn submit_raw(
        &self,
        stream: *mut c_void,
        args: &RawArgs<'_>,
    ) -> Result<u64, KernelError> {
        // SAFETY: this function's contract.
        Ok(unsafe {
            self.guard.launch_raw(&self.kernel, stream, RawLaunch::Plan(&self.plan, args))
        }?)
    }
}

/// An operation prepared with a profile's choice.
#[derive(Clone, Debug)]
pub struct TunedLaunch<O> {
    /// The operation, with the launch parameters of the entry.
    pub prepared: Prepared<O>,
    /// How the entry matched.
    pub matched: Match,
    /// Why the matching entry was not used. If set, `prepared` has the defaults.
    pub rejected: Option<KernelError>,
}
