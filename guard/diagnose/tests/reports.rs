//! The public reports of `bench-data/reports`: how many first causes are right.

use std::fs;
use std::path::Path;

use crate::judge::{Counts, Verdict, reports};

/// Reports whose first cause is right. It may only rise.
const RIGHT: usize = 226;

#[test]
fn the_first_cause_of_most_reports_is_right() {
    let file = Path::new(gridguard_data::FAILURES).with_file_name("reports").join("reports.txt");
    let text = fs::read_to_string(file).expect("the reports");
    let mut counts = Counts::default();
    for report in reports(&text) {
        let answer = report.diagnosis();
        let verdict = report.judge(&answer);
        counts.add(&report, verdict);
        if verdict != Verdict::Right {
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
    assert!(right >= RIGHT, "{right} are right, {RIGHT} were");
}
