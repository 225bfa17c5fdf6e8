//! Sizes that operators of frameworks and other interfaces check by themselves, and compilers older than the GPU.

use super::causes::INDEX_OVERFLOW;
use super::commands::{BLOCKING, INDEX, RUN, TORCH_BUILD};
use crate::failure::{Hint, KnownCause, KnownFailure, Origin, cause};

const fn operator(name: &'static str) -> KnownFailure {
    KnownFailure::new(Origin::Operator, name)
}

const NOT_MEMORY: &str =
    "out of memory: the operator refused the sizes before it allocated anything";
const DECODED: KnownCause =
    cause("an image batch is decoded or scaled at once, and the result has 2^31 elements or more")
        .fix(
            "use a smaller batch, or decode it in slices and tiles: pipe.enable_vae_slicing(), \
             pipe.enable_vae_tiling()",
        )
        .hint(Hint::ImagePlanes);
const CONVOLUTION: KnownCause =
    cause("a convolution has inputs or outputs of 2^31 elements or more")
        .fix("use a smaller batch: input and output need fewer than 2^31 elements each")
        .hint(Hint::Convolution);
const OFFSETS: KnownCause =
    cause("a tensor has 2^31 elements or more, and the operator computes offsets in 32 bits")
        .fix("use a smaller batch, slices or tiles, so that each tensor has fewer elements");

