//! Clues in a traceback: functions that suggest a cause, the launch, and the program.

use std::sync::OnceLock;

use aho_corasick::AhoCorasick;

use super::facts;
use super::input::truncated;
use super::work;
use crate::clue::{Clue, Place, ROWS};
use crate::evidence::{Evidence, LaunchSizes};

/// Bytes of a line that a clue keeps.
const SHOWN_BYTES: usize = 120;
/// Clues older than this number of lines are unrelated.
const LASTING_LINES: u64 = 64;
/// The innermost functions of a backtrace, which belong to error handling.
const INNERMOST: u64 = 4;

/// Clues since the last failure.
#[derive(Clone, Debug, Default)]
pub(super) struct Traceback {
    /// The line of each clue, by its place in [`ROWS`].
    found: Vec<Option<String>>,
    launch: LaunchSizes,
    program: Option<String>,
    /// The last line that belongs to the traceback.
    last: u64,
    /// The function in the line above, whose source this line may be.
    frame_above: Option<Frame>,
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
        let frame = Frame::of(text);
        let is_source = matches!(self.frame_above, Some(Frame::Inner | Frame::Failed));
        if text.starts_with("Traceback (most recent call last)") {
            *self = Self { above: core::mem::take(&mut self.above), ..Self::default() };
        } else if frame.is_some() || is_source {
            self.forget_before(number);
            self.last = number;
            if frame == Some(Frame::Inner) {
                // The functions before are not the innermost.
                self.forget(Place::Innermost);
            }
            let is_innermost = !matches!(frame, Some(Frame::Outer(depth)) if depth > INNERMOST);
            self.read(text, is_innermost);
            self.read_program(text);
        }
        self.frame_above = frame;
        if has_sizes(text) {
            self.forget_before(number);
            self.last = number;
            facts::read_launch(&text.to_ascii_lowercase(), &mut self.launch);
        }
        self.above.clear();
        self.above.push_str(truncated(text, SHOWN_BYTES));
    }

    /// Moves the clues to `evidence` of the failure that `text` reports.
    pub(super) fn failure(&mut self, text: &str, number: u64, evidence: &mut Evidence) {
        self.forget_before(number);
        self.read(text, true);
        if number.saturating_sub(self.last) > 1 {
            let above = core::mem::take(&mut self.above);
            self.read(&above, true);
        }
        if has_sizes(text) {
            facts::read_launch(&text.to_ascii_lowercase(), &mut self.launch);
        }
        self.give(evidence);
        self.last = number;
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
        let found = core::mem::take(&mut self.found);
        let clues = ROWS
            .iter()
            .zip(found)
            .filter_map(|(row, text)| text.map(|text| Clue { suggests: row.suggests, text }));
        for clue in clues {
            if !evidence.clues.iter().any(|it| it.suggests == clue.suggests) {
                evidence.clues.push(clue);
            }
        }
        let launch = core::mem::take(&mut self.launch);
        evidence.launch_sizes = evidence.launch_sizes.or(launch);
        evidence.program = evidence.program.take().or(self.program.take());
    }

    fn forget_before(&mut self, number: u64) {
        if number.saturating_sub(self.last) > LASTING_LINES {
            self.found.clear();
            self.launch = LaunchSizes::default();
        }
    }

    fn forget(&mut self, place: Place) {
        let rows = ROWS.iter().zip(&mut self.found).filter(|(row, _)| row.place == place);
        rows.for_each(|(_, found)| *found = None);
    }

    fn read(&mut self, text: &str, is_innermost: bool) {
        work::scanned(text);
        for found in words().find_overlapping_iter(text) {
            let row = row_of(found.pattern().as_usize());
            let Some(place) = ROWS.get(row).map(|row| row.place) else { continue };
            let is_part = ends_in_a_word(text, found.start(), found.end());
            if is_part || place == Place::Innermost && !is_innermost {
                continue;
            }
            self.found.resize(ROWS.len(), None);
            if let Some(place) = self.found.get_mut(row).filter(|place| place.is_none()) {
                *place = Some(truncated(text, SHOWN_BYTES).to_owned());
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
        let text = text.strip_prefix("frame ").unwrap_or(text);
        let text = text.strip_prefix('#').unwrap_or(text);
        let digits = text.find(|c: char| !c.is_ascii_digit())?;
        let (depth, rest) = text.split_at(digits);
        let is_frame = rest.starts_with(": ") || rest.starts_with("  ");
        depth.parse().ok().filter(|_| is_frame).map(Self::Outer)
    }
}

fn has_sizes(text: &str) -> bool {
    ["grid", "Grid", "<<<", "lock dim", "lock Dim"].iter().any(|size| text.contains(size))
}

/// Whether a word with a space, as `in sort`, ends within a longer one.
fn ends_in_a_word(text: &str, start: usize, end: usize) -> bool {
    let has_space = text.get(start..end).is_some_and(|word| word.contains(' '));
    let next = text.as_bytes().get(end);
    has_space && next.is_some_and(|it| it.is_ascii_alphanumeric() || *it == b'_')
}

fn words() -> &'static AhoCorasick {
    static WORDS: OnceLock<AhoCorasick> = OnceLock::new();
    WORDS.get_or_init(build)
}

#[allow(clippy::expect_used, reason = "the words are constants, and the tests find each")]
fn build() -> AhoCorasick {
    let words = ROWS.iter().flat_map(|row| row.words);
    let mut builder = AhoCorasick::builder();
    builder.ascii_case_insensitive(true).build(words).expect("a hundred short words")
}

/// The row of the word at `place` among the words of all rows.
fn row_of(place: usize) -> usize {
    let mut end = 0;
    let ends = ROWS.iter().map(|row| {
        end += row.words.len();
        end
    });
    ends.take_while(|end| *end <= place).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clue::Suggestion;
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
        clues.iter().any(|clue| clue.suggests == Suggestion::Cause(hint))
    }

    #[test]
    fn every_word_is_found_in_a_function() {
        for row in ROWS {
            for word in row.words {
                let found = clues(&format!("File \"x.py\", line 1, in x {word} x"));
                assert!(found.iter().any(|clue| clue.suggests == row.suggests), "{word}");
            }
        }
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
    fn ordinary_lines_and_earlier_tracebacks_are_no_clues() {
        assert_eq!(clues("Using xformers attention in VAE\nx.to(device)"), []);
        let two = "File \"a.py\", line 1, in motion_module\nTraceback (most recent call last):";
        assert_eq!(clues(two), []);
        assert_eq!(clues("File \"a.py\", line 1, in sorted_batches"), []);
        let long_ago = ["File \"a.py\", line 1, in argsort\n", &"step\n".repeat(70), "#0  main ()"];
        assert_eq!(clues(&long_ago.concat()), []);
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
