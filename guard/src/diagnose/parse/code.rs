//! Numbers that are codes of CUDA, or of Xids.

use super::line::{Context, tokens};
use crate::diagnose::codes::by_number;
use crate::diagnose::subject::Subject;

/// Words between `CUDA` and its number; the first ones alone do not speak of a failure.
const NEUTRAL: [&str; 11] = [
    "driver",
    "runtime",
    "api",
    "library",
    "with",
    "init",
    "initialization",
    "call",
    "to",
    "unknown",
    "internal",
];
const FILLERS: [&str; 10] = [
    "err",
    "error",
    "errors",
    "errno",
    "code",
    "status",
    "result",
    "failure",
    "failed",
    "cudaerror",
];

/// The number of a text that is nothing else, such as `700`, `0x2bc`, `(700)` or `error code 700`;
/// none of CUDA's is negative, and 0 is none.
pub(super) fn bare(lower: &str) -> Option<i32> {
    let mut numbers = tokens(lower).filter(|token| !is_filler(token));
    let token = numbers.next()?;
    let number = match token.strip_prefix("0x") {
        Some(digits) => i32::from_str_radix(digits, 16),
        None => token.parse(),
    };
    let is_alone = numbers.next().is_none() && !lower.contains('-') && !lower.contains('.');
    number.ok().filter(|number| *number > 0 && is_alone)
}

/// A number right after words such as `CUDA error`, or before `Call to cuMemAlloc`.
pub(super) fn numbered(lower: &str) -> Option<i32> {
    let known = |number: Option<i32>| number.filter(|number| by_number(*number).is_some());
    if let Some((before, _)) = lower.split_once("] call to cu") {
        let number = known(before.rsplit('[').next().and_then(|number| number.parse().ok()));
        if number.is_some() {
            return number;
        }
    }
    let mut tokens = tokens(lower).peekable();
    while let Some(token) = tokens.next() {
        let mut says_error = matches!(token, "cudaerror" | "cudaerror_t" | "curesult" | "cuinit");
        if !says_error && !is_of_cuda(token) {
            continue;
        }
        while let Some(filler) = tokens.peek().filter(|token| is_filler(token)) {
            says_error |= !NEUTRAL.contains(filler);
            tokens.next();
        }
        let number = known(tokens.peek().and_then(|token| token.parse().ok()));
        if let Some(number) = number.filter(|_| says_error) {
            return Some(number);
        }
    }
    None
}

/// Whether it is CUDA, or a function of it, such as `cudaSetDevice` or `cuMemAlloc`.
fn is_of_cuda(token: &str) -> bool {
    const FAMILIES: [&str; 9] = [
        "cuda", "cumem", "culaunch", "cuctx", "custream", "cuevent", "cumodule", "cudevice",
        "culink",
    ];
    FAMILIES.iter().any(|family| token.starts_with(family)) && !token.contains('_')
}

fn is_filler(token: &str) -> bool {
    FILLERS.contains(&token) || NEUTRAL.contains(&token)
}

/// `NVRM: Xid (PCI:0000:06:00): 31, pid=...`, or `xid 31` where it was asked about.
pub(super) fn xid(lower: &str, context: Context) -> Option<Subject> {
    if context == Context::Log && !lower.contains("nvrm") {
        return None;
    }
    let (before, rest) = lower.split_once("xid")?;
    if before.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let rest = match rest.split_once("):") {
        Some((place, after)) if place.trim_start().starts_with('(') => after,
        _ => rest,
    };
    let rest = rest.trim_start_matches([' ', ':', '=']);
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..end)?.parse().ok().map(Subject::of_xid)
}
