//! Launches that driver or runtime refused: which rules they break, and what is known of the kernel.

use gridguard::{
    DeviceLimits, KernelLimits, LaunchLimits, OccupancyLimits, Violations, validate_co_resident,
};

use crate::abi::{INVALID_FOR_RUNTIME, OUT_OF_MEMORY, Status};
use crate::counters::{Counts, Largest};
use crate::driver::Driver;
use crate::functions::is_runtime;
use crate::memory;
use crate::names::demangled;
use crate::request::Launch;
use crate::stack::{self, Frame};

/// A refused launch, explained.
pub(crate) struct Refusal {
    /// The name of the error, its number and meaning.
    pub(crate) error: String,
    pub(crate) violations: Violations,
    /// Where the launch came from.
    pub(crate) stack: Vec<Frame>,
    device: String,
    /// What is known of the device's memory, where that ran out.
    memory: Option<String>,
}

/// `CUDA_ERROR_INVALID_CONTEXT` and `CUDA_ERROR_INVALID_HANDLE`: the driver is not asked about a kernel that
/// it does not know.
const UNKNOWN_KERNEL: [Status; 2] = [201, 400];

impl Refusal {
    /// Explains why `launch` was refused with `status`.
    pub(crate) fn new(launch: &Launch, status: Status, name: &str) -> Self {
        let driver = Driver::of(launch.through);
        let device = driver.device_limits();
        let (kernel, occupancy) = match device {
            // SAFETY: the driver knows the kernel, which the program is launching just now.
            Some(device) if knows_kernel(launch, status) => unsafe {
                (driver.kernel_limits(launch.kernel, name), driver.occupancy(launch, device))
            },
            _ => (KernelLimits::unknown(name), OccupancyLimits::UNKNOWN),
        };
        let device = device.cloned().unwrap_or_else(DeviceLimits::any_device);
        let name = device.name.clone();
        let limits = LaunchLimits::new(device, kernel);
        let violations = validate_co_resident(&launch.request(), &limits, &occupancy);
        let error = match is_runtime(launch.through.0) {
            true => error_of_runtime(status),
            false => driver.error(status),
        };
        let violations = violations.err().unwrap_or_default();
        // Legal nodes of a graph that was refused may be many.
        let is_innocent = launch.node && violations.is_empty();
        let stack = if is_innocent { Vec::new() } else { stack::frames() };
        let memory = (status == OUT_OF_MEMORY).then(|| memory::at_launch(driver)).flatten();
        Self { error, violations, stack, device: name, memory }
    }

    /// The paragraph for standard error; `counts` are the kernel's counts before this launch, and
    /// `not_fixed` why it was not launched in parts, if that was wanted.
    pub(crate) fn paragraph(
        &self,
        launch: &Launch,
        (name, counts): (&str, &Counts),
        not_fixed: Option<&str>,
    ) -> String {
        let Self { error, violations, stack, device, memory } = self;
        let mut text = format!("gridguard: launch refused: {error}\n");
        let mut line = |title: &str, content: &str| {
            text += &format!("  {title:<8}  {content}\n");
        };
        line("kernel", &demangled(name));
        if let Some(library) = stack::launching_library(stack) {
            line("library", &library.library);
        }
        line("launch", &launch.describe());
        line("device", device);
        if let Some(memory) = memory {
            line("memory", memory);
        }
        for violation in violations {
            line("rule", &format!("{}: {violation}", violation.rule.id()));
        }
        if violations.is_empty() {
            line(
                "rule",
                "none that is known here is broken; CUDA_LOG_FILE=stderr shows the driver's own log",
            );
        }
        if let Some(reason) = not_fixed {
            line("fix", &format!("not possible: {reason}"));
        }
        // The runtime may not tell which kernel of the driver it is.
        if counts.launches > 0 || !is_runtime(launch.through.0) {
            line("before", &before(counts));
        }
        for (place, frame) in stack.iter().enumerate() {
            line(if place == 0 { "stack" } else { "" }, &frame.to_string());
        }
        text
    }
}

fn error_of_runtime(status: Status) -> String {
    let known = INVALID_FOR_RUNTIME.iter().find(|(code, _)| *code == status);
    known.map_or_else(|| format!("error {status}"), |(_, text)| (*text).to_owned())
}

/// Whether the driver can be asked about the launch's kernel.
pub(crate) fn knows_kernel(launch: &Launch, status: Status) -> bool {
    let is_of_driver = !launch.kernel.is_null() && !is_runtime(launch.through.0);
    is_of_driver && !UNKNOWN_KERNEL.contains(&status)
}

fn before(Counts { launches, largest, .. }: &Counts) -> String {
    let Largest { grid: [x, y, z], .. } = largest;
    match launches {
        0 => "no launch of this kernel had succeeded".to_owned(),
        1 => format!("1 launch of this kernel succeeded, with grid {x} x {y} x {z}"),
        many => {
            format!("{many} launches of this kernel succeeded, with grids up to {x} x {y} x {z}")
        }
    }
}
