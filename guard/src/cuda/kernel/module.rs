//! Loads kernel images into a context, and finds their kernels. Wraps functions that other code loaded.

use core::any::Any;
use core::ffi::c_void;
use core::mem::ManuallyDrop;
use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction};

use crate::cuda::driver::library::{CAPTURE_ERRORS, CurrentContext};
use crate::cuda::driver::log::{self, LogPosition};
use crate::cuda::driver::query;
use crate::cuda::driver::symbols::{
    Driver, Handle, NO_BINARY_FOR_GPU, NOT_FOUND, UNSUPPORTED_PTX_VERSION,
};
use crate::cuda::error::{CudaError, CudaErrorKind, cuda_version};
use crate::cuda::kernel::{Kernel, LoadedFunction};
use crate::image::Image;
use crate::limits::attributes::function_attribute;
use crate::plan::signature::Parameter;
#[cfg(feature = "ptx")]
use {
    crate::cuda::kernel::{Rewriting, index::Ptx},
    crate::limits::launch::Forms,
    crate::plan::signature::Signature,
    gridguard_ptx::{Form, Report, Rewritten, rewrite},
};

/// An image loaded into a context. Unloaded when its last kernel is dropped, after its launches. It stays
/// loaded if a stream of its context is then being captured, which the drop makes invalid.
#[derive(Clone, Debug)]
pub struct Module(Arc<LoadedModule>);

/// The module that its kernels keep loaded.
#[derive(Debug)]
struct LoadedModule {
    handle: Handle,
    driver: &'static Driver,
    context: Arc<CudaContext>,
    /// The names of its kernels, where the image lists them.
    kernels: Vec<String>,
    /// The report of rewriting its PTX, if that was done.
    #[cfg(feature = "ptx")]
    report: Option<Report>,
    /// Its PTX, for the limits of 32-bit indices.
    #[cfg(feature = "ptx")]
    ptx: Option<Ptx>,
}

// SAFETY: the handle is a plain number. The driver accepts it on any thread whose current context is the
// module's, and every call here makes it current first.
unsafe impl Send for LoadedModule {}
// SAFETY: shared access calls the driver with the same handle, and the driver locks the module in concurrent calls.
unsafe impl Sync for LoadedModule {}

impl Module {
    /// Loads `image` into `context`. With the feature `ptx`, kernels of PTX know the first launch whose 32-bit
    /// indices wrap ([`Rule::IndexWrap`](crate::Rule::IndexWrap)). [`Self::kernel`] finds that once for each entry, in
    /// up to some 100 ms.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the image is for another architecture or newer than the driver, or the driver
    /// rejects it.
    pub fn load(context: &Arc<CudaContext>, image: &Image) -> Result<Self, CudaError> {
        #[allow(unused_mut, reason = "the feature `ptx`")]
        let mut loaded = LoadedModule::load(context, image)?;
        #[cfg(feature = "ptx")]
        {
            loaded.ptx = image.ptx().and_then(|ptx| Ptx::new(ptx.as_bytes()));
        }
        Ok(Self(Arc::new(loaded)))
    }

    /// Rewrites `ptx` and loads the result into `context`, as [`Guard::load_ptx`](crate::Guard::load_ptx).
    ///
    /// # Errors
    ///
    /// As [`Guard::load_ptx`](crate::Guard::load_ptx).
    #[cfg(feature = "ptx")]
    pub fn load_ptx(context: &Arc<CudaContext>, ptx: &[u8]) -> Result<Self, CudaError> {
        let image = Image::new(ptx)?;
        let original = image.ptx().unwrap_or_default();
        let Rewritten { text, report } = rewrite(original.as_bytes())?;
        let mut loaded = LoadedModule::load(context, &Image::new(text)?)?;
        loaded.ptx = Ptx::new(original.as_bytes());
        loaded.kernels = report.entries.iter().map(|entry| entry.name.clone()).collect();
        loaded.report = Some(report);
        Ok(Self(Arc::new(loaded)))
    }

    /// The report of rewriting the module's PTX. `None` if it was not rewritten.
    #[cfg(feature = "ptx")]
    pub fn report(&self) -> Option<&Report> {
        self.0.report.as_ref()
    }

