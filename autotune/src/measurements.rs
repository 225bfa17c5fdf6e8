//! Makes the decision lists of a profile from the outcomes of searches, and tells what shapes left out would get.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use gridguard::profile::{
    DecisionList, Document, Entry, Key, Named, ProfileError, Provenance, RowChoice, ServedShape,
    decision_lists,
};
use serde::Serialize;

use crate::outcome::{CandidateVerdict, MeasuredCandidate, TuningOutcome};
use crate::search::finals::TIE_FACTOR;
use crate::stats::Samples;

/// The outcomes of the searches of a run, by key and shape.
///
/// ```
/// use gridguard::DeviceLimits;
/// use gridguard::profile::{DeviceIdentity, Document, Environment};
/// use gridguard_autotune::Measurements;
///
/// let device = DeviceIdentity::new(&DeviceLimits::any_device());
/// let mut document = Document::new(device, Environment::default());
/// Measurements::default().settle(&mut document, "rms_norm")?;
/// assert_eq!(document.decisions(), []);
/// # Ok::<(), gridguard::profile::ProfileError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    outcomes: BTreeMap<(Key, Named), TuningOutcome>,
    /// The lists that [`Self::settle`] made.
    made: BTreeMap<Key, DecisionList>,
}

/// What the choices of a decision list cost shapes that it was not made from: each shape is left out once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeldOut {
    /// Shapes left out whose choice was measured.
    pub shapes: u64,
    /// Shapes whose choice was not measured for them.
    pub unknown: u64,
    /// The 95th percentile of the time over the best time, less 1.
    pub p95: f64,
    /// The largest.
    pub worst: f64,
}

impl Measurements {
    /// Adds the outcome from which `entry` was made.
    pub fn add(&mut self, entry: &Entry, outcome: &TuningOutcome) {
        self.outcomes.insert((entry.key.clone(), entry.shape.clone()), outcome.clone());
    }

    /// Gives each key of `kernel` in the profile a decision list, with as few distinct choices as keep each shape within
    /// 2 % of its best, and gives each measured entry the choice of its row. A list of before this run that does so too and
    /// reaches as far stays as it is, since a person may have changed it.
    ///
    /// # Errors
    ///
    /// [`ProfileError`] if an entry cannot be replaced.
    pub fn settle(&mut self, document: &mut Document, kernel: &str) -> Result<(), ProfileError> {
        let of_kernel = document.entries().iter().filter(|entry| entry.key.kernel == kernel);
        let shapes: Vec<ServedShape> = of_kernel.map(|entry| self.served(entry)).collect();
        for new in decision_lists(&shapes) {
            let key = new.key.clone();
            let of_key = || shapes.iter().filter(|one| one.key == key);
            let stays = |list: &&DecisionList| {
                let served = |one: &ServedShape| {
                    choice_of(list, &one.shape).is_some_and(|it| one.choices.contains(&it))
                };
                self.made.get(&key) != Some(*list) && list.reaches(&new) && of_key().all(served)
            };
            let list = document.decision(&key).filter(stays).cloned();
            let list = list.unwrap_or_else(|| {
                self.made.insert(key.clone(), new.clone());
                new
            });
            for ServedShape { key, shape, .. } in of_key() {
                let Some(outcome) = self.outcomes.get(&(key.clone(), shape.clone())) else {
                    continue;
                };
                let measured = choice_of(&list, shape).and_then(|choice| outcome.measured(&choice));
                if let Some((measured, entry)) = measured.zip(document.get(key, shape)) {
                    let MeasuredCandidate { candidate, summary, .. } = measured;
                    let (before, now) = (entry.chosen.median_ns, summary.median_ns.max(1));
                    let attained_percent =
                        entry.found.attained_percent.saturating_mul(before) / now;
                    document.insert(Entry {
                        choice: candidate.choice,
                        parameters: candidate.parameters.clone(),
                        launches: candidate.launches,
                        chosen: *summary,
                        found: Provenance { attained_percent, ..entry.found.clone() },
                        ..entry.clone()
                    })?;
                }
            }
            document.decide(list)?;
        }
        Ok(())
    }

