//! Lines of the driver's own log: `CUDA_LOG_FILE`, drivers of CUDA 12.9 and later.

/// Lines that are kept for the next failure: one call logs one or two.
pub(super) const KEPT: usize = 4;

/// A line of the driver's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriverLine<'a> {
    /// Why a call fails.
    Message(&'a str),
    /// The result of that call.
    Result,
    /// The result of a call that libraries expect to fail, when they ask for newer functions.
    Expected,
}

impl<'a> DriverLine<'a> {
    /// `[22:21:32.099][25642][CUDA][E] message`, in older drivers with a fifth field for the call.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let message = match text.split_once("[CUDA][E]") {
            Some((_, rest)) => match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                Some((_call, rest)) => rest.trim(),
                None => rest.trim(),
            },
            None => Some(text).filter(|text| is_about_sizes(text))?,
        };
        Some(match message.strip_prefix("Returning ").and_then(|it| it.split_once(" from ")) {
            Some((_, call)) if call.starts_with("cuGetProcAddress") => Self::Expected,
            Some(_) => Self::Result,
            None => Self::Message(message),
        })
    }
}

/// Whether a message says which size of a launch is too large.
pub(super) fn is_about_sizes(message: &str) -> bool {
    if !message.contains("maximum value of") {
        return false;
    }
    let message = message.to_ascii_lowercase();
    ["grid dim", "block dim"].iter().any(|size| message.contains(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_older_and_newer_drivers_are_read() {
        let message = "Grid Dimension Y of 65536 exceeds maximum value of 65535";
        for fields in ["", "[1:2.3][42][CUDA][E] ", "[1:2.3][42][CUDA][E][cuLaunchKernel] "] {
            let line = format!("{fields}{message}");
            assert_eq!(DriverLine::parse(&line), Some(DriverLine::Message(message)), "{line}");
        }
        let returning = |call| format!("[1][2][CUDA][E] Returning 1 (CUDA_ERROR_X) from {call}");
        assert_eq!(DriverLine::parse(&returning("cuLaunchKernel")), Some(DriverLine::Result));
        let asked = returning("cuGetProcAddress_v2");
        assert_eq!(DriverLine::parse(&asked), Some(DriverLine::Expected));
        assert_eq!(DriverLine::parse("the grid has 3 dimensions"), None);
    }
}