    /// The kernel `name`, which takes `parameters`, with its limits.
    ///
    /// Launches of the kernel are safe, because the caller guarantees its contract here: arguments are checked against
    /// `parameters` at every launch. The module is unloaded after its launches.
    ///
    /// # Safety
    ///
    /// The device code called `name` takes `parameters`. On every launch of the kernel or a clone of it:
    /// - it accesses only memory of its [`Parameter::Memory`] and [`Parameter::AlignedMemory`] arguments: whole
    ///   slices, or the declared span of each item of the chunk; of a workspace, the bytes that the batch declares
    ///   for the items of a chunk;
    /// - it writes only to memory that was passed with a `write` call, and only valid values of its elements;
    /// - its threads do not access the same memory at the same time in ways that conflict.
    ///
    /// Few kernels can guarantee that by themselves: they receive neither the length of their memory nor
    /// its type, nor learn what may be written. Then keep the kernel private to code that passes the right
    /// memory to each launch.
    ///
    /// # Errors
    ///
    /// [`CudaErrorKind::NoSuchKernel`] if the module has no kernel of this name, [`CudaErrorKind::Parameters`] if the driver
    /// knows other parameters, [`CudaErrorKind::Driver`] if a query fails.
    pub unsafe fn kernel(&self, name: &str, parameters: &[Parameter]) -> Result<Kernel, CudaError> {
        self.find_kernel(name, parameters, false)
    }

    /// As [`Self::kernel`], for launches in clusters of up to 16 blocks, above the portable 8. How
    /// many fit a device is in [`Kernel::occupancy`].
    ///
    /// # Safety
    ///
    /// As [`Self::kernel`].
    ///
    /// # Errors
    ///
    /// As [`Self::kernel`]; [`CudaErrorKind::Driver`] also if the driver refuses such clusters.
    pub unsafe fn kernel_in_wide_clusters(
        &self,
        name: &str,
        parameters: &[Parameter],
    ) -> Result<Kernel, CudaError> {
        self.find_kernel(name, parameters, true)
    }

    /// The kernel `name`, which takes `parameters`, for launches in wide clusters if `wide`.
    fn find_kernel(
        &self,
        name: &str,
        parameters: &[Parameter],
        wide: bool,
    ) -> Result<Kernel, CudaError> {
        #[allow(unused_mut, reason = "the feature `ptx`")]
        let mut found = self.find_entry(name, name, parameters, wide)?;
        #[cfg(feature = "ptx")]
        if let Some(ptx) = &self.0.ptx {
            let limits = found.inner.limits.clone();
            found.inner.limits = limits.with_index(ptx.limits(name).to_vec());
        }
        #[cfg(feature = "ptx")]
        if let Some(entry) = self.report().and_then(|report| report.entry(name)) {
            let rewriting = match &entry.forms {
                Ok(forms) => {
                    let shifted =
                        self.form(&forms.shifted, Form::Shifted, name, parameters, wide)?;
                    let folded = self.form(&forms.folded, Form::Folded, name, parameters, wide)?;
                    let limits = found.inner.limits.clone();
                    found.inner.limits = limits.with_forms(Forms {
                        shifted: shifted.limits().clone(),
                        folded: folded.limits().clone(),
                        reads_block_index: entry.reads_block_index,
                        reads_grid_size: entry.reads_grid_size,
                    });
                    Rewriting::Forms { shifted, folded }
                }
                Err(refusal) => Rewriting::Refused(refusal.clone()),
            };
            return Ok(Kernel { rewriting: Some(Arc::new(rewriting)), ..found.into() });
        }
        Ok(found.into())
    }

    /// A form of the kernel `name`. It takes the kernel's arguments, and the words that a launch adds.
    #[cfg(feature = "ptx")]
    fn form(
        &self,
        symbol: &str,
        form: Form,
        name: &str,
        parameters: &[Parameter],
        wide: bool,
    ) -> Result<Kernel, CudaError> {
        let bytes = usize::try_from(form.parameter_bytes()).unwrap_or(usize::MAX);
        let with_words = [parameters, &[Parameter::Value { bytes }]].concat();
        let mut found = self.find_entry(symbol, name, &with_words, wide)?;
        found.inner.signature = Signature::Declared(parameters.to_vec());
        Ok(found.into())
    }

