//! The library's state and objects, each destroyed when dropped.

use core::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::error::ProductError;
use crate::cuda::driver::symbols::{Driver, Handle, Status};
use crate::cuda::error::CudaError;
use crate::cuda::product::cublaslt::CublasLt;
use crate::guard::Guard;

/// The library's state for one context.
pub(super) struct LibraryHandle {
    pub(super) library: CublasLt,
    driver: &'static Driver,
    pub(super) context: Arc<CudaContext>,
    pub(super) handle: Handle,
}

impl LibraryHandle {
    /// A handle in the guard's context.
    pub(super) fn of(guard: &Guard) -> Result<Self, ProductError> {
        let context = Arc::clone(guard.device_context()?);
        let driver = Driver::get().map_err(CudaError::from)?;
        driver.bind(context.cu_ctx().cast()).map_err(CudaError::from)?;
        let (library, mut handle) = (CublasLt::find()?, core::ptr::null_mut());
        // SAFETY: the pointer is to a live handle, and a context is current.
        let status = unsafe { (library.functions.create)(&raw mut handle) };
        library.check("cublasLtCreate", status)?;
        Ok(Self { library, driver, context, handle })
    }

    /// Makes its context current.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        Ok(self.driver.bind(self.context.cu_ctx().cast())?)
    }
}

impl Drop for LibraryHandle {
    fn drop(&mut self) {
        if self.bind().is_ok() {
            // SAFETY: `of` created it in this context, which `self` keeps alive, and nothing else destroys
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
        library: CublasLt,
        call: &'static str,
        destroy: unsafe extern "C" fn(Handle) -> Status,
        create: impl FnOnce(*mut Handle) -> Status,
    ) -> Result<Self, ProductError> {
        let mut handle = core::ptr::null_mut();
        library.check(call, create(&raw mut handle))?;
        Ok(Self { handle, destroy })
    }

    /// Sets an attribute of a description to a value of the attribute's type.
    pub(super) fn describe<T: Copy>(
        &self,
        library: CublasLt,
        attribute: c_int,
        value: &T,
    ) -> Result<(), ProductError> {
        let from = core::ptr::from_ref(value).cast();
        // SAFETY: the object is alive, and the pointer to a live value of that size, which is checked.
        let status = unsafe {
            (library.functions.description_set)(self.handle, attribute, from, size_of::<T>())
        };
        library.check("cublasLtMatmulDescSetAttribute", status)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: created with the function that this one belongs to, and destroyed nowhere else; the table
        // of functions is never unloaded.
        let _ = unsafe { (self.destroy)(self.handle) };
    }
}
