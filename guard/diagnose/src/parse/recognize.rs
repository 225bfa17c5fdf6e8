//! The failure that one line reports, by name, message or number.

use core::cell::LazyCell;
use std::borrow::Cow;

use super::facts::number;
use super::phrases::{FAMILIES, PHRASES, Scope};
use super::work;
use crate::codes::{by_number, known_failures, of_rocm};
use crate::failure::Origin;
use crate::failure_id::FailureId;

/// How likely a line is about CUDA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Context {
    /// It was asked about: a bare number or a few words count.
    Question,
    /// It is one line of a log: short messages count only where the line mentions CUDA.
    #[default]
    Log,
}

/// The failure that a line reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recognized {
    pub(super) failure: FailureId,
    /// The number, where it alone identified the failure.
    pub(super) number: Option<i32>,
}

impl From<FailureId> for Recognized {
    fn from(failure: FailureId) -> Self {
        Self { failure, number: None }
    }
}

/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: i32 = 999;

/// The failure that `line` reports. Takes time linear in its length.
pub(super) fn recognize(line: &str, context: Context) -> Option<Recognized> {
    if context == Context::Log && !PHRASES.may_report(line) {
        return None;
    }
    let lower = line.to_ascii_lowercase();
    if let Some(failure) = xid(&lower, context) {
        return Some(failure.into());
    }
    if is_device_assertion(&lower) {
        return FailureId::from_name("CUDA_ERROR_ASSERT").map(Recognized::from);
    }
    let by_code =
        |number| Recognized { failure: FailureId::from_code(number), number: Some(number) };
    if context == Context::Question
        && let Some(number) = bare_number(&lower)
    {
        return Some(by_code(number));
    }
    let named = by_name(&without_comparisons(line), context).or_else(|| by_binding(line));
    let message = by_message(&lower, context);
    let number = number_beside_cuda(&lower);
    // A failure that only wraps another yields to that one, wherever it is in the line.
    let is_own = |failure: &FailureId| !failure.entry().wraps;
    // TensorFlow prints `UNKNOWN ERROR` for every code that it has no name for.
    let is_vague = |failure: &FailureId| failure.number() == Some(UNKNOWN) && number.is_some();
    let decides = |failure: &FailureId| {
        is_own(failure) && !is_vague(failure) && named.is_none_or(|named| !is_own(&named))
    };
    let found = named
        .filter(FailureId::is_cuda)
        .or_else(|| message.filter(decides))
        .or_else(|| named.filter(is_own))
        .map(Recognized::from)
        .or_else(|| number.map(by_code))
        .or_else(|| missing_library(&lower).or(named).or(message).map(Recognized::from))?;
    Some(if is_rocm(&lower) { found.on_rocm() } else { found })
}

impl Recognized {
    /// The failure of ROCm, which has the numbers and messages of CUDA.
    pub(super) fn on_rocm(self) -> Self {
        if self.failure.is_cuda() {
            FailureId::from(of_rocm(self.failure.number())).into()
        } else {
            self
        }
    }
}

/// The line without the names that a condition compares with. A failed check of `e == cudaSuccess || e ==
/// cudaErrorCudartUnloading` reports neither.
fn without_comparisons(line: &str) -> Cow<'_, str> {
    let mut parts = line.split("== ");
    let first = parts.next().unwrap_or_default();
    let mut rest = parts.peekable();
    if rest.peek().is_none() {
        return line.into();
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    rest.fold(first.to_owned(), |all, part| all + part.trim_start_matches(is_name)).into()
}

/// Whether the line is about ROCm, which has the messages of CUDA.
fn is_rocm(lower: &str) -> bool {
    const WORDS: &str = "rocm hip hiperror hipoc miopen rocblas hipblas hipmalloc hipmodule hiplaunch \
                         hipmemcpy hipstream hipdevice";
    work::scanned(lower);
    tokens(lower).any(|token| {
        WORDS.split(' ').any(|word| match word {
            "hip" | "rocm" => token == word,
            word => token.starts_with(word),
        })
    })
}

