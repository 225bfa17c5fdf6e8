//! Launches as a profile says, or by default, and which of both it was.

use gridguard::Choice;
use gridguard::profile::{Match, Objective, Policy};

use crate::error::KernelError;
use crate::kernels::{Kernels, Prepared};
use crate::tunable::Tunable;

/// What was prepared, and which entry of the profile served.
#[derive(Clone, Debug)]
pub struct TunedKernel<O> {
    /// The operation, with the launch parameters of the entry.
    pub prepared: Prepared<O>,
    /// How the entry matched.
    pub matched: Match,
    /// Why the entry was not taken, where it was not: the default serves then.
    pub rejected: Option<KernelError>,
}

impl Kernels {
    /// Prepares `operation` as the guard's profile says for its sizes; by default where the profile
    /// says nothing, or what is not legal here, which is counted as a miss.
    ///
    /// `policy` and `objective` are those that the profile was tuned for.
    ///
    /// # Errors
    ///
    /// As [`Self::prepare`].
    pub fn prepare_tuned<O: Tunable>(
        &self,
        operation: O,
        policy: Policy,
        objective: Objective,
    ) -> Result<TunedKernel<O>, KernelError> {
        let key = operation.key(self.guard().limits(), policy, objective)?;
        let (names, sizes): (Vec<&str>, Vec<u64>) = operation.sizes().into_iter().unzip();
        let answer = self.guard().tuned(&key, &names, &sizes);
        let matched = answer.matched;
        if answer.entry.is_none() {
            let prepared = self.prepare(operation, Choice::AUTOMATIC)?;
            return Ok(TunedKernel { prepared, matched, rejected: None });
        }
        let tuned = operation.with_parameters(answer.parameters());
        let rejected = match tuned.and_then(|tuned| self.prepare(tuned, answer.choice())) {
            Ok(prepared) => return Ok(TunedKernel { prepared, matched, rejected: None }),
            Err(
                rejected @ (KernelError::Violations(_)
                | KernelError::LaunchParameter { .. }
                | KernelError::UnknownParameter { .. }),
            ) => rejected,
            Err(other) => return Err(other),
        };
        if let Some(profile) = self.guard().profile() {
            profile.refused();
        }
        let prepared = self.prepare(operation, Choice::AUTOMATIC)?;
        Ok(TunedKernel { prepared, matched, rejected: Some(rejected) })
    }
}
