//! Names of added entries, functions and registers. None of them occurs in the original text.

use std::collections::HashSet;

use crate::report::Form;
use crate::special::Quantity;

/// The part that all added names share, and that no other name of the text has.
#[derive(Debug)]
pub(crate) struct Names {
    tag: String,
}

impl Names {
    /// Names for `text`. A number keeps names unique if the text was rewritten before.
    pub(crate) fn new(text: &[u8]) -> Self {
        let mut taken = HashSet::new();
        let mut rest = text;
        while let Some(at) = find(rest, TAG.as_bytes()) {
            rest = rest.get(at + TAG.len()..).unwrap_or_default();
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).take(MOST_DIGITS);
            let number = digits.fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
            taken.insert(number);
        }
        match (0..).find(|number| !taken.contains(number)) {
            Some(number) if number > 0 => Self { tag: format!("{TAG}{number}") },
            _ => Self { tag: TAG.to_owned() },
        }
    }

    /// The parameter that is added to an entry.
    pub(crate) fn parameter(&self) -> String {
        format!("{}_grid", self.tag)
    }

    /// The name of a form of the entry `name`.
    pub(crate) fn entry(&self, name: &str, form: Form) -> String {
        format!("{name}{}_{form}", self.tag)
    }

    /// The name of the function `name` with added parameters.
    pub(crate) fn function(&self, name: &str) -> String {
        format!("{name}{}_called", self.tag)
    }

    /// The name of a label in a form.
    pub(crate) fn label(&self, name: &str, suffix: &str) -> String {
        format!("{name}{}_{suffix}", self.tag)
    }

    /// The name of a block index or grid size, without a register's sign.
    pub(crate) fn value(&self, quantity: Quantity, axis: usize) -> String {
        let register = match quantity {
            Quantity::BlockIndex => "ctaid",
            Quantity::GridSize => "nctaid",
        };
        format!("{}_{register}_{}", self.tag, AXES[axis])
    }

    /// The name of a register for a block index or grid size.
    pub(crate) fn register(&self, quantity: Quantity, axis: usize) -> String {
        format!("%{}", self.value(quantity, axis))
    }

    /// The name of a register for an intermediate result.
    pub(crate) fn scratch(&self, name: &str) -> String {
        format!("%{}_{name}", self.tag)
    }
}

/// Where `part` first occurs in `text`.
fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    let (first, after) = part.split_first()?;
    let mut from = 0;
    loop {
        let rest = text.get(from..)?;
        let at = from + rest.iter().position(|byte| byte == first)?;
        if text.get(at + 1..)?.starts_with(after) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Numbers with more digits are never chosen.
const MOST_DIGITS: usize = 18;
const TAG: &str = "__gridguard";
pub(crate) const AXES: [&str; 3] = ["x", "y", "z"];

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
