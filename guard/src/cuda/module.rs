//! Loads kernel images into a context.

use core::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::driver::Pushed;
use super::driver_log::LogPosition;
use super::error::{CudaError, LoadError, cuda_version};
use super::image::Image;
use super::query;
use super::symbols::{Driver, Handle, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION};
use crate::limits::DeviceLimits;

/// An image loaded into a context. Unloaded when its last kernel is dropped.
#[derive(Clone, Debug)]
pub struct Module(pub(super) Arc<LoadedModule>);

/// The module that its kernels keep loaded.
#[derive(Debug)]
pub(super) struct LoadedModule {
    pub(super) handle: Handle,
    pub(super) driver: &'static Driver,
    pub(super) context: Arc<CudaContext>,
    pub(super) device: Arc<DeviceLimits>,
    /// The names of its kernels, where the image lists them.
    pub(super) kernels: Vec<String>,
}

// SAFETY: the handle is a plain number to this process; the driver may be called with it from any
// thread on which the context is current, and every call here makes it current first.
unsafe impl Send for LoadedModule {}
// SAFETY: as above; the driver locks the module in concurrent calls.
unsafe impl Sync for LoadedModule {}

/// `CU_JIT_ERROR_LOG_BUFFER`.
const JIT_ERROR_LOG_BUFFER: i32 = 5;
/// `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: i32 = 6;
/// Bytes for the log of the driver's PTX compiler.
const LOG_BYTES: usize = 8192;

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
        Ok(Self(Arc::new(LoadedModule { handle, driver, context, device, kernels })))
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
