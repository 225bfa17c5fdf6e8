//! NCCL: what ranks say of each other.

use super::library::BENEATH;
use crate::diagnose::failure::{Failure, Origin, UsualCause, cause};

const ANOTHER_RANK: UsualCause = cause(
    "another rank failed or hangs, and the others wait for it",
    "look for the first error over the logs of all ranks",
);
const DEBUG: &[&str] = &["NCCL_DEBUG=INFO PROGRAM"];

pub(super) const FAILURES: &[Failure] = &[
    Failure::new(
        Origin::Nccl,
        "ncclUnhandledCudaError",
        &["unhandled cuda error", "call to cuda function failed"],
        "a CUDA call inside of NCCL failed",
        &[
            BENEATH,
            cause(
                "shared memory of the container is too small, or two ranks use one device",
                "start it with --shm-size=1g or --ipc=host, and give each rank its device",
            ),
        ],
    )
    .numbered(1)
    .wraps()
    .run(DEBUG),
    Failure::new(
        Origin::Nccl,
        "ncclSystemError",
        &["unhandled system error"],
        "a call of the operating system or network inside of NCCL failed",
        &[cause(
            "no route between ranks, a wrong interface, or too little shared memory",
            "set NCCL_SOCKET_IFNAME, give a container --shm-size=1g, and read what NCCL prints",
        )],
    )
    .numbered(2)
    .run(DEBUG),
    Failure::new(
        Origin::Nccl,
        "ncclInternalError",
        &["NCCL internal error", "internal error - please report this issue to the NCCL developers"],
        "NCCL met what it does not expect: its own fault, or damage done by others",
        &[
            ANOTHER_RANK,
            cause("ranks run different versions of NCCL", "print torch.cuda.nccl.version() on each"),
        ],
    )
    .numbered(3)
    .run(DEBUG),
    Failure::new(
        Origin::Nccl,
        "ncclInvalidArgument",
        &[],
        "NCCL was given a value that it does not take",
        &[cause(
            "ranks disagree on a tensor's size or type, or one is empty or not on the device",
            "print shapes, types and devices before the call, on every rank",
        )],
    )
    .numbered(4)
    .run(DEBUG),
    Failure::new(
        Origin::Nccl,
        "ncclInvalidUsage",
        &[
            "this usually reflects invalid usage of NCCL library",
            "duplicate GPU detected",
            "invalid usage, NCCL version",
        ],
        "NCCL was called in a way it does not take",
        &[cause(
            "two ranks use one device",
            "give each rank its own: torch.cuda.set_device(local_rank) before anything else",
        )],
    )
    .numbered(5)
    .run(DEBUG),
    Failure::new(
        Origin::Nccl,
        "ncclRemoteError",
        &["remote process exited or there was a network error"],
        "another rank ended or was not reached",
        &[ANOTHER_RANK],
    )
    .numbered(6)
    .follows(),
    Failure::new(
        Origin::Nccl,
        "NCCL timeout",
        &[
            "watchdog caught collective operation timeout",
            "some NCCL operations have failed or timed out",
            "timeout at NCCL work",
        ],
        "ranks waited for one another until the time was up: not all of them came",
        &[
            ANOTHER_RANK,
            cause(
                "ranks call collectives in different order, or not all of them call one",
                "run with TORCH_DISTRIBUTED_DEBUG=DETAIL, and look for branches that depend on the rank",
            ),
            cause(
                "one rank takes long: a checkpoint, an evaluation, a download",
                "raise the timeout of init_process_group, or let all ranks do the same",
            ),
        ],
    )
    .follows()
    .run(DEBUG),
];
