//! Names of added entries, functions and registers. None of them occurs in the original text.

use std::collections::HashSet;

use crate::lexer::lossy;

/// The part that all added names share, and that no other name of the text has.
#[derive(Debug)]
pub(crate) struct Names {
    tag: String,
}

impl Names {
    /// Names for `text`. A number keeps names unique if the text was rewritten before.
    pub(crate) fn new(text: &[u8]) -> Self {
        let places = text.windows(TAG.len()).enumerate();
        let found = places.filter(|(_, part)| part.starts_with(b"_") && *part == TAG.as_bytes());
        let number = |(at, _)| {
            let after = text.iter().skip(at + TAG.len());
            let digits = after.take_while(|byte| byte.is_ascii_digit()).take(MOST_DIGITS);
            digits.fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'))
        };
        let taken: HashSet<u64> = found.map(number).collect();
        match (0..).find(|number| !taken.contains(number)) {
            Some(number) if number > 0 => Self { tag: format!("{TAG}{number}") },
            _ => Self { tag: TAG.to_owned() },
        }
    }

    /// The name of the variant `suffix` of an entry, a function or a label.
    pub(crate) fn variant(&self, name: &[u8], suffix: &str) -> String {
        format!("{}{}_{suffix}", lossy(name), self.tag)
    }

    /// Replaces each `$` of a template by the shared part.
    pub(crate) fn fill(&self, template: &str) -> String {
        template.replace('$', &self.tag)
    }
}

/// Numbers with more digits are never chosen.
const MOST_DIGITS: usize = 18;
const TAG: &str = "__gridguard";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_text_has_are_not_chosen() {
        for (text, tag) in [
            ("", "__gridguard"),
            ("__gridguar", "__gridguard"),
            ("__gridguard", "__gridguard1"),
            ("a__gridguard_shifted b__gridguard2 ___gridguard1_", "__gridguard3"),
            ("__gridguard0", "__gridguard1"),
            ("__gridguard11111111111111111111111111111111111", "__gridguard"),
        ] {
            assert_eq!(Names::new(text.as_bytes()).tag, tag, "{text}");
        }
    }
}
