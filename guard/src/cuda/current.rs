//! The context that is current on a thread, left as it was.

use super::driver::{Driver, Handle};
use super::error::DriverError;

/// A context made current for a while on this thread, where it was not.
pub(super) struct Pushed {
    driver: &'static Driver,
    pushed: bool,
}

impl Pushed {
    pub(super) fn new(driver: &'static Driver, context: Handle) -> Result<Self, DriverError> {
        let mut current = core::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let status = unsafe { (driver.ctx_get_current)(&raw mut current) };
        driver.check("cuCtxGetCurrent", status)?;
        if current == context {
            return Ok(Self { driver, pushed: false });
        }
        // SAFETY: the caller of the public functions keeps the context alive.
        let status = unsafe { (driver.ctx_push_current)(context) };
        driver.check("cuCtxPushCurrent", status)?;
        Ok(Self { driver, pushed: true })
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = core::ptr::null_mut();
            // SAFETY: pops what `new` pushed on this same thread. A failure would mean that
            // someone popped it already, and there is nothing to mend then.
            let _ = unsafe { (self.driver.ctx_pop_current)(&raw mut popped) };
        }
    }
}
