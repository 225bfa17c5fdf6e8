//! What is computed, as plain data.

use core::fmt;
use core::str::FromStr;

use gridguard::profile::Named;

use crate::element::ElementType;
use crate::index::IndexType;

/// A kernel with the types and sizes of its tensors.
///
/// ```
/// use gridguard_kernels::bench::Problem;
///
/// let problem: Problem = "rms_norm f16 32768x4096".parse()?;
/// assert_eq!(problem, Problem::new("rms_norm", "f16", "32768x4096")?);
/// assert_eq!(problem.to_string(), "rms_norm f16 32768x4096");
/// # Ok::<(), gridguard_kernels::bench::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    pub(super) sizes: Sizes,
    pub(super) element: ElementType,
    /// Of a kernel that has indices.
    pub(super) index: IndexType,
}

/// A kernel and its sizes, in the order of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sizes {
    Argsort([u64; 2]),
    BatchedGemm([u64; 4]),
    GetRows([u64; 3]),
    ReflectionPad1d([u64; 5]),
    RmsNorm([u64; 2]),
    Softmax([u64; 2]),
    TemporalAttention([u64; 4]),
    UpsampleNearest2d([u64; 5]),
}

/// A kernel and the names of its sizes.
type KernelSizes = (&'static str, &'static [&'static str]);

const ARGSORT: KernelSizes = ("argsort", &["rows", "columns"]);
const BATCHED_GEMM: KernelSizes = ("batched_gemm", &["batch", "m", "n", "k"]);
const GET_ROWS: KernelSizes = ("get_rows", &["rows", "columns", "table_rows"]);
const REFLECTION_PAD1D: KernelSizes =
    ("reflection_pad1d", &["batch", "channels", "width", "left", "right"]);
const RMS_NORM: KernelSizes = ("rms_norm", &["rows", "columns"]);
const SOFTMAX: KernelSizes = ("softmax", &["rows", "columns"]);
const TEMPORAL_ATTENTION: KernelSizes =
    ("temporal_attention", &["items", "heads", "frames", "head_dim"]);
const UPSAMPLE_NEAREST2D: KernelSizes =
    ("upsample_nearest2d", &["planes", "height", "width", "out_height", "out_width"]);

impl Problem {
    /// The names of all kernels.
    pub const KERNELS: [&'static str; 8] = [
        ARGSORT.0,
        BATCHED_GEMM.0,
        GET_ROWS.0,
        REFLECTION_PAD1D.0,
        RMS_NORM.0,
        SOFTMAX.0,
        TEMPORAL_ATTENTION.0,
        UPSAMPLE_NEAREST2D.0,
    ];

    /// A problem out of words: `"get_rows"`, `"f16 i64"`, `"65536x4096x128256"`. Indices are `i64`
    /// unless said otherwise.
    ///
    /// # Errors
    ///
    /// [`ProblemError`] for a kernel or types that there are not, and where there are other sizes than
    /// the kernel has.
    pub fn new(kernel: &str, dtypes: &str, sizes: &str) -> Result<Self, ProblemError> {
        let given: Vec<u64> = sizes
            .split('x')
            .enumerate()
            // Without items there is nothing to tune. What else may be 0 the kernel says.
            .map(|(place, size)| match size.parse() {
                Ok(0) if place == 0 => Err(ProblemError::NoItems { given: sizes.to_owned() }),
                Ok(size) => Ok(size),
                Err(_) => Err(ProblemError::Size { given: size.to_owned() }),
            })
            .collect::<Result<_, _>>()?;
        let sizes = match kernel {
            "argsort" => Sizes::Argsort(taken(&given, ARGSORT)?),
            "batched_gemm" => Sizes::BatchedGemm(taken(&given, BATCHED_GEMM)?),
            "get_rows" => Sizes::GetRows(taken(&given, GET_ROWS)?),
            "reflection_pad1d" => Sizes::ReflectionPad1d(taken(&given, REFLECTION_PAD1D)?),
            "rms_norm" => Sizes::RmsNorm(taken(&given, RMS_NORM)?),
            "softmax" => Sizes::Softmax(taken(&given, SOFTMAX)?),
            "temporal_attention" => Sizes::TemporalAttention(taken(&given, TEMPORAL_ATTENTION)?),
            "upsample_nearest2d" => Sizes::UpsampleNearest2d(taken(&given, UPSAMPLE_NEAREST2D)?),
            _ => return Err(ProblemError::Kernel { given: kernel.to_owned() }),
        };
        let (element, index) = types(&sizes, dtypes)?;
        Ok(Self { sizes, element, index })
    }

    /// The kernel's name.
    #[must_use]
    pub const fn kernel(&self) -> &'static str {
        self.sizes.kernel().0
    }

    /// The types of the tensors, such as `f16` or `f16 i64`.
    #[must_use]
    pub fn dtypes(&self) -> String {
        match self.sizes {
            Sizes::GetRows(_) => format!("{} {}", self.element, self.index),
            _ => self.element.to_string(),
        }
    }

    /// The type of the tensors' elements.
    #[must_use]
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// The sizes with their names, the items first.
    #[must_use]
    pub fn shape(&self) -> Named {
        let names = self.sizes.kernel().1.iter().map(|name| (*name).to_owned());
        names.zip(self.sizes.values().iter().copied()).collect()
    }
}

impl Sizes {
    const fn kernel(&self) -> KernelSizes {
        match self {
            Self::Argsort(_) => ARGSORT,
            Self::BatchedGemm(_) => BATCHED_GEMM,
            Self::GetRows(_) => GET_ROWS,
            Self::ReflectionPad1d(_) => REFLECTION_PAD1D,
            Self::RmsNorm(_) => RMS_NORM,
            Self::Softmax(_) => SOFTMAX,
            Self::TemporalAttention(_) => TEMPORAL_ATTENTION,
            Self::UpsampleNearest2d(_) => UPSAMPLE_NEAREST2D,
        }
    }

    const fn values(&self) -> &[u64] {
        match self {
            Self::Argsort(sizes) | Self::RmsNorm(sizes) | Self::Softmax(sizes) => sizes,
            Self::BatchedGemm(sizes) | Self::TemporalAttention(sizes) => sizes,
            Self::GetRows(sizes) => sizes,
            Self::ReflectionPad1d(sizes) | Self::UpsampleNearest2d(sizes) => sizes,
        }
    }
}

/// As many sizes as the kernel has.
fn taken<const N: usize>(
    given: &[u64],
    (kernel, names): KernelSizes,
) -> Result<[u64; N], ProblemError> {
    given.try_into().map_err(|_| {
        let (expected, given) = (names.join(" x "), given.len());
        ProblemError::Sizes { kernel, expected, given }
    })
}

/// The type of the elements, and of the indices where the kernel has some.
fn types(sizes: &Sizes, dtypes: &str) -> Result<(ElementType, IndexType), ProblemError> {
    let (kernel, has_index) = (sizes.kernel().0, matches!(sizes, Sizes::GetRows(_)));
    let mut words = dtypes.split_whitespace();
    let element = words.next();
    let element = ElementType::ALL.into_iter().find(|known| Some(known.name()) == element);
    let index = match words.next() {
        None => Some(IndexType::I64),
        Some(word) => IndexType::ALL.into_iter().find(|known| has_index && known.name() == word),
    };
    match (element, index, words.next()) {
        (Some(element), Some(index), None) => Ok((element, index)),
        _ => {
            let indices = if has_index { " with i32 or i64" } else { "" };
            Err(ProblemError::Types { kernel, given: dtypes.to_owned(), indices })
        }
    }
}

impl fmt::Display for Problem {
    /// `get_rows f16 i64 65536x4096x128256`, as it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.sizes.values().iter().map(u64::to_string).collect();
        write!(f, "{} {} {}", self.kernel(), self.dtypes(), sizes.join("x"))
    }
}

