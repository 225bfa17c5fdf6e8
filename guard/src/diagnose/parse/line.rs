//! The failure that one line tells of.

use super::code::{bare, numbered, xid};
use super::phrases::{Counts, Phrases};
use crate::diagnose::failure::Origin;
use crate::diagnose::subject::Subject;

/// How far a line can be trusted to be about CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    /// It was asked about: a bare number or a few words count.
    Asked,
    /// It is one of many: short words count only beside one that speaks of CUDA.
    Log,
}

/// What a line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) subject: Subject,
    /// The number that alone stands for it.
    pub(super) number: Option<i32>,
}

impl From<Subject> for Told {
    fn from(subject: Subject) -> Self {
        Self { subject, number: None }
    }
}

/// The failure that `line` names, by name, words or number.
pub(super) fn recognise(line: &str, context: Context) -> Option<Told> {
    if context == Context::Log && !Phrases::get().may_tell(line.as_bytes()) {
        return None;
    }
    let lower = line.to_ascii_lowercase();
    if let Some(subject) = xid(&lower, context) {
        return Some(subject.into());
    }
    if is_device_assertion(&lower) {
        return Subject::of_name("CUDA_ERROR_ASSERT").map(Told::from);
    }
    if context == Context::Asked
        && let Some(number) = bare(&lower)
    {
        return Some(Told { subject: Subject::of_code(number), number: Some(number) });
    }
    let named = named(line, context);
    let worded = worded(&lower, context);
    let number = numbered(&lower);
    let numbered = || number.map(|number| (Subject::of_code(number), Some(number)));
    // What only wraps another failure yields to that one, wherever it stands.
    let plain = |subject: &Subject| !subject.failure().wraps;
    // TensorFlow calls each code `UNKNOWN ERROR` that it has no name for.
    let vague = |subject: &Subject| subject.number() == Some(UNKNOWN) && number.is_some();
    let alone = |subject: Subject| (subject, None);
    let (subject, number) = named
        .filter(Subject::is_cuda)
        .map(alone)
        .or_else(|| {
            let counts =
                |it: &Subject| plain(it) && !vague(it) && named.is_none_or(|it| !plain(&it));
            worded.filter(counts).map(alone)
        })
        .or_else(|| named.filter(plain).map(alone))
        .or_else(numbered)
        .or_else(|| missing_library(&lower).or(named).or(worded).map(alone))?;
    Some(Told { subject, number })
}

/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: i32 = 999;

/// A failed assertion of device code names the block and the thread.
pub(super) fn is_device_assertion(lower: &str) -> bool {
    lower.contains("assertion `") && lower.contains("failed") && lower.contains("thread: [")
}

pub(super) fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|token| !token.is_empty())
}

/// The first name of a failure, one of CUDA itself before one of a library.
fn named(line: &str, context: Context) -> Option<Subject> {
    const PREFIXES: [&str; 8] = [
        "cuda_error_",
        "cudaerror",
        "cublas_status_",
        "cudnn_status_",
        "nccl",
        "nvrtc_error_",
        "cufft_",
        "cusolver_status_",
    ];
    let mut first = None;
    for token in tokens(line) {
        let lower = token.to_ascii_lowercase();
        let found = match context {
            _ if PREFIXES.iter().any(|prefix| lower.starts_with(prefix)) => Subject::of_name(token),
            // People leave the prefix out.
            Context::Asked if token.len() == line.trim().len() => {
                Subject::of_name(&format!("CUDA_ERROR_{token}"))
                    .or_else(|| Subject::of_name(&format!("cudaError{token}")))
            }
            _ => None,
        };
        match found {
            Some(subject) if subject.is_cuda() => return Some(subject),
            subject => first = first.or(subject),
        }
    }
    first
}

/// The failure with the longest words in the line.
fn worded(lower: &str, context: Context) -> Option<Subject> {
    let asked = context == Context::Asked;
    let counts = |counts| match counts {
        Counts::Everywhere => true,
        Counts::BesideCuda => asked || speaks_of_cuda(lower),
        Counts::BesideModule => asked || lower.contains("nvrm"),
        Counts::WhereAsked => asked || lower.contains("pycuda"),
    };
    Phrases::get().best(lower, counts).map(|phrase| phrase.failure.into())
}

/// Whether the line is about CUDA, and not about a file in one of its folders.
fn speaks_of_cuda(lower: &str) -> bool {
    const WORDS: [&str; 12] = [
        "cuda", "gpu", "nvrm", "nvml", "nvidia", "nccl", "cublas", "cudnn", "triton", "culaunch",
        "ptx", "nvrtc",
    ];
    let is_said = |word: &&str| {
        lower.match_indices(*word).any(|(start, found)| {
            let before = lower.get(..start).and_then(|text| text.chars().next_back());
            let after = lower.get(start + found.len()..).and_then(|text| text.chars().next());
            let in_path = |c: Option<char>| matches!(c, Some('/' | '\\' | '-'));
            match *word {
                // As in `gpu_exporter` and `/data/gpu`.
                "gpu" => !in_path(before) && !in_path(after) && after != Some('_'),
                _ => !(in_path(before) && (in_path(after) || !is_letter(after))),
            }
        })
    };
    WORDS.iter().any(is_said)
}

