//! Textures, surfaces and resources that are shared with a graphics API.

use crate::diagnose::failure::{Failure, UsualCause, cause};

const ORDER: UsualCause = cause(
    "the calls that register, map and unmap the resource come in the wrong order",
    "register it once, map it, use it, unmap it, each time in this order",
);
const OLD_TEXTURES: UsualCause = cause(
    "the program uses texture references, which CUDA 12 no longer has",
    "use texture objects",
);
const DESCRIPTION: UsualCause =
    cause("format, filter or read mode do not go together", "read what the texture's type allows");

pub(super) const FAILURES: &[Failure] = &[
    Failure::runtime(
        18,
        "cudaErrorInvalidTexture",
        &["invalid texture reference"],
        "a texture is not one that the call takes",
        &[OLD_TEXTURES],
    ),
    Failure::runtime(
        19,
        "cudaErrorInvalidTextureBinding",
        &["texture is not bound to a pointer"],
        "a texture is used that no memory was bound to",
        &[OLD_TEXTURES],
    ),
    Failure::runtime(
        20,
        "cudaErrorInvalidChannelDescriptor",
        &["invalid channel descriptor"],
        "the description of a texture's elements is none",
        &[DESCRIPTION],
    ),
    Failure::runtime(
        26,
        "cudaErrorInvalidFilterSetting",
        &["linear filtering not supported for non-float type"],
        "a texture of integers is to be read between its elements",
        &[DESCRIPTION],
    ),
    Failure::runtime(
        27,
        "cudaErrorInvalidNormSetting",
        &[
            "read as normalized float not supported for data type",
            "read as normalized float not supported for 32-bit non float type",
        ],
        "a texture's elements cannot be read as fractions",
        &[DESCRIPTION],
    ),
    Failure::runtime(
        37,
        "cudaErrorInvalidSurface",
        &["invalid surface reference"],
        "a surface is not one that the call takes",
        &[OLD_TEXTURES],
    ),
    Failure::driver(
        205,
        "CUDA_ERROR_MAP_FAILED",
        "cudaErrorMapBufferObjectFailed",
        &["mapping of buffer object failed"],
        "a resource of a graphics API could not be mapped",
        &[ORDER],
    )
    .formerly(14),
    Failure::driver(
        206,
        "CUDA_ERROR_UNMAP_FAILED",
        "cudaErrorUnmapBufferObjectFailed",
        &["unmapping of buffer object failed"],
        "a resource of a graphics API could not be unmapped",
        &[ORDER],
    )
    .formerly(15),
    Failure::driver(
        207,
        "CUDA_ERROR_ARRAY_IS_MAPPED",
        "cudaErrorArrayIsMapped",
        &["array is mapped"],
        "an array is to be freed while it is mapped",
        &[ORDER],
    ),
    Failure::driver(
        208,
        "CUDA_ERROR_ALREADY_MAPPED",
        "cudaErrorAlreadyMapped",
        &["resource already mapped"],
        "a resource is to be mapped that already is",
        &[ORDER],
    ),
    Failure::driver(
        210,
        "CUDA_ERROR_ALREADY_ACQUIRED",
        "cudaErrorAlreadyAcquired",
        &["resource already acquired"],
        "a resource is to be acquired that already is",
        &[ORDER],
    ),
    Failure::driver(
        211,
        "CUDA_ERROR_NOT_MAPPED",
        "cudaErrorNotMapped",
        &["resource not mapped"],
        "a resource is used that is not mapped",
        &[ORDER],
    ),
    Failure::driver(
        212,
        "CUDA_ERROR_NOT_MAPPED_AS_ARRAY",
        "cudaErrorNotMappedAsArray",
        &["resource not mapped as array"],
        "a resource is used as an array that is mapped as something else",
        &[cause("it is a buffer", "ask for its pointer")],
    ),
    Failure::driver(
        213,
        "CUDA_ERROR_NOT_MAPPED_AS_POINTER",
        "cudaErrorNotMappedAsPointer",
        &["resource not mapped as pointer"],
        "a resource is used as memory that is mapped as something else",
        &[cause("it is a texture", "ask for its array")],
    ),
    Failure::driver(
        219,
        "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT",
        "cudaErrorInvalidGraphicsContext",
        &["invalid OpenGL or DirectX context"],
        "no context of the graphics API is current, or it is on another device",
        &[cause(
            "the thread has no graphics context, or the display is on another GPU",
            "make it current, and choose the device that drives the display",
        )],
    )
    .formerly(79),
    Failure::driver(
        703,
        "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING",
        "cudaErrorLaunchIncompatibleTexturing",
        &["launch uses incompatible texturing mode"],
        "a kernel with textures of one kind is launched in a mode of another",
        &[OLD_TEXTURES],
    ),
];
