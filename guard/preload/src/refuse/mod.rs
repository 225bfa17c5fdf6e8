//! Explains launches and allocations that driver or runtime refused, and errors that surface late.

use core::fmt::Display;

pub(crate) mod driver_log;
pub(crate) mod explained;
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
