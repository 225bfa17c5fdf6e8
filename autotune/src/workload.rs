//! What is tuned: anything that can be launched as a candidate says.

use crate::candidate::{Candidate, LaunchConfig};
use crate::measurer::MeasureFailure;
use crate::sample::Portion;

/// A problem with its memory, on a device or on the host.
///
/// [`InProcess`](crate::InProcess) drives it: each candidate is prepared, then checked, then launched
/// for as many samples as it takes, in turns with others. The default is checked first, except in a
/// process that takes the place of one that died: what outputs are compared with is made of the
/// default itself, and not of whatever comes first.
pub trait Workload {
    /// The launch with each set of parameters that is worth measuring, the default first; no two with
    /// the same parameters. A [`Candidate`] names its own by them.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] where not even the default can be prepared.
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure>;

    /// Makes everything ready that is not to be timed: compiles, plans, allocates.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] where this candidate cannot run.
    fn prepare(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure>;

    /// Submits the launches of a candidate that was prepared: those of the plan that its choice makes
    /// of its configuration, or the one of them that has the most items. On a device it returns
    /// before they have run, on the host after. Nothing else belongs here, for all of it is timed.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] where a launch is refused.
    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Result<(), MeasureFailure>;

    /// Spoils the output, runs the candidate once and compares all of the output with the default's,
    /// which was itself held against a reference.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] where it is wrong or does not run.
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure>;
}
