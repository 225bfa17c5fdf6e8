//! Clues in a traceback: functions that suggest a cause, the launch, and the program.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use super::facts::number;
use super::input::{shortened, truncated};
use super::phrases::automaton;
use super::sizes::{has_sizes, read_launch};
use super::work;
use crate::clue::{Clue, Place, ROWS, Row};
use crate::evidence::{Evidence, LaunchSizes};

/// Bytes of a line that a clue keeps.
const SHOWN_BYTES: usize = 120;
/// Clues older than this number of lines are unrelated.
pub(super) const LASTING_LINES: u64 = 64;
/// The innermost functions of a backtrace, which belong to error handling.
const INNERMOST: u64 = 4;

/// Clues since the last failure.
#[derive(Clone, Debug, Default)]
pub(super) struct Traceback {
    /// The line of each clue, by its place in [`ROWS`].
    found: BTreeMap<usize, String>,
    launch: LaunchSizes,
    /// The first sizes after the last failure, which may belong to it.
    below: LaunchSizes,
    kernel: Option<String>,
    program: Option<String>,
    /// The last line that belongs to the traceback.
    last: u64,
    /// The last line with sizes.
    last_sizes: u64,
    /// The function in the line above, whose source this line may be.
    frame_above: Option<Frame>,
    /// Bytes before that function, which a logger wrote.
    prefix: usize,
    /// The line above, which may be a function without its position.
    above: String,
}

/// A line of a traceback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    /// A function with inner functions below it, as in Python.
    Inner,
    /// The failed call, as ggml prints it.
    Failed,
    /// A function with outer functions below it, as in Rust, C++ and gdb, with its depth.
    Outer(u64),
}

impl Traceback {
    /// Reads a line that reports no failure.
    pub(super) fn line(&mut self, text: &str, number: u64) {
        let is_source = matches!(self.frame_above, Some(Frame::Inner | Frame::Failed));
        let text = match unprefixed(text) {
            rest if rest.len() == text.len() && is_source => {
                text.get(self.prefix..).unwrap_or(text).trim_start()
            }
            rest => {
                self.prefix = text.len().saturating_sub(rest.len());
                rest
            }
        };
        let frame = Frame::of(text);
        if text.starts_with("Traceback (most recent call last)") {
            // Programs print the sizes of the work before they fail.
            let LaunchSizes { work, shared_bytes, .. } = self.launch;
            let sizes = LaunchSizes { work, shared_bytes, ..LaunchSizes::default() };
            let (above, last_sizes) = (core::mem::take(&mut self.above), self.last_sizes);
            *self = Self { above, launch: sizes, below: sizes, last_sizes, ..Self::default() };
        } else if frame.is_some() || is_source {
            self.forget_before(number);
            self.last = number;
            if frame == Some(Frame::Inner) {
                // The functions before are not the innermost.
                self.found.retain(|row, _| ROWS[*row].place != Place::Innermost);
            }
            let is_innermost = !matches!(frame, Some(Frame::Outer(depth)) if depth > INNERMOST);
            self.read(text, is_innermost);
            self.read_program(text);
        }
        self.frame_above = frame;
        if has_sizes(text) {
            self.forget_before(number);
            let mut sizes = LaunchSizes::default();
            read_launch(&text.to_ascii_lowercase(), &mut sizes);
            self.launch = sizes.or(self.launch);
            self.below = self.below.or(sizes);
            self.last_sizes = number;
            if sizes.grid.is_some() || sizes.block.is_some() {
                self.last = number;
            }
        }
        if let Some(kernel) = kernel_in(text) {
            self.kernel.get_or_insert(kernel);
        }
        self.above.clear();
        self.above.push_str(&shortened(text, SHOWN_BYTES));
    }

