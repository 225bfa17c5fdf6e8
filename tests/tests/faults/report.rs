//! What a run came to: a table for people, and `faults.json`.

use std::collections::BTreeMap;
use std::time::Duration;

use gridguard::profile::load;
use serde::Serialize;

use crate::fault::Kind;
use crate::ground::Ground;
use crate::run::{End, Verdict};

/// Where the suite keeps its results.
const RESULTS: &str = "GRIDGUARD_RESULTS";
/// Groups of wrong outcomes that a failure tells.
const TOLD: usize = 60;

/// The file `faults.json`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    device: String,
    driver: String,
    commit: String,
    date: String,
    seed: u64,
    seconds: u64,
    /// Faults that must get a typed error, and what is wrong with all of them.
    injected: u64,
    total: Count,
    kinds: BTreeMap<Kind, Count>,
    /// Beyond what anyone can promise: what a driver makes of damage that it does not see, and of
    /// handles that are gone.
    beyond: BTreeMap<Kind, Count>,
}

/// What came of the faults of one kind.
#[derive(Clone, Debug, Default, Serialize)]
struct Count {
    injected: u64,
    wrong: u64,
    panics: u64,
    hangs: u64,
    lost_profiles: u64,
    /// Processes that died, by signal.
    deaths: BTreeMap<String, u64>,
    /// How often each outcome came.
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
        if let End::Died(signal) = verdict.end {
            *self.deaths.entry(format!("signal {signal}")).or_default() += 1;
        }
    }
}

impl Report {
    pub(crate) fn new(ground: &Ground, seed: u64, took: Duration, verdicts: &[Verdict]) -> Self {
        let told = |name: &str| std::env::var(name).unwrap_or_else(|_| "unknown".into());
        let device = match ground.is_fake() {
            true => "none, a fake driver".into(),
            false => gridguard::cuda::device_limits(0).expect("a CUDA device").name.clone(),
        };
        let mut report = Self {
            device,
            driver: told("GRIDGUARD_DRIVER"),
            commit: told("GRIDGUARD_COMMIT"),
            date: told("GRIDGUARD_DATE"),
            seed,
            seconds: took.as_secs(),
            injected: 0,
            total: Count::default(),
            kinds: BTreeMap::new(),
            beyond: BTreeMap::new(),
        };
        for verdict in verdicts {
            let kind = verdict.fault.kind;
            let lost = verdict.lost_profiles + u64::from(is_lost(ground, verdict));
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

    /// Prints the report and writes it where the suite wants results.
    pub(crate) fn publish(&self) {
        let text = serde_json::to_string_pretty(self).expect("a report") + "\n";
        println!("{text}");
        if let Some(folder) = std::env::var_os(RESULTS) {
            let path = std::path::Path::new(&folder).join("faults.json");
            std::fs::write(path, &text).expect("the folder of results");
        }
    }
}

/// Whether the entry that was published after the fault is missing.
fn is_lost(ground: &Ground, verdict: &Verdict) -> bool {
    let name = verdict.fault.kind.name();
    if !verdict.published {
        return false;
    }
    let Ok(Some(read)) = load(&ground.profile(name)) else {
        return true;
    };
    let row = verdict.fault.number + 1;
    let is_there =
        |entry: &gridguard::profile::Entry| entry.shape.iter().any(|(_, rows)| *rows == row);
    !read.document.entries().iter().any(is_there)
}

/// Fails where anything is wrong, with each way in which it is, and how to repeat it.
pub(crate) fn assert_all_well(report: &Report, verdicts: &[Verdict]) {
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
        let told: Vec<_> = beyond.into_iter().take(TOLD).map(tell).collect();
        println!("beyond what anyone can promise:\n{}", told.join("\n"));
    }
    let told: Vec<_> = promised.into_iter().take(TOLD).map(tell).collect();
    assert!(told.is_empty(), "{} faults went wrong:\n{}", report.total.wrong, told.join("\n"));
    assert_eq!(report.total.lost_profiles, 0, "profiles were lost");
}
