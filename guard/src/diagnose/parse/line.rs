//! The failure that one line tells of.

use core::cmp::Reverse;

use once_cell::sync::OnceCell;

use crate::diagnose::codes::{by_number, failures};
use crate::diagnose::failure::{Failure, Origin};
use crate::diagnose::subject::Subject;

/// How far a line can be trusted to be about CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    /// It was asked about: a bare number or a few words count.
    Asked,
    /// It is one of many: short words count only beside one that speaks of CUDA.
    Log,
}

/// The failure that `line` names, by name, words or number.
pub(super) fn recognise(line: &str, context: Context) -> Option<Subject> {
    let lower = line.to_ascii_lowercase();
    if let Some(subject) = xid(&lower, context) {
        return Some(subject);
    }
    if is_device_assertion(&lower) {
        return Subject::of_name("CUDA_ERROR_ASSERT");
    }
    let named = named(line);
    let worded = worded(&lower, context);
    // What only wraps another failure yields to that one, wherever it stands.
    let plain = |subject: &Subject| !subject.failure().wraps;
    named
        .filter(|subject| subject.is_cuda())
        .or_else(|| worded.filter(plain).filter(|_| named.is_none_or(|it| !plain(&it))))
        .or_else(|| named.filter(plain))
        .or_else(|| numbered(&lower, context))
        .or(named)
        .or(worded)
}

/// A failed assertion of device code names the block and the thread.
pub(super) fn is_device_assertion(lower: &str) -> bool {
    lower.contains("assertion `") && lower.contains("failed") && lower.contains("thread: [")
}

fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|token| !token.is_empty())
}

/// The first name of a failure, one of CUDA itself before one of a library.
fn named(line: &str) -> Option<Subject> {
    const PREFIXES: [&str; 5] =
        ["CUDA_ERROR_", "cudaError", "CUBLAS_STATUS_", "CUDNN_STATUS_", "nccl"];
    let mut first = None;
    for token in tokens(line) {
        if !PREFIXES.iter().any(|prefix| token.starts_with(prefix)) {
            continue;
        }
        match Subject::of_name(token) {
            Some(subject) if subject.is_cuda() => return Some(subject),
            subject => first = first.or(subject),
        }
    }
    first
}

/// Words of a message, in lower case.
struct Phrase {
    words: String,
    failure: &'static Failure,
    counts: Counts,
}

/// Where a phrase is taken for a failure of CUDA.
#[derive(Clone, Copy)]
enum Counts {
    Everywhere,
    /// In a line that speaks of CUDA, and in a question.
    BesideCuda,
    WhereAsked,
}

/// All phrases: those that only wrap another failure last, longer ones first, so that the first
/// found is the best.
fn phrases() -> &'static [Phrase] {
    static PHRASES: OnceCell<Vec<Phrase>> = OnceCell::new();
    PHRASES.get_or_init(|| {
        let worded = failures().filter(|failure| failure.origin != Origin::Xid);
        let mut phrases: Vec<Phrase> = worded.flat_map(phrases_of).collect();
        phrases.sort_by_key(|phrase| (phrase.failure.wraps, Reverse(phrase.words.len())));
        phrases
    })
}

fn phrases_of(failure: &'static Failure) -> impl Iterator<Item = Phrase> {
    let wordings = failure.wordings.iter().map(move |words| {
        let words = words.to_ascii_lowercase();
        // Other programs say `out of memory` and `invalid argument` as well.
        let distinctive = words.contains("cuda") || words.split(' ').count() > 3;
        let counts = if distinctive { Counts::Everywhere } else { Counts::BesideCuda };
        Phrase { words, failure, counts }
    });
    // People ask for `invalid value` and mean CUDA_ERROR_INVALID_VALUE.
    let stem = failure.name.strip_prefix("CUDA_ERROR_").filter(|stem| stem.contains('_'));
    let stem = stem.map(|stem| stem.to_ascii_lowercase().replace('_', " "));
    let stem = stem.map(|words| Phrase { words, failure, counts: Counts::WhereAsked });
    wordings.chain(stem)
}

/// The failure with the longest words in the line.
fn worded(lower: &str, context: Context) -> Option<Subject> {
    let asked = context == Context::Asked;
    let beside_cuda = asked || speaks_of_cuda(lower);
    let counts = |phrase: &&Phrase| match phrase.counts {
        Counts::Everywhere => true,
        Counts::BesideCuda => beside_cuda,
        Counts::WhereAsked => asked,
    };
    let mut phrases = phrases().iter().filter(counts);
    phrases.find(|phrase| contains_words(lower, &phrase.words)).map(|it| it.failure.into())
}