    /// Moves the clues to the evidence of the failure that `text` reports.
    pub(super) fn failure(&mut self, text: &str, number: u64) -> Evidence {
        self.forget_before(number);
        self.read(text, true);
        if number.saturating_sub(self.last) > 1 {
            let above = core::mem::take(&mut self.above);
            self.read(&above, true);
        }
        if has_sizes(text) {
            read_launch(&text.to_ascii_lowercase(), &mut self.launch);
        }
        if let Some(kernel) = kernel_in(text) {
            self.kernel = Some(kernel);
        }
        self.last = number;
        let mut evidence = Evidence::default();
        self.below = self.launch;
        self.give(&mut evidence);
        evidence
    }

    /// Whether the line belongs to a traceback that the last failure began.
    pub(super) fn continues(&self, text: &str, number: u64) -> bool {
        const NEAR: u64 = 8;
        number.saturating_sub(self.last) <= NEAR
            && (self.frame_above == Some(Frame::Failed)
                || matches!(Frame::of(text), Some(Frame::Failed | Frame::Outer(_))))
    }

    /// Moves the clues to `evidence`, without replacing known facts.
    pub(super) fn give(&mut self, evidence: &mut Evidence) {
        for (row, text) in core::mem::take(&mut self.found) {
            let row = &ROWS[row];
            if !evidence.clues.iter().any(|it| it.row == row) {
                evidence.clues.push(Clue { row, text });
            }
        }
        self.launch = LaunchSizes::default();
        let launch = core::mem::take(&mut self.below);
        evidence.launch_sizes = evidence.launch_sizes.or(launch);
        evidence.kernel = evidence.kernel.take().or(self.kernel.take());
        evidence.program = evidence.program.take().or(self.program.take());
    }

    fn forget_before(&mut self, number: u64) {
        if number.saturating_sub(self.last) > LASTING_LINES {
            self.found.clear();
            self.kernel = None;
        }
        if number.saturating_sub(self.last.max(self.last_sizes)) > LASTING_LINES {
            self.launch = LaunchSizes::default();
            self.below = LaunchSizes::default();
        }
    }

    fn read(&mut self, text: &str, is_innermost: bool) {
        work::scanned(text);
        let (words, rows) = &*WORDS;
        for found in words.find_overlapping_iter(text) {
            let row = rows[found.pattern()];
            let is_part = ends_in_a_word(text, found.start(), found.end());
            if !is_part && (is_innermost || ROWS[row].place != Place::Innermost) {
                let shown = || around(text, found.start(), found.end());
                self.found.entry(row).or_insert_with(shown);
            }
        }
    }

    /// The outermost function is the program's own.
    fn read_program(&mut self, text: &str) {
        let name = text.strip_prefix("File \"").filter(|_| text.ends_with(", in <module>"));
        let Some((name, _)) = name.and_then(|it| it.split_once('"')) else { return };
        // The name becomes part of a command that is pasted.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        if self.program.is_none() && name.chars().all(is_plain) && !name.starts_with('-') {
            self.program = Some(truncated(name, SHOWN_BYTES).to_owned());
        }
    }
}

impl Frame {
    fn of(text: &str) -> Option<Self> {
        // As Python, rich and IPython print them.
        const INNER: [&str; 4] = ["File ", "\u{2502}", "-->", "---"];
        if INNER.iter().any(|start| text.starts_with(start)) {
            return Some(Self::Inner);
        }
        if text.starts_with("current device:") {
            return Some(Self::Failed);
        }
        if text.contains(".rs:") {
            return Some(Self::Outer(0));
        }
        // As compute-sanitizer prints the functions of the host.
        if text.starts_with("=========") {
            return text.contains(" Host Frame").then_some(Self::Outer(0));
        }
        let text = text.strip_prefix("frame ").unwrap_or(text);
        let mut rest = text.strip_prefix('#').unwrap_or(text);
        let depth = number(&mut rest)?;
        let is_frame = rest.starts_with(": ") || rest.starts_with("  ");
        is_frame.then_some(Self::Outer(depth))
    }
}

