//! Compares the digests of the ranks of a job.

use core::fmt;
use std::collections::BTreeMap;

/// Some ranks of a job make other choices than most ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherChoices {
    /// The most common digest; ties go to the lowest rank.
    pub common: String,
    /// The number of all ranks.
    pub ranks: usize,
    /// The other ranks with their digests.
    pub others: Vec<(usize, String)>,
}

/// Checks that all ranks of a job have the same [digest of choices](super::Profile::choices_digest). A rank with other
/// tuned choices may compute with other numerics, or make the other ranks wait.
///
/// ```
/// use gridguard::profile::{Profile, compare_digests};
///
/// let digest = Profile::default().choices_digest(); // of each rank, gathered by the job
/// compare_digests(&[&digest, &digest])?;
/// let error = compare_digests(&[&digest, &digest, "0a1b2c3d4e"]).expect_err("another profile");
/// assert_eq!(error.others, [(2, "0a1b2c3d4e".to_owned())]);
/// # Ok::<(), gridguard::profile::OtherChoices>(())
/// ```
///
/// # Errors
///
/// [`OtherChoices`] names the ranks that differ.
pub fn compare_digests<D: AsRef<str>>(digests: &[D]) -> Result<(), OtherChoices> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    digests.iter().for_each(|digest| *counts.entry(digest.as_ref()).or_default() += 1);
    let count = |digest: &&str| counts.get(*digest).copied().unwrap_or_default();
    // `max_by_key` returns the last of equals, so it starts at the highest rank.
    let common = digests.iter().rev().map(AsRef::as_ref).max_by_key(count).unwrap_or_default();
    let ranks = digests.iter().map(AsRef::as_ref).enumerate();
    let others = ranks.filter(|(_, digest)| *digest != common);
    let others: Vec<_> = others.map(|(rank, digest)| (rank, digest.to_owned())).collect();
    match others.is_empty() {
        true => Ok(()),
        false => Err(OtherChoices { common: common.to_owned(), ranks: digests.len(), others }),
    }
}

impl fmt::Display for OtherChoices {
    /// `1 of 8 ranks have other tuned choices: rank 3 (1f2e3d4c), the others 0a1b2c3d: give all ranks the same profiles`.
    /// Names up to eight ranks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { common, ranks, others } = self;
        let start = |digest: &str| digest.chars().take(SHOWN_DIGITS).collect::<String>();
        write!(f, "{} of {ranks} ranks have other tuned choices: ", others.len())?;
        for (rank, digest) in others.iter().take(SHOWN_RANKS) {
            write!(f, "rank {rank} ({}), ", start(digest))?;
        }
        if others.len() > SHOWN_RANKS {
            write!(f, "{} more, ", others.len() - SHOWN_RANKS)?;
        }
        write!(f, "the others {}: give all ranks the same profiles", start(common))
    }
}

impl core::error::Error for OtherChoices {}

/// Ranks that a message names.
const SHOWN_RANKS: usize = 8;
/// Digits of a digest in a message.
const SHOWN_DIGITS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_differ_are_named() {
        let (one, two) = ("0123456789", "abcdefghij");
        assert_eq!(compare_digests::<&str>(&[]), Ok(()));
        assert_eq!(compare_digests(&[two; 3]), Ok(()));
        let error = compare_digests(&[two, one, two, one, two]).expect_err("two ranks");
        assert_eq!(
            error.to_string(),
            "2 of 5 ranks have other tuned choices: rank 1 (01234567), rank 3 (01234567), the others \
             abcdefgh: give all ranks the same profiles"
        );
        // With as many of each, rank 0 is right.
        let error = compare_digests(&[two, one]).expect_err("two profiles");
        assert_eq!((&*error.common, error.others), (two, vec![(1, one.to_owned())]));
        let many: Vec<_> = [two; 20].into_iter().chain([one; 10]).collect();
        let text = compare_digests(&many).expect_err("ten ranks").to_string();
        assert!(text.contains("rank 27 (01234567), 2 more, the others abcdefgh:"), "{text}");
    }

    #[test]
    fn texts_of_any_kind_are_compared() {
        let text = compare_digests(&["", "é", "é"]).expect_err("a rank").to_string();
        assert!(text.contains("rank 0 (), the others é:"), "{text}");
    }
}
