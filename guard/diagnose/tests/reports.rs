//! The public reports of `bench-data/reports`: how many first causes are right.
//!
//! `GRIDGUARD_REPORTS=FILE cargo test -p gridguard-diagnose reports -- --nocapture` prints counts of another file, and
//! nothing of its reports.

use std::path::Path;
use std::{env, fs};

use crate::judge::{Counts, Verdict, reports};

/// Reports whose first cause is right. It may only rise.
const RIGHT: usize = 226;

#[test]
fn the_first_cause_of_most_reports_is_right() {
    let file = Path::new(gridguard_data::FAILURES).with_file_name("reports").join("reports.txt");
    let other = env::var_os("GRIDGUARD_REPORTS");
    let text = fs::read_to_string(other.as_ref().map_or(&*file, Path::new)).expect("the reports");
    let mut counts = Counts::default();
    for report in reports(&text) {
        let answer = report.diagnosis();
        let verdict = report.judge(&answer);
        counts.add(&report, verdict);
        if verdict != Verdict::Right && other.is_none() {
            let first = answer.failures.first().map_or("nothing", |it| it.id.as_str());
            println!(
                "{}: {verdict:?}: {first}, not {} ({})",
                report.name,
                report.get("cause"),
                report.get("says")
            );
        }
    }
    println!("{counts}");
    let right = counts.right();
    assert!(other.is_some() || right >= RIGHT, "{right} are right, {RIGHT} were");
}
