//! Capture of streams and graphs.

use crate::diagnose::failure::{Failure, cause};

pub(super) const FAILURES: &[Failure] = &[
    Failure::driver(
        900,
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "cudaErrorStreamCaptureUnsupported",
        &["operation not permitted when stream is capturing"],
        "a call was made during a capture that cannot be part of a graph",
        &[
            cause(
                "something synchronises, allocates or copies to the host while capturing",
                "warm up before the capture, and keep .item(), printing and allocations out of it",
            ),
            cause(
                "another thread uses CUDA while this one captures in global mode",
                "capture in thread-local mode",
            ),
        ],
    ),
    Failure::driver(
        901,
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        "cudaErrorStreamCaptureInvalidated",
        &["operation failed due to a previous error during capture"],
        "a capture was spoilt by an earlier call",
        &[cause(
            "the earlier call's error is the true one",
            "look for the first error during the capture",
        )],
    ),
    Failure::driver(
        902,
        "CUDA_ERROR_STREAM_CAPTURE_MERGE",
        "cudaErrorStreamCaptureMerge",
        &["operation would result in a merge of separate capture sequences"],
        "two captures would become one",
        &[cause("a stream waits for an event of another capture", "capture both as one")],
    ),
    Failure::driver(
        903,
        "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        "cudaErrorStreamCaptureUnmatched",
        &["capture was not ended in the same stream as it began"],
        "a capture was ended on another stream than it began on",
        &[cause("streams are mixed up", "end the capture on the stream that began it")],
    ),
    Failure::driver(
        904,
        "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        "cudaErrorStreamCaptureUnjoined",
        &["capturing stream has unjoined work"],
        "a capture ended while work forked to another stream had not come back",
        &[cause(
            "a side stream was not joined",
            "let the first stream wait for an event of each side stream before the end",
        )],
    ),
    Failure::driver(
        905,
        "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        "cudaErrorStreamCaptureIsolation",
        &["dependency created on uncaptured work in another stream"],
        "a capture would depend on work outside of it",
        &[cause(
            "a capturing stream waits for an event recorded before the capture",
            "synchronise before the capture, or record the event inside",
        )],
    ),
    Failure::driver(
        906,
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        "cudaErrorStreamCaptureImplicit",
        &["operation would make the legacy stream depend on a capturing blocking stream"],
        "the default stream is used beside a capture, and would wait for it",
        &[cause(
            "some call goes to the default stream",
            "give it the capturing stream, or create streams as non-blocking",
        )],
    ),
    Failure::driver(
        907,
        "CUDA_ERROR_CAPTURED_EVENT",
        "cudaErrorCapturedEvent",
        &["operation not permitted on an event last recorded in a capturing stream"],
        "an event of a capture is queried or waited for outside of it",
        &[cause("events are shared between captures and plain work", "use events of their own")],
    ),
    Failure::driver(
        908,
        "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        "cudaErrorStreamCaptureWrongThread",
        &["attempt to terminate a thread-local capture sequence from another thread"],
        "a capture was ended on another thread than it began on",
        &[cause("the capture moved between threads", "begin and end it on one thread")],
    ),
    Failure::driver(
        910,
        "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        "cudaErrorGraphExecUpdateFailure",
        &["the graph update was not performed because it included changes which violated \
             constraints specific to instantiated graph update"],
        "an instantiated graph cannot be changed in this way",
        &[cause("nodes or their kinds differ", "instantiate the graph anew")],
    ),
    Failure::driver(
        918,
        "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE",
        "cudaErrorGraphRecaptureFailure",
        &["recapturing to the source graph failed and had to be terminated"],
        "a graph could not be captured anew into the one it was",
        &[cause("this time other work was captured", "capture into a new graph")],
    ),
    Failure::runtime(
        10,
        "cudaErrorVersionTranslation",
        &["Driver is newer than runtime and returned parameters the runtime cannot process"],
        "a node of a graph has parameters that the program's runtime does not know",
        &[cause("the runtime is older than the driver", "build with a CUDA as new as the driver")],
    ),
];
