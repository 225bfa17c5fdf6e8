//! Xids: what the kernel's driver module writes to the system log.

use super::{EXECUTION, HARDWARE};
use crate::diagnose::failure::{Failure, Origin, UsualCause, cause};

const PROGRAM: UsualCause = cause(
    "a kernel of the program named by pid is at fault",
    "run that program under compute-sanitizer",
);
const BAD_MEMORY: UsualCause = cause(
    "a memory cell is faulty: hardware, not the program",
    "reset the device when it is idle; have it replaced if the event comes back",
);
const HARDWARE_LOST: UsualCause = cause(
    "power, heat, the slot or the device itself",
    "start the machine anew, look at power and cooling, and have the device checked",
);
const FIRMWARE: UsualCause = cause(
    "the device's own processor hangs",
    "reset the device or start the machine anew, and update the driver",
);

const DRIVER_OR_DEVICE: UsualCause = cause(
    "the driver or the device, more often than the program",
    "update the driver; where it comes back on one device alone, have that checked",
);
const LINK: UsualCause = cause(
    "a link, a bridge or a switch is faulty, or the other end was reset",
    "look at nvidia-smi nvlink -e and at the fabric manager's log; reset or replace what is named",
);

/// An event of a fifth generation NVLink, which the line describes.
const fn link(number: i32) -> Failure {
    xid(
        number,
        &[],
        "a part of an NVLink reports an error; the line says whether it is fatal",
        &[LINK],
    )
}

const fn xid(
    number: i32,
    wordings: &'static [&'static str],
    meaning: &'static str,
    causes: &'static [UsualCause],
) -> Failure {
    Failure::new(Origin::Xid, "Xid", wordings, meaning, causes).numbered(number).run(HARDWARE)
}

pub(super) const FAILURES: &[Failure] = &[
    xid(13, &["Graphics Engine Exception"], "a kernel raised an exception", &[PROGRAM])
        .sticky()
        .run(EXECUTION),
    xid(31, &["MMU Fault"], "a kernel reached for memory that is not mapped", &[PROGRAM])
        .sticky()
        .run(EXECUTION),
    xid(
        8,
        &[],
        "work on the device took too long and was stopped",
        &[
            cause("a kernel that does not end, or a watchdog", "launch in smaller chunks"),
            DRIVER_OR_DEVICE,
        ],
    )
    .sticky(),
    xid(
        32,
        &["Invalid or corrupted push buffer stream"],
        "the device was given commands that it cannot read",
        &[DRIVER_OR_DEVICE],
    )
    .sticky(),
    xid(38, &["Driver firmware error"], "the driver's firmware failed", &[FIRMWARE]).sticky(),
    xid(
        43,
        &["GPU stopped processing"],
        "a program's work was stopped after a fault of its own; the device is well",
        &[PROGRAM],
    )
    .sticky()
    .run(EXECUTION),
    xid(
        45,
        &["Preemptive cleanup, due to previous errors"],
        "work was removed because the program ended or failed before: a consequence",
        &[cause("an earlier event, or the program was ended", "look for the Xid before it")],
    )
    .sticky(),
    xid(48, &["Double Bit ECC Error"], "memory lost data beyond repair", &[BAD_MEMORY]).sticky(),
    xid(
        61,
        &["Internal micro-controller breakpoint"],
        "a controller of the device stopped for a moment",
        &[FIRMWARE, HARDWARE_LOST],
    ),
    xid(
        62,
        &["Internal micro-controller halt"],
        "a controller of the device stopped",
        &[FIRMWARE, HARDWARE_LOST],
    )
    .sticky(),
    xid(
        63,
        &["Row Remapper: New row marked for remapping", "New retired page"],
        "a faulty row of memory will be replaced by a spare one at the next reset",
        &[BAD_MEMORY],
    ),
    xid(
        64,
        &["Row Remapper: failed", "unable to retire page"],
        "a faulty row of memory could not be replaced",
        &[BAD_MEMORY],
    )
    .sticky(),
    xid(69, &["Class Error"], "the device was given a command that it does not know", &[PROGRAM])
        .sticky(),
    xid(
        74,
        &["NVLink Error"],
        "a link between devices failed",
        &[cause("a link, a bridge or a switch is faulty", "look at nvidia-smi nvlink -e")],
    )
    .sticky(),
    xid(
        79,
        &["GPU has fallen off the bus"],
        "the machine no longer reaches the device",
        &[HARDWARE_LOST],
    )
    .sticky(),
    xid(
        92,
        &["High single-bit ECC error rate"],
        "memory is corrected more often than it should be",
        &[BAD_MEMORY],
    ),
    xid(
        94,
        &["Contained error", "Contained: "],
        "memory lost data; only the program that used it was stopped",
        &[BAD_MEMORY],
    )
    .sticky(),
    xid(
        95,
        &["Uncontained error", "Uncontained: "],
        "memory lost data, and every program on the device may be hit",
        &[BAD_MEMORY],
    )
    .sticky(),
    xid(
        109,
        &["Context Switch Timeout Error", "CTX SWITCH TIMEOUT"],
        "a program's work did not give way in time",
        &[PROGRAM, FIRMWARE],
    )
    .sticky(),
    xid(
        110,
        &["Security fault error"],
        "the device refused an access for its security",
        &[DRIVER_OR_DEVICE],
    )
    .sticky(),
    xid(
        119,
        &["Timeout waiting for RPC from GSP", "GSP RPC Timeout"],
        "the device's own processor does not answer the driver",
        &[FIRMWARE],
    )
    .sticky(),
    xid(120, &["GSP Error"], "the device's own processor failed", &[FIRMWARE]).sticky(),
    xid(
        121,
        &["C2C Link corrected error"],
        "the link between processor and GPU corrected an error",
        &[cause("single events do no harm", "have it checked where they are many")],
    ),
    xid(
        137,
        &["NVLink FLA privilege error"],
        "a device reached for a peer's memory that is not shared with \
        it",
        &[cause(
            "a program used memory of a peer that had let go of it, or after that one failed",
            "look for the first error over all devices and ranks",
        )],
    )
    .sticky(),
    xid(
        140,
        &["Unrecovered ECC Error"],
        "memory lost data, and the device recovers",
        &[BAD_MEMORY],
    )
    .sticky(),
    xid(143, &["GPU Initialization Error"], "the device did not start", &[HARDWARE_LOST]).sticky(),
    link(144),
    link(145),
    link(146),
    link(147),
    link(148),
    link(149),
    link(150),
    xid(
        154,
        &["GPU recovery action changed"],
        "the driver says what brings the device back: none, a reset, or a start of the machine",
        &[cause("an earlier event", "do what the line says, and look for the Xid before it")],
    ),
    link(155),
    xid(
        156,
        &["Resource Retirement Event"],
        "a faulty part of the device will be left out from the next reset on",
        &[BAD_MEMORY],
    ),
    xid(
        157,
        &["Resource Retirement Failure"],
        "a faulty part of the device could not be left out",
        &[BAD_MEMORY],
    )
    .sticky(),
    xid(158, &["GPU Fatal Timeout"], "the device gave no answer for too long", &[HARDWARE_LOST])
        .sticky(),
];
