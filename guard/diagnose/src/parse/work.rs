//! Counts the bytes that are scanned, so that tests show that work is linear in the input.

/// Records that `text` is scanned from its beginning to its end.
#[cfg(not(test))]
pub(super) const fn scanned(_text: &str) {}

#[cfg(test)]
pub(super) use counter::{counted, scanned};

#[cfg(test)]
mod counter {
    use std::cell::Cell;

    thread_local! {
        static BYTES: Cell<usize> = const { Cell::new(0) };
    }

    pub(in crate::parse) fn scanned(text: &str) {
        BYTES.set(BYTES.get() + text.len());
    }

    /// The bytes that `run` scans on this thread.
    pub(in crate::parse) fn counted(run: impl FnOnce()) -> usize {
        BYTES.set(0);
        run();
        BYTES.get()
    }
}
