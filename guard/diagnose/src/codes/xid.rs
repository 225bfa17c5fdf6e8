//! Xids: events that the NVIDIA kernel module writes to the system log.

use super::commands::{EXECUTION, HARDWARE};
use crate::failure::{KnownCause, KnownFailure, Origin, cause};

const PROGRAM: KnownCause = cause("a kernel of the program named by pid is at fault")
    .fix("run that program under compute-sanitizer");
const BAD_MEMORY: KnownCause = cause("a memory cell is faulty: hardware, not the program")
    .fix("reset the device when it is idle; replace it if the event recurs");
const HARDWARE_LOST: KnownCause = cause("power, temperature, the slot or the device itself")
    .fix("reboot, check power and cooling, and have the device checked");
const FIRMWARE: KnownCause =
    cause("the device's system processor (GSP) or another controller hangs")
        .fix("reset the device or reboot, and update the driver");
const DRIVER_OR_DEVICE: KnownCause = cause("usually the driver or the device, rarely the program")
    .fix("update the driver; if it recurs on one device only, have that device checked");
const LINK: KnownCause = cause(
    "a link, a bridge or a switch is faulty, or the other end was reset",
)
.fix("read nvidia-smi nvlink -e and the fabric manager's log; reset or replace the faulty part");

const fn xid(number: i32) -> KnownFailure {
    KnownFailure::new(Origin::Xid, "Xid").numbered(number).run(HARDWARE)
}

const fn event(number: i32, message: &'static str) -> KnownFailure {
    xid(number).says(message)
}

/// An event that costs the affected programs their contexts.
const fn fault(number: i32, message: &'static str) -> KnownFailure {
    event(number, message).sticky()
}

/// An event of a fifth generation NVLink; the line describes it.
const fn link(number: i32) -> KnownFailure {
    xid(number)
        .means("a component of an NVLink reports an error; the line says whether it is fatal")
        .causes(&[LINK])
}

pub(super) const FAILURES: &[KnownFailure] = &[
    fault(13, "Graphics Engine Exception")
        .means("a kernel raised an exception")
        .causes(&[PROGRAM])
        .run(EXECUTION),
    fault(31, "MMU Fault")
        .means("a kernel accessed memory that is not mapped")
        .causes(&[PROGRAM])
        .run(EXECUTION),
    xid(8)
        .sticky()
        .means("work on the device took too long and was stopped")
        .cause("a kernel does not terminate, or a watchdog stopped it")
        .fix("launch in smaller chunks")
        .causes(&[DRIVER_OR_DEVICE]),
    fault(32, "Invalid or corrupted push buffer stream")
        .means("the device received commands that it cannot decode")
        .causes(&[DRIVER_OR_DEVICE]),
    fault(38, "Driver firmware error").means("the driver's firmware failed").causes(&[FIRMWARE]),
    fault(43, "GPU stopped processing")
        .means("a program's work was stopped after a fault of its own; the device still works")
        .causes(&[PROGRAM])
        .run(EXECUTION),
    fault(45, "Preemptive cleanup, due to previous errors")
        .means("work was removed because the program exited or failed before: a consequence")
        .cause("an earlier Xid, or the program was killed")
        .fix("find the Xid before it"),
    fault(48, "Double Bit ECC Error")
        .means("device memory lost data beyond correction")
        .causes(&[BAD_MEMORY]),
    event(61, "Internal micro-controller breakpoint")
        .means("a controller of the device stopped briefly")
        .causes(&[FIRMWARE, HARDWARE_LOST]),
    fault(62, "Internal micro-controller halt")
        .means("a controller of the device stopped")
        .causes(&[FIRMWARE, HARDWARE_LOST]),
    event(63, "Row Remapper: New row marked for remapping")
        .says("New retired page")
        .means("a faulty memory row will be replaced by a spare one at the next reset")
        .causes(&[BAD_MEMORY]),
    fault(64, "Row Remapper: failed")
        .says("unable to retire page")
        .means("a faulty memory row could not be replaced")
        .causes(&[BAD_MEMORY]),
    fault(69, "Class Error")
        .means("the device received a command that it does not know")
        .causes(&[PROGRAM]),
    fault(74, "NVLink Error")
        .means("a link between devices failed")
        .cause("a link, a bridge or a switch is faulty")
        .fix("read the error counters with nvidia-smi nvlink -e"),
    fault(79, "GPU has fallen off the bus")
        .means("the machine can no longer reach the device")
        .causes(&[HARDWARE_LOST]),
    event(92, "High single-bit ECC error rate")
        .means("memory errors are corrected at an abnormally high rate")
        .causes(&[BAD_MEMORY]),
    fault(94, "Contained error")
        .says("Contained: ")
        .means("device memory lost data; only the program that used it was stopped")
        .causes(&[BAD_MEMORY]),
    fault(95, "Uncontained error")
        .says("Uncontained: ")
        .means("device memory lost data, and every program on the device may be affected")
        .causes(&[BAD_MEMORY]),
    fault(109, "Context Switch Timeout Error")
        .says("CTX SWITCH TIMEOUT")
        .means("a program's work did not yield to a context switch in time")
        .causes(&[PROGRAM, FIRMWARE]),
    fault(110, "Security fault error")
        .means("the device denied an access for security reasons")
        .causes(&[DRIVER_OR_DEVICE]),
    fault(119, "Timeout waiting for RPC from GSP")
        .says("GSP RPC Timeout")
        .means("the device's system processor (GSP) does not respond to the driver")
        .causes(&[FIRMWARE]),
    fault(120, "GSP Error").means("the device's system processor (GSP) failed").causes(&[FIRMWARE]),
    event(121, "C2C Link corrected error")
        .means("the link between CPU and GPU corrected an error")
        .cause("single events are harmless")
        .fix("have the link checked if there are many"),
    fault(137, "NVLink FLA privilege error")
        .means("a device accessed a peer's memory that is not shared with it")
        .cause("a program used a peer's memory after the peer had freed it or had failed")
        .fix("find the first error across all devices and ranks"),
    fault(140, "Unrecovered ECC Error")
        .means("device memory lost data, and the device is recovering")
        .causes(&[BAD_MEMORY]),
    fault(143, "GPU Initialization Error")
        .means("the device did not initialize")
        .causes(&[HARDWARE_LOST]),
    link(144),
    link(145),
    link(146),
    link(147),
    link(148),
    link(149),
    link(150),
    event(154, "GPU recovery action changed")
        .means("the driver says how to recover the device: nothing, a reset, or a reboot")
        .cause("an earlier event")
        .fix("follow the recovery action in the line; find the Xid before it"),
    link(155),
    event(156, "Resource Retirement Event")
        .means("a faulty part of the device will be disabled at the next reset")
        .causes(&[BAD_MEMORY]),
    fault(157, "Resource Retirement Failure")
        .means("a faulty part of the device could not be disabled")
        .causes(&[BAD_MEMORY]),
    fault(158, "GPU Fatal Timeout")
        .means("the device did not respond for too long")
        .causes(&[HARDWARE_LOST]),
];
