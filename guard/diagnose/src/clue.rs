//! Words in a log that suggest a cause, most often the names of functions in a traceback.

use super::codes::causes::HOST_MEMORY;
use super::failure::{Hint, KnownCause, cause};
use super::stated::Dimension::{
    self, Batch, Channels, Choices, Heads, Height, Rows, Tokens, Width,
};

/// A line of a log that suggests the cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clue {
    pub(super) row: &'static Row,
    /// The line, truncated.
    pub(super) text: String,
}

impl Clue {
    /// The whole name in the line that contains one of the row's words: `cudaMemcpyAsync`, `loss.item`.
    pub(super) fn name(&self) -> Option<&str> {
        let lower = self.text.to_ascii_lowercase();
        let start = self.row.words().find_map(|word| lower.find(word))?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let (before, after) = self.text.split_at_checked(start)?;
        let begin = before.trim_end_matches(is_name).len();
        let end = after.find(|c| !is_name(c)).unwrap_or(after.len());
        self.text.get(begin..start.saturating_add(end))
    }
}

/// The place in a log where words count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a traceback, or next to the message.
    Traceback,
    /// In the innermost function of a traceback, which is the failed call.
    Innermost,
}

/// Words that suggest a cause.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) place: Place,
    /// The hint of the causes that the words suggest.
    pub(super) hint: Hint,
    /// A kind of launch that exceeded a limit in public reports; `bench-data/corpus.ron` lists them.
    pub(super) case: Option<KnownCause>,
    /// The number of the only failure that has this case.
    pub(super) only: Option<i32>,
    /// The sizes whose product is the axis of the grid.
    pub(super) axis: &'static [Dimension],
    /// Whether the kernels of `gridguard.torch.install()` serve the call.
    pub(super) is_installable: bool,
    words: &'static str,
}

impl Row {
    const fn only(self, number: i32) -> Self {
        Self { only: Some(number), ..self }
    }

    const fn axis(self, axis: &'static [Dimension]) -> Self {
        Self { axis, ..self }
    }

    const fn installable(self) -> Self {
        Self { is_installable: true, ..self }
    }

    /// Whether other lines about the same failure may tell more.
    pub(super) fn is_minor(&self) -> bool {
        matches!(self.hint, Hint::PyTorch | Hint::Ggml | Hint::CapturedCall)
    }

    /// Parts of names. A part with a space ends with a whole word.
    pub(super) fn words(&self) -> impl Iterator<Item = &'static str> {
        self.words.split('|')
    }
}

const fn row(place: Place, hint: Hint, words: &'static str) -> Row {
    Row { place, hint, case: None, only: None, axis: &[], is_installable: false, words }
}

const fn case(hint: Hint, words: &'static str, what: &'static str, remedy: &'static str) -> Row {
    let case = Some(cause(what).fix(remedy).hint(hint));
    Row { case, ..row(Place::Traceback, hint, words) }
}

/// Other processes use the memory that an allocator reserves, or it reserves too much.
const fn pool(words: &'static str, remedy: &'static str) -> Row {
    case(Hint::PoolMemory, words, POOL, remedy).only(OUT_OF_MEMORY)
}

const fn innermost(row: Row) -> Row {
    Row { place: Place::Innermost, ..row }
}

/// `CUDA_ERROR_INVALID_VALUE`: calls refuse shared memory and updates of graphs with it.
const INVALID_VALUE: i32 = 1;
/// `cudaErrorInvalidConfiguration`.
const INVALID_CONFIGURATION: i32 = 9;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
const CAPTURE_UNSUPPORTED: i32 = 900;
const POOL: &str = "an allocator reserves a large pool or arena when the program starts: other \
    processes use the memory, or the reservation is larger than what is free";
const ATTENTION: &str = "the attention kernel puts batch, heads or both on grid.y or grid.z, which \
    end at 65535 blocks";

