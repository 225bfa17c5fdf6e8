//! What a tuner may vary of attention.

use gridguard::profile::Named;

use super::{LaunchParameters, Layout, Shape, TemporalAttention};
use crate::error::KernelError;
use crate::tunable::{Tunable, unknown_parameter};

impl Tunable for TemporalAttention {
    const KERNEL: &'static str = "temporal_attention";

    fn sizes(&self) -> Vec<(&'static str, u64)> {
        let Shape { items, heads, frames, head_dim } = *self.shape();
        vec![("items", items), ("heads", heads), ("frames", frames), ("head_dim", head_dim)]
    }

    fn dtypes(&self) -> String {
        self.element().to_string()
    }

    fn with_items(&self, items: u64) -> Result<Self, KernelError> {
        let Shape { heads, frames, head_dim, .. } = *self.shape();
        Ok(self.with_shape(Shape::new(items, heads, frames, head_dim)?))
    }

    /// `short y causal`: the variant, the axis of items and heads, and what else is compiled in.
    fn variant(&self) -> String {
        let axis = match self.layout() {
            Layout::FoldedY => "y",
            Layout::FlatX => "x",
        };
        let mut words = vec![TemporalAttention::variant(self).name(), axis];
        let flags = [
            ("causal", self.is_causal()),
            ("bias", self.is_biased()),
            ("strided", self.is_strided()),
        ];
        words.extend(flags.iter().filter(|(_, set)| *set).map(|(word, _)| *word));
        words.join(" ")
    }

    fn parameters(&self) -> Named {
        named(TemporalAttention::parameters(self))
    }

    fn candidates(&self) -> Vec<Named> {
        TemporalAttention::candidates(self).iter().map(named).collect()
    }

    fn with_parameters(&self, parameters: &[(String, u64)]) -> Result<Self, KernelError> {
        let mut wanted = *TemporalAttention::parameters(self);
        for (name, value) in parameters {
            let place = match name.as_str() {
                "warps" => &mut wanted.warps,
                "problems" => &mut wanted.problems,
                "rounds" => &mut wanted.rounds,
                "stages" => &mut wanted.stages,
                _ => return Err(unknown_parameter(Self::KERNEL, name, KNOWN)),
            };
            *place = *value;
        }
        TemporalAttention::with_parameters(*self, wanted)
    }
}

/// The names of all launch parameters.
const KNOWN: &str = "warps, problems, rounds, stages";

fn named(parameters: &LaunchParameters) -> Named {
    let LaunchParameters { warps, problems, rounds, stages } = *parameters;
    let all = [("warps", warps), ("problems", problems), ("rounds", rounds), ("stages", stages)];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
