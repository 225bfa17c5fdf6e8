//! The public reports of `bench-data/reports`: how many first causes are right.
//!
//! `GRIDGUARD_REPORTS=FILE cargo test -p gridguard-diagnose reports -- --nocapture` prints counts of another file, and
//! nothing of its reports. With `UPDATE_FIGURES=1` the counts are written where the documents read them.

use std::path::Path;
use std::{env, fs};

use serde_json::{Value, json};

use crate::judge::{Counts, Verdict, reports};

#[test]
fn the_first_cause_of_most_reports_is_right() {
    let data = Path::new(gridguard_data::FAILURES).parent().expect("a folder");
    let other = env::var_os("GRIDGUARD_REPORTS");
    let file = other.as_ref().map_or_else(|| data.join("reports/reports.txt"), Into::into);
    let text = fs::read_to_string(&file).expect("the reports");
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
    let path = data.join("results/host/explain.json");
    let mut figures: Value =
        serde_json::from_str(&fs::read_to_string(&path).expect("the figures")).expect("JSON");
    let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
    let found = json!({"reports": reports(&text).count(), "right": counts.right()});
    if env::var_os("UPDATE_FIGURES").is_some() {
        figures[&name] = found;
        let text = serde_json::to_string_pretty(&figures).expect("JSON") + "\n";
        fs::write(&path, text).expect("the figures are written");
    } else if other.is_none() {
        assert_eq!(
            found, figures[&name],
            "UPDATE_FIGURES=1 writes these counts, which may only rise"
        );
    }
}