/// The most specific case first.
pub(super) static ROWS: [Row; 35] = [
    case(
        Hint::HostMemory,
        "bytes on host|pinned host memory|host pinned memory|pinned memory|page-locked|pagelocked|\
         hostalloc|mallochost|memallochost|hostregister|host_allocator|.pin_memory(",
        HOST_MEMORY.what,
        HOST_MEMORY.remedy,
    )
    .only(OUT_OF_MEMORY),
    pool(
        "amrex_arena",
        "find the others with nvidia-smi and end them, or start fewer ranks on each GPU; AMReX \
         reserves three quarters of the GPU: amrex.the_arena_init_size=0 reserves nothing",
    ),
    pool(
        "from device: cuda_error_out_of_memory|preallocat|xla_python_client",
        "find the others with nvidia-smi and end them; or reserve less: \
         TF_FORCE_GPU_ALLOW_GROWTH=true in TensorFlow, XLA_PYTHON_CLIENT_PREALLOCATE=false or \
         XLA_PYTHON_CLIENT_MEM_FRACTION in JAX",
    ),
    pool(
        "rmm::mr::pool|pool_memory_resource|initial_pool_size|rmm.reinitialize",
        "find the others with nvidia-smi and end them; or give RMM's pool a smaller \
         initial_pool_size",
    ),
    pool(
        "bfc_arena|bfcarena",
        "find the others with nvidia-smi and end them; in ONNX Runtime, set \
         arena_extend_strategy=kSameAsRequested and a lower gpu_mem_limit",
    ),
    case(
        Hint::PoolMemory,
        "cuda_mps|mps_pinned|pinned_device_mem_limit|mps server|mps client",
        "the process shares the GPU through MPS: other clients use the memory, or \
         CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is lower than the request",
        "end other clients, or raise the limit",
    )
    .only(OUT_OF_MEMORY),
    pool(
        "_arena|arena_|arena.|arena::|memory_pool|mempoolcreate|init_pool|pool_init",
        "find the others with nvidia-smi and end them; or set the program's option for the \
         initial size of its pool or arena to less",
    ),
    innermost(case(
        Hint::CapturedCall,
        "cuctxsynchronize|devicesynchronize|streamsynchronize|eventsynchronize|eventquery|\
         streamquery|cudamalloc|cumemalloc|cudafree|cumemfree|cudahostalloc|cumemhostalloc|\
         cudamemcpy|cumemcpy|cudamemset|cumemset|cumoduleload|culibraryload|cudamemgetinfo|\
         cumemgetinfo|cuda.synchronize(|empty_cache(|.item(|.cpu(|.tolist(|.numpy(",
        "a call that cannot be captured is made while a stream is capturing",
        "make this call before or after the capture",
    ))
    .only(CAPTURE_UNSUPPORTED),
    case(
        Hint::ModuleMemory,
        "cumoduleload|culibraryload|cudalibraryload|load_binary|in-memory cubin|ptx text",
        "no memory is left for a module: its code, constants and variables are outside of the \
         memory that the program's allocator reserves",
        "leave it a few hundred MiB: enable memory growth in TensorFlow \
         (TF_FORCE_GPU_ALLOW_GROWTH=true), set XLA_PYTHON_CLIENT_MEM_FRACTION=0.7 in JAX or a \
         lower gpu_memory_utilization in vLLM, or load the module first",
    )
    .only(OUT_OF_MEMORY),
    case(
        Hint::ContextMemory,
        "cuctxcreate|primaryctxretain|primary_ctx|cudasetdevice|cudafree(0)|cuinit|\
         create context|creating context",
        "no memory is left for a context, which takes some hundred MiB before the first \
         allocation: other processes use the device",
        "find them with nvidia-smi, and end them or choose another device; start fewer processes \
         on each device",
    )
    .only(OUT_OF_MEMORY),
    case(
        Hint::GraphMemory,
        "graphinstantiate|graph_instantiate|instantiate graph|graphupload|graphlaunch|capture_end",
        "no memory is left to instantiate a graph: its nodes and its kernels' local memory are \
         outside of the memory that the program's allocator reserves",
        "leave it more: a lower gpu_memory_utilization or fewer capture sizes in vLLM; or run \
         without graphs (--enforce-eager in vLLM, --disable-cuda-graph in SGLang, \
         GGML_CUDA_DISABLE_GRAPHS=1 in programs that use ggml)",
    )
    .only(OUT_OF_MEMORY),
    case(
        Hint::GraphUpdate,
        "graphkernelnodesetparams|graphexeckernelnodesetparams|graphexecupdate",
        "an instantiated graph is updated with another kernel, or with attributes that an update \
         may not change",
        "instantiate the graph again if its kernels change; in programs that use ggml, set \
         GGML_CUDA_DISABLE_GRAPHS=1",
    )
    .only(INVALID_VALUE),
    case(
        Hint::SharedMemory,
        "moe_align_block_size",
        "the shared memory of moe_align_block_size grows with the square of the experts: 160 \
         experts need 103684 bytes, and sm_86, sm_89 and sm_120 have 101376; fewer tokens do not \
         help",
        "use a newer version, which aligns many experts in global memory",
    )
    .only(INVALID_VALUE),
    case(
        Hint::SharedMemory,
        "soft_max",
        "the softmax keeps a row in shared memory, and a row does not fit a block of the device: \
         101376 bytes on sm_86, sm_89 and sm_120",
        "use a shorter context or a smaller batch, or a version that reads the row twice",
    )
    .only(INVALID_VALUE),
    case(
        Hint::TemporalAttention,
        "motion_module|temporal_transformer|temporal_attention|animatediff",
        "attention over frames puts batch x height x width x heads on one axis of the grid, which \
         ends at 65535 blocks on y and z: a latent of 40 x 64 with 5 heads exceeds it from batch 6 \
         on",
        "call the attention on chunks of the batch; or lower resolution or batch, or use another \
         attention (--disable-xformers, scaled_dot_product_attention)",
    )
    .axis(&[Batch, Height, Width, Heads])
    .installable(),
    case(
        Hint::SortRow,
        "argsort|arg_sort|sort_last_dim|torch.sort|, in sort|::sort::",
        "the sort keeps a row in shared memory, padded to a power of two: more than 8192 elements \
         of 4 bytes need more than the 48 KiB that a kernel has without opt-in; or it puts more \
         than 65535 rows on grid.y",
        "sort on the CPU, in shorter rows, or with a kernel that opts in to more shared memory; \
         sort at most 65535 rows at once",
    ),
    case(
        Hint::MoeTokens,
        "moe_|fused_moe|_moe(|mul_mat_id",
        "a mixture of experts puts tokens x top_k on grid.y or grid.z, which end at 65535 blocks: \
         8192 tokens with 8 experts each are 65536",
        "process fewer tokens at once: a smaller batch, or a smaller chunk of prefill",
    )
    .axis(&[Tokens, Choices]),
    case(
        Hint::AttentionBatch,
        "memory_efficient_attention|scaled_dot_product_attention|xformers",
        ATTENTION,
        "call it on chunks of at most 65535 along batch x heads",
    )
    .axis(&[Batch, Heads])
    .installable(),
    case(
        Hint::AttentionBatch,
        "flash_attn|flash_attention|flashinfer|fmha|launch_fattn",
        ATTENTION,
        "call it on chunks of at most 65535 along batch x heads; its tensors are (batch, length, \
         heads, head size), so that in any other order the length counts as heads",
    )
    .axis(&[Batch, Heads]),
    case(
        Hint::SharedMemory,
        "_gemm|gemm_|cutlass|hadamard_transform|cudafuncattributemaxdynamicsharedmemorysize",
        "the kernel needs more dynamic shared memory than a block of the device can opt in to: it \
         is sized for sm_90 or sm_100 (232448 bytes), and sm_86, sm_89 and sm_120 have 101376",
        "choose another back end for this operator, smaller tiles or fewer stages",
    )
    .only(INVALID_VALUE),
    case(
        Hint::MatrixRows,
        "mul_mat|get_rows",
        "rows of a matrix, such as the vocabulary, are on grid.y or grid.z, which end at 65535 \
         blocks",
        "update the program, as newer versions of ggml put rows on x; or split the rows",
    )
    .axis(&[Rows]),
    case(
        Hint::NormalizedRows,
        "layer_norm|layernorm|rms_norm|rmsnorm|batch_norm|group_norm",
        "the rows or channels that are normalized are on grid.y or grid.z, which end at 65535 \
         blocks",
        "normalize at most 65535 rows at once",
    )
    .axis(&[Rows]),
    case(
        Hint::ImagePlanes,
        "upsample|interpolate(|reflection_pad|replication_pad",
        "batch x channels are on grid.y or grid.z, which end at 65535 blocks",
        "process the batch in chunks of at most 65535 / channels images",
    )
    .axis(&[Batch, Channels]),
    case(
        Hint::ManyItems,
        "parallel_for failed|parallel_for: failed",
        "Thrust's grid is empty or overflows: its range has no items, or 2^31 items or more, which \
         versions before CUDA 11 count in 32 bits",
        "skip empty inputs; process fewer items at once, or build the program with a newer CUDA",
    )
    .only(INVALID_CONFIGURATION),
    row(Place::Traceback, Hint::PyTorch, "torch|runtimeerror: cuda error"),
    row(Place::Traceback, Hint::Ggml, "ggml"),
    row(
        Place::Traceback,
        Hint::Convolution,
        "conv1d|conv2d|conv3d|convolution|canuse32bitindexmath",
    ),
    row(Place::Traceback, Hint::LazyLoading, "cudafuncsetattribute|cudafuncgetattributes"),
    row(
        Place::Innermost,
        Hint::LocalMemory,
        "culaunchkernel|cudalaunchkernel|launch_kernel|launchkernel|setlimit|cudalimitstacksize",
    ),
    row(
        Place::Innermost,
        Hint::Copy,
        ".to(|.cpu(|.cuda(|copy_(|memcpy|tensorcopy|_to_copy|htod|dtoh|to_cpu_storage|.numpy(|\
         .item(|.tolist(",
    ),
    row(
        Place::Innermost,
        Hint::Allocation,
        "cudamalloc|cumemalloc|torch.empty|torch.zeros|alloc_zeros",
    ),
    row(Place::Innermost, Hint::Synchronization, "synchronize|watchdog"),
    // TensorFlow computes its grids from the work and puts them on x.
    // cuDF, Thrust and CUB put the work on x, too.
    row(
        Place::Traceback,
        Hint::EmptyBatch,
        "gpulaunchkernel|cudalaunchkernel(|cudf|thrust|cub::|spconv",
    ),
    row(Place::Traceback, Hint::MissingKernel, "when loading|get_or_load_func|bf16"),
    row(Place::Traceback, Hint::RunTimeCompiler, "triton|xla|load_binary|ptx text|in-memory cubin"),
];
