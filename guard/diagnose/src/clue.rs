//! Words in a log that suggest a cause, most often the names of functions in a traceback.

use super::failure::Hint;

/// A line of a log that suggests the cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clue {
    pub(super) suggests: Suggestion,
    /// The line, truncated.
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suggestion {
    /// The causes with this hint.
    Cause(Hint),
    /// A kind of launch that is known to exceed a limit.
    Case(&'static Case),
}

/// A kind of launch that exceeded a limit in public reports; `bench-data/corpus.ron` lists them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) id: &'static str,
    pub(super) what: &'static str,
    pub(super) remedy: &'static str,
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
pub(super) struct Row {
    pub(super) place: Place,
    pub(super) suggests: Suggestion,
    /// Parts of names. A part with a space ends with a whole word.
    pub(super) words: &'static [&'static str],
}

/// The most specific case first.
pub(super) const ROWS: &[Row] = &[
    case(
        &Case {
            id: "temporal-attention",
            what: "attention over frames puts batch x height x width x heads on one axis of the \
                   grid, which ends at 65535 blocks on y and z: a latent of 40 x 64 with 5 heads \
                   exceeds it from batch 6 on",
            remedy: "call the attention on chunks of the batch; or lower resolution or batch, or \
                     use another attention (--disable-xformers, scaled_dot_product_attention)",
        },
        &["motion_module", "temporal_transformer", "temporal_attention", "animatediff"],
    ),
    case(
        &Case {
            id: "sort-row",
            what: "the sort keeps a row in shared memory, padded to a power of two: more than 8192 \
                   elements of 4 bytes need more than the 48 KiB that a kernel has without opt-in; \
                   or it puts more than 65535 rows on grid.y",
            remedy: "sort on the CPU, in shorter rows, or with a kernel that opts in to more \
                     shared memory; sort at most 65535 rows at once",
        },
        &["argsort", "arg_sort", "sort_last_dim", "torch.sort", ", in sort", "::sort::"],
    ),
    case(
        &Case {
            id: "moe-tokens",
            what: "a mixture of experts puts tokens x top_k on grid.y or grid.z, which end at \
                   65535 blocks: 8192 tokens with 8 experts each are 65536",
            remedy: "process fewer tokens at once: a smaller batch, or a smaller chunk of prefill",
        },
        &["moe_", "fused_moe", "_moe(", "mul_mat_id"],
    ),
    case(
        &Case {
            id: "attention-batch",
            what: "the attention kernel puts batch, heads or both on grid.y or grid.z, which end \
                   at 65535 blocks",
            remedy: "call it on chunks of at most 65535 along batch x heads",
        },
        &[
            "memory_efficient_attention",
            "scaled_dot_product_attention",
            "xformers",
            "flash_attn",
            "flash_attention",
            "flashinfer",
            "fmha",
            "launch_fattn",
        ],
    ),
    case(
        &Case {
            id: "matrix-rows",
            what: "rows of a matrix, such as the vocabulary, are on grid.y or grid.z, which end at \
                   65535 blocks",
            remedy: "update the program, as newer versions of ggml put rows on x; or split the rows",
        },
        &["mul_mat", "get_rows"],
    ),
    case(
        &Case {
            id: "normalized-rows",
            what: "the rows or channels that are normalized are on grid.y or grid.z, which end at \
                   65535 blocks",
            remedy: "normalize at most 65535 rows at once",
        },
        &["layer_norm", "layernorm", "rms_norm", "rmsnorm", "batch_norm", "group_norm"],
    ),
    case(
        &Case {
            id: "image-planes",
            what: "batch x channels are on grid.y or grid.z, which end at 65535 blocks",
            remedy: "process the batch in chunks of at most 65535 / channels images",
        },
        &["upsample", "interpolate(", "reflection_pad", "replication_pad"],
    ),
    call(
        Hint::Copy,
        &[
            ".to(",
            ".cpu(",
            ".cuda(",
            "copy_(",
            "memcpy",
            "tensorcopy",
            "_to_copy",
            "htod",
            "dtoh",
            "to_cpu_storage",
            ".numpy(",
            ".item(",
            ".tolist(",
        ],
    ),
    call(
        Hint::Allocation,
        &["cudamalloc", "cumemalloc", "torch.empty", "torch.zeros", "alloc_zeros"],
    ),
    call(Hint::Synchronization, &["synchronize", "watchdog"]),
    Row {
        // TensorFlow computes its grids from the work and puts them on x.
        place: Place::Traceback,
        suggests: Suggestion::Cause(Hint::EmptyBatch),
        words: &["gpulaunchkernel", "cudalaunchkernel("],
    },
    Row {
        place: Place::Traceback,
        suggests: Suggestion::Cause(Hint::MissingKernel),
        words: &["when loading", "get_or_load_func", "bf16"],
    },
    Row {
        place: Place::Traceback,
        suggests: Suggestion::Cause(Hint::RunTimeCompiler),
        words: &["triton", "xla", "load_binary", "ptx text", "in-memory cubin"],
    },
];

const fn case(case: &'static Case, words: &'static [&'static str]) -> Row {
    Row { place: Place::Traceback, suggests: Suggestion::Case(case), words }
}

const fn call(hint: Hint, words: &'static [&'static str]) -> Row {
    Row { place: Place::Innermost, suggests: Suggestion::Cause(hint), words }
}
