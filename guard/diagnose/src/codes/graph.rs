//! Stream capture, graphs, and kernels that launch kernels.

use super::commands::LIST_ELF;
use crate::failure::{Hint, KnownCause, KnownFailure, cause, driver, runtime};

const NESTED_LIMIT: KnownCause = cause(
    "kernels launch kernels deeper or more often than memory is reserved for",
)
.fix("launch less from the device, or raise the limit with cudaDeviceSetLimit before launching");
const FILE_SCOPED: KnownCause =
    cause("a kernel launched from another kernel uses textures or surfaces declared at file scope")
        .fix("pass texture or surface objects");

pub(super) const FAILURES: &[KnownFailure] = &[
    driver(900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "cudaErrorStreamCaptureUnsupported")
        .says("operation not permitted when stream is capturing")
        .means("a call that cannot be part of a graph was made during stream capture")
        .cause("something synchronizes, allocates or copies to the host during the capture")
        .fix("warm up before the capture, and keep these calls out of it")
        .hint(Hint::CapturedCall)
        .cause("another thread uses CUDA while this one captures in global mode")
        .fix("capture in thread-local mode"),
    driver(901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "cudaErrorStreamCaptureInvalidated")
        .says("operation failed due to a previous error during capture")
        .means("an earlier call invalidated the capture")
        .cause("a call during the capture failed, and its error is the real one")
        .fix("find the first error during the capture"),
    driver(902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "cudaErrorStreamCaptureMerge")
        .says("operation would result in a merge of separate capture sequences")
        .means("the call would merge two captures")
        .cause("a stream waits for another capture's event")
        .fix("capture both as one"),
    driver(903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "cudaErrorStreamCaptureUnmatched")
        .says("capture was not ended in the same stream as it began")
        .means("a capture was ended on another stream than it began on")
        .cause("streams are mixed up")
        .fix("end the capture on the stream that began it"),
    driver(904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "cudaErrorStreamCaptureUnjoined")
        .says("capturing stream has unjoined work")
        .means("a capture ended while work forked to another stream was not joined")
        .cause("a side stream was not joined")
        .fix("before the end, let the first stream wait for an event of each side stream"),
    driver(905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "cudaErrorStreamCaptureIsolation")
        .says("dependency created on uncaptured work in another stream")
        .means("the capture would depend on work outside of it")
        .cause("a capturing stream waits for an event recorded before the capture")
        .fix("synchronize before the capture, or record the event inside it"),
    driver(906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "cudaErrorStreamCaptureImplicit")
        .says("operation would make the legacy stream depend on a capturing blocking stream")
        .means("the default stream was used during a capture that it would have to wait for")
        .cause("a call uses the default stream")
        .fix("pass it the capturing stream, or create streams as non-blocking"),
    driver(907, "CUDA_ERROR_CAPTURED_EVENT", "cudaErrorCapturedEvent")
        .says("operation not permitted on an event last recorded in a capturing stream")
        .means("an event recorded in a capture is queried or waited for outside of it")
        .cause("captures and other work share events")
        .fix("use separate events"),
    driver(908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "cudaErrorStreamCaptureWrongThread")
        .says("attempt to terminate a thread-local capture sequence from another thread")
        .means("a capture was ended on another thread than it began on")
        .cause("the capture moved between threads")
        .fix("begin and end it on one thread"),
    driver(910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "cudaErrorGraphExecUpdateFailure")
        .says(
            "the graph update was not performed because it included changes which violated \
             constraints specific to instantiated graph update",
        )
        .means("an instantiated graph cannot be updated with these changes")
        .cause("the nodes or their types differ")
        .fix("instantiate the graph again"),
    driver(918, "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE", "cudaErrorGraphRecaptureFailure")
        .says("recapturing to the source graph failed and had to be terminated")
        .means("recapturing into an existing graph failed")
        .cause("different work was captured this time")
        .fix("capture into a new graph"),
    runtime(10, "cudaErrorVersionTranslation")
        .says("Driver is newer than runtime and returned parameters the runtime cannot process")
        .means("a graph node has parameters that the program's runtime does not know")
        .cause("the runtime is older than the driver")
        .fix("build with a newer CUDA"),
    runtime(65, "cudaErrorLaunchMaxDepthExceeded")
        .says("launch would exceed maximum depth of nested launches")
        .means("kernels launch kernels more than 24 levels deep")
        .causes(&[NESTED_LIMIT]),
    runtime(66, "cudaErrorLaunchFileScopedTex")
        .says("launch failed because kernel uses unsupported, file-scoped textures")
        .means("a kernel launched from the device uses a texture declared at file scope")
        .causes(&[FILE_SCOPED]),
    runtime(67, "cudaErrorLaunchFileScopedSurf")
        .says("launch failed because kernel uses unsupported, file-scoped surfaces")
        .means("a kernel launched from the device uses a surface declared at file scope")
        .causes(&[FILE_SCOPED]),
    runtime(68, "cudaErrorSyncDepthExceeded")
        .says("cudaDeviceSynchronize failed because caller's grid depth exceeds")
        .means("a kernel waits for child kernels at a greater depth than memory is reserved for")
        .causes(&[NESTED_LIMIT]),
    runtime(69, "cudaErrorLaunchPendingCountExceeded")
        .says("launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount")
        .means("more device-side launches are pending than memory is reserved for")
        .causes(&[NESTED_LIMIT]),
    driver(811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "cudaErrorCdpNotSupported")
        .says(
            "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not \
             support it",
        )
        .means("a kernel launches kernels (CUDA Dynamic Parallelism) where that is not supported")
        .cause("the process shares the device through MPS")
        .fix("run it without MPS"),
    driver(812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "cudaErrorCdpVersionMismatch")
        .says("unsupported interaction between different versions of CUDA Dynamic Parallelism")
        .means("kernels compiled for different versions of CUDA Dynamic Parallelism are combined")
        .cause("some kernels were compiled before CUDA 12, or with CUDA_FORCE_CDP1_IF_SUPPORTED")
        .fix("compile all parts with the same version and flags")
        .run(&[LIST_ELF]),
];
