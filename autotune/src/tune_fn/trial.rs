//! One call of a function that is being tuned.

use core::ops::Range;

use gridguard::Plan;
use gridguard::profile::Named;

use crate::candidate::Candidate;
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::ranges::{CHUNK, did_you_mean};

/// The values of a candidate by name.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    pub(super) parameters: &'a Named,
    pub(super) chunk: Option<u64>,
}

impl<'a> Values<'a> {
    /// The values of `candidate`.
    pub(super) const fn of(candidate: &'a Candidate) -> Self {
        Self { parameters: &candidate.parameters, chunk: Some(candidate.largest_chunk) }
    }

    /// The value of a parameter, or the items of a `chunk`.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] of kind `Illegal` if there is no such name.
    pub fn get(self, name: &str) -> Measured<u64> {
        let value = self.parameters.iter().find(|(known, _)| known == name);
        let value = value.map(|(_, value)| *value).or(self.chunk.filter(|_| name == CHUNK));
        value.ok_or_else(|| {
            let names = self.parameters.iter().map(|(known, _)| known.as_str());
            let nearest = did_you_mean(name, names.chain(self.chunk.map(|_| CHUNK)));
            let message = format!("no parameter is named {name:?}: add it to the space{nearest}");
            MeasureFailure::new(FailureKind::Illegal, message)
        })
    }
}

/// One call of a function that [`tune_fn`](fn@crate::tune_fn) tunes: its candidate, and where its output goes.
#[derive(Debug)]
pub struct Trial<'a> {
    pub(super) candidate: &'a Candidate,
    pub(super) items: u64,
    pub(super) plan: Option<&'a Plan>,
    pub(super) is_check: bool,
    pub(super) output: Option<Vec<f64>>,
}

impl<'a> Trial<'a> {
    /// The candidate.
    #[must_use]
    pub const fn candidate(&self) -> &'a Candidate {
        self.candidate
    }

    /// As [`Values::get`].
    ///
    /// # Errors
    ///
    /// As [`Values::get`].
    pub fn get(&self, name: &str) -> Measured<u64> {
        Values::of(self.candidate).get(name)
    }

    /// The items of each chunk, in order.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = Range<u64>> + use<> {
        let (chunk, items) = (self.candidate.largest_chunk.max(1), self.items);
        let count = usize::try_from(items.div_ceil(chunk)).unwrap_or(usize::MAX);
        (0..count).map(move |place| {
            let start = chunk.saturating_mul(u64::try_from(place).unwrap_or(u64::MAX));
            start..start.saturating_add(chunk).min(items)
        })
    }

    /// The plan of a [guarded](crate::FnSpace::guarded) launch.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] of kind `Illegal` if the space does not describe the launch.
    pub fn plan(&self) -> Measured<&'a Plan> {
        self.plan.ok_or_else(|| {
            let message = "the launch has no plan: describe it with FnSpace::guarded";
            MeasureFailure::new(FailureKind::Illegal, message)
        })
    }

    /// Calls `prepare` before a check. It should overwrite the output, so that elements that the candidate does not
    /// write are found, and restore what the function updates in place.
    ///
    /// # Errors
    ///
    /// The failure of `prepare`.
    pub fn before(&self, prepare: impl FnOnce() -> Measured<()>) -> Measured<()> {
        if self.is_check { prepare() } else { Ok(()) }
    }

    /// Passes on the output, which `read` copies to the host. It is called in a check only, not in a timed call.
    ///
    /// # Errors
    ///
    /// The failure of `read`.
    pub fn output<T: Into<f64>>(
        &mut self,
        read: impl FnOnce() -> Measured<Vec<T>>,
    ) -> Measured<()> {
        if self.is_check {
            self.output = Some(read()?.into_iter().map(Into::into).collect());
        }
        Ok(())
    }
}

/// Compares all elements with the reference.
pub(super) fn compare(output: &[f64], expected: &[f64], tolerance: f64) -> Measured<()> {
    let differs = |what: String| {
        let message = format!("the output differs from the reference: {what}");
        Err(MeasureFailure::new(FailureKind::Mismatch, message))
    };
    if output.len() != expected.len() {
        return differs(format!("it has {} elements, not {}", output.len(), expected.len()));
    }
    let finite = expected.iter().map(|element| element.abs()).filter(|one| one.is_finite());
    let (sum, count) = finite.fold((0.0, 0.0), |(sum, count), one| (sum + one, count + 1.0));
    let mean = if count > 0.0 { sum / count } else { 0.0 };
    for (place, (is, should)) in output.iter().zip(expected).enumerate() {
        // False for NaN.
        let is_close = is == should || (is - should).abs() <= tolerance * should.abs().max(mean);
        if !is_close {
            let of = if tolerance > 0.0 { "" } else { ", allow a tolerance if it may differ" };
            return differs(format!(
                "element {place} is {is}, not {should}; the tolerance is {tolerance}{of}"
            ));
        }
    }
    Ok(())
}