/// The failure that a binding names without CUDA's prefix: `CudaError::OutOfMemory` and `Err` value: `IllegalAddress`
/// in Rust, `ERROR_OUT_OF_MEMORY` in Julia, `ErrorOutOfMemory` in C#.
fn by_binding(line: &str) -> Option<FailureId> {
    const TYPES: [&str; 5] = ["cudaerror", "curesult", "cudaresult", "drivererror", "cudaerror_t"];
    // Other results of Rust have these names, too.
    const COMMON: [&str; 5] =
        ["notfound", "unknown", "notpermitted", "notsupported", "invalidhandle"];
    let near_cuda = LazyCell::new(|| mentions_cuda(&line.to_ascii_lowercase()));
    let (mut before, mut is_value) = (String::new(), false);
    for token in tokens(line).take(MAX_TOKENS) {
        let lower = token.to_ascii_lowercase();
        let stem = lower.strip_prefix("error_").or_else(|| lower.strip_prefix("error"));
        let is_typed = TYPES.contains(&before.as_str());
        is_value = before == "err" && lower == "value" || is_value && before == "value";
        let follows_value = before == "value" && is_value;
        let found = match stem {
            _ if is_typed => by_stem(&lower),
            _ if follows_value && !COMMON.contains(&lower.as_str()) => by_stem(&lower),
            Some(stem) if stem.len() > 5 && *near_cuda => by_stem(stem),
            // As Blender prints names: `ILLEGAL_ADDRESS in cuCtxSynchronize()`.
            None if is_bare_name(token) && *near_cuda => by_stem(&lower),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
        before = lower;
    }
    None
}

/// Whether `token` may be a name of the driver without its prefix that no other program has.
fn is_bare_name(token: &str) -> bool {
    const COMMON: [&str; 5] =
        ["NOT_FOUND", "NOT_PERMITTED", "NOT_SUPPORTED", "INVALID_HANDLE", "NOT_READY"];
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    token.contains('_') && token.chars().all(is_name) && !COMMON.contains(&token)
}

/// Words of a line that may be a name in a binding's spelling.
const MAX_TOKENS: usize = 256;

/// The failure of CUDA whose name ends with `stem`, with or without underscores.
fn by_stem(stem: &str) -> Option<FailureId> {
    let stem = stem.replace('_', "");
    let is_named = |name: &str, prefix: &str| {
        let own = name.strip_prefix(prefix).unwrap_or(name).replace('_', "");
        own.eq_ignore_ascii_case(&stem)
    };
    let entry = known_failures().filter(|it| it.origin.is_cuda() && !it.retired).find(|it| {
        is_named(it.name, "CUDA_ERROR_")
            || [Some(it.name), it.runtime_name]
                .into_iter()
                .flatten()
                .any(|it| is_named(it, "cudaError"))
    })?;
    Some(entry.into())
}

/// Whether a line is about a failed assertion of device code, which names block and thread.
pub(super) fn is_device_assertion(lower: &str) -> bool {
    lower.contains("assertion `") && lower.contains("failed") && lower.contains("thread: [")
}

/// Failures whose name or messages contain `text`, for a half-remembered name.
///
/// ```
/// let similar = gridguard_diagnose::similar_failures("illegal memory access");
/// assert_eq!(similar[0].number(), Some(700));
/// ```
pub fn similar_failures(text: &str) -> Vec<FailureId> {
    let words = |text: &str| tokens(&text.to_ascii_lowercase()).collect::<Vec<_>>().join(" ");
    let text = match words(text).as_str() {
        "oom" => "out of memory".to_owned(),
        text => text.to_owned(),
    };
    if text.len() < 3 {
        return Vec::new();
    }
    let text = format!(" {text} ");
    let contains = |other: &str| format!(" {} ", words(&other.replace('_', " "))).contains(&text);
    known_failures()
        .filter(|entry| entry.origin != Origin::Xid && !entry.retired)
        .filter(|entry| contains(entry.name) || entry.messages().iter().any(|it| contains(it)))
        .map(FailureId::from)
        .collect()
}

fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|token| !token.is_empty())
}

/// `NVRM: Xid (PCI:0000:06:00): 31, pid=...`, or `xid 31` in a question.
fn xid(lower: &str, context: Context) -> Option<FailureId> {
    if context == Context::Log && !lower.contains("nvrm") {
        return None;
    }
    let (before, rest) = lower.split_once("xid")?;
    if before.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let rest = match rest.split_once("):") {
        Some((device, after)) if device.trim_start().starts_with('(') => after,
        _ => rest,
    };
    number(&mut rest.trim_start_matches([' ', ':', '='])).map(FailureId::from_xid)
}

/// The first failure named in the line. Failures of CUDA itself precede failures of a library.
fn by_name(line: &str, context: Context) -> Option<FailureId> {
    const PREFIXES: &str = "cuda_error_ cudaerror cublas_status_ cudnn_status_ nccl nvrtc_error_ \
                            cufft_ cusolver_status_ cusparse_status_ \
                            hiperror";
    work::scanned(line);
    let trimmed = line.trim();
    let mut first = None;
    for token in tokens(line) {
        let has_prefix = |prefix: &str| {
            token.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        };
        let found = if PREFIXES.split(' ').any(has_prefix) {
            FailureId::from_name(token)
        } else if context == Context::Question && token == trimmed {
            // A question often leaves the prefix out.
            FailureId::from_name(&format!("CUDA_ERROR_{token}"))
                .or_else(|| FailureId::from_name(&format!("cudaError{token}")))
        } else {
            None
        };
        match found {
            Some(failure) if failure.is_cuda() => return Some(failure),
            failure => first = first.or(failure),
        }
    }
    first
}

