//! Causes that several tables name.

use crate::failure::{Hint, KnownCause, cause, hinted};

pub(super) const EARLIER_KERNEL: KnownCause = hinted(
    Hint::EarlierKernel,
    "an earlier kernel failed; the call that reports the error is not at fault",
    "run with blocking launches or under compute-sanitizer to find the kernel",
);
pub(super) const TOO_LITTLE_FREE: KnownCause = hinted(
    Hint::TooLittleFree,
    "less memory is free than was requested",
    "use a smaller batch, a smaller cache or a smaller model",
);
pub(super) const OTHER_PROCESS: KnownCause = hinted(
    Hint::OtherProcess,
    "another process uses the memory, such as an earlier run that has not exited",
    "find it with nvidia-smi, then end it or use another device",
);
pub(super) const WRAPPED_ERROR: KnownCause = cause(
    "a CUDA call inside the library failed and was logged earlier",
    "find the first CUDA error in the log",
);
pub(super) const ANOTHER_RANK: KnownCause = cause(
    "another rank failed or hangs, and the others wait for it",
    "find the first error across the logs of all ranks",
);
