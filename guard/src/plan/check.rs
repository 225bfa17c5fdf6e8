//! Launch checks as data, for `gridguard check` and the launch corpus.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::dim::Dim3;
use crate::launch::request::LaunchRequest;
use crate::launch::violation::Violations;
use crate::limits::device::DeviceLimits;
use crate::limits::kernel::KernelLimits;
use crate::limits::launch::LaunchLimits;
use crate::plan::batch::BatchAxis;
use crate::plan::choice::{Choice, Strategy};
use crate::plan::explain::explain;
use crate::plan::launches::Plan;

/// A launch to check, with its kernel's limits and its batch.
///
/// Deserializes from the fields of [`LaunchRequest`] beside `name`, `kernel` (see [`KernelLimits`])
/// and `batch` (see [`BatchAxis`]). All but `grid` and `block` may be omitted; an unknown field is an
/// error.
///
/// ```
/// use gridguard::check::{CheckRequest, Legality};
/// use gridguard::DeviceLimits;
///
/// let launch: CheckRequest = serde_json::from_str(
///     r#"{"grid": [1, 76800, 1], "block": [128, 1, 1],
///         "batch": {"axis": "y", "items": 15360, "blocks_per_item": 5}}"#,
/// )?;
/// let verdict = launch.check(&DeviceLimits::any_device());
/// assert_eq!(verdict.legality, Legality::Chunked);
/// assert_eq!(verdict.plan.map(|plan| plan.len()), Some(2));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Fields")]
pub struct CheckRequest {
    /// The launch's name, repeated in the verdict.
    pub name: String,
    /// The launch configuration.
    pub request: LaunchRequest,
    /// What is known about the kernel.
    pub kernel: KernelLimits,
    /// The axis with independent items, if any.
    pub batch: Option<BatchAxis>,
}

/// Whether a launch is legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Legality {
    /// In one launch.
    Legal,
    /// In chunks.
    Chunked,
    /// Not at all.
    Rejected,
}

/// The result of a check.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The launch's name.
    pub name: String,
    /// Whether the launch is legal.
    #[serde(rename = "verdict")]
    pub legality: Legality,
    /// Whether the kernel opts in to more dynamic shared memory than it may use at first.
    pub opts_in: bool,
    /// The violations of the unsplit launch; for a rejected one also why it cannot be split.
    pub violations: Violations,
    /// The plan, unless the launch is rejected.
    pub plan: Option<Plan>,
}

impl CheckRequest {
    /// The limits of the kernel on `device`.
    pub fn limits(&self, device: &DeviceLimits) -> LaunchLimits {
        let mut kernel = self.kernel.clone();
        if kernel.name.is_empty() {
            kernel.name.clone_from(&self.name);
        }
        if kernel.name.is_empty() {
            kernel.name = "of the launch".into();
        }
        LaunchLimits::new(device.clone(), kernel)
    }

    /// The batch with the memory of `device` as the limit of its workspace, unless the batch declares a limit.
    pub fn batch(&self, device: &DeviceLimits) -> Option<BatchAxis> {
        self.batch.map(|batch| batch.or_memory(device.memory_bytes))
    }

    /// Checks the launch against the limits of `device`.
    #[must_use]
    pub fn check(&self, device: &DeviceLimits) -> Verdict {
        self.check_with(self.limits(device), device)
    }

    /// As [`Self::check`], for a kernel that opts in to large dynamic shared memory if needed, as a guard does.
    /// [`Verdict::opts_in`] says whether it does. A request that states its kernel's opt-in is checked unchanged.
    #[must_use]
    pub fn check_with_opt_in(&self, device: &DeviceLimits) -> Verdict {
        if self.kernel.max_dynamic_shared_bytes.is_some() {
            return self.check(device);
        }
        let limits = self.limits(device);
        let without = limits.max_dynamic_shared_bytes();
        let verdict = self.check_with(limits.with_automatic_opt_in(), device);
        let is_legal = verdict.legality != Legality::Rejected;
        let opts_in = is_legal && self.request.dynamic_shared_bytes > without;
        Verdict { opts_in, ..verdict }
    }

    fn check_with(&self, limits: LaunchLimits, device: &DeviceLimits) -> Verdict {
        let (request, batch) = (&self.request, self.batch(device));
        let (legality, violations, plan) =
            match Plan::new(request, batch.as_ref(), &limits, Choice::AUTOMATIC) {
                Ok(plan) => {
                    let legality = match plan.strategy() {
                        Strategy::Chunked | Strategy::Shifted => Legality::Chunked,
                        Strategy::Whole | Strategy::Folded => Legality::Legal,
                    };
                    (legality, explain(request, batch.as_ref(), &limits), Some(plan))
                }
                Err(violations) => (Legality::Rejected, violations, None),
            };
        Verdict { name: self.name.clone(), legality, opts_in: false, violations, plan }
    }
}

/// The fields of a serialized [`CheckRequest`]. `serde(flatten)` would reject RON structs and report
/// errors without their position.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a launch request")]
struct Fields {
    #[serde(default)]
    name: String,
    grid: Dim3,
    block: Dim3,
    #[serde(default)]
    dynamic_shared_bytes: u64,
    cluster: Option<Dim3>,
    #[serde(default)]
    cooperative: bool,
    #[serde(default)]
    parameter_bytes: u64,
    priority: Option<i32>,
    #[serde(default)]
    dependent: bool,
    #[serde(default)]
    kernel: KernelLimits,
    #[serde(default, deserialize_with = "batch_with_elements")]
    batch: Option<BatchAxis>,
}

impl From<Fields> for CheckRequest {
    fn from(fields: Fields) -> Self {
        let request = LaunchRequest {
            grid: fields.grid,
            block: fields.block,
            dynamic_shared_bytes: fields.dynamic_shared_bytes,
            cluster: fields.cluster,
            cooperative: fields.cooperative,
            parameter_bytes: fields.parameter_bytes,
            priority: fields.priority,
            dependent: fields.dependent,
        };
        Self { name: fields.name, request, kernel: fields.kernel, batch: fields.batch }
    }
}

fn batch_with_elements<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BatchAxis>, D::Error> {
    let batch = Option::<BatchAxis>::deserialize(from)?;
    if batch.is_some_and(|batch| batch.index_bits == 32 && batch.elements(1) == 0) {
        return Err(D::Error::custom("32-bit indices need batch.elements_per_item of at least 1"));
    }
    Ok(batch)
}