    /// Makes the lists without each shape in turn, and looks that shape up. `None` with fewer than three shapes.
    #[must_use]
    pub fn held_out(&self) -> Option<HeldOut> {
        if self.outcomes.len() < FEWEST {
            return None;
        }
        let mut kernels: BTreeMap<&str, Vec<(ServedShape, &TuningOutcome)>> = BTreeMap::new();
        for ((key, shape), outcome) in &self.outcomes {
            let served =
                ServedShape { key: key.clone(), shape: shape.clone(), choices: outcome.served() };
            kernels.entry(&key.kernel).or_default().push((served, outcome));
        }
        let (mut regrets, mut unknown) = (Vec::new(), 0);
        for all in kernels.values() {
            for (place, (left_out, outcome)) in all.iter().enumerate() {
                let others = all.iter().enumerate().filter(|(other, _)| *other != place);
                let others: Vec<_> = others.map(|(_, (served, _))| served.clone()).collect();
                let lists = decision_lists(&others);
                let list = lists.iter().find(|list| list.key == left_out.key);
                let choice = list.and_then(|list| choice_of(list, &left_out.shape)).flatten();
                match outcome.measured(&choice).and_then(|one| outcome.ratio(one)) {
                    Some(ratio) => regrets.push(ratio / outcome.best() - 1.0),
                    None => unknown += 1,
                }
            }
        }
        let regrets = Samples::new(regrets)?;
        let (p95, worst) = (regrets.quantile(0.95), regrets.greatest());
        Some(HeldOut { shapes: regrets.count(), unknown, p95, worst })
    }

    fn served(&self, entry: &Entry) -> ServedShape {
        let served = ServedShape::of(entry);
        match self.outcomes.get(&(entry.key.clone(), entry.shape.clone())) {
            Some(outcome) => ServedShape { choices: outcome.served(), ..served },
            None => served,
        }
    }
}

impl fmt::Display for HeldOut {
    /// `left out one by one: 23 shapes, 95 % of them within 0.9 % of their best, all within 1.8 %, 2 not measured`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shapes, unknown, p95, worst } = self;
        let [p95, worst] = [p95, worst].map(|part| part.max(0.0) * 100.0);
        write!(
            f,
            "left out one by one: {shapes} shapes, 95 % of them within {p95:.1} % of their best, all within "
        )?;
        write!(f, "{worst:.1} %, {unknown} not measured")
    }
}

/// The choice of a list for a shape.
fn choice_of(list: &DecisionList, shape: &Named) -> Option<RowChoice> {
    let row = list.rows.get(list.row_of(shape)?)?;
    Some((!row.is_default()).then(|| (row.choice, row.parameters.clone())))
}

impl TuningOutcome {
    /// The choices within 2 % of the best.
    fn served(&self) -> BTreeSet<RowChoice> {
        let most = self.best() * TIE_FACTOR;
        let is_fast = |one: &&MeasuredCandidate| {
            one.candidate == self.winner
                || is_compared(one) && self.ratio(one).is_some_and(|ratio| ratio <= most)
        };
        let fast = self.candidates.iter().filter(is_fast).map(|one| &one.candidate);
        let default = fast.clone().any(|one| *one == self.default).then_some(None);
        let named = fast.map(|one| Some((one.choice, one.parameters.clone())));
        named.chain(default).collect()
    }

    /// The measurements of a choice.
    fn measured(&self, choice: &RowChoice) -> Option<&MeasuredCandidate> {
        self.candidates.iter().find(|one| match choice {
            Some((choice, parameters)) => {
                (one.candidate.choice, &one.candidate.parameters) == (*choice, parameters)
            }
            None => one.candidate == self.default,
        })
    }

    /// The time of a candidate over the default's.
    fn ratio(&self, one: &MeasuredCandidate) -> Option<f64> {
        let is_default = one.verdict == CandidateVerdict::Default || one.candidate == self.default;
        if is_default { Some(1.0) } else { one.against_default.filter(|_| one.failure.is_none()) }
    }

    /// The least [`Self::ratio`] of the candidates that were compared to the end.
    fn best(&self) -> f64 {
        let compared = self.candidates.iter().filter(|one| is_compared(one));
        compared.filter_map(|one| self.ratio(one)).fold(1.0, f64::min)
    }
}

/// Whether the search compared a candidate to the end, and other processes did not disturb that.
const fn is_compared(one: &MeasuredCandidate) -> bool {
    use CandidateVerdict::{Eliminated, Failed, Undecided};
    !matches!(one.verdict, Eliminated { .. } | Failed | Undecided)
}

/// The fewest shapes of a figure: one to leave out, and two to decide between.
const FEWEST: usize = 3;
