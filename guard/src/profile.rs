//! A tuned choice as a profile holds it.
//!
//! A choice never makes a launch legal: the planner takes it within what validation allows, and
//! refuses it where that is not possible.

use core::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::choice::{Choice, Strategy};

/// The parameters that an entry of a profile stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredChoice {
    /// The strategy.
    pub strategy: Strategy,
    /// The most items of a chunk; left out where the planner decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_items: Option<NonZeroU64>,
}

impl StoredChoice {
    /// Reads one choice from RON, such as `(strategy: chunked, max_items: Some(8192))`.
    ///
    /// # Errors
    ///
    /// What is wrong, with line and column.
    ///
    /// ```
    /// use gridguard::profile::StoredChoice;
    /// use gridguard::Choice;
    /// let stored = StoredChoice::from_ron("(strategy: chunked, max_items: Some(8192))")?;
    /// assert_eq!(
    ///     Choice::from(stored),
    ///     Choice::at_most(8192).strategy(gridguard::Strategy::Chunked),
    /// );
    /// assert!(StoredChoice::from_ron("(strategy: chunked, max_items: Some(0))").is_err());
    /// # Ok::<(), ron::error::SpannedError>(())
    /// ```
    pub fn from_ron(text: &str) -> Result<Self, ron::error::SpannedError> {
        ron::from_str(text)
    }
}

impl From<StoredChoice> for Choice {
    fn from(stored: StoredChoice) -> Self {
        Self::at_most(stored.max_items.map_or(0, NonZeroU64::get)).strategy(stored.strategy)
    }
}