fn is_letter(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A library that the loader did not find, or that does not fit another.
fn missing_library(lower: &str) -> Option<Subject> {
    const OF_CUDA: [&str; 12] = [
        "libcudart",
        "libcublas",
        "libcudnn",
        "libcufft",
        "libcurand",
        "libcusparse",
        "libcusolver",
        "libcufile",
        "libcupti",
        "libnccl",
        "libnvjitlink",
        "libnvtoolsext",
    ];
    let library = if let Some((before, _)) = lower.split_once(": cannot open shared object file") {
        before.rsplit([' ', '\'', '"', '/']).next()
    } else if lower.contains("undefined symbol") {
        let is_cuda = |name: &str| lower.contains(name);
        if lower.contains("libcuda.so") {
            return Subject::of_name("CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER");
        }
        let mixed = OF_CUDA.into_iter().chain(["libtorch_cuda", "libc10_cuda"]).any(is_cuda);
        return mixed.then(|| Subject::of_name("CUDA libraries mixed")).flatten();
    } else {
        let not_loaded = ["could not load", "unable to load", "failed to load", "not found"];
        let is_said = not_loaded.iter().any(|words| lower.contains(words));
        let start = lower.find("libcu").or_else(|| lower.find("libn")).filter(|_| is_said);
        start.and_then(|start| lower.get(start..))
    };
    let library = library?;
    let name = match () {
        () if library.starts_with("libcuda.so") => "libcuda missing",
        () if library.starts_with("libnvrtc") => "libnvrtc missing",
        () if OF_CUDA.iter().any(|name| library.starts_with(name)) => "CUDA library missing",
        () => return None,
    };
    Subject::of_name(name)
}

/// What a text may mean that is recognised as nothing: failures in whose messages it stands.
pub(in crate::diagnose) fn similar(text: &str) -> Vec<Subject> {
    let words = |text: &str| tokens(&text.to_ascii_lowercase()).collect::<Vec<_>>().join(" ");
    let text = match words(text).as_str() {
        "oom" => "out of memory".to_owned(),
        text => text.to_owned(),
    };
    if text.len() < 3 {
        return Vec::new();
    }
    let text = format!(" {text} ");
    let has = |other: &str| format!(" {} ", words(&other.replace('_', " "))).contains(&text);
    crate::diagnose::codes::failures()
        .filter(|row| row.origin != Origin::Xid && !row.retired)
        .filter(|row| has(row.name) || row.wordings.iter().any(|other| has(other)))
        .map(Subject::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::codes::failures;

    fn name(line: &str, context: Context) -> Option<&'static str> {
        recognise(line, context).map(|told| told.subject.failure().name)
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
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
    fn a_question_may_be_a_number_a_name_or_a_few_words() {
        for (text, expected) in [
            ("700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
            (" 9 ", "cudaErrorInvalidConfiguration"),
            ("0x2bc", "CUDA_ERROR_ILLEGAL_ADDRESS"),
            ("(700)", "CUDA_ERROR_ILLEGAL_ADDRESS"),
            ("error code 700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
            ("4711", "CUDA error"),
            ("xid 79", "Xid"),
            ("Out Of Memory", "CUDA_ERROR_OUT_OF_MEMORY"),
            ("invalid value", "CUDA_ERROR_INVALID_VALUE"),
            ("cudaError 9", "cudaErrorInvalidConfiguration"),
            ("cudaerrorinvalidvalue", "CUDA_ERROR_INVALID_VALUE"),
            ("ILLEGAL_ADDRESS", "CUDA_ERROR_ILLEGAL_ADDRESS"),
            ("InvalidConfiguration", "cudaErrorInvalidConfiguration"),
            ("CUDNN_STATUS_NOT_SUPPORTED_LAYOUT", "CUDNN_STATUS_NOT_SUPPORTED"),
        ] {
            assert_eq!(name(text, Context::Asked), Some(expected), "{text}");
        }
        for text in ["0", "-1", "-700", "99999999999", "hello", "exit code 9", "port 700", "", "x"]
        {
            assert_eq!(name(text, Context::Asked), None, "{text}");
        }
    }

    #[test]
    fn what_is_half_remembered_is_found_by_its_words() {
        let names = |text| similar(text).iter().map(|it| it.failure().name).collect::<Vec<_>>();
        assert_eq!(names("illegal memory access"), ["CUDA_ERROR_ILLEGAL_ADDRESS"]);
        assert_eq!(names("Device side assert"), ["CUDA_ERROR_ASSERT"]);
        assert!(names("peer access").len() > 2);
        assert_eq!(names("hello"), [""; 0]);
        assert_eq!(names("an"), [""; 0]);
    }
}
