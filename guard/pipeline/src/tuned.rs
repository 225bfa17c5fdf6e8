//! Tuned plans: the key of a pipeline in profiles, and plans from an entry of a profile.

use core::fmt::Write;

use crate::buffer::BufferSpec;
use crate::builder::IN_FLIGHT;
use crate::definition::{Definition, StageSpec};
use crate::error::{Error, ErrorKind};
use crate::pipeline::Pipeline;
use crate::plan::{Budget, PipelinePlan};
use gridguard::Guard;
use gridguard::profile::{Entry, Key, Match, Objective, Policy, StoredChoice, TunedChoice};

/// A plan, and the entry of a profile that it follows: [`Pipeline::plan_tuned`].
#[derive(Clone, Debug)]
#[must_use]
pub struct TunedPlan {
    /// The plan of the entry. If no entry matches or the entry is refused, the plan of [`Pipeline::plan`].
    pub plan: PipelinePlan,
    /// How the entry matches, or why none does.
    pub matched: Match,
    /// Why the entry was not used.
    pub refused: Option<Error>,
}

impl Pipeline<'_> {
    /// The key of the pipeline's entries in profiles, under a `name` that the caller chooses.
    ///
    /// [`Key::variant`] is a hash of the declarations of stages and buffers: names, order, uses, element
    /// types and numbers of elements. [`Key::source`] is a hash of the declared
    /// [sources](super::PipelineBuilder::source), and [`Key::dtypes`] lists each element type once. Items,
    /// launches and their parameters are not part of the key: build the pipeline with its default parameters
    /// to get it.
    pub fn key(&self, name: impl Into<String>, policy: Policy, objective: Objective) -> Key {
        let Definition { buffers, stages, sources, .. } = &self.definition;
        let mut types: Vec<&str> = Vec::new();
        let mut declared = String::new();
        for BufferSpec { name, role, extent, elements, on_host, lifetime: _ } in buffers {
            let elements = short_name(elements);
            if !types.contains(&elements) {
                types.push(elements);
            }
            // Writing to a string does not fail.
            let _ = writeln!(declared, "{name:?} {role:?} {extent:?} {elements} {on_host}");
        }
        for StageSpec { name, uses, .. } in stages {
            let _ = writeln!(declared, "{name:?} {uses:?}");
        }
        let source = if sources.is_empty() { String::new() } else { hash(&format!("{sources:?}")) };
        let (kernel, variant, dtypes) = (name.into(), hash(&declared), types.join(" "));
        Key { kernel, source, variant, dtypes, policy, objective }
    }

    /// The shape of the pipeline's entry in a profile: its number of items.
    pub fn shape(&self) -> Vec<(String, u64)> {
        vec![(SIZE.to_owned(), self.items())]
    }

    /// Looks up the entry of `key` for the number of items in the guard's profile, as [`Guard::tuned`].
    /// Build the pipeline again with the entry's [parameters](TunedChoice::parameter), and plan it with
    /// [`Self::plan_tuned`].
    ///
    /// ```
    /// use gridguard_pipeline::{Budget, Error, Pipeline};
    /// use gridguard::profile::{Objective, Policy};
    /// use gridguard::{DeviceLimits, Guard};
    ///
    /// fn build(block: u64) -> Result<Pipeline<'static>, Error> {
    ///     let mut builder = Pipeline::builder(100_000);
    ///     builder.parameter("fill.block", block);
    ///     let y = builder.output::<f32>("y", 4);
    ///     let fill = builder.stage("fill", move |_, views| {
    ///         views.write(y)?.chunks_mut(block as usize).for_each(|block| block.fill(1.0));
    ///         Ok(())
    ///     });
    ///     fill.write(y);
    ///     builder.build()
    /// }
    ///
    /// let guard = Guard::host(DeviceLimits::any_device()); // `with_profile`
    /// let pipeline = build(64)?;
    /// let key = pipeline.key("fill", Policy::default(), Objective::Throughput);
    /// let tuned = pipeline.tuned(&guard, &key);
    /// let pipeline = build(tuned.parameter("fill.block").unwrap_or(64).max(1))?;
    /// let planned = pipeline.plan_tuned(tuned, &Budget::bytes(1 << 20).in_flight(4))?;
    /// assert_eq!(planned.matched.to_string(), "default, because no profile is loaded: load one");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tuned<'g>(&self, guard: &'g Guard, key: &Key) -> TunedChoice<'g> {
        guard.tuned(key, &[SIZE], &[self.items()])
    }

    /// Plans the chunk and the chunks in flight of the entry that [`Self::tuned`] found. A smaller chunk is
    /// planned if it divides the items more evenly.
    ///
    /// An entry that exceeds `budget`, or has other launch parameters than the pipeline, is refused: the
    /// plan then comes from [`Self::plan`], and the refusal is [reported](TunedChoice::refused).
    ///
    /// # Errors
    ///
    /// As [`Self::plan`].
    pub fn plan_tuned(&self, tuned: TunedChoice<'_>, budget: &Budget) -> Result<TunedPlan, Error> {
        let matched = tuned.matched;
        let refused = match tuned.entry.map(|entry| plan_as(entry, self, budget)) {
            Some(Ok(plan)) => return Ok(TunedPlan { plan, matched, refused: None }),
            Some(Err(refused)) => {
                tuned.refused();
                Some(refused)
            }
            None => None,
        };
        Ok(TunedPlan { plan: self.plan(budget)?, matched, refused })
    }
}

