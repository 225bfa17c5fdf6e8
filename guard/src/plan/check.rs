//! Launch checks as data, for `gridguard check` and the launch corpus.

use core::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    #[must_use]
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

    /// The batch on `device`, whose memory limits the workspace unless the batch declares a limit.
    #[must_use]
    pub fn batch(&self, device: &DeviceLimits) -> Option<BatchAxis> {
        self.batch.map(|batch| batch.or_memory(device.memory_bytes))
    }

    /// Checks the launch against the limits of `device`.
    #[must_use]
    pub fn check(&self, device: &DeviceLimits) -> Verdict {
        self.check_with(self.limits(device), device)
    }

    /// As [`Self::check`], of a kernel that opts in to large dynamic shared memory where it needs to, as
    /// a guard does: [`Verdict::opts_in`] says whether it does. A request that states what its kernel
    /// opted in to is checked as it is.
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

/// All fields of a serialized [`CheckRequest`].
const FIELDS: &[&str] = &[
    "name",
    "grid",
    "block",
    "dynamic_shared_bytes",
    "cluster",
    "cooperative",
    "parameter_bytes",
    "priority",
    "dependent",
    "kernel",
    "batch",
];

/// Reads the launch configuration from the same map as the fields around it. `serde(flatten)` would do
/// so without this code, but rejects RON structs and reports errors without their position.
impl<'de> Deserialize<'de> for CheckRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldVisitor;

        impl<'de> Visitor<'de> for FieldVisitor {
            type Value = CheckRequest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a launch request")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CheckRequest, A::Error> {
                let mut others = OtherFields::default();
                let request = RequestFields { map, others: &mut others };
                let request = LaunchRequest::deserialize(MapAccessDeserializer::new(request))?;
                let OtherFields { name, kernel, batch } = others;
                Ok(CheckRequest {
                    name: name.unwrap_or_default(),
                    request,
                    kernel: kernel.unwrap_or_default(),
                    batch: batch.flatten(),
                })
            }
        }

        deserializer.deserialize_struct("CheckRequest", FIELDS, FieldVisitor)
    }
}

#[derive(Default)]
struct OtherFields {
    name: Option<String>,
    kernel: Option<KernelLimits>,
    batch: Option<Option<BatchAxis>>,
}

/// A map's entries that belong to the [`LaunchRequest`]; the others are stored in `others`.
struct RequestFields<'a, A> {
    map: A,
    others: &'a mut OtherFields,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Field {
    Name,
    Kernel,
    Batch,
    OfRequest(String),
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for RequestFields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Self { map, others } = self;
        while let Some(field) = map.next_key()? {
            match field {
                Field::Name => read_once("name", &mut others.name, map)?,
                Field::Kernel => read_once("kernel", &mut others.kernel, map)?,
                Field::Batch => {
                    read_once("batch", &mut others.batch, map)?;
                    let batch = others.batch.flatten();
                    if batch.is_some_and(|batch| batch.index_bits() == 32 && batch.elements(1) == 0)
                    {
                        let reason = "32-bit indices need batch.elements_per_item of at least 1";
                        return Err(A::Error::custom(reason));
                    }
                }
                Field::OfRequest(name) if FIELDS.contains(&&*name) => {
                    return seed.deserialize(name.into_deserializer()).map(Some);
                }
                Field::OfRequest(name) => return Err(A::Error::unknown_field(&name, FIELDS)),
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

fn read_once<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    field: &'static str,
    into: &mut Option<T>,
    map: &mut A,
) -> Result<(), A::Error> {
    match into.replace(map.next_value()?) {
        Some(_) => Err(A::Error::duplicate_field(field)),
        None => Ok(()),
    }
}
