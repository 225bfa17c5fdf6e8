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
    match env::var_os("GRIDGUARD_REPORTS") {
        Some(other) => count(data, other.as_ref(), false),
        None => {
            count(data, &data.join("reports/reports.txt"), true);
            count(data, &data.join("reports/held-out.txt"), false);
        }
    }
}

/// Compares the counts of a file with the stored ones, and prints them; `is_open` reports by name.
fn count(data: &Path, file: &Path, is_open: bool) {
    let text = fs::read_to_string(file).expect("the reports");
    let mut counts = Counts::default();
    for report in reports(&text) {
        let answer = report.diagnosis();
        let verdict = report.judge(&answer);
        counts.add(&report, verdict);
        if verdict != Verdict::Right && is_open {
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
    let stored = &figures[&name];
    let is_worse =
        stored["reports"] == found["reports"] && found["right"].as_u64() < stored["right"].as_u64();
    assert!(!is_worse, "{name}: {found}, but {stored} before: these counts may only rise");
    if env::var_os("UPDATE_FIGURES").is_some() {
        figures[&name] = found;
        let text = serde_json::to_string_pretty(&figures).expect("JSON") + "\n";
        fs::write(&path, text).expect("the figures are written");
    } else if !stored.is_null() {
        assert_eq!(found, *stored, "UPDATE_FIGURES=1 writes these counts");
    }
}