    /// The entry `symbol`, which takes `parameters` and is called `name` in messages.
    fn find_entry(
        &self,
        symbol: &str,
        name: &str,
        parameters: &[Parameter],
        wide: bool,
    ) -> Result<LoadedFunction, CudaError> {
        let LoadedModule { handle, driver, ref context, ref kernels, .. } = *self.0;
        let missing =
            || CudaErrorKind::NoSuchKernel { name: name.to_owned(), known: kernels.clone() };
        let symbol = CString::new(symbol).map_err(|_| missing())?;
        if symbol.is_empty() {
            // Drivers return another error than for a name that does not exist.
            return Err(missing().into());
        }
        driver.bind_cudarc(context)?;
        let mut function = core::ptr::null_mut();
        // SAFETY: `self` keeps the module loaded; the name is zero-terminated and outlives the call.
        let status =
            unsafe { (driver.module_get_function)(&raw mut function, handle, symbol.as_ptr()) };
        match driver.check("cuModuleGetFunction", status) {
            Err(error) if error.code == NOT_FOUND => return Err(missing().into()),
            found => found?,
        }
        if wide {
            let attribute = function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            // SAFETY: the function is loaded in the context that is current.
            let status = unsafe { (driver.func_set_attribute)(function, attribute, 1) };
            driver.check("cuFuncSetAttribute", status)?;
        }
        let (name, keep) = (name.to_owned(), Arc::clone(&self.0));
        // SAFETY: `keep` keeps the function loaded, and its context, which is current.
        unsafe { declared_function(driver, context, function, name, parameters, keep) }
    }

    /// The context that the module is loaded into.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }
}

impl Kernel {
    /// The kernel of a function that cudarc loaded in `context`, which takes `parameters`. It works with every method
    /// of [`Guard`](crate::Guard), and keeps the function's module loaded.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use cudarc::driver::{CudaContext, CudaFunction};
    /// use gridguard::cuda::Kernel;
    /// use gridguard::{Guard, Parameter};
    /// # fn run(context: Arc<CudaContext>, scale: &CudaFunction) -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = Guard::with_context(Arc::clone(&context))?;
    /// let parameters = [Parameter::Memory, Parameter::of::<f32>(), Parameter::of::<u32>()];
    /// // SAFETY: `scale` takes a pointer, a factor and the number of elements that it writes.
    /// let kernel = unsafe { Kernel::from_cudarc(&context, scale, &parameters)? };
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    ///
    /// As [`Module::kernel`]; and `function` was loaded in `context`.
    ///
    /// # Errors
    ///
    /// [`CudaErrorKind::Parameters`] if the driver knows other parameters;
    /// another [`CudaError`] if there is no driver or a query fails.
    pub unsafe fn from_cudarc(
        context: &Arc<CudaContext>,
        function: &CudaFunction,
        parameters: &[Parameter],
    ) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        driver.bind_cudarc(context)?;
        // SAFETY: this function's contract, and the context is current. The clone keeps the function loaded.
        unsafe {
            let handle = driver.function_of(function.cu_function().cast());
            let name = driver.name_of(handle);
            // A query for the wrong kind of handle fails, and the driver logs an error.
            log::discard(driver);
            let function = ManuallyDrop::new(function.clone());
            let keep = AfterLaunches { driver, context: Arc::clone(context), function };
            declared_function(driver, context, handle, name, parameters, keep).map(Into::into)
        }
    }
}

/// The limits of `function`, if it takes `parameters` as far as the driver knows.
///
/// # Safety
///
/// `function` was loaded in `context`, which is current, and stays loaded until `keep` is dropped. On
/// every launch it keeps the contract of [`Module::kernel`].
unsafe fn declared_function(
    driver: &'static Driver,
    context: &Arc<CudaContext>,
    function: Handle,
    name: String,
    parameters: &[Parameter],
    keep: impl Any + Send + Sync,
) -> Result<LoadedFunction, CudaError> {
    let declared: Vec<usize> = parameters.iter().map(|parameter| parameter.bytes()).collect();
    // SAFETY: the function is loaded in the context that is current.
    if let Some(known) = unsafe { query::parameter_sizes(driver, function) }?
        && known != declared
    {
        return Err(CudaErrorKind::Parameters { name, known, declared }.into());
    }
    let (owned, handle) = (Some(Arc::clone(context)), context.cu_ctx().cast());
    let declared = Some(parameters);
    // SAFETY: this function's contract.
    let found =
        unsafe { LoadedFunction::query(driver, function, handle, name, declared, owned, keep) };
    Ok(found?)
}

