//! Problems: a kernel with the types and sizes of its tensors, as data.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use gridguard::profile::{Key, Objective, Policy};
use gridguard::{DeviceLimits, Guard};

use super::case::{BenchCase, BenchError, LaunchSetup};
use super::registry::{KERNELS, KernelEntry};
use super::spec::{MAX_SIZES, SizedProblem, Traffic};
use crate::element::ElementType;
use crate::error::KernelError;
use crate::index::IndexType;
use crate::operation::{Code, source_hash};

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
    /// The kernel's place in the registry.
    kernel: usize,
    sized: SizedProblem,
}

impl Problem {
    /// The names of all kernels, sorted.
    pub const KERNELS: [&'static str; KERNELS.len()] = {
        let mut names = [""; KERNELS.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = KERNELS[at].name;
            at += 1;
        }
        names
    };

    /// A problem from text: the kernel `"get_rows"`, the types `"f16 i64"` and the sizes
    /// `"65536x4096x128256"`. The type of indices defaults to `i64`.
    ///
    /// # Errors
    ///
    /// [`ProblemError`] for an unknown kernel, types that it does not support, or a wrong number of
    /// sizes.
    pub fn new(kernel: &str, dtypes: &str, sizes: &str) -> Result<Self, ProblemError> {
        let given: Vec<u64> = sizes
            .split('x')
            .enumerate()
            // A problem without items cannot be tuned. Other zeros are the kernel's to accept.
            .map(|(place, size)| match size.parse() {
                Ok(0) if place == 0 => Err(ProblemError::NoItems { given: sizes.to_owned() }),
                Ok(size) => Ok(size),
                Err(_) => Err(ProblemError::Size { given: size.to_owned() }),
            })
            .collect::<Result<_, _>>()?;
        let unknown = || ProblemError::Kernel { given: kernel.to_owned() };
        let kernel = Self::KERNELS.iter().position(|name| *name == kernel).ok_or_else(unknown)?;
        let entry = &KERNELS[kernel];
        if given.len() != entry.sizes.len() {
            let (expected, given) = (entry.sizes.join(" x "), given.len());
            return Err(ProblemError::Sizes { kernel: entry.name, expected, given });
        }
        let mut sizes = [0; MAX_SIZES];
        sizes[..given.len()].copy_from_slice(&given);
        let (element, index) = types(entry, dtypes)?;
        Ok(Self { kernel, sized: SizedProblem { element, index, sizes } })
    }

    /// Ten problems of each kernel, those of the shipped profiles. Most overflow a grid axis, and some
    /// are similar, to test profile lookups.
    pub fn shipped() -> Vec<Self> {
        Self::all_of(|kernel| kernel.shipped)
    }

    /// Problems that a host computes in milliseconds. Two of them overflow a grid axis.
    pub fn small() -> Vec<Self> {
        Self::all_of(|kernel| kernel.small)
    }

    fn all_of(select: fn(&KernelEntry) -> &'static str) -> Vec<Self> {
        let of_kernel = |kernel: &'static KernelEntry| {
            let mut dtypes = "";
            select(kernel).split_whitespace().filter_map(move |word| {
                if word.contains('x') {
                    return Self::new(kernel.name, dtypes, word).ok();
                }
                dtypes = word;
                None
            })
        };
        KERNELS.iter().flat_map(of_kernel).collect()
    }

    /// The kernel's name.
    pub fn kernel(&self) -> &'static str {
        self.entry().name
    }

    /// The types of the tensors, such as `f16` or `f16 i64`.
    pub fn dtypes(&self) -> String {
        let SizedProblem { element, index, .. } = self.sized;
        if self.entry().has_indices { format!("{element} {index}") } else { element.to_string() }
    }

    /// The type of the tensors' elements.
    pub const fn element(&self) -> ElementType {
        self.sized.element
    }

    /// The sizes with their names, the number of items first.
    pub fn shape(&self) -> Vec<(String, u64)> {
        let names = self.entry().sizes.iter().map(|name| (*name).to_owned());
        names.zip(self.sized.sizes).collect()
    }

    /// The launch with these launch parameters, the others at their defaults, under the limits of any
    /// kernel on the device. Compiles and allocates nothing.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if the kernel does not support the sizes, the device or the parameters.
    pub fn setup(
        &self,
        device: &DeviceLimits,
        parameters: &[(String, u64)],
    ) -> Result<LaunchSetup, KernelError> {
        (self.entry().setup)(&self.sized, device, parameters)
    }

    /// The device code for a device with these limits, with these launch parameters.
    ///
    /// # Errors
    ///
    /// As [`Self::setup`].
    pub fn code(
        &self,
        device: &DeviceLimits,
        parameters: &[(String, u64)],
    ) -> Result<Code, KernelError> {
        (self.entry().code)(&self.sized, device, parameters)
    }

    /// The problem's key in profiles, for a device with these limits.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if the kernel does not support the sizes or the device.
    pub fn key(
        &self,
        device: &DeviceLimits,
        policy: Policy,
        objective: Objective,
    ) -> Result<Key, KernelError> {
        (self.entry().key)(&self.sized, device, policy, objective)
    }

    /// What any implementation must read and write, on a device with these limits. Tensors that all items
    /// share do not count.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if the kernel does not support the sizes or the device.
    pub fn traffic(&self, device: &DeviceLimits) -> Result<Traffic, KernelError> {
        let SizedProblem { element, sizes: [items, ..], .. } = self.sized;
        let tensors = (self.entry().tensors)(&self.sized, device)?;
        let written = if self.entry().writes_u32 { ElementType::F32 } else { element };
        Ok(tensors.traffic(&self.sized, items, written.bytes()))
    }

    /// The problem on the device of `kernels`, launched on `stream`.
    ///
    /// Allocates the inputs and the output, and a copy of the output at the first check.
    ///
    /// # Errors
    ///
    /// [`BenchError::Kernel`] if the kernel does not support the sizes or the device,
    /// [`BenchError::Memory`] if the tensors do not fit.
    #[cfg(feature = "cuda")]
    pub fn on_device(
        &self,
        kernels: &crate::kernels::Kernels,
        stream: &Arc<cudarc::driver::CudaStream>,
    ) -> Result<Box<dyn BenchCase>, BenchError> {
        (self.entry().on_device)(&self.sized, kernels, stream)
    }

    /// The problem on the host, under the limits of `guard`'s device. Launch parameters belong to
    /// device code, so the host has the default only.
    ///
    /// # Errors
    ///
    /// [`BenchError::Kernel`] if the kernel does not support the sizes, [`BenchError::HostMemory`] if
    /// the tensors do not fit.
    pub fn on_host(&self, guard: &Arc<Guard>) -> Result<Box<dyn BenchCase>, BenchError> {
        (self.entry().on_host)(&self.sized, guard)
    }

    fn entry(&self) -> &'static KernelEntry {
        &KERNELS[self.kernel]
    }
}

