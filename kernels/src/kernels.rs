//! Device code on one device: compiled at its first use, kept in memory and on disk.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use gridguard::cuda::{Args, Compiler, CudaError, Image, Kernel, NvrtcError};
use gridguard::{Choice, Guard, KernelLimits, LaunchLimits, Plan};
use once_cell::sync::OnceCell;
use parking_lot::{Mutex, RwLock};

use crate::cubin_cache::{CubinCache, CubinCacheError, CubinKey};
use crate::element::{Element, ElementType};
use crate::error::KernelError;
use crate::operation::{Code, Operation};
use crate::tensor::{Tensor, TensorMut, check_contiguous, check_element};

/// The kernels of one guard's device. Usable from any thread; clones share what is compiled.
#[derive(Clone, Debug)]
pub struct Kernels(Arc<Shared>);

struct Shared {
    guard: Arc<Guard>,
    /// What the device allows: enough to know how many launches a plan takes.
    any_kernel: LaunchLimits,
    cache: Option<CubinCache>,
    loaded: RwLock<HashMap<Specialisation, Arc<OnceCell<Kernel>>>>,
    compiled: AtomicU64,
    read: AtomicU64,
    failed: AtomicU64,
    last_failure: Mutex<Option<CubinCacheError>>,
}

/// A kernel's name and its macros: what makes it another kernel.
type Specialisation = (&'static str, Vec<(&'static str, u64)>);

/// Where device code came from so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CodeCounts {
    /// Compiled by NVRTC.
    pub compiled: u64,
    /// Read from the cache on disk.
    pub read: u64,
    /// Entries of the cache that could not be used or written; their code was compiled.
    pub failed: u64,
    /// Why the last of them could not.
    pub last_failure: Option<CubinCacheError>,
}

impl Kernels {
    /// Kernels for `guard`'s device, with the user's cache on disk where there is one.
    #[must_use]
    pub fn new(guard: impl Into<Arc<Guard>>) -> Self {
        Self::with_cache(guard, CubinCache::for_user())
    }

    /// As [`Self::new`], with a cache of the caller's, or none.
    #[must_use]
    pub fn with_cache(guard: impl Into<Arc<Guard>>, cache: Option<CubinCache>) -> Self {
        let guard = guard.into();
        let any_kernel = guard.limits_for(KernelLimits::unknown("any")).with_automatic_opt_in();
        Self(Arc::new(Shared {
            guard,
            any_kernel,
            cache,
            loaded: RwLock::default(),
            compiled: AtomicU64::new(0),
            read: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            last_failure: Mutex::new(None),
        }))
    }

    /// The guard.
    #[must_use]
    pub fn guard(&self) -> &Arc<Guard> {
        &self.0.guard
    }

    /// Where device code came from so far.
    #[must_use]
    pub fn counts(&self) -> CodeCounts {
        CodeCounts {
            compiled: self.0.compiled.load(Relaxed),
            read: self.0.read.load(Relaxed),
            failed: self.0.failed.load(Relaxed),
            last_failure: self.0.last_failure.lock().clone(),
        }
    }

    /// The limits of the kernel that serves `operation`, which is compiled and loaded at its first
    /// use, once, whoever else asks at the same time.
    ///
    /// # Errors
    ///
    /// [`KernelError::Unsupported`] where the device cannot run it, [`KernelError::Cuda`] where the
    /// guard serves the host, NVRTC is missing, or the driver refuses.
    pub fn limits(&self, operation: &impl Operation) -> Result<LaunchLimits, KernelError> {
        Ok(self.get(operation.code(self.guard().limits())?, false)?.limits().clone())
    }

    /// The kernel of `code`, whose chunks `overlap` or not.
    fn get(&self, mut code: Code, overlap: bool) -> Result<Kernel, KernelError> {
        code.defines.push(("OVERLAP", overlap.into()));
        let name = (code.kernel, code.defines.clone());
        let known = self.0.loaded.read().get(&name).map(Arc::clone);
        let place =
            known.unwrap_or_else(|| Arc::clone(self.0.loaded.write().entry(name).or_default()));
        place.get_or_try_init(|| self.load(&code, overlap)).cloned()
    }