/// A line of a traceback without the prefix of a logger, as in `[rank0]:   File "a.py"` and `(Worker pid=1) ERROR
/// [executor.py:470]   File "a.py"`.
fn unprefixed(text: &str) -> &str {
    const LONGEST: usize = 4;
    let mut ends = text.match_indices([']', ')']).take(LONGEST);
    let rest = ends.find_map(|(end, bracket)| {
        let rest = text.get(end.saturating_add(bracket.len())..)?.trim_start_matches(':');
        let rest = rest.strip_prefix(' ')?.trim_start();
        let starts = ["File \"", "Traceback (most recent call last)"];
        starts.iter().any(|start| rest.starts_with(start)).then_some(rest)
    });
    rest.unwrap_or(text)
}

/// The kernel that a line names: by its stub in a stack of the host, or as XLA names it.
fn kernel_in(text: &str) -> Option<String> {
    const STUB: &str = "__device_stub_";
    let (_, rest) = text.split_once(STUB).or_else(|| text.split_once("launch CUDA kernel: "))?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    let name = truncated(rest.get(..end)?, KERNEL_BYTES);
    name.contains(|c: char| c != '_').then(|| unmangled(name))
}

/// The names of namespaces and function that a mangled name of C++ begins with, and else the name.
fn unmangled(name: &str) -> String {
    let plain = name.trim_start_matches('_').strip_prefix('Z').unwrap_or_default();
    let mut rest = plain.strip_prefix('N').unwrap_or(plain);
    let mut parts = Vec::new();
    while let Some(length) = number(&mut rest)
        && let Some((part, after)) = rest.split_at_checked(length)
    {
        parts.push(part);
        rest = after;
    }
    if parts.is_empty() { name.to_owned() } else { parts.join("::") }
}

/// Bytes of a kernel's mangled name that are kept.
const KERNEL_BYTES: usize = 400;

/// The beginning of `text`, or if `text[start..end]` is behind it, the word around that and what follows.
fn around(text: &str, start: usize, end: usize) -> String {
    let before = text.get(..start).filter(|_| end > SHOWN_BYTES).unwrap_or_default();
    let word = before.rfind([' ', '=', '(']).map_or(0, |place| place.saturating_add(1));
    shortened(text.get(word..).unwrap_or(text), SHOWN_BYTES)
}

/// Whether a word with a space, as `in sort`, ends within a longer one.
fn ends_in_a_word(text: &str, start: usize, end: usize) -> bool {
    let has_space = text.get(start..end).is_some_and(|word| word.contains(' '));
    let next = text.as_bytes().get(end);
    has_space && next.is_some_and(|it| it.is_ascii_alphanumeric() || *it == b'_')
}