pub(super) const FAILURES: &[KnownFailure] = &[
    operator("32-bit index limit")
        .says("tensors with less than INT_MAX elements")
        .says("canUse32BitIndexMath")
        .says("more than INT_MAX elements")
        .says("tensor too large for 32-bit indexing")
        .says("must fit into 32-bit index math")
        .means("an operator accepts tensors of at most 2^31 - 1 = 2147483647 elements")
        .not(NOT_MEMORY)
        .causes(&[OFFSETS, DECODED, CONVOLUTION])
        .run(&["python -c 'import torch; print(torch.__version__)'"]),
    operator("NaN or wrong values")
        .says("returned nan values in its")
        .says("tensor-likes are not close")
        .says("invalid value (nan) encountered in")
        .says("tensor had NaN values")
        .says("loss is nan, stopping training")
        .says("detected nan and/or inf values in")
        .means("a program found numbers that are not finite or not as expected; CUDA reports no failure")
        .cause("the numbers leave the range of their type: f16 ends at 65504, and a division or a logarithm is of 0")
        .fix("run the step in f32 or bf16, and print the inputs of the first operation with such a result")
        .causes(&[INDEX_OVERFLOW])
        .cause("a launch failed or was refused, its error was not read, and the output holds earlier memory")
        .fix("check the error of each launch: gridguard run tells refused launches")
        .cause("kernels race: a stream does not wait for another, or a block lacks a barrier")
        .fix("run under compute-sanitizer --tool racecheck, and order streams with events")
        .run(&[INDEX, BLOCKING]),
    operator("tensor volume limit")
        .says("tensor volume exceeds 2147483647")
        .means("TensorRT accepts tensors of at most 2^31 - 1 = 2147483647 elements")
        .not(NOT_MEMORY)
        .cause("the 32-bit index limit: a tensor of the engine has 2^31 elements or more")
        .fix(
            "build the engine for fewer tokens or a smaller batch (max_num_tokens, \
             max_batch_size): their number times the hidden size must be below 2^31",
        )
        .hint(Hint::TensorVolume)
        .run(&["trtllm-build --max_num_tokens 8192 --checkpoint_dir DIRECTORY"]),
    operator("empty launch")
        .says("CUDA kernel launch blocks must be positive")
        .says("Grid dimensions should be non-null")
        .means("a kernel was to be launched with a grid of zero blocks; no block ran")
        .cause("the input is empty: no points, boxes or rows are left, for example after a filter")
        .fix("skip the operator if its input is empty, and check the filter, range or split before it")
        .hint(Hint::EmptyBatch)
        .run(&[RUN]),
    operator("unaligned attention input")
        .says("is not correctly aligned")
        .means("an attention kernel reads 16 bytes at once, and an input does not begin or continue at a multiple")
        .cause("the input is a view that begins at an odd element, or has rows of an odd length")
        .fix(
            "copy it with .clone(), pad the mask's last dimension to a multiple of 8 and slice it, \
             or call gridguard.torch.install(), whose kernels accept such views",
        )
        .run(&["pip install gridguard"]),
    KnownFailure::new(Origin::Cudnn, "cuDNN attention")
        .says("Expected mha_graph")
        .says("mha_graph->execute")
        .says("mha_graph.execute")
        .means("cuDNN refused to run the attention that PyTorch built for it")
        .not("out of memory: cuDNN refused the sizes before the attention ran")
        .cause("the batch is above 65535, which cuDNN's attention puts on an axis of the grid")
        .fix(
            "call the attention on chunks of at most 65535, use another back end \
             (torch.backends.cuda.enable_cudnn_sdp(False)), or call gridguard.torch.install()",
        )
        .hint(Hint::AttentionBatch)
        .cause("this release of cuDNN does not support the sizes, strides or the type")
        .fix("use another back end: torch.backends.cuda.enable_cudnn_sdp(False)")
        .run(&["pip install gridguard", TORCH_BUILD]),
    KnownFailure::new(Origin::Compiler, "compiler older than the GPU")
        .says("is not defined for option 'gpu-name'")
        .says("Unsupported gpu architecture")
        .says("is not a recognized processor for this target")
        .says("is not defined for option 'gpu-architecture'")
        .says("Unsupported .target")
        .means("the compiler does not know the GPU's architecture")
        .not("a failure of the GPU or its driver: nothing ran yet")
        .cause("the toolkit is older than the GPU: Triton brings a ptxas of its own")
        .fix(
            "set TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas to the ptxas of a newer CUDA (13 for sm_121), \
             or install a newer Triton or toolkit",
        )
        .hint(Hint::Architecture)
        .cause("the toolkit is newer than the GPU, and no longer compiles for it")
        .fix("use a toolkit that still supports it, or leave this architecture out")
        .run(&[
            "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas COMMAND",
            "/usr/local/cuda/bin/ptxas --version",
        ]),
    operator("wrong device")
        .says("cannot be accessed from Triton")
        .says("array device must be same as the current device")
        .means("an operator was given memory of another device than the one that it runs on")
        .cause("several GPUs are in use, and the tensor's is not the current one")
        .fix(
            "call the operator under `with torch.cuda.device(x.device):` (cupy.cuda.Device in CuPy), \
             or use one process for each GPU, with CUDA_VISIBLE_DEVICES or torch.cuda.set_device",
        )
        .cause("a tensor is on the CPU, for example an index, a mask or offloaded weights")
        .fix("print x.device of every input, and move it with .to(x.device)")
        .run(&["CUDA_VISIBLE_DEVICES=0 COMMAND"]),
    KnownFailure::new(Origin::Webgpu, "WebGPU dispatch limit")
        .says("current dispatch group size dimension")
        .says("exceeds max compute workgroups per dimension")
        .says("max_compute_workgroups_per_dimension")
        .says("dispatch size exceeds WebGPU limits")
        .means("a dispatch has more workgroups on an axis than WebGPU allows; none ran")
        .not("a limit of CUDA: WebGPU allows 65535 workgroups on every axis, also on x")
        .cause("the workgroups of the whole batch are on one axis, which ends at 65535")
        .fix("fold them into two axes, or dispatch the batch in chunks")
        .run(&["gridguard limits --gpu any"]),
    KnownFailure::new(Origin::Webgpu, "WebGPU workgroup limit")
        .says("number of workgroup invocations")
        .says("workgroup X dimension exceeds maximum allowed")
        .says("shader entry point current workgroup size")
        .says("shader entry point's workgroup size")
        .says("workgroup shared storage size")
        .says("total use of workgroup storage")
        .means("a shader's workgroup is larger than WebGPU allows; no pipeline was made")
        .not("a limit of CUDA: by default WebGPU allows 256 invocations and 16 KiB a workgroup")
        .cause("the workgroup size, or its product, exceeds the limit that the device was requested with")
        .fix("use a smaller @workgroup_size, or request the adapter's own limits for the device")
        .run(&["gridguard limits --gpu any"]),
    KnownFailure::new(Origin::Webgpu, "WebGPU out of memory")
        .says("GPUOutOfMemoryError")
        .says("wgpu error: Out of Memory")
        .means("the browser or driver has too little memory for a buffer or texture")
        .cause("less memory is free than was requested, or the size was miscalculated")
        .fix("use smaller buffers, and print their sizes")
        .run(&["nvidia-smi"]),
];