/// The hashes of a kernel's sources, one for each implementation; empty for an unknown kernel.
///
/// A profile entry whose [`source`](gridguard::profile::Key::source) is not among them is stale: the
/// kernel was edited since.
///
/// ```
/// use gridguard_kernels::bench::current_sources;
///
/// assert_eq!(current_sources("rms_norm").len(), 1);
/// assert!(current_sources("frobnicate").is_empty());
/// ```
pub fn current_sources(kernel: &str) -> Vec<String> {
    let entries = KERNELS.iter().filter(|entry| entry.name == kernel);
    entries.flat_map(|entry| entry.sources).map(|source| source_hash(source)).collect()
}

/// The types of the elements and, if the kernel has them, of the indices.
fn types(entry: &KernelEntry, dtypes: &str) -> Result<(ElementType, IndexType), ProblemError> {
    let mut names = dtypes.split_whitespace();
    let element = names.next();
    let element = ElementType::ALL.into_iter().find(|known| Some(known.name()) == element);
    let index = match names.next() {
        None => Some(IndexType::I64),
        Some(name) => {
            IndexType::ALL.into_iter().find(|known| entry.has_indices && known.name() == name)
        }
    };
    match (element, index, names.next()) {
        (Some(element), Some(index), None) => Ok((element, index)),
        _ => {
            let indices = if entry.has_indices { " with i32 or i64" } else { "" };
            Err(ProblemError::Types { kernel: entry.name, given: dtypes.to_owned(), indices })
        }
    }
}

impl fmt::Display for Problem {
    /// As it is parsed: `get_rows f16 i64 65536x4096x128256`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.shape().iter().map(|(_, size)| size.to_string()).collect();
        write!(f, "{} {} {}", self.kernel(), self.dtypes(), sizes.join("x"))
    }
}

impl FromStr for Problem {
    type Err = ProblemError;

    /// Parses kernel, types and sizes, separated by spaces.
    fn from_str(text: &str) -> Result<Self, ProblemError> {
        let incomplete = || ProblemError::Incomplete { given: text.to_owned() };
        let (kernel, rest) = text.trim().split_once(' ').ok_or_else(incomplete)?;
        let (dtypes, sizes) = rest.rsplit_once(' ').ok_or_else(incomplete)?;
        Self::new(kernel, dtypes, sizes)
    }
}

/// Why text is not a problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ProblemError {
    /// There is no kernel of this name.
    #[error("unknown kernel `{given}`: the kernels are {}", Problem::KERNELS.join(", "))]
    Kernel { given: String },
    /// The kernel does not support the types.
    #[error("{kernel} does not support tensors of `{given}`: use f16, bf16 or f32{indices}")]
    Types { kernel: &'static str, given: String, indices: &'static str },
    /// The kernel has another number of sizes.
    #[error("{kernel} has the sizes {expected}, but {given} were given")]
    Sizes { kernel: &'static str, expected: String, given: usize },
    /// The first size is 0.
    #[error("`{given}` has no items: the first size must be at least 1")]
    NoItems { given: String },
    /// A size is not a 64-bit number.
    #[error("`{given}` is not a size: write whole numbers separated by x, such as 32768x4096")]
    Size { given: String },
    /// Kernel, types or sizes are missing.
    #[error(
        "`{given}` is not a problem: write kernel, types and sizes, such as rms_norm f16 32768x4096"
    )]
    Incomplete { given: String },
}

#[cfg(test)]
mod tests;
