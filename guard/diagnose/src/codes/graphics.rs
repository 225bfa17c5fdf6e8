//! Textures, surfaces, resources shared with a graphics API, and results that CUDA no longer
//! returns but old programs and texts still mention.

use crate::failure::{KnownCause, KnownFailure, cause, driver, driver_only, renumbered, runtime};

const ORDER: KnownCause =
    cause("the calls that register, map and unmap the resource are made in the wrong order")
        .fix("register it once; then map, use and unmap it, in this order");
const TEXTURE_REFERENCES: KnownCause =
    cause("the program uses texture or surface references, which CUDA 12 removed")
        .fix("use texture or surface objects");
const DESCRIPTION: KnownCause =
    cause("format, filter mode and read mode of the texture cannot be combined")
        .fix("look up which modes the texture's type supports");
const OLD_PROGRAM: KnownCause =
    cause("the program was built with a very old CUDA, or the number is not a CUDA error code")
        .fix("read the text next to the number, and build the program with a current CUDA");
const NOT_SINCE_10_1: &str = "no CUDA release since 10.1 returns this";
const NOT_SINCE_5_0: &str = "no CUDA release since 5.0 returns this";

const fn retired(failure: KnownFailure) -> KnownFailure {
    failure.retired().means(NOT_SINCE_10_1).causes(&[OLD_PROGRAM])
}

pub(super) const FAILURES: &[KnownFailure] = &[
    runtime(18, "cudaErrorInvalidTexture")
        .says("invalid texture reference")
        .means("the call does not accept this texture")
        .causes(&[TEXTURE_REFERENCES]),
    runtime(19, "cudaErrorInvalidTextureBinding")
        .says("texture is not bound to a pointer")
        .means("a texture is used that has no memory bound to it")
        .causes(&[TEXTURE_REFERENCES]),
    runtime(20, "cudaErrorInvalidChannelDescriptor")
        .says("invalid channel descriptor")
        .means("the channel descriptor of a texture is invalid")
        .causes(&[DESCRIPTION]),
    runtime(26, "cudaErrorInvalidFilterSetting")
        .says("linear filtering not supported for non-float type")
        .means("linear filtering was requested for a texture of integers")
        .causes(&[DESCRIPTION]),
    runtime(27, "cudaErrorInvalidNormSetting")
        .says("read as normalized float not supported for data type")
        .says("read as normalized float not supported for 32-bit non float type")
        .means("the texture's type cannot be read as normalized floats")
        .causes(&[DESCRIPTION]),
    runtime(37, "cudaErrorInvalidSurface")
        .says("invalid surface reference")
        .means("the call does not accept this surface")
        .causes(&[TEXTURE_REFERENCES]),
    renumbered(14, 205, "CUDA_ERROR_MAP_FAILED", "cudaErrorMapBufferObjectFailed")
        .says("mapping of buffer object failed")
        .means("a resource of a graphics API could not be mapped")
        .causes(&[ORDER]),
    renumbered(15, 206, "CUDA_ERROR_UNMAP_FAILED", "cudaErrorUnmapBufferObjectFailed")
        .says("unmapping of buffer object failed")
        .means("a resource of a graphics API could not be unmapped")
        .causes(&[ORDER]),
    driver(207, "CUDA_ERROR_ARRAY_IS_MAPPED", "cudaErrorArrayIsMapped")
        .says("array is mapped")
        .means("an array cannot be freed while it is mapped")
        .causes(&[ORDER]),
    driver(208, "CUDA_ERROR_ALREADY_MAPPED", "cudaErrorAlreadyMapped")
        .says("resource already mapped")
        .means("the resource to be mapped is already mapped")
        .causes(&[ORDER]),
    driver(210, "CUDA_ERROR_ALREADY_ACQUIRED", "cudaErrorAlreadyAcquired")
        .says("resource already acquired")
        .means("the resource to be acquired is already acquired")
        .causes(&[ORDER]),
    driver(211, "CUDA_ERROR_NOT_MAPPED", "cudaErrorNotMapped")
        .says("resource not mapped")
        .means("the resource is used without being mapped")
        .causes(&[ORDER]),
    driver(212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "cudaErrorNotMappedAsArray")
        .says("resource not mapped as array")
        .means("the resource is used as an array but is not mapped as one")
        .cause("it is a buffer")
        .fix("get its pointer instead"),
    driver(213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "cudaErrorNotMappedAsPointer")
        .says("resource not mapped as pointer")
        .means("the resource is used as linear memory but is not mapped as such")
        .cause("it is a texture")
        .fix("get its array instead"),
    renumbered(79, 219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "cudaErrorInvalidGraphicsContext")
        .says("invalid OpenGL or DirectX context")
        .means("no graphics context is current, or it is on another device")
        .cause("the thread has no graphics context, or the display is on another GPU")
        .fix("make the context current, and use the device that drives the display"),
    driver(703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "cudaErrorLaunchIncompatibleTexturing")
        .says("launch uses incompatible texturing mode")
        .means("a kernel is launched with a texturing mode that its textures do not support")
        .causes(&[TEXTURE_REFERENCES]),
    retired(driver(6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "cudaErrorProfilerNotInitialized"))
        .says("profiler not initialized: call cudaProfilerInitialize()")
        .means(NOT_SINCE_5_0),
    retired(driver(7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "cudaErrorProfilerAlreadyStarted"))
        .says("profiler already started")
        .means(NOT_SINCE_5_0),
    retired(driver(8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "cudaErrorProfilerAlreadyStopped"))
        .says("profiler already stopped")
        .means(NOT_SINCE_5_0),
    retired(runtime(16, "cudaErrorInvalidHostPointer")).says("invalid host pointer"),
    retired(runtime(22, "cudaErrorAddressOfConstant")).says("invalid address of constant"),
    retired(runtime(23, "cudaErrorTextureFetchFailed")).says("fetch from texture failed"),
    retired(runtime(24, "cudaErrorTextureNotBound"))
        .says("cannot fetch from a texture that is not bound"),
    retired(runtime(25, "cudaErrorSynchronizationError")).says("incorrect use of __syncthreads()"),
    retired(runtime(28, "cudaErrorMixedDeviceExecution"))
        .says("device emulation mode and device execution mode cannot be mixed"),
    retired(runtime(31, "cudaErrorNotYetImplemented")).says("feature not yet implemented"),
    retired(runtime(32, "cudaErrorMemoryValueTooLarge"))
        .says("memory size or pointer value too large to fit in 32 bit"),
    retired(runtime(53, "cudaErrorPriorLaunchFailure"))
        .says("unspecified launch failure in prior launch"),
    retired(driver_only(202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT"))
        .means("no CUDA release since 3.2 returns this"),
];