fn speaks_of_cuda(lower: &str) -> bool {
    const WORDS: [&str; 10] =
        ["cuda", "gpu", "nvrm", "nvml", "nvidia", "nccl", "cublas", "cudnn", "triton", "culaunch"];
    WORDS.iter().any(|word| lower.contains(word))
}

/// Whether `words` stand in `text` as whole words.
fn contains_words(text: &str, words: &str) -> bool {
    text.match_indices(words).any(|(start, found)| {
        let is_letter = |c: char| c.is_ascii_alphanumeric();
        let before = text.get(..start).and_then(|text| text.chars().next_back());
        let after = text.get(start + found.len()..).and_then(|text| text.chars().next());
        !before.is_some_and(is_letter) && !after.is_some_and(is_letter)
    })
}

/// A number right after words such as `CUDA error`, or alone where it was asked about.
fn numbered(lower: &str, context: Context) -> Option<Subject> {
    if context == Context::Asked
        && let Ok(number) = lower.trim().parse::<i32>()
    {
        return (number != 0).then(|| Subject::of_code(number));
    }
    let mut tokens = tokens(lower).peekable();
    while let Some(token) = tokens.next() {
        let mut says_error = matches!(token, "cudaerror" | "cudaerror_t" | "curesult");
        if !says_error && !matches!(token, "cuda" | "cudart") {
            continue;
        }
        while let Some(filler) = tokens.peek().filter(|token| is_filler(token)) {
            says_error |= !matches!(*filler, "driver" | "runtime" | "api");
            tokens.next();
        }
        let number = tokens.peek().and_then(|token| token.parse().ok());
        let known = number.filter(|number| by_number(*number).is_some());
        if let Some(number) = known.filter(|_| says_error) {
            return Some(Subject::of_code(number));
        }
    }
    None
}

fn is_filler(token: &str) -> bool {
    const FILLERS: [&str; 13] = [
        "error",
        "errors",
        "errno",
        "code",
        "status",
        "result",
        "failure",
        "failed",
        "driver",
        "runtime",
        "api",
        "cudaerror",
        "with",
    ];
    FILLERS.contains(&token)
}

/// `NVRM: Xid (PCI:0000:06:00): 31, pid=...`, or `xid 31` where it was asked about.
fn xid(lower: &str, context: Context) -> Option<Subject> {
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

#[cfg(test)]
mod tests {
    use super::super::messages::MESSAGES;
    use super::*;

    fn name(line: &str, context: Context) -> Option<&'static str> {
        recognise(line, context).map(|subject| subject.failure().name)
    }

    #[test]
    fn messages_of_many_programs_get_their_true_name() {
        for (line, expected) in MESSAGES {
            assert_eq!(name(line, Context::Log), Some(expected), "{line}");
        }
    }

    #[test]
    fn every_wording_and_every_name_is_recognised_as_its_own_row() {
        for row in failures().filter(|row| row.origin != Origin::Xid) {
            for words in row.wordings.iter().chain(&row.runtime_name) {
                assert_eq!(name(words, Context::Asked), Some(row.name), "{words}");
                let line = format!("[rank0] RuntimeError: CUDA error: {words}.");
                assert_eq!(name(&line, Context::Log), Some(row.name), "{line}");
            }
        }
    }

    #[test]
    fn lines_of_other_programs_are_left_alone() {
        for line in [
            "",
            "invalid argument: --foo",
            "bash: file not found",
            "OSError: [Errno 12] out of memory",
            "CUDA 12.8 found",
            "CUDA error checking is on, 9 streams",
            "CUDA kernel errors might be asynchronously reported at some other API call",
            "cudaError_t status = cudaSuccess",
            "nccl 2.21 initialised",
            "the gpu is idle, 700 W at most",
            "taxid 31",
            "CUDA error: 0",
        ] {
            assert_eq!(name(line, Context::Log), None, "{line}");
        }
    }

    #[test]
    fn a_question_may_be_a_number_or_a_few_words() {
        for (text, expected) in [
            ("700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
            (" 9 ", "cudaErrorInvalidConfiguration"),
            ("4711", "CUDA error"),
            ("xid 79", "Xid"),
            ("Out Of Memory", "CUDA_ERROR_OUT_OF_MEMORY"),
            ("invalid value", "CUDA_ERROR_INVALID_VALUE"),
            ("cudaError 9", "cudaErrorInvalidConfiguration"),
            ("CUDNN_STATUS_NOT_SUPPORTED_LAYOUT", "CUDNN_STATUS_NOT_SUPPORTED"),
        ] {
            assert_eq!(name(text, Context::Asked), Some(expected), "{text}");
        }
        assert_eq!(name("0", Context::Asked), None);
        assert_eq!(name("hello", Context::Asked), None);
    }
}
