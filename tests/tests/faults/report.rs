//! The report of a run: a table for people, and `faults.json`.

use std::collections::BTreeMap;
use std::time::Duration;

use gridguard::profile::load;
use gridguard_tests::figures::from_suite;
use serde::Serialize;

use crate::environment::RunEnvironment;
use crate::fault::Kind;
use crate::run::{End, Verdict};

/// Environment variable: the folder for results.
const RESULTS: &str = "GRIDGUARD_RESULTS";
/// The most groups of wrong outcomes that a failure lists.
const LISTED: usize = 60;

/// The file `faults.json`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    device: String,
    driver: String,
    commit: String,
    date: String,
    seed: u64,
    seconds: u64,
    /// Sums over the faults that must get a typed error.
    injected: u64,
    total: Count,
    kinds: BTreeMap<Kind, Count>,
    /// Undefined behaviour: damage that no header shows, and stale handles.
    beyond: BTreeMap<Kind, Count>,
}

/// The results of one kind of fault.
#[derive(Clone, Debug, Default, Serialize)]
struct Count {
    injected: u64,
    wrong: u64,
    panics: u64,
    hangs: u64,
    lost_profiles: u64,
    /// Processes that died, by signal.
    deaths: BTreeMap<String, u64>,
    /// The number of times each outcome occurred.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    outcomes: BTreeMap<String, u64>,
}

impl Count {
    fn add(&mut self, verdict: &Verdict, lost: u64) {
        self.injected += 1;
        self.wrong += u64::from(!verdict.wrong.is_empty());
        self.panics += u64::from(verdict.end == End::Panicked);
        self.hangs += u64::from(verdict.end == End::Hung);
        self.lost_profiles += lost;
        if let End::Killed(signal) = verdict.end {
            *self.deaths.entry(format!("signal {signal}")).or_default() += 1;
        }
    }
}

impl Report {
    pub(crate) fn new(
        environment: &RunEnvironment,
        seed: u64,
        took: Duration,
        verdicts: &[Verdict],
    ) -> Self {
        let device = match environment.is_fake() {
            true => "none, a fake driver".into(),
            false => gridguard::cuda::device_limits(0).expect("a CUDA device").name.clone(),
        };
        let mut report = Self {
            device,
            driver: from_suite("GRIDGUARD_DRIVER"),
            commit: from_suite("GRIDGUARD_COMMIT"),
            date: from_suite("GRIDGUARD_DATE"),
            seed,
            seconds: took.as_secs(),
            injected: 0,
            total: Count::default(),
            kinds: BTreeMap::new(),
            beyond: BTreeMap::new(),
        };
        for verdict in verdicts {
            let kind = verdict.fault.kind;
            let lost = verdict.lost_profiles + u64::from(is_lost(environment, verdict));
            let kinds = if kind.is_promised() { &mut report.kinds } else { &mut report.beyond };
            let count = kinds.entry(kind).or_default();
            count.add(verdict, lost);
            *count.outcomes.entry(verdict.outcome.clone()).or_default() += 1;
            if kind.is_promised() {
                report.injected += 1;
                report.total.add(verdict, lost);
            }
        }
        report
    }

    /// Prints the report and writes it to the folder for results.
    pub(crate) fn publish(&self) {
        let text = serde_json::to_string_pretty(self).expect("a report") + "\n";
        println!("{text}");
        if let Some(folder) = std::env::var_os(RESULTS) {
            let path = std::path::Path::new(&folder).join("faults.json");
            gridguard_files::publish(&path, text.as_bytes()).expect("the folder of results");
        }
    }
}

/// Whether the entry written after the fault is missing.
fn is_lost(environment: &RunEnvironment, verdict: &Verdict) -> bool {
    let name = verdict.fault.kind.name();
    if !verdict.published {
        return false;
    }
    let Ok(Some(read)) = load(&environment.profile(name)) else {
        return true;
    };
    let row = verdict.fault.number + 1;
    let is_there =
        |entry: &gridguard::profile::Entry| entry.shape.iter().any(|(_, rows)| *rows == row);
    !read.document.entries().iter().any(is_there)
}

/// Fails if anything is wrong, with each problem and how to repeat it.
pub(crate) fn assert_all_correct(report: &Report, verdicts: &[Verdict]) {
    let mut groups: BTreeMap<(Kind, &str, &str), Vec<&Verdict>> = BTreeMap::new();
    for verdict in verdicts.iter().filter(|verdict| !verdict.wrong.is_empty()) {
        let group = (verdict.fault.kind, verdict.case, &*verdict.outcome);
        groups.entry(group).or_default().push(verdict);
    }
    let tell = |((kind, case, outcome), group): (&(Kind, &str, &str), &Vec<&Verdict>)| {
        let first = group.first().expect("a group has one");
        let repeat = first.fault;
        format!(
            "{} x {}/{case} came to {outcome}\n    {}\n    {}\n    {}\n    {repeat}",
            group.len(),
            kind.name(),
            first.wrong.join("\n    "),
            first.drawn,
            first.text,
        )
    };
    let (promised, beyond): (Vec<_>, Vec<_>) =
        groups.iter().partition(|((kind, ..), _)| kind.is_promised());
    if !beyond.is_empty() {
        let described: Vec<_> = beyond.into_iter().take(LISTED).map(tell).collect();
        println!("undefined behaviour:\n{}", described.join("\n"));
    }
    let described: Vec<_> = promised.into_iter().take(LISTED).map(tell).collect();
    assert!(
        described.is_empty(),
        "{} faults went wrong:\n{}",
        report.total.wrong,
        described.join("\n")
    );
    assert_eq!(report.total.lost_profiles, 0, "profiles were lost");
}
