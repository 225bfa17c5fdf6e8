//! A loaded image and its kernels.

use core::ffi::c_void;
use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::current::Pushed;
use super::driver::{Driver, Handle};
use super::driver_log::Mark;
use super::error::{CudaError, LoadError, cuda_version};
use super::image::Image;
use super::kernel::{Keep, Kernel};
use super::query;
use crate::limits::DeviceLimits;
use crate::plan::signature::{Parameter, Signature};

/// An image loaded into a context. Unloaded when the last kernel of it is gone.
#[derive(Clone, Debug)]
pub struct Module(Arc<Loaded>);

/// What a kernel keeps alive.
#[derive(Debug)]
pub(super) struct Loaded {
    handle: Handle,
    driver: &'static Driver,
    context: Arc<CudaContext>,
    device: Arc<DeviceLimits>,
    kernels: Vec<String>,
}

// SAFETY: a module handle may be used from any thread to which its context is bound; every use
// binds it first.
unsafe impl Send for Loaded {}
// SAFETY: as above; the driver locks its own tables.
unsafe impl Sync for Loaded {}

/// `CUDA_ERROR_NO_BINARY_FOR_GPU`.
const NO_BINARY_FOR_GPU: i32 = 209;
/// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
const UNSUPPORTED_PTX_VERSION: i32 = 222;
/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: i32 = 500;
/// `CU_JIT_ERROR_LOG_BUFFER`.
const JIT_ERROR_LOG_BUFFER: i32 = 5;
/// `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: i32 = 6;
/// Room for what the driver's compiler has to say.
const LOG_BYTES: usize = 8192;

