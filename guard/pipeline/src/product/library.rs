//! The library's state and objects, each destroyed when dropped.

use core::ffi::c_int;
use core::panic::Location;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use crate::error::{Error, ErrorKind, StageError};
use crate::product::cublaslt::{CublasLt, Handle, Status};
use gridguard::Guard;
use gridguard::cuda::DriverError;
use gridguard::cuda::schedule::{Scheduler, bind};

/// The library or the device cannot be used.
pub(crate) fn unusable(cause: impl Into<StageError>) -> Error {
    Error::caused_by(ErrorKind::Product, cause)
}

/// The library's state for one context.
pub(crate) struct LibraryHandle {
    pub(crate) library: CublasLt,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) handle: Handle,
}

impl LibraryHandle {
    /// A handle in the guard's context.
    pub(crate) fn of(guard: &Guard) -> Result<Self, Error> {
        let scheduler = Scheduler::new(guard, Location::caller()).map_err(unusable)?;
        let context = Arc::clone(scheduler.context());
        let (library, mut handle) = (CublasLt::find().map_err(unusable)?, core::ptr::null_mut());
        // SAFETY: the pointer is to a live handle, and a context is current.
        let status = unsafe { (library.functions.create)(&raw mut handle) };
        library.check("cublasLtCreate", status)?;
        Ok(Self { library, context, handle })
    }

    /// Makes its context current.
    pub(crate) fn bind(&self) -> Result<(), DriverError> {
        bind(&self.context)
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
pub(crate) struct Object {
    pub(crate) handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> Status,
}

impl Object {
    pub(crate) fn new(
        library: CublasLt,
        call: &'static str,
        destroy: unsafe extern "C" fn(Handle) -> Status,
        create: impl FnOnce(*mut Handle) -> Status,
    ) -> Result<Self, Error> {
        let mut handle = core::ptr::null_mut();
        library.check(call, create(&raw mut handle))?;
        Ok(Self { handle, destroy })
    }

    /// Sets an attribute of a description to a value of the attribute's type.
    pub(crate) fn describe<T: Copy>(
        &self,
        library: CublasLt,
        attribute: c_int,
        value: &T,
    ) -> Result<(), Error> {
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
