//! Judges the answers to a file of reports, as `bench-data/reports/README.md` describes it.

use std::collections::BTreeMap;
use std::fmt;

use gridguard_diagnose::{Confidence, Diagnosis, Known, LogScanner};

/// A report: what its head says, and its log.
pub(crate) struct Report<'a> {
    pub(crate) name: &'a str,
    head: BTreeMap<&'a str, &'a str>,
    log: &'a str,
}

/// How right an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// The first cause names what the report's truth does.
    Right,
    /// Another cause does.
    Lower,
    /// The log is said not to tell.
    Unknown,
    /// Another cause is first.
    Wrong,
    /// No failure is recognized.
    NotRecognized,
}

pub(crate) fn reports(text: &str) -> impl Iterator<Item = Report<'_>> {
    text.split("=== ").skip(1).filter_map(|report| {
        let (head, log) = report.split_once("\n\n")?;
        let mut lines = head.lines();
        let name = lines.next()?;
        Some(Report { name, head: lines.filter_map(|line| line.split_once(": ")).collect(), log })
    })
}

impl Report<'_> {
    pub(crate) fn get(&self, key: &str) -> &str {
        self.head.get(key).copied().unwrap_or_default()
    }

    pub(crate) fn diagnosis(&self) -> Diagnosis {
        let mut scanner = LogScanner::new();
        self.log.lines().for_each(|line| scanner.line(line));
        scanner.diagnosis(&Known::default())
    }

    /// Judges an answer by the texts of its causes; the quoted line does not count.
    pub(crate) fn judge(&self, answer: &Diagnosis) -> Verdict {
        let names_all = |text: &str| {
            let text = text.to_lowercase();
            self.get("says").split('|').all(|word| text.contains(&word.trim().to_lowercase()))
        };
        let causes: Vec<String> = answer
            .failures
            .iter()
            .map(|it| {
                let may = it.may.iter().map(|it| format!("{} {}", it.cause, it.remedy));
                let own = [it.title, &it.cause, &it.remedy, it.command.as_deref().unwrap_or("")];
                own.into_iter().map(str::to_owned).chain(may).collect::<Vec<_>>().join(" ")
            })
            .collect();
        match answer.failures.first() {
            None => Verdict::NotRecognized,
            Some(_) if names_all(&causes[0]) => Verdict::Right,
            Some(_) if causes.iter().any(|it| names_all(it)) => Verdict::Lower,
            Some(first) if first.confidence >= Confidence::Generic => Verdict::Unknown,
            Some(_) => Verdict::Wrong,
        }
    }
}

/// Verdicts by kind of report.
#[derive(Default)]
pub(crate) struct Counts(BTreeMap<String, BTreeMap<Verdict, usize>>);

impl Counts {
    pub(crate) fn add(&mut self, report: &Report<'_>, verdict: Verdict) {
        for kind in [report.get("kind"), "all"] {
            *self.0.entry(kind.to_owned()).or_default().entry(verdict).or_default() += 1;
        }
    }

    pub(crate) fn right(&self) -> usize {
        self.0.get("all").and_then(|it| it.get(&Verdict::Right)).copied().unwrap_or(0)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Verdict::{Lower, NotRecognized, Right, Unknown, Wrong};
        writeln!(f, "{:12} reports right lower unknown wrong not-recognized", "kind")?;
        for (kind, counts) in &self.0 {
            let of = |verdict| counts.get(&verdict).copied().unwrap_or(0);
            let all: usize = counts.values().sum();
            writeln!(
                f,
                "{kind:12} {all:7} {:5} {:5} {:7} {:5} {:14}",
                of(Right),
                of(Lower),
                of(Unknown),
                of(Wrong),
                of(NotRecognized)
            )?;
        }
        Ok(())
    }
}
