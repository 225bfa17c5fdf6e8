//! Prints how many first causes of a file of reports are right, and nothing of the reports.
//!
//! `cargo run -p gridguard-diagnose --example corpus -- FILE`

use std::{env, error, fs};

#[path = "../tests/judge.rs"]
mod judge;

fn main() -> Result<(), Box<dyn error::Error>> {
    let file = env::args().nth(1).ok_or("give a file of reports")?;
    let text = fs::read_to_string(file)?;
    let mut counts = judge::Counts::default();
    for report in judge::reports(&text) {
        counts.add(&report, report.judge(&report.diagnosis()));
    }
    print!("{counts}");
    Ok(())
}
