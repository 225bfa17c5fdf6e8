//! A failed driver call: its code, name, log and suspects.

use core::fmt;

use crate::cuda::driver::log::{self, DriverLog, LogPosition};
use crate::cuda::driver::suspects::FaultSuspects;
use crate::cuda::driver::symbols::{Driver, Handle, OUT_OF_MEMORY, Status};
use crate::limits::{LaunchLimits, LocalMemory};
use crate::observe;

/// A driver call that failed, with the driver's name and description of the error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverError {
    /// The call, such as `cuLaunchKernel`.
    pub call: &'static str,
    /// The `CUresult`.
    pub code: i32,
    /// Its name, such as `CUDA_ERROR_INVALID_VALUE`.
    pub name: String,
    /// The driver's description.
    pub description: Box<str>,
    /// In one box: launches return errors by value, so they are kept small.
    pub(crate) background: Option<Box<Background>>,
}

/// What is known beyond the code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Background {
    driver_log: Option<DriverLog>,
    suspects: Option<FaultSuspects>,
    local_memory: Option<LocalMemory>,
}

impl Background {
    /// What is known about `call`, which has just returned `status`: driver messages since `start`,
    /// launches in `context` or else in the current one.
    fn collect(
        driver: &Driver,
        call: &str,
        status: Status,
        start: Option<LogPosition>,
        context: Option<Handle>,
    ) -> Option<Box<Self>> {
        let driver_log = log::since(driver, call, start);
        let suspects = FaultSuspects::collect(driver, status, context);
        let known = driver_log.is_some() || suspects.is_some();
        known.then(|| Box::new(Self { driver_log, suspects, local_memory: None }))
    }
}

impl Driver {
    /// Turns the status that `call` returned into a result.
    #[inline]
    pub(crate) fn check(&self, call: &'static str, status: Status) -> Result<(), DriverError> {
        self.check_since(None, call, status)
    }

    /// As [`Self::check`], with driver messages from `start` on and none before.
    #[inline]
    pub(crate) fn check_since(
        &self,
        start: Option<LogPosition>,
        call: &'static str,
        status: Status,
    ) -> Result<(), DriverError> {
        if status == 0 { Ok(()) } else { Err(self.error(start, call, status)) }
    }

    /// What `call` writes through the pointer that it gets.
    #[inline]
    pub(crate) fn read<T>(
        &self,
        call: &'static str,
        mut value: T,
        ask: impl FnOnce(*mut T) -> Status,
    ) -> Result<T, DriverError> {
        let status = ask(&raw mut value);
        self.check(call, status)?;
        Ok(value)
    }

    /// The error of a `call` that returned `status`.
    #[cold]
    pub(crate) fn error(
        &self,
        start: Option<LogPosition>,
        call: &'static str,
        status: Status,
    ) -> DriverError {
        self.error_in(None, start, call, status)
    }

    /// As [`Self::error`], for a call in `context`, which need not be current.
    pub(crate) fn error_in(
        &self,
        context: Option<Handle>,
        start: Option<LogPosition>,
        call: &'static str,
        status: Status,
    ) -> DriverError {
        DriverError {
            call,
            code: status,
            name: self.text(self.get_error_name, status).unwrap_or_else(|| "unknown error".into()),
            description: self.text(self.get_error_string, status).unwrap_or_default().into(),
            background: Background::collect(self, call, status, start, context),
        }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, code, name, description, background: _ } = self;
        write!(f, "{call} returned {name} ({code})")?;
        if !description.is_empty() {
            write!(f, ": {description}")?;
        }
        if let Some(driver_log) = self.driver_log() {
            write!(f, "; {driver_log}")?;
        }
        if let Some(local_memory) = self.local_memory() {
            write!(f, "; the kernel's local memory takes {local_memory}")?;
        }
        self.suspects().map_or(Ok(()), |suspects| write!(f, "; {suspects}"))
    }
}

impl core::error::Error for DriverError {}

impl DriverError {
    /// What the driver logged about the call (CUDA 12.9 and later). `None` if it logged nothing.
    pub fn driver_log(&self) -> Option<&DriverLog> {
        self.background.as_ref()?.driver_log.as_ref()
    }

    /// The launches that may have caused the error, if the call that returned it did not.
    pub fn suspects(&self) -> Option<&FaultSuspects> {
        self.background.as_ref()?.suspects.as_ref()
    }

    /// The local memory that the driver had to reserve for a launch that ran out of memory. A launch
    /// allocates nothing else that large.
    pub fn local_memory(&self) -> Option<LocalMemory> {
        self.background.as_ref()?.local_memory
    }

    /// Tells observers about an error of an earlier launch. Call it when the error leaves the guard, after the last
    /// driver call of its launch and without locks: observers run code of the program.
    #[cold]
    pub(crate) fn report(&self) {
        if let Some(suspects) = self.suspects() {
            observe::late_error(self.call, &self.name, suspects.launches().len());
        }
    }

    /// The same error, for a launch of a kernel with these limits.
    #[cold]
    pub(crate) fn of_launch(mut self, limits: &LaunchLimits) -> Self {
        let local_memory = limits.kernel().local_memory(limits.device());
        if self.code == OUT_OF_MEMORY && local_memory.is_some() {
            self.background.get_or_insert_default().local_memory = local_memory;
        }
        self
    }

    /// The same error, for a call that synchronised the newest launch at once.
    pub(crate) fn after_checked_launch(mut self) -> Self {
        if let Some(background) = &mut self.background {
            background.suspects =
                background.suspects.take().map(FaultSuspects::after_checked_launch);
        }
        self
    }
}
