//! The library's state and objects, each destroyed when dropped.

use core::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::error::ProductError;
use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::symbols::{Driver, Handle, Status};
use crate::cuda::error::CudaError;
use crate::cuda::product::cublaslt::CublasLt;
use crate::guard::Guard;

/// The library's state for one context.
pub(super) struct LibraryHandle {
    pub(super) library: CublasLt,
    pub(super) driver: &'static Driver,
    pub(super) context: Arc<CudaContext>,
    pub(super) handle: Handle,
}

impl LibraryHandle {
    /// Of the guard's context.
    pub(super) fn of(guard: &Guard) -> Result<Self, ProductError> {
        let context = Arc::clone(guard.device_context()?);
        let driver = Driver::get().map_err(CudaError::from)?;
        bind(driver, &context)?;
        Self::new(CublasLt::find()?, driver, context)
    }

    /// The context is current.
    fn new(
        library: CublasLt,
        driver: &'static Driver,
        context: Arc<CudaContext>,
    ) -> Result<Self, ProductError> {
        let mut handle = core::ptr::null_mut();
        // SAFETY: the pointer is to a live handle, and a context is current.
        let status = unsafe { (library.functions.create)(&raw mut handle) };
        check(library, "cublasLtCreate", status)?;
        Ok(Self { library, driver, context, handle })
    }
}

impl Drop for LibraryHandle {
    fn drop(&mut self) {
        if bind(self.driver, &self.context).is_ok() {
            // SAFETY: `new` created it in this context, which `self` keeps alive, and nothing else destroys
            // it. An error can only leak it.
            let _ = unsafe { (self.library.functions.destroy)(self.handle) };
        }
    }
}

/// A description, layout or preference of the library.
pub(super) struct Object {
    pub(super) handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> Status,
}

impl Object {
    pub(super) fn new(
        destroy: unsafe extern "C" fn(Handle) -> Status,
        create: impl FnOnce(*mut Handle) -> Result<(), ProductError>,
    ) -> Result<Self, ProductError> {
        let mut handle = core::ptr::null_mut();
        create(&raw mut handle)?;
        Ok(Self { handle, destroy })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: created with the function that this one belongs to, and destroyed nowhere else; the table
        // of functions is never unloaded.
        let _ = unsafe { (self.destroy)(self.handle) };
    }
}

/// Sets an attribute of a description to a value of the attribute's type.
pub(super) fn describe<T: Copy>(
    library: CublasLt,
    description: &Object,
    attribute: c_int,
    value: &T,
) -> Result<(), ProductError> {
    let from = core::ptr::from_ref(value).cast();
    // SAFETY: the object is alive, and the pointer to a live value of that size, which is checked.
    let status = unsafe {
        (library.functions.description_set)(description.handle, attribute, from, size_of::<T>())
    };
    check(library, "cublasLtMatmulDescSetAttribute", status)
}

pub(super) fn check(
    library: CublasLt,
    call: &'static str,
    status: Status,
) -> Result<(), ProductError> {
    if status == 0 {
        return Ok(());
    }
    Err(ProductError::Call { call, code: status, name: library.name_of(status) })
}

pub(super) fn bind(driver: &Driver, context: &CudaContext) -> Result<(), CudaError> {
    let bound: Result<(), DriverError> = driver.bind(context.cu_ctx().cast());
    Ok(bound?)
}
