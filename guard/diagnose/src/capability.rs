//! Compute capabilities.

use core::fmt;

/// A compute capability: major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability(pub u32, pub u32);

impl Capability {
    /// The capability that `text` begins with as an architecture name without its `sm_`, such as
    /// `90`, `120` or `90a`: the last digit is the minor number.
    ///
    /// ```
    /// use gridguard_diagnose::Capability;
    ///
    /// assert_eq!(Capability::from_sm("120a"), Some(Capability(12, 0)));
    /// ```
    #[must_use]
    pub fn from_sm(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u32 = text.get(..end)?.parse().ok()?;
        (number >= 10).then_some(Self(number / 10, number % 10))
    }

    pub(super) fn sm(self) -> String {
        format!("sm_{}{}", self.0, self.1)
    }

    /// Whether the device runs machine code for `code`: same generation, same or older variant.
    pub(super) fn runs(self, code: Self) -> bool {
        code.0 == self.0 && code.1 <= self.1
    }
}

impl fmt::Display for Capability {
    /// As `9.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architecture_names_are_read_with_their_last_digit_as_the_minor_number() {
        let read = ["90", "120a", "86 sm_90", "9", "x", ""].map(Capability::from_sm);
        let [old, new, ampere] = [(9, 0), (12, 0), (8, 6)].map(|(a, b)| Some(Capability(a, b)));
        assert_eq!(read, [old, new, ampere, None, None, None]);
    }
}