impl Module {
    /// Loads `image` into `context`.
    ///
    /// # Errors
    ///
    /// [`LoadError`] where the image is for another architecture or newer than the driver, or the
    /// driver refuses it.
    pub fn load(context: &Arc<CudaContext>, image: &Image) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let device = query::limits_of_context(driver, context)?;
        let wrong_architecture = |image: String| LoadError::WrongArchitecture {
            image,
            device: device.name.clone(),
            capability: device.compute_capability,
        };
        if image.ptx_is_foreign_to(device.compute_capability) {
            return Err(wrong_architecture(image.ptx_target().unwrap_or_default().into()).into());
        }
        let mut log = vec![0_u8; LOG_BYTES];
        let mut options = [JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The second value is a number in the place of a pointer, as the driver wants it.
        let size = core::ptr::without_provenance_mut::<c_void>(LOG_BYTES);
        let mut values = [log.as_mut_ptr().cast::<c_void>(), size];
        let mut handle = core::ptr::null_mut();
        let mark = Mark::here(driver);
        // SAFETY: the image is whole, PTX ends with a zero; both option arrays have two entries,
        // and the log buffer has the size that it is said to have and lives through the call.
        let status = unsafe {
            (driver.module_load_data_ex)(
                &raw mut handle,
                image.bytes().as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if let Err(error) = driver.check_since(mark, "cuModuleLoadDataEx", status) {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(log.get(..end).unwrap_or_default()).into_owned();
            return Err(match error.code {
                NO_BINARY_FOR_GPU => wrong_architecture("another architecture".into()),
                UNSUPPORTED_PTX_VERSION => LoadError::PtxTooNew {
                    ptx: image.ptx_version().unwrap_or("of the image").into(),
                    driver: cuda_version(driver.version()?),
                },
                _ => LoadError::Refused { error, log: log.trim().to_owned() },
            }
            .into());
        }
        let kernels = image.ptx_kernels();
        let context = Arc::clone(context);
        Ok(Self(Arc::new(Loaded { handle, driver, context, device, kernels })))
    }

    /// The kernel `name`, which takes `parameters`, with its limits.
    ///
    /// Launching it is safe from here on, because the promise is made here once: arguments are held
    /// against `parameters` at every launch.
    ///
    /// # Safety
    ///
    /// The device code called `name` takes `parameters`. On every launch that is made with the kernel
    /// or a clone of it, it reads and writes only memory that its [`Parameter::Memory`] arguments
    /// reach, and writes only what was given to be written: the slices as a whole, or from each item
    /// on as many elements as an item is said to have; of a workspace, as much as the batch declares
    /// for the items of a chunk.
    ///
    /// Few kernels can keep that by themselves, since they are not told how long their memory is.
    /// Then the kernel stays with code that gives each launch enough of it, and other code launches
    /// through that.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoSuchKernel`] where the module has none of this name, [`LoadError::Parameters`]
    /// where the driver knows of others, [`LoadError::Driver`] where a query fails.
    pub unsafe fn kernel(&self, name: &str, parameters: &[Parameter]) -> Result<Kernel, LoadError> {
        let function = self.function(name, parameters)?;
        self.kernel_of(function, name, parameters)
    }

    /// As [`Self::kernel`], for launches in clusters of up to 16 blocks, also above the portable 8:
    /// what a device has room for is another question, [`Kernel::occupancy`].
    ///
    /// # Safety
    ///
    /// As [`Self::kernel`].
    ///
    /// # Errors
    ///
    /// As [`Self::kernel`]; [`LoadError::Driver`] also where the driver refuses such clusters.
    pub unsafe fn kernel_in_wide_clusters(
        &self,
        name: &str,
        parameters: &[Parameter],
    ) -> Result<Kernel, LoadError> {
        let function = self.function(name, parameters)?;
        let attribute = query::function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        let driver = self.0.driver;
        // SAFETY: the function is loaded in the context that is current.
        let status = unsafe { (driver.func_set_attribute)(function, attribute, 1) };
        driver.check("cuFuncSetAttribute", status)?;
        self.kernel_of(function, name, parameters)
    }

    /// The function `name`, which takes `parameters`. Its context is current afterwards.
    fn function(&self, name: &str, parameters: &[Parameter]) -> Result<Handle, LoadError> {
        let module = &self.0;
        let missing =
            || LoadError::NoSuchKernel { name: name.to_owned(), known: module.kernels.clone() };
        let symbol = CString::new(name).map_err(|_| missing())?;
        if name.is_empty() {
            // Drivers call it an invalid argument.
            return Err(missing());
        }
        query::bind_context(module.driver, &module.context)?;
        let mut function = core::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a zero.
        let status = unsafe {
            (module.driver.module_get_function)(&raw mut function, module.handle, symbol.as_ptr())
        };
        match module.driver.check("cuModuleGetFunction", status) {
            Err(error) if error.code == NOT_FOUND => return Err(missing()),
            answer => answer?,
        }
        let declared: Vec<usize> = parameters.iter().map(|parameter| parameter.bytes()).collect();
        if let Some(known) = query::parameter_sizes(module.driver, function)?
            && known != declared
        {
            return Err(LoadError::Parameters { name: name.to_owned(), known, declared });
        }
        Ok(function)
    }

    fn kernel_of(
        &self,
        function: Handle,
        name: &str,
        parameters: &[Parameter],
    ) -> Result<Kernel, LoadError> {
        let module = &self.0;
        let (driver, context) = (module.driver, module.context.cu_ctx().cast());
        let device = Arc::clone(&module.device);
        let signature = Signature::Declared(parameters.to_vec());
        let keep = Keep::Module(Arc::clone(module));
        let name = name.to_owned();
        Ok(Kernel::from_parts(driver, function, context, device, name, signature, keep)?)
    }

    /// The context that the module is loaded into.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }
}

impl Loaded {
    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // Not through cudarc, which would tell here what it recorded of earlier failures: to nobody.
        if let Ok(_current) = Pushed::new(self.driver, self.context.cu_ctx().cast()) {
            // SAFETY: loaded by `Module::load`, and no kernel of it is left. A failure here means
            // that the context is gone, and the module with it.
            let _ = unsafe { (self.driver.module_unload)(self.handle) };
        }
    }
}
