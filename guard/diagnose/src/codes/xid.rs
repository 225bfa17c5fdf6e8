//! Xids: events that the NVIDIA kernel module writes to the system log.

use super::commands::{EXECUTION, HARDWARE};
use crate::failure::{KnownCause, KnownFailure, Origin, cause};

const PROGRAM: KnownCause = cause(
    "a kernel of the program named by pid is at fault",
    "run that program under compute-sanitizer",
);
const BAD_MEMORY: KnownCause = cause(
    "a memory cell is faulty: hardware, not the program",
    "reset the device when it is idle; replace it if the event recurs",
);
const HARDWARE_LOST: KnownCause = cause(
    "power, temperature, the slot or the device itself",
    "reboot, check power and cooling, and have the device checked",
);
const FIRMWARE: KnownCause = cause(
    "the device's system processor (GSP) or another controller hangs",
    "reset the device or reboot, and update the driver",
);
const DRIVER_OR_DEVICE: KnownCause = cause(
    "usually the driver or the device, rarely the program",
    "update the driver; if it recurs on one device only, have that device checked",
);
const LINK: KnownCause = cause(
    "a link, a bridge or a switch is faulty, or the other end was reset",
    "read nvidia-smi nvlink -e and the fabric manager's log; reset or replace the faulty part",
);

const fn xid(number: i32, messages: &'static [&'static str]) -> KnownFailure {
    KnownFailure::new(Origin::Xid, "Xid").numbered(number).says(messages).run(HARDWARE)
}

/// An event of a fifth generation NVLink; the line describes it.
const fn link(number: i32) -> KnownFailure {
    xid(number, &[])
        .means("a component of an NVLink reports an error; the line says whether it is fatal")
        .causes(&[LINK])
}

pub(super) const FAILURES: &[KnownFailure] = &[
    xid(13, &["Graphics Engine Exception"])
        .sticky()
        .means("a kernel raised an exception")
        .causes(&[PROGRAM])
        .run(EXECUTION),
    xid(31, &["MMU Fault"])
        .sticky()
        .means("a kernel accessed memory that is not mapped")
        .causes(&[PROGRAM])
        .run(EXECUTION),
    xid(8, &[]).sticky().means("work on the device took too long and was stopped").causes(&[
        cause("a kernel does not terminate, or a watchdog stopped it", "launch in smaller chunks"),
        DRIVER_OR_DEVICE,
    ]),
    xid(32, &["Invalid or corrupted push buffer stream"])
        .sticky()
        .means("the device received commands that it cannot decode")
        .causes(&[DRIVER_OR_DEVICE]),
    xid(38, &["Driver firmware error"])
        .sticky()
        .means("the driver's firmware failed")
        .causes(&[FIRMWARE]),
    xid(43, &["GPU stopped processing"])
        .sticky()
        .means("a program's work was stopped after a fault of its own; the device still works")
        .causes(&[PROGRAM])
        .run(EXECUTION),
    xid(45, &["Preemptive cleanup, due to previous errors"])
        .sticky()
        .means("work was removed because the program exited or failed before: a consequence")
        .causes(&[cause(
            "an earlier event occurred, or the program was terminated",
            "look for the Xid before it",
        )]),
    xid(48, &["Double Bit ECC Error"])
        .sticky()
        .means("device memory lost data beyond correction")
        .causes(&[BAD_MEMORY]),
    xid(61, &["Internal micro-controller breakpoint"])
        .means("a controller of the device stopped briefly")
        .causes(&[FIRMWARE, HARDWARE_LOST]),
    xid(62, &["Internal micro-controller halt"])
        .sticky()
        .means("a controller of the device stopped")
        .causes(&[FIRMWARE, HARDWARE_LOST]),
    xid(63, &["Row Remapper: New row marked for remapping", "New retired page"])
        .means("a faulty memory row will be replaced by a spare one at the next reset")
        .causes(&[BAD_MEMORY]),
    xid(64, &["Row Remapper: failed", "unable to retire page"])
        .sticky()
        .means("a faulty memory row could not be replaced")
        .causes(&[BAD_MEMORY]),
    xid(69, &["Class Error"])
        .sticky()
        .means("the device received a command that it does not know")
        .causes(&[PROGRAM]),
    xid(74, &["NVLink Error"]).sticky().means("a link between devices failed").causes(&[cause(
        "a link, a bridge or a switch is faulty",
        "read the error counters with nvidia-smi nvlink -e",
    )]),
    xid(79, &["GPU has fallen off the bus"])
        .sticky()
        .means("the machine can no longer reach the device")
        .causes(&[HARDWARE_LOST]),
    xid(92, &["High single-bit ECC error rate"])
        .means("memory errors are corrected at an abnormally high rate")
        .causes(&[BAD_MEMORY]),
    xid(94, &["Contained error", "Contained: "])
        .sticky()
        .means("device memory lost data; only the program that used it was stopped")
        .causes(&[BAD_MEMORY]),
    xid(95, &["Uncontained error", "Uncontained: "])
        .sticky()
        .means("device memory lost data, and every program on the device may be affected")
        .causes(&[BAD_MEMORY]),
    xid(109, &["Context Switch Timeout Error", "CTX SWITCH TIMEOUT"])
        .sticky()
        .means("a program's work did not yield to a context switch in time")
        .causes(&[PROGRAM, FIRMWARE]),
    xid(110, &["Security fault error"])
        .sticky()
        .means("the device denied an access for security reasons")
        .causes(&[DRIVER_OR_DEVICE]),
    xid(119, &["Timeout waiting for RPC from GSP", "GSP RPC Timeout"])
        .sticky()
        .means("the device's system processor (GSP) does not respond to the driver")
        .causes(&[FIRMWARE]),
    xid(120, &["GSP Error"])
        .sticky()
        .means("the device's system processor (GSP) failed")
        .causes(&[FIRMWARE]),
    xid(121, &["C2C Link corrected error"])
        .means("the link between CPU and GPU corrected an error")
        .causes(&[cause("single events are harmless", "have the link checked if there are many")]),
    xid(137, &["NVLink FLA privilege error"])
        .sticky()
        .means("a device accessed a peer's memory that is not shared with it")
        .causes(&[cause(
            "a program used a peer's memory after the peer had freed it or had failed",
            "find the first error across all devices and ranks",
        )]),
    xid(140, &["Unrecovered ECC Error"])
        .sticky()
        .means("device memory lost data, and the device is recovering")
        .causes(&[BAD_MEMORY]),
    xid(143, &["GPU Initialization Error"])
        .sticky()
        .means("the device did not initialize")
        .causes(&[HARDWARE_LOST]),
    link(144),
    link(145),
    link(146),
    link(147),
    link(148),
    link(149),
    link(150),
    xid(154, &["GPU recovery action changed"])
        .means("the driver says how to recover the device: nothing, a reset, or a reboot")
        .causes(&[cause(
            "an earlier event",
            "do what the line says, and look for the Xid before it",
        )]),
    link(155),
    xid(156, &["Resource Retirement Event"])
        .means("a faulty part of the device will be disabled at the next reset")
        .causes(&[BAD_MEMORY]),
    xid(157, &["Resource Retirement Failure"])
        .sticky()
        .means("a faulty part of the device could not be disabled")
        .causes(&[BAD_MEMORY]),
    xid(158, &["GPU Fatal Timeout"])
        .sticky()
        .means("the device did not respond for too long")
        .causes(&[HARDWARE_LOST]),
];