impl LoadedModule {
    fn load(context: &Arc<CudaContext>, image: &Image) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let device = query::limits_of_context(driver, context)?;
        let wrong_architecture = |image: String| CudaErrorKind::WrongArchitecture {
            image,
            device: device.name.clone(),
            capability: device.compute_capability,
        };
        if image.ptx_is_foreign_to(device.compute_capability) {
            return Err(wrong_architecture(image.ptx_target().unwrap_or_default().into()).into());
        }
        let mut log = vec![0_u8; LOG_BYTES];
        let mut options = [JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The driver reads the second value as a number, not as a pointer.
        let size = core::ptr::without_provenance_mut::<c_void>(LOG_BYTES);
        let mut values = [log.as_mut_ptr().cast::<c_void>(), size];
        let mut handle = core::ptr::null_mut();
        let start = LogPosition::now(driver);
        // SAFETY: `Image` has checked that its bytes are complete, and PTX ends with a zero; both
        // option arrays have two elements; the log buffer has `LOG_BYTES` bytes. All outlive the call.
        let status = unsafe {
            (driver.module_load_data_ex)(
                &raw mut handle,
                image.bytes().as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if let Err(error) = driver.check_since(start, "cuModuleLoadDataEx", status) {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(log.get(..end).unwrap_or_default()).into_owned();
            return Err(match error.code {
                NO_BINARY_FOR_GPU => wrong_architecture("another architecture".into()),
                UNSUPPORTED_PTX_VERSION => CudaErrorKind::PtxTooNew {
                    ptx: image.ptx_version().unwrap_or("of the image").into(),
                    driver: cuda_version(driver.version()?),
                },
                _ => CudaErrorKind::Refused { error, log: log.trim().to_owned() },
            }
            .into());
        }
        let kernels = image.ptx_kernels();
        let context = Arc::clone(context);
        Ok(Self {
            handle,
            driver,
            context,
            kernels,
            #[cfg(feature = "ptx")]
            report: None,
            #[cfg(feature = "ptx")]
            ptx: None,
        })
    }
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        // Avoids cudarc's context, which would return recorded failures here, where they are lost.
        if let Ok(_current) = CurrentContext::new(self.driver, self.context.cu_ctx().cast())
            && launches_ended(self.driver)
        {
            // SAFETY: `Module::load` loaded it, and each kernel of it holds this value, so none is
            // left. An error means that the context was destroyed, and the module with it.
            let _ = unsafe { (self.driver.module_unload)(self.handle) };
        }
    }
}

/// Drops a function, which may unload its module, after the launches of its context.
struct AfterLaunches {
    driver: &'static Driver,
    context: Arc<CudaContext>,
    function: ManuallyDrop<CudaFunction>,
}

impl Drop for AfterLaunches {
    fn drop(&mut self) {
        let current = CurrentContext::new(self.driver, self.context.cu_ctx().cast());
        if current.is_err() || launches_ended(self.driver) {
            // SAFETY: nothing uses it afterwards. The context is dropped after it.
            unsafe { ManuallyDrop::drop(&mut self.function) };
        }
    }
}

/// Waits for all launches of the current context: the driver does not document that unloading does.
/// Returns whether they have ended: not while a stream of the context is being captured.
fn launches_ended(driver: &Driver) -> bool {
    // SAFETY: takes no pointer.
    let status = unsafe { (driver.ctx_synchronize)() };
    // With any other error nothing runs any more.
    !CAPTURE_ERRORS.contains(&status)
}

/// `CU_JIT_ERROR_LOG_BUFFER`.
const JIT_ERROR_LOG_BUFFER: i32 = 5;
/// `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: i32 = 6;
/// Bytes for the log of the driver's PTX compiler.
const LOG_BYTES: usize = 8192;
