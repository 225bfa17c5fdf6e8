//! Problems: a kernel with the types and sizes of its tensors, as data.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use gridguard::profile::{Key, Objective, Policy};
use gridguard::{DeviceLimits, Guard};
use gridguard_kernels::{Code, ElementType, KernelError, Kernels};

use crate::case::{BenchCase, LaunchSetup};
use crate::error::{Error, ErrorKind};
use crate::registry::{KERNELS, KernelEntry};
use crate::spec::{MAX_SIZES, SizedProblem, Traffic};

/// A kernel with the types and sizes of its tensors.
///
/// ```
/// use gridguard_problems::Problem;
///
/// let problem: Problem = "rms_norm f16 32768x4096".parse()?;
/// assert_eq!(problem, Problem::new("rms_norm", "f16", "32768x4096")?);
/// assert_eq!(problem.to_string(), "rms_norm f16 32768x4096");
/// # Ok::<(), gridguard_problems::Error>(())
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

    /// A problem from text: the kernel `"rms_norm"`, the type `"f16"` and the sizes `"32768x4096"`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownKernel`], or
    /// [`NotAProblem`](crate::ErrorKind::NotAProblem) for a type that the kernel does not support or a wrong number
    /// of sizes.
    pub fn new(kernel: &str, dtypes: &str, sizes: &str) -> Result<Self, Error> {
        let given: Vec<u64> = sizes
            .split('x')
            .enumerate()
            // A problem without items cannot be tuned. Other zeros are the kernel's to accept.
            .map(|(place, size)| match size.parse() {
                Ok(0) if place == 0 => Err(Error::not_a_problem(format!(
                    "`{sizes}` has no items: the first size must be at least 1"
                ))),
                Ok(size) => Ok(size),
                Err(_) => Err(Error::not_a_size(size)),
            })
            .collect::<Result<_, _>>()?;
        let unknown = || Self::unknown_kernel(kernel);
        let kernel = Self::KERNELS.iter().position(|name| *name == kernel).ok_or_else(unknown)?;
        let entry = &KERNELS[kernel];
        if given.len() != entry.sizes.len() {
            let (expected, given) = (entry.sizes.join(" x "), given.len());
            return Err(Error::not_a_problem(format!(
                "{} has the sizes {expected}, but {given} were given",
                entry.name
            )));
        }
        let mut sizes = [0; MAX_SIZES];
        sizes[..given.len()].copy_from_slice(&given);
        let element = ElementType::ALL.into_iter().find(|known| known.name() == dtypes.trim());
        let element = element.ok_or_else(|| {
            Error::not_a_problem(format!(
                "{} does not support tensors of `{dtypes}`: use f16, bf16 or f32",
                entry.name
            ))
        })?;
        Ok(Self { kernel, sized: SizedProblem { element, sizes } })
    }

    /// The error of a kernel that does not exist.
    pub fn unknown_kernel(name: &str) -> Error {
        let known = Self::KERNELS.join(", ");
        let message = format!("unknown kernel `{name}`: the kernels are {known}");
        Error::new(ErrorKind::UnknownKernel, message)
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
        let element = self.sized.element;
        let tensors = (self.entry().tensors)(&self.sized, device)?;
        let written = if self.entry().writes_u32 { ElementType::F32 } else { element };
        Ok(tensors.traffic(&self.sized, written.bytes()))
    }

    /// The largest relative difference of an output that is right; 0 if all bits must be the same.
    ///
    /// # Errors
    ///
    /// As [`Self::traffic`].
    pub fn tolerance(&self, device: &DeviceLimits) -> Result<f64, KernelError> {
        Ok((self.entry().tensors)(&self.sized, device)?.tolerance)
    }

    /// The problem on the device of `kernels`, launched on `stream`.
    ///
    /// Allocates the inputs and the output, and a copy of the output at the first check.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Kernel`] if the kernel does not support the sizes or the device,
    /// [`Memory`](crate::ErrorKind::Memory) if the tensors do not fit.
    pub fn on_device(
        &self,
        kernels: &Kernels,
        stream: &Arc<cudarc::driver::CudaStream>,
    ) -> Result<Box<dyn BenchCase>, Error> {
        (self.entry().on_device)(&self.sized, kernels, stream)
    }

    /// The problem on the host, under the limits of `guard`'s device. Launch parameters belong to
    /// device code, so the host has the default only.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Kernel`] if the kernel does not support the sizes, [`HostMemory`](ErrorKind::HostMemory) if
    /// the tensors do not fit.
    pub fn on_host(&self, guard: &Arc<Guard>) -> Result<Box<dyn BenchCase>, Error> {
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
/// use gridguard_problems::current_sources;
///
/// assert_eq!(current_sources("rms_norm").len(), 1);
/// assert!(current_sources("frobnicate").is_empty());
/// ```
pub fn current_sources(kernel: &str) -> Vec<String> {
    let entries = KERNELS.iter().filter(|entry| entry.name == kernel);
    entries.flat_map(|entry| (entry.sources)()).collect()
}

impl fmt::Display for Problem {
    /// As it is parsed: `rms_norm f16 32768x4096`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.shape().iter().map(|(_, size)| size.to_string()).collect();
        write!(f, "{} {} {}", self.kernel(), self.element(), sizes.join("x"))
    }
}

impl FromStr for Problem {
    type Err = Error;

    /// Parses kernel, types and sizes, separated by spaces.
    fn from_str(text: &str) -> Result<Self, Error> {
        let incomplete = || {
            Error::not_a_problem(format!(
                "`{text}` is not a problem: write kernel, types and sizes, such as rms_norm f16 \
                 32768x4096"
            ))
        };
        let (kernel, rest) = text.trim().split_once(' ').ok_or_else(incomplete)?;
        let (dtypes, sizes) = rest.rsplit_once(' ').ok_or_else(incomplete)?;
        Self::new(kernel, dtypes, sizes)
    }
}

#[cfg(test)]
mod tests;
