//! Arbitrary bytes, as `gridguard explain` reads a log.

use std::io::BufReader;

use gridguard_diagnose::{Diagnosis, Known, Line, LogScanner};

/// The longest text of a line.
const MAX_SHOWN_BYTES: usize = 400;
/// Lines up to this length are one piece, even if each invalid byte is replaced by three.
const SHORT_LINE_BYTES: usize = 16 << 10;

/// Any bytes are read, in bounded memory; the diagnosis does not depend on the portions that they come in.
pub(super) fn check(bytes: &[u8]) {
    let asked = is_sound(LogScanner::for_question(), bytes);
    assert_eq!(diagnosis(&read(LogScanner::for_question(), bytes, 1)), diagnosis(&asked));
    let log = is_sound(LogScanner::new(), bytes);
    // Escape sequences may span the pieces of a line.
    let is_plain = bytes.iter().all(|byte| matches!(byte, b'\n' | b' '..=b'~'));
    if is_plain && lines(bytes).all(|line| line.len() <= SHORT_LINE_BYTES) {
        let mut by_line = LogScanner::new();
        lines(bytes).for_each(|line| by_line.line(&String::from_utf8_lossy(line)));
        assert_eq!(diagnosis(&by_line), diagnosis(&log));
    }
}

fn diagnosis(log: &LogScanner) -> Diagnosis {
    log.diagnosis(&Known::default())
}

fn is_sound(log: LogScanner, bytes: &[u8]) -> LogScanner {
    const MOST_LINES: usize = 14;
    let log = read(log, bytes, bytes.len().max(1));
    assert_eq!(log.lines(), count_lines(bytes));
    let diagnosis = diagnosis(&log);
    assert!(diagnosis.to_string().lines().count() <= MOST_LINES, "{diagnosis}");
    serde_json::to_string(&diagnosis).expect("data");
    for failure in &diagnosis.failures {
        assert!(!failure.cause.is_empty(), "{failure:?}");
        assert!((1..=log.lines()).contains(&failure.evidence[0].line), "{failure:?}");
        let is_short = |line: &Line| line.text.len() <= MAX_SHOWN_BYTES;
        assert!(failure.evidence.iter().all(is_short), "{failure:?}");
    }
    log
}

fn read(mut log: LogScanner, bytes: &[u8], portion: usize) -> LogScanner {
    log.read(BufReader::with_capacity(portion, bytes)).expect("memory can be read");
    log
}

/// The lines, without an empty one at the end.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(|it| it.strip_suffix(b"\n").unwrap_or(it))
}

/// Also where a byte order mark says that a unit has two bytes.
fn count_lines(bytes: &[u8]) -> u64 {
    let count = match bytes {
        [0xff, 0xfe, rest @ ..] => lines(text_of(rest, u16::from_le_bytes).as_bytes()).count(),
        [0xfe, 0xff, rest @ ..] => lines(text_of(rest, u16::from_be_bytes).as_bytes()).count(),
        [0xef, 0xbb, 0xbf, rest @ ..] => lines(rest).count(),
        _ => lines(bytes).count(),
    };
    u64::try_from(count).expect("few")
}

/// Half a unit at the end is dropped.
fn text_of(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let (pairs, _) = bytes.as_chunks();
    String::from_utf16_lossy(&pairs.iter().copied().map(unit).collect::<Vec<u16>>())
}
