//! Figures and words as a picture shows them.

use crate::number::{real, whole};

/// `15,360`; from ten million on `1.2e7`.
pub(super) fn grouped(count: u64) -> String {
    if count >= 10_000_000 {
        return format!("{:.1e}", real(count));
    }
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn microseconds(ns: f64) -> String {
    let us = ns / 1000.0;
    match us {
        _ if us >= 100.0 => grouped(whole(us)),
        _ if us >= 1.0 => format!("{us:.1}"),
        _ => format!("{us:.3}"),
    }
}

pub(super) fn shortened(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    let kept: String = text.chars().take(letters.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_thousands() {
        assert_eq!(
            [999, 1000, 65_535, 12_000_000].map(grouped),
            ["999", "1,000", "65,535", "1.2e7"]
        );
    }
}