/// The automaton for the words of all rows, and the place in [`ROWS`] of each word.
static WORDS: LazyLock<(AhoCorasick, Vec<usize>)> = LazyLock::new(|| {
    let of_row = |(place, row): (usize, &'static Row)| row.words().map(move |word| (word, place));
    let (words, rows): (Vec<&str>, Vec<usize>) = ROWS.iter().enumerate().flat_map(of_row).unzip();
    (automaton(words), rows)
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Hint;

    fn clues(lines: &str) -> Vec<Clue> {
        let mut traceback = Traceback::default();
        let mut evidence = Evidence::default();
        for (number, line) in (1..).zip(lines.lines()) {
            traceback.line(line.trim(), number);
        }
        traceback.give(&mut evidence);
        evidence.clues
    }

    fn has(clues: &[Clue], hint: Hint) -> bool {
        clues.iter().any(|clue| clue.row.hint == hint)
    }

    #[test]
    fn every_word_is_found_in_a_function() {
        for row in &ROWS {
            for word in row.words() {
                let found = clues(&format!("File \"x.py\", line 1, in x {word} x"));
                assert!(found.iter().any(|clue| clue.row == row), "{word}");
            }
        }
    }

    #[test]
    fn a_line_that_is_cut_ends_with_a_mark() {
        for repeated in ["x", "\u{fc}"] {
            for start in ["", "y"] {
                let line = format!("File \"{start}.py\", in argsort {}", repeated.repeat(200));
                let text = &clues(&line)[0].text;
                assert!(text.ends_with(&format!("{repeated}\u{2026}")), "{text}");
                assert!((SHOWN_BYTES - 1..=SHOWN_BYTES).contains(&text.len()), "{text}");
            }
        }
        let whole = format!("{:-<SHOWN_BYTES$}", "File \"a.py\", in argsort ");
        assert_eq!(clues(&whole)[0].text, whole);
    }

    #[test]
    fn only_the_innermost_function_is_the_call_that_failed() {
        let copy = "File \"a.py\", line 1, in <module>\n x = x.to(device)\n";
        let inner = "File \"a.py\", line 2, in forward\n y = f(x)\n";
        assert!(has(&clues(copy), Hint::Copy));
        assert!(!has(&clues(&[copy, inner].concat()), Hint::Copy));
        assert!(has(&clues(&[inner, copy].concat()), Hint::Copy));
        assert!(has(&clues("2: cudarc::driver::result::memcpy_htod_sync"), Hint::Copy));
        assert!(!has(&clues("12: app::upload_by_htod"), Hint::Copy));
    }

    #[test]
    fn a_logger_may_write_before_each_line_of_a_traceback() {
        for prefix in ["[rank0]: ", "(Worker pid=12) ERROR 06-05 06:18 [executor.py:470] "] {
            let frame = format!("{prefix}  File \"a.py\", line 1, in forward\n");
            let source = format!("{prefix}    self.graph.capture_end()\n");
            let inner = format!("{prefix}  File \"b.py\", line 2, in run\n");
            assert!(has(&clues(&[frame, source, inner].concat()), Hint::GraphMemory), "{prefix}");
        }
        let mut traceback = Traceback::default();
        traceback.line("[rank1]:   File \"train.py\", line 3, in <module>", 1);
        assert_eq!(traceback.program.as_deref(), Some("train.py"));
    }

    #[test]
    fn ordinary_lines_and_earlier_tracebacks_are_no_clues() {
        assert_eq!(clues("Using xformers attention in VAE\nx.to(device)"), []);
        let two = "File \"a.py\", line 1, in motion_module\nTraceback (most recent call last):";
        assert_eq!(clues(two), []);
        assert_eq!(clues("File \"a.py\", line 1, in sorted_batches"), []);
        let long_ago = ["File \"a.py\", line 1, in argsort\n", &"step\n".repeat(70), "#0  main ()"];
        assert_eq!(clues(&long_ago.concat()), []);
    }

    #[test]
    fn the_kernel_is_named_by_its_stub() {
        for (line, name) in [
            (
                "Host Frame:__device_stub__ZN4cudf2io3orc9char_sizeENS_6detailE(int)",
                "cudf::io::orc::char_size",
            ),
            ("__device_stub__Z3addPfi(float*, int)", "add"),
            ("Failed to launch CUDA kernel: fusion_4 with block dimensions", "fusion_4"),
            ("__device_stub__Z99999999999999999999x", "_Z99999999999999999999x"),
        ] {
            assert_eq!(kernel_in(line).as_deref(), Some(name), "{line}");
        }
        assert_eq!(kernel_in("cudaLaunchKernel"), None);
    }

    #[test]
    fn a_program_is_named_only_if_its_name_can_be_pasted() {
        let program = |line: &str| {
            let mut traceback = Traceback::default();
            traceback.line(line, 1);
            traceback.program
        };
        let named = |name: &str| program(&format!("File \"{name}\", line 3, in <module>"));
        assert_eq!(named("src/train.py").as_deref(), Some("src/train.py"));
        for name in ["a b.py", "$(x).py", "-c", "a;b", "<stdin>"] {
            assert_eq!(named(name), None, "{name}");
        }
        assert_eq!(program("File \"train.py\", line 3, in forward"), None);
    }
}
