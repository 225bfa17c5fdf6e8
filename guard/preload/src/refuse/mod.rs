//! Explains launches and allocations that driver or runtime refused, and errors that surface late.

use core::fmt::Display;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use gridguard_report::Message;

use crate::process;

pub(crate) mod driver_log;
pub(crate) mod late;
pub(crate) mod launch;
pub(crate) mod memory;
pub(crate) mod watched;

/// The explanation for standard error: a line for each title and content, then the stack.
fn paragraph(head: &str, lines: &[(&str, String)], stack: &[impl Display]) -> String {
    let mut text = format!("gridguard: {head}\n");
    let mut line = |title: &str, content: &dyn Display| {
        text += &format!("  {title:<8}  {content}\n");
    };
    lines.iter().for_each(|(title, content)| line(title, content));
    for (place, frame) in stack.iter().enumerate() {
        line(if place == 0 { "stack" } else { "" }, frame);
    }
    text
}

/// At most `N` explanations.
pub(crate) struct Explained<T, const N: usize> {
    kept: Mutex<Vec<T>>,
    claimed: AtomicUsize,
    message: for<'a> fn(&'a T, &'a str) -> Message<'a>,
}

impl<T: Clone, const N: usize> Explained<T, N> {
    /// `message` makes a message of an explanation and its text.
    pub(crate) const fn new(message: for<'a> fn(&'a T, &'a str) -> Message<'a>) -> Self {
        Self { kept: Mutex::new(Vec::new()), claimed: AtomicUsize::new(0), message }
    }

    /// Prints the text that `make` returns and keeps the explanation, up to `N` explanations. `what` names the refused
    /// things.
    pub(crate) fn explain(&self, what: &str, make: impl FnOnce() -> (String, T)) {
        let place = self.claimed.fetch_add(1, Ordering::Relaxed);
        if place >= N {
            return;
        }
        let (mut text, explanation) = make();
        if place + 1 == N {
            text += &format!("gridguard: further refused {what} are counted, and not explained\n");
        }
        process::tell(&(self.message)(&explanation, &text));
        if let Some(mut kept) = process::patiently(&self.kept) {
            kept.push(explanation);
        }
    }

    pub(crate) fn all(&self) -> Vec<T> {
        process::patiently(&self.kept).map_or_else(Vec::new, |kept| kept.clone())
    }

    /// Forgets everything, in a child process.
    pub(crate) fn reset(&self) {
        process::patiently(&self.kept).into_iter().for_each(|mut kept| kept.clear());
        self.claimed.store(0, Ordering::Relaxed);
    }
}
