//! Explains launches and allocations that driver or runtime refused, and errors that surface late.

use core::fmt::Display;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

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

/// At most `N` explanations, written and read without a lock.
pub(crate) struct Explained<T: 'static, const N: usize> {
    kept: [AtomicPtr<T>; N],
    claimed: AtomicUsize,
    message: for<'a> fn(&'a T, &'a str) -> Message<'a>,
}

impl<T: Clone, const N: usize> Explained<T, N> {
    /// `message` makes a message of an explanation and its text.
    pub(crate) const fn new(message: for<'a> fn(&'a T, &'a str) -> Message<'a>) -> Self {
        let kept = [const { AtomicPtr::new(ptr::null_mut()) }; N];
        Self { kept, claimed: AtomicUsize::new(0), message }
    }

    /// Prints the text that `make` returns and keeps the explanation, up to `N` explanations. `what` names the refused
    /// things.
    pub(crate) fn explain(&self, what: &str, make: impl FnOnce() -> (String, T)) {
        let place = self.claimed.fetch_add(1, Ordering::Relaxed);
        let Some(kept) = self.kept.get(place) else { return };
        let (mut text, explanation) = make();
        if place + 1 == N {
            text += &format!("gridguard: further refused {what} are counted, and not explained\n");
        }
        process::tell(&(self.message)(&explanation, &text));
        kept.store(Box::into_raw(Box::new(explanation)), Ordering::Release);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        // SAFETY: null, or an explanation that is never freed nor changed.
        let known =
            self.kept.iter().filter_map(|kept| unsafe { kept.load(Ordering::Acquire).as_ref() });
        known.cloned().collect()
    }

    /// Forgets everything, in a child process.
    pub(crate) fn reset(&self) {
        self.kept.iter().for_each(|kept| kept.store(ptr::null_mut(), Ordering::Release));
        self.claimed.store(0, Ordering::Relaxed);
    }
}