/// The failure with the longest message in the line.
fn by_message(lower: &str, context: Context) -> Option<FailureId> {
    let is_question = context == Context::Question;
    // Computed once for all phrases of the line.
    let near_cuda = LazyCell::new(|| is_question || mentions_cuda(lower) || is_rocm(lower));
    let kernel_module = LazyCell::new(|| is_question || lower.contains("nvrm"));
    // Triton before 2.0 and Blender print names as words, too: `Illegal address in cuCtxSynchronize()`.
    let by_name = ["pycuda", "cuda: error-"];
    let is_by_name = || by_name.iter().any(|start| lower.contains(start));
    let is_blender = || lower.contains(" in cu") && calls_cuda(lower);
    let pycuda = LazyCell::new(|| is_question || is_by_name() || is_blender());
    let admits = |scope| match scope {
        Scope::Anywhere => true,
        Scope::NearCuda => *near_cuda,
        Scope::KernelModule => *kernel_module,
        Scope::Question => *pycuda,
    };
    PHRASES.best(lower, admits).map(|phrase| phrase.failure.into())
}

/// Whether the line is about CUDA, and not about a file in a folder named `cuda`.
fn mentions_cuda(lower: &str) -> bool {
    const WORDS: [&str; 12] = [
        "cuda", "gpu", "nvrm", "nvml", "nvidia", "nccl", "cublas", "cudnn", "triton", "culaunch",
        "ptx", "nvrtc",
    ];
    let is_mention = |word: &&str| {
        lower.match_indices(*word).any(|(start, found)| {
            let before = lower.get(..start).and_then(|text| text.chars().next_back());
            let after = lower.get(start + found.len()..).and_then(|text| text.chars().next());
            let in_path = |c: Option<char>| matches!(c, Some('/' | '\\' | '-'));
            let is_letter =
                |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
            match *word {
                // As in `gpu_exporter` and `/data/gpu`.
                "gpu" => !in_path(before) && !in_path(after) && after != Some('_'),
                _ => !(in_path(before) && (in_path(after) || !is_letter(after))),
            }
        })
    };
    work::scanned(lower);
    WORDS.iter().any(is_mention) || calls_cuda(lower)
}

/// Whether the line names a function of the driver, or a launch or call in the words of CUDA's samples: `Failed to
/// launch vectorAdd kernel (error code invalid argument)!`.
fn calls_cuda(lower: &str) -> bool {
    work::scanned(lower);
    let is_launch = lower.contains("kernel") && lower.contains("launch");
    is_launch
        || lower.contains("(error code ") && lower.contains("device")
        || tokens(lower).any(|token| DRIVER_FUNCTIONS.split(' ').any(|it| token.starts_with(it)))
}

/// How functions of the driver begin.
const DRIVER_FUNCTIONS: &str = "cuctx cumem custream cuevent cumodule cudevice culink cugraph cufunc cukernel culaunch culibrary";

/// Words between `CUDA` and its number that do not speak of a failure by themselves.
const NEUTRAL: &str =
    "driver runtime api library with init initialization call to unknown internal";
/// Words between `CUDA` and its number that speak of a failure.
const FAILING: &str = "err error errors errno code status result failure failed cudaerror";

fn is_failing(token: &str) -> bool {
    FAILING.split(' ').any(|word| word == token)
}

/// Words between `CUDA` and its number that name the failed call.
fn is_running(token: &str) -> bool {
    ["execution", "kernel", "launch", "check", "returned"].contains(&token)
}

fn is_filler(token: &str) -> bool {
    is_failing(token) || NEUTRAL.split(' ').any(|word| word == token)
}

/// The number of a text that is nothing else, such as `700`, `0x2bc`, `(700)` or `error code 700`.
/// No code of CUDA is negative, and 0 is success.
fn bare_number(lower: &str) -> Option<i32> {
    let mut numbers = tokens(lower).filter(|token| !is_filler(token));
    let token = numbers.next()?;
    let number = match token.strip_prefix("0x") {
        Some(digits) => i32::from_str_radix(digits, 16),
        None => token.parse(),
    };
    let is_alone = numbers.next().is_none() && !lower.contains(['-', '.']);
    number.ok().filter(|number| *number > 0 && is_alone)
}