/// The plan of `entry`, if it is within the budget.
fn plan_as(entry: &Entry, pipeline: &Pipeline<'_>, budget: &Budget) -> Result<PipelinePlan, Error> {
    check_parameters(&entry.parameters, pipeline.parameters())?;
    let in_flight = value_of(&entry.parameters, IN_FLIGHT).filter(|chunks| *chunks > 0);
    let in_flight = in_flight.ok_or_else(|| {
        refused(format!("parameter {IN_FLIGHT} of the entry is missing or 0: re-tune"))
    })?;
    within("chunks in flight", in_flight, budget.max_in_flight())?;
    let choice = entry.choice;
    let not_runnable = || refused(format!("the pipeline cannot run as the entry says: {choice}"));
    let at_most = match choice {
        // The largest chunk within the budget.
        StoredChoice::Automatic => return pipeline.plan(&budget.in_flight(in_flight)),
        StoredChoice::Whole => u64::MAX,
        StoredChoice::Chunked { max_items } => max_items.get(),
        StoredChoice::Folded | StoredChoice::Shifted => return Err(not_runnable()),
    };
    let wanted = Budget::UNLIMITED.in_flight(in_flight).at_most(at_most);
    let wanted = pipeline.plan(&wanted)?;
    if choice == StoredChoice::Whole && wanted.len() > 1 {
        return Err(not_runnable());
    }
    within("items of a chunk", wanted.chunk_items(), budget.max_items())?;
    within("bytes of scratch", wanted.bytes(), budget.max_bytes())?;
    // Plan again with the caller's budget, which limits smaller chunks after an out of memory.
    let budget = budget.in_flight(wanted.in_flight()).at_most(wanted.chunk_items());
    pipeline.plan(&budget)
}

fn check_parameters(entry: &[(String, u64)], pipeline: &[(String, u64)]) -> Result<(), Error> {
    let names = entry.iter().chain(pipeline).map(|(name, _)| name);
    for name in names.filter(|name| *name != IN_FLIGHT) {
        let (entry, pipeline) = (value_of(entry, name), value_of(pipeline, name));
        if entry != pipeline {
            return Err(refused(format!(
                "parameter {name} is {} in the entry and {} in the pipeline: build the pipeline with \
                 the parameters of the entry, or re-tune",
                value(entry),
                value(pipeline)
            )));
        }
    }
    Ok(())
}

fn within(what: &str, needed: u64, allowed: u64) -> Result<(), Error> {
    if needed > allowed {
        let over = format!("the entry takes {needed} {what}, the budget allows {allowed}");
        return Err(refused(over));
    }
    Ok(())
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::Entry, message)
}

fn value(value: Option<u64>) -> String {
    value.map_or_else(|| "missing".to_owned(), |value| value.to_string())
}

/// The value with this name.
fn value_of(named: &[(String, u64)], name: &str) -> Option<u64> {
    named.iter().find(|(other, _)| other == name).map(|(_, value)| *value)
}

/// `f16` of `half::binary16::f16`, because the path may change with the library's version.
fn short_name(name: &'static str) -> &'static str {
    let head = name.split('<').next().unwrap_or(name);
    name.get(head.rfind("::").map_or(0, |at| at + 2)..).unwrap_or(name)
}

/// The 16 hexadecimal digits of the FNV-1a hash of `text`. Unlike the standard library's hashes, it is the
/// same on every machine and in every version.
fn hash(text: &str) -> String {
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
    format!("{:016x}", text.bytes().fold(FNV_OFFSET, add))
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
/// The name of the number of items in a shape.
const SIZE: &str = "items";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_fnv_1a() {
        // The test vectors of its authors.
        assert_eq!(
            [hash(""), hash("a"), hash("foobar")],
            ["cbf29ce484222325", "af63dc4c8601ec8c", "85944171f73967e8"]
        );
    }

    #[test]
    fn types_are_named_without_their_path() {
        assert_eq!(short_name("f32"), "f32");
        assert_eq!(short_name("half::binary16::f16"), "f16");
        assert_eq!(short_name("num::Complex<half::bf16>"), "Complex<half::bf16>");
    }
}
