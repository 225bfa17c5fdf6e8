//! Loads kernel images into a context, and finds the kernels in them.

use core::ffi::c_void;
use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::driver::Pushed;
use super::driver_log::LogPosition;
use super::error::{CudaError, LoadError, cuda_version};
use super::image::Image;
use super::kernel::Kernel;
use super::query;
use super::symbols::{
    Driver, Handle, NO_BINARY_FOR_GPU, NOT_FOUND, UNSUPPORTED_PTX_VERSION, function_attribute,
};
use crate::plan::signature::Parameter;

/// An image loaded into a context. Unloaded when its last kernel is dropped.
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
}

// SAFETY: the handle is a plain number to this process; the driver may be called with it from any
// thread on which the context is current, and every call here makes it current first.
unsafe impl Send for LoadedModule {}
// SAFETY: as above; the driver locks the module in concurrent calls.
unsafe impl Sync for LoadedModule {}

impl Module {
    /// Loads `image` into `context`.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if the image is for another architecture or newer than the driver, or the driver
    /// rejects it.
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
        Ok(Self(Arc::new(LoadedModule { handle, driver, context, kernels })))
    }

    /// The kernel `name`, which takes `parameters`, with its limits.
    ///
    /// Launching it is safe from here on, because its contract is vouched for here: arguments are
    /// checked against `parameters` at every launch.
    ///
    /// # Safety
    ///
    /// The device code called `name` takes `parameters`. On every launch of the kernel or a clone of
    /// it, it accesses only memory that its [`Parameter::Memory`] arguments reach, and writes only
    /// what was passed to be written: whole slices, or from each item on as many elements as an item
    /// is declared to have; of a workspace, as much as the batch declares for the items of a chunk.
    ///
    /// Few kernels can guarantee that by themselves, since they do not receive the length of their
    /// memory. Then keep the kernel private to code that passes enough memory to each launch.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoSuchKernel`] if the module has none of this name, [`LoadError::Parameters`]
    /// if the driver knows other parameters, [`LoadError::Driver`] if a query fails.
    pub unsafe fn kernel(&self, name: &str, parameters: &[Parameter]) -> Result<Kernel, LoadError> {
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
    /// As [`Self::kernel`]; [`LoadError::Driver`] also if the driver refuses such clusters.
    pub unsafe fn kernel_in_wide_clusters(
        &self,
        name: &str,
        parameters: &[Parameter],
    ) -> Result<Kernel, LoadError> {
        self.find_kernel(name, parameters, true)
    }

    /// The kernel `name`, which takes `parameters`, for launches in wide clusters if `wide`.
    fn find_kernel(
        &self,
        name: &str,
        parameters: &[Parameter],
        wide: bool,
    ) -> Result<Kernel, LoadError> {
        let LoadedModule { handle, driver, ref context, ref kernels } = *self.0;
        let missing = || LoadError::NoSuchKernel { name: name.to_owned(), known: kernels.clone() };
        let symbol = CString::new(name).map_err(|_| missing())?;
        if name.is_empty() {
            // Drivers return another error than for a name that does not exist.
            return Err(missing());
        }
        driver.bind_cudarc(context)?;
        let mut function = core::ptr::null_mut();
        // SAFETY: `self` keeps the module loaded; the name is zero-terminated and outlives the call.
        let status =
            unsafe { (driver.module_get_function)(&raw mut function, handle, symbol.as_ptr()) };
        match driver.check("cuModuleGetFunction", status) {
            Err(error) if error.code == NOT_FOUND => return Err(missing()),
            found => found?,
        }
        let declared: Vec<usize> = parameters.iter().map(|parameter| parameter.bytes()).collect();
        // SAFETY: the function is loaded in the context that is current.
        if let Some(known) = unsafe { query::parameter_sizes(driver, function) }?
            && known != declared
        {
            return Err(LoadError::Parameters { name: name.to_owned(), known, declared });
        }
        if wide {
            let attribute = function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            // SAFETY: as above.
            let status = unsafe { (driver.func_set_attribute)(function, attribute, 1) };
            driver.check("cuFuncSetAttribute", status)?;
        }
        let declared = Some(parameters);
        let (owned, keep) = (Some(Arc::clone(context)), Arc::clone(&self.0));
        let (name, context) = (name.to_owned(), context.cu_ctx().cast());
        // SAFETY: `keep` keeps the function loaded, and its context, which is current.
        let kernel =
            unsafe { Kernel::from_parts(driver, function, context, name, declared, owned, keep) };
        Ok(kernel?)
    }

    /// The context that the module is loaded into.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        // Not through cudarc's context, which would report recorded failures here and lose them.
        if let Ok(_current) = Pushed::new(self.driver, self.context.cu_ctx().cast()) {
            // SAFETY: `Module::load` loaded it, and each kernel of it holds this value, so none is
            // left. An error means that the context was destroyed, and the module with it.
            let _ = unsafe { (self.driver.module_unload)(self.handle) };
        }
    }
}

/// `CU_JIT_ERROR_LOG_BUFFER`.
const JIT_ERROR_LOG_BUFFER: i32 = 5;
/// `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: i32 = 6;
/// Bytes for the log of the driver's PTX compiler.
const LOG_BYTES: usize = 8192;