/// A number right after words such as `CUDA error`, or before `Call to cuMemAlloc`.
fn number_beside_cuda(lower: &str) -> Option<i32> {
    let known = |number: Option<i32>| number.filter(|number| by_number(*number).is_some());
    if let Some((before, _)) = lower.split_once("] call to cu") {
        let number = known(before.rsplit('[').next().and_then(|number| number.parse().ok()));
        if number.is_some() {
            return number;
        }
    }
    work::scanned(lower);
    let mut tokens = tokens(lower).peekable();
    while let Some(token) = tokens.next() {
        let mut is_failure = matches!(token, "cudaerror" | "cudaerror_t" | "curesult" | "cuinit");
        if !is_failure && !is_of_cuda(token) {
            continue;
        }
        while let Some(filler) = tokens.next_if(|token| is_filler(token) || is_running(token)) {
            is_failure |= is_failing(filler);
        }
        let number = known(tokens.peek().and_then(|token| token.parse().ok()));
        if is_failure && number.is_some() {
            return number;
        }
    }
    None
}

/// Whether `token` is CUDA or a function of CUDA, such as `cudaSetDevice` or `cuMemAlloc`.
fn is_of_cuda(token: &str) -> bool {
    FAMILIES.split(' ').any(|family| token.starts_with(family)) && !token.contains('_')
}

/// A library that the loader did not find, or that does not match another.
fn missing_library(lower: &str) -> Option<FailureId> {
    const LIBRARIES: [(&str, &str); 3] = [
        ("libcuda missing", "libcuda.so"),
        ("libnvrtc missing", "libnvrtc"),
        ("CUDA library missing", OF_CUDA),
    ];
    const OF_CUDA: &str = "libcudart libcublas libcudnn libcufft libcurand libcusparse libcusolver \
                           libcufile libcupti libnccl libnvjitlink libnvtoolsext";
    const NOT_LOADED: [&str; 4] =
        ["could not load", "unable to load", "failed to load", "not found"];
    if lower.contains("undefined symbol") && !lower.contains(NOT_OPENED) {
        if lower.contains("libcuda.so") {
            return FailureId::from_name("CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER");
        }
        let mut libraries = OF_CUDA.split(' ').chain(["libtorch_cuda", "libc10_cuda"]);
        let is_mixed = libraries.any(|name| lower.contains(name));
        return is_mixed.then(|| FailureId::from_name("CUDA libraries mixed")).flatten();
    }
    let library = if let Some((before, _)) = lower.split_once(NOT_OPENED) {
        before.rsplit([' ', '\'', '"', '/']).next()?
    } else if NOT_LOADED.iter().any(|words| lower.contains(words)) {
        lower.get(lower.find("libcu").or_else(|| lower.find("libn"))?..)?
    } else {
        return None;
    };
    let is_one_of = |names: &str| names.split(' ').any(|name| library.starts_with(name));
    let (name, _) = LIBRARIES.into_iter().find(|(_, names)| is_one_of(names))?;
    FailureId::from_name(name)
}

/// What the loader says after the name of a library that it did not find.
const NOT_OPENED: &str = ": cannot open shared object file";

#[cfg(test)]
mod tests {
    use super::*;

    fn name(line: &str, context: Context) -> Option<&'static str> {
        recognize(line, context).map(|found| found.failure.entry().name)
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes under Miri")]
    fn every_message_and_every_name_is_recognized_as_its_own_failure() {
        for entry in known_failures().filter(|entry| entry.origin != Origin::Xid) {
            for text in entry.messages().iter().chain(&entry.runtime_name) {
                assert_eq!(name(text, Context::Question), Some(entry.name), "{text}");
                let line = format!("[rank0] RuntimeError: CUDA error: {text}.");
                assert_eq!(name(&line, Context::Log), Some(entry.name), "{line}");
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
            assert_eq!(name(text, Context::Question), Some(expected), "{text}");
        }
        for text in ["0", "-1", "-700", "99999999999", "hello", "exit code 9", "port 700", "", "x"]
        {
            assert_eq!(name(text, Context::Question), None, "{text}");
        }
    }

    #[test]
    fn half_remembered_messages_are_found_by_their_words() {
        let names =
            |text| similar_failures(text).iter().map(|it| it.entry().name).collect::<Vec<_>>();
        assert_eq!(names("illegal memory access"), ["CUDA_ERROR_ILLEGAL_ADDRESS"]);
        assert_eq!(names("Device side assert"), ["CUDA_ERROR_ASSERT"]);
        assert!(names("peer access").len() > 2);
        assert_eq!(names("hello"), [""; 0]);
        assert_eq!(names("an"), [""; 0]);
    }
}
