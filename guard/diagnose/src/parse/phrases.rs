//! The messages of all failures, searched for in one pass over a line.

use core::cmp::Reverse;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use super::work;
use crate::codes::known_failures;
use crate::failure::{KnownFailure, Origin};

/// Text that stands for a failure, in lower case.
#[derive(Debug)]
pub(super) struct Phrase {
    text: String,
    pub(super) failure: &'static KnownFailure,
    scope: Scope,
}

/// Where a phrase counts as a CUDA failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Anywhere,
    /// In a line that mentions CUDA, and in a question.
    NearCuda,
    /// In a line of the NVIDIA kernel module, and in a question.
    KernelModule,
    /// In a question, and in a line of PyCUDA, Blender or an old Triton, which print names as words.
    Question,
}

/// Messages of more than three words that other programs print as well.
const SHARED_WITH_OTHERS: &str = "wait operation timed out|the library was not initialized|the resource allocation failed|\
     an internal operation failed|the requested functionality is not supported|\
     an unsupported value or parameter was passed to the function|\
     the function requires an architectural feature absent from the|\
     the function requires an architectural feature absent from the device|\
     the operation cannot be performed in the present state|\
     remote process exited or there was a network error";
/// Messages of up to three words that only CUDA prints.
const ONLY_CUDA: &str = "expected mha_graph|mha_graph->execute|mha_graph.execute|canuse32bitindexmath|\
     invalid configuration argument|unspecified launch failure|device-side assert triggered|\
     invalid device function|resource_exhausted: failed to allocate";
/// Words that mark a message as one of CUDA.
const MARKS: [&str; 9] =
    ["cuda", "gpu", "nvidia", "nvml", "nvrm", "nccl", "cudnn", "num_gpus", "torch."];

/// Other marks of failures besides phrases: names, numbers, assertions, libraries.
const TRIGGERS: &str = "cudnn hiperror err` error_ cublas cufft cusolver cusparse curesult cuinit nccl nvr assertion libcu libn";
/// How functions of CUDA begin.
pub(super) const FAMILIES: &str =
    "cuda cumem culaunch cuctx custream cuevent cumodule cudevice culink";

/// All phrases and the automaton that finds them.
pub(super) struct Phrases {
    /// Best first: phrases of failures that only wrap another come last, longer ones first.
    ranked: Vec<Phrase>,
    /// Its pattern ids are places in `ranked`; the triggers follow.
    automaton: AhoCorasick,
}

pub(super) static PHRASES: LazyLock<Phrases> = LazyLock::new(|| {
    let mut ranked: Vec<Phrase> = known_failures().flat_map(phrases_of).collect();
    ranked.sort_by_key(|phrase| (phrase.failure.wraps, Reverse(phrase.text.len())));
    let texts = ranked.iter().map(|phrase| phrase.text.as_str());
    let automaton =
        automaton(texts.chain([TRIGGERS, FAMILIES].iter().flat_map(|words| words.split(' '))));
    Phrases { ranked, automaton }
});

/// Finds each of `words`, in any case.
#[allow(clippy::expect_used, reason = "the words are constants, and the tests find each")]
pub(super) fn automaton<'a>(words: impl IntoIterator<Item = &'a str>) -> AhoCorasick {
    let mut builder = AhoCorasick::builder();
    builder.ascii_case_insensitive(true).build(words).expect("a few hundred short words")
}

impl Phrases {
    /// Whether `line` may report a failure. Most lines of a log do not.
    pub(super) fn may_report(&self, line: &str) -> bool {
        work::scanned(line);
        self.automaton.is_match(line)
    }

    /// The best phrase in `line` whose scope `admits` accepts.
    pub(super) fn best(&self, line: &str, admits: impl Fn(Scope) -> bool) -> Option<&Phrase> {
        work::scanned(line);
        let rank = self
            .automaton
            .find_overlapping_iter(line)
            .filter(|found| is_whole(line, found.start(), found.end()))
            .map(|found| found.pattern().as_usize())
            .inspect(|_| work::scanned("."))
            .filter(|rank| self.ranked.get(*rank).is_some_and(|phrase| admits(phrase.scope)))
            .min()?;
        self.ranked.get(rank)
    }
}

fn phrases_of(failure: &'static KnownFailure) -> impl Iterator<Item = Phrase> {
    let messages = failure.messages().iter().map(move |message| {
        let text = message.to_ascii_lowercase();
        let scope = match failure.origin {
            Origin::Xid => Scope::KernelModule,
            _ => scope_of(&text),
        };
        Phrase { text, failure, scope }
    });
    // `invalid value` is often asked for CUDA_ERROR_INVALID_VALUE.
    let stem = failure.name.strip_prefix("CUDA_ERROR_").filter(|stem| stem.contains('_'));
    let stem = stem.map(|stem| Phrase {
        text: stem.to_ascii_lowercase().replace('_', " "),
        failure,
        scope: Scope::Question,
    });
    messages.chain(stem)
}

fn scope_of(text: &str) -> Scope {
    let is_specific = text.split(' ').count() > 3 || MARKS.iter().any(|mark| text.contains(mark));
    let is_one_of = |phrases: &str| phrases.split('|').any(|it| it == text);
    if is_one_of(ONLY_CUDA) || is_specific && !is_one_of(SHARED_WITH_OTHERS) {
        Scope::Anywhere
    } else {
        Scope::NearCuda
    }
}

/// Whether `text[start..end]` consists of whole words.
fn is_whole(text: &str, start: usize, end: usize) -> bool {
    let is_word = |at: Option<usize>| {
        at.and_then(|at| text.as_bytes().get(at)).is_some_and(u8::is_ascii_alphanumeric)
    };
    !is_word(start.checked_sub(1)) && !is_word(Some(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phrase_is_found_and_its_line_is_never_skipped() {
        let phrases = &*PHRASES;
        for phrase in &phrases.ranked {
            let line = format!("a line of x: {}.", phrase.text.to_ascii_uppercase());
            assert!(phrases.may_report(&line), "{line}");
            let found = phrases.best(&line, |_| true).expect("found");
            assert!(found.text.contains(&phrase.text), "{} for {}", found.text, phrase.text);
        }
    }

    #[test]
    fn phrases_are_whole_words() {
        let find = |line| PHRASES.best(line, |_| true).map(|phrase| phrase.text.as_str());
        assert_eq!(find("x out of memory."), Some("out of memory"));
        assert_eq!(find("about of memory"), None);
        assert_eq!(find("out of memoryless"), None);
        assert_eq!(find("out of"), None);
    }

    #[test]
    fn ordinary_lines_are_skipped() {
        for line in ["", "abc", "step 12 loss 0.1234 tokens/s 12345.6", "\u{fc}\u{1f600}"] {
            assert!(!PHRASES.may_report(line), "{line}");
        }
    }
}