impl FromStr for Problem {
    type Err = ProblemError;

    /// Kernel, types and sizes with spaces between them.
    fn from_str(text: &str) -> Result<Self, ProblemError> {
        let incomplete = || ProblemError::Incomplete { given: text.to_owned() };
        let (kernel, rest) = text.trim().split_once(' ').ok_or_else(incomplete)?;
        let (dtypes, sizes) = rest.rsplit_once(' ').ok_or_else(incomplete)?;
        Self::new(kernel, dtypes, sizes)
    }
}

/// Why words are no problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// A kernel that there is not.
    #[error("there is no kernel `{given}`: the kernels are {}", Problem::KERNELS.join(", "))]
    Kernel {
        /// The name given.
        given: String,
    },
    /// Types that the kernel does not take.
    #[error("{kernel} is not for tensors of `{given}`: write f16, bf16 or f32{indices}")]
    Types {
        /// The kernel.
        kernel: &'static str,
        /// The types given.
        given: String,
        /// What follows the type of the elements where the kernel has indices.
        indices: &'static str,
    },
    /// Another number of sizes than the kernel has.
    #[error("{kernel} has the sizes {expected}, {given} are given")]
    Sizes {
        /// The kernel.
        kernel: &'static str,
        /// Its sizes.
        expected: String,
        /// How many are given.
        given: usize,
    },
    /// Sizes that begin with 0.
    #[error("`{given}` has no items: write 1 or more for the first size")]
    NoItems {
        /// The sizes given.
        given: String,
    },
    /// A size that is no whole number of 64 bits.
    #[error("`{given}` is not a size: write whole numbers with x between them, such as 32768x4096")]
    Size {
        /// The text given.
        given: String,
    },
    /// A text without kernel, types or sizes.
    #[error(
        "`{given}` is not a problem: write kernel, type and sizes, such as rms_norm f16 32768x4096"
    )]
    Incomplete {
        /// The text given.
        given: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        text.parse::<Problem>().expect_err("no problem").to_string()
    }

    #[test]
    fn a_problem_reads_as_it_is_written() {
        for text in [
            "rms_norm f16 32768x4096",
            "get_rows bf16 i32 65536x4096x128256",
            "temporal_attention f32 15360x5x16x64",
            "reflection_pad1d f32 64x4x100x0x3",
        ] {
            assert_eq!(text.parse::<Problem>().expect("a problem").to_string(), text);
        }
        let looked_up: Problem = "get_rows f16 8x4x2".parse().expect("a problem");
        assert_eq!(looked_up.dtypes(), "f16 i64");
        assert_eq!(looked_up.shape()[2], ("table_rows".to_owned(), 2));
    }

    #[test]
    fn every_kernel_has_a_problem_by_its_name() {
        for kernel in Problem::KERNELS {
            let sizes = ["1"; 5];
            let problem =
                (1..=5).find_map(|n| Problem::new(kernel, "f16", &sizes[..n].join("x")).ok());
            assert_eq!(problem.map(|problem| problem.kernel()), Some(kernel));
        }
    }

    #[test]
    fn what_is_no_problem_is_told_with_what_there_is() {
        assert_eq!(
            refusal("norm f16 1x2"),
            "there is no kernel `norm`: the kernels are argsort, batched_gemm, get_rows, \
             reflection_pad1d, rms_norm, softmax, temporal_attention, upsample_nearest2d"
        );
        assert_eq!(
            refusal("rms_norm f64 1x2"),
            "rms_norm is not for tensors of `f64`: write f16, bf16 or f32"
        );
        assert_eq!(
            refusal("get_rows f16 i8 1x2x3"),
            "get_rows is not for tensors of `f16 i8`: write f16, bf16 or f32 with i32 or i64"
        );
        assert!(matches!(
            "rms_norm f16 i64 1x2".parse::<Problem>(),
            Err(ProblemError::Types { .. })
        ));
        assert_eq!(
            refusal("rms_norm f16 1x2x3"),
            "rms_norm has the sizes rows x columns, 3 are given"
        );
        assert_eq!(
            refusal("rms_norm f16 1x-2"),
            "`-2` is not a size: write whole numbers with x between them, such as 32768x4096"
        );
        assert_eq!(
            refusal("rms_norm f16 0x8"),
            "`0x8` has no items: write 1 or more for the first size"
        );
        assert_eq!(
            refusal("rms_norm"),
            "`rms_norm` is not a problem: write kernel, type and sizes, such as rms_norm f16 \
             32768x4096"
        );
    }
}