    /// Plans a launch of the kernel that serves `operation`. Where that takes several chunks, the
    /// kernel is one whose chunks overlap, if the device can.
    ///
    /// # Errors
    ///
    /// [`KernelError::Violations`] where no plan is legal, and as [`Self::limits`].
    pub fn prepare<O: Operation>(
        &self,
        operation: O,
        choice: Choice,
    ) -> Result<Prepared<O>, KernelError> {
        let (request, batch) = (operation.request(), operation.batch());
        // How many launches it takes is up to the device, so that only one of the kernels is compiled.
        let overlap = self.guard().limits().overlapping_launches()
            && Plan::new(&request, Some(&batch), &self.0.any_kernel, choice)
                .is_ok_and(|plan| plan.len() > 1);
        let kernel = self.get(operation.code(self.guard().limits())?, overlap)?;
        let plan = self.guard().plan(&request, Some(&batch), kernel.limits(), choice)?;
        Ok(Prepared { operation, kernel, plan, guard: Arc::clone(self.guard()) })
    }

    fn load(&self, code: &Code, overlap: bool) -> Result<Kernel, KernelError> {
        let guard = self.guard();
        if !guard.is_cuda() {
            // Says why the host serves.
            guard.compile(code.kernel, "")?;
        }
        let image = self.image(code)?;
        let module = guard.load(&image)?;
        Ok(crate::device::kernel(&module, code.kernel, &code.parameters, overlap)?)
    }

    /// The machine code, from disk where it is there, else compiled and put there.
    fn image(&self, code: &Code) -> Result<Image, KernelError> {
        let options = code.compile_options(self.guard().limits().compute_capability);
        let compiler = Compiler::find().map_err(NvrtcError::from).map_err(CudaError::from)?;
        let version = compiler.version().map_err(CudaError::from)?;
        let entry = self
            .0
            .cache
            .as_ref()
            .map(|cache| (cache, CubinKey::new(code.source, &options, version)));
        if let Some((cache, key)) = &entry {
            match cache.get(key) {
                Ok(Some(image)) => {
                    self.0.read.fetch_add(1, Relaxed);
                    return Ok(image);
                }
                Ok(None) => {}
                Err(error) => self.failed(error),
            }
        }
        let image = compiler.compile(code.source, &options).map_err(CudaError::from)?.image;
        self.0.compiled.fetch_add(1, Relaxed);
        if let Some((cache, key)) = &entry
            && let Err(error) = cache.put(key, &image)
        {
            self.failed(error);
        }
        Ok(image)
    }

    /// The cache saves time and nothing else: its failures are kept for who asks.
    fn failed(&self, error: CubinCacheError) {
        self.0.failed.fetch_add(1, Relaxed);
        *self.0.last_failure.lock() = Some(error);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels = self.loaded.read().len();
        f.debug_struct("Kernels").field("cache", &self.cache).field("kernels", &kernels).finish()
    }
}

/// An operation with a kernel and a plan for it, to be launched any number of times.
#[derive(Clone, Debug)]
pub struct Prepared<O> {
    operation: O,
    kernel: Kernel,
    plan: Plan,
    guard: Arc<Guard>,
}

impl<O> Prepared<O> {
    /// What is computed.
    #[must_use]
    pub const fn operation(&self) -> &O {
        &self.operation
    }

    /// What the kernel allows on its device. The kernel itself stays here, where every launch is
    /// given memory of the shapes that it takes.
    #[must_use]
    pub fn limits(&self) -> &LaunchLimits {
        self.kernel.limits()
    }

    /// Its launches.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Checks and submits a kernel that takes two tensors and the items of the chunk: it reads the one
    /// and writes the other, item by item along their first axes.
    ///
    /// Kernels have a `launch` each over it, whose signature and words say which tensors it takes.
    #[track_caller]
    pub(crate) fn launch_items<T, U, X, Y, const N: usize>(
        &self,
        stream: &CudaStream,
        element: ElementType,
        (from, input, input_dims): (&'static str, Tensor<'_, X, N>, [u64; N]),
        (out, out_dims): (TensorMut<'_, Y, N>, [u64; N]),
    ) -> Result<u64, KernelError>
    where
        T: Element,
        X: DevicePtr<T>,
        Y: DevicePtrMut<U>,
    {
        let per_item = |dims: [u64; N]| dims.iter().skip(1).product();
        check_element::<T>(element)?;
        check_contiguous(from, input.memory, &input.extent, input_dims)?;
        check_contiguous("out", out.memory, &out.extent, out_dims)?;
        let mut args = Args::new(stream);
        args.read_items(input.memory, per_item(input_dims))
            .write_items(out.memory, per_item(out_dims))
            .length();
        self.submit(args)
    }

    /// Submits the launches with `args` and answers how many there are.
    #[track_caller]
    pub(crate) fn submit(&self, args: Args<'_>) -> Result<u64, KernelError> {
        Ok(self.guard.launch(&self.kernel, &self.plan, args)?)
    }
}
