//! Arbitrary bytes, as `gridguard explain` reads a log.

use std::io::BufReader;

use gridguard_diagnose::{LogFinding, LogScanner, MAX_FINDINGS, diagnose};

/// The longest text of a finding.
const MAX_SHOWN_BYTES: usize = 400;
/// Lines up to this length are one piece, even if each invalid byte is replaced by three.
const SHORT_LINE_BYTES: usize = 16 << 10;

/// Any bytes are read, in bounded memory; the findings do not depend on the portions that they come
/// in, and each finding has a diagnosis.
pub(super) fn check(bytes: &[u8]) {
    let asked = is_sound(LogScanner::for_question(), bytes);
    assert_eq!(read(LogScanner::for_question(), bytes, 1).findings(), asked.findings());
    let log = is_sound(LogScanner::new(), bytes);
    // Escape sequences may span the pieces of a line.
    let is_plain = bytes.iter().all(|byte| matches!(byte, b'\n' | b' '..=b'~'));
    if is_plain && lines(bytes).all(|line| line.len() <= SHORT_LINE_BYTES) {
        let mut by_line = LogScanner::new();
        lines(bytes).for_each(|line| by_line.line(&String::from_utf8_lossy(line)));
        assert_eq!(by_line.findings(), log.findings());
    }
    let findings = log.findings();
    reading_again_counts_again(log, bytes, &findings);
}

fn is_sound(log: LogScanner, bytes: &[u8]) -> LogScanner {
    let log = read(log, bytes, bytes.len().max(1));
    assert_eq!(log.lines(), count_lines(bytes));
    let findings = log.findings();
    are_sound(&findings, log.lines());
    for finding in &findings {
        let diagnosis = diagnose(&finding.failure, &finding.evidence);
        assert!(!diagnosis.causes.is_empty() || !diagnosis.not.is_empty(), "{finding:?}");
        assert!(!diagnosis.to_string().is_empty());
        serde_json::to_string(&diagnosis).expect("data");
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

fn are_sound(findings: &[LogFinding], lines: u64) {
    assert!(findings.len() <= MAX_FINDINGS);
    assert!(findings.is_sorted_by_key(|finding| finding.line));
    for (place, finding) in findings.iter().enumerate() {
        // A line whose parts end in carriage returns may report several failures, each once.
        assert!((1..=lines).contains(&finding.line), "{finding:?}");
        assert!((1..=lines).contains(&finding.times), "{finding:?}");
        assert!(finding.text.len() <= MAX_SHOWN_BYTES, "{finding:?}");
        let earlier = &findings[..place];
        assert!(earlier.iter().all(|other| other.failure != finding.failure), "{finding:?} twice");
        let after = finding.consequence_of;
        assert!(after.is_none_or(|first| earlier.iter().any(|other| other.failure == first)));
    }
}

/// The same lines again report the same failures, once more each.
fn reading_again_counts_again(log: LogScanner, bytes: &[u8], findings: &[LogFinding]) {
    let twice = read(log, bytes, bytes.len().max(1)).findings();
    assert_eq!(twice.len(), findings.len());
    for (again, once) in twice.iter().zip(findings) {
        assert_eq!((again.failure, again.line, &again.text), (once.failure, once.line, &once.text));
        assert_eq!(again.times, 2 * once.times);
    }
}
