//! The report of a run: `faults.json`, and what went wrong.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use gridguard::profile::load;
use gridguard_tests::figures::from_suite;
use serde::Serialize;

use crate::KINDS;
use crate::run::{End, Verdict};
use crate::setup::Setup;

/// Environment variable: the folder for results.
const RESULTS: &str = "GRIDGUARD_RESULTS";
/// The most wrong outcomes that a failure lists.
const MOST_LISTED: usize = 60;

/// The file `faults.json`.
#[derive(Serialize)]
struct Report {
    device: String,
    driver: String,
    commit: String,
    date: String,
    seed: u64,
    seconds: u64,
    injected: u64,
    /// Sums over the kinds.
    total: Count,
    kinds: BTreeMap<&'static str, Count>,
}

/// The results of one kind of fault.
#[derive(Default, Serialize)]
struct Count {
    injected: u64,
    wrong: u64,
    panics: u64,
    hangs: u64,
    lost_profiles: u64,
    /// Processes that died, by signal.
    deaths: BTreeMap<String, u64>,
    /// How often each outcome occurred.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    outcomes: BTreeMap<String, u64>,
}

impl Count {
    fn add(&mut self, verdict: &Verdict, lost: u64) {
        self.injected += 1;
        self.wrong += u64::from(!verdict.observed.wrong.is_empty());
        self.panics += u64::from(verdict.end == End::Panicked);
        self.hangs += u64::from(verdict.end == End::Hung);
        self.lost_profiles += lost;
        if let End::Killed(signal) = verdict.end {
            *self.deaths.entry(format!("signal {signal}")).or_default() += 1;
        }
    }
}

/// Writes the report to the folder for results, and fails if anything is wrong, with how to repeat it.
pub(crate) fn publish_and_check(setup: &Setup, seed: u64, took: Duration, verdicts: &[Verdict]) {
    let device = match setup.is_fake {
        true => "none, a fake driver".into(),
        false => gridguard::cuda::device_limits(0).expect("a CUDA device").name.clone(),
    };
    let mut report = Report {
        device,
        driver: from_suite("GRIDGUARD_DRIVER"),
        commit: from_suite("GRIDGUARD_COMMIT"),
        date: from_suite("GRIDGUARD_DATE"),
        seed,
        seconds: took.as_secs(),
        injected: 0,
        total: Count::default(),
        kinds: BTreeMap::new(),
    };
    let rows = KINDS.map(|kind| rows(setup, kind.name));
    let mut wrong = Vec::new();
    for verdict in verdicts {
        let Verdict { kind, number, observed, end } = verdict;
        let name = KINDS[*kind].name;
        // The entry that was written after the fault.
        let is_lost = *end == End::Completed && !rows[*kind].contains(&(number + 1));
        let lost = observed.lost_profiles + u64::from(is_lost);
        let count = report.kinds.entry(name).or_default();
        count.add(verdict, lost);
        *count.outcomes.entry(observed.outcome.clone()).or_default() += 1;
        report.total.add(verdict, lost);
        report.injected += 1;
        if !observed.wrong.is_empty() {
            let lines = observed.wrong.iter().chain(&observed.details).cloned();
            let lines = lines.collect::<Vec<_>>().join("\n    ");
            wrong.push(format!(
                "{name} came to {}\n    {lines}\n    PROPTEST_RNG_SEED={seed} GRIDGUARD_FAULT={name}:{number}",
                observed.outcome
            ));
        }
    }
    let text = serde_json::to_string_pretty(&report).expect("a report") + "\n";
    println!("{text}");
    if let Some(folder) = std::env::var_os(RESULTS) {
        let path = std::path::Path::new(&folder).join("faults.json");
        gridguard_files::publish(&path, text.as_bytes()).expect("the folder of results");
    }
    let count = wrong.len();
    wrong.truncate(MOST_LISTED);
    assert!(wrong.is_empty(), "{count} faults went wrong:\n{}", wrong.join("\n"));
    assert_eq!(report.total.lost_profiles, 0, "profiles were lost");
}

/// The rows of the entries in the profile of a kind.
fn rows(setup: &Setup, kind: &str) -> HashSet<u64> {
    let Ok(Some(read)) = load(&setup.profile(kind)) else { return HashSet::new() };
    read.document.entries().iter().flat_map(|entry| entry.shape.iter().map(|(_, n)| *n)).collect()
}
