//! Every row's examples: the row is found, it holds, and captures what its example says.

use std::path::Path;
use std::{env, fs};

use gridguard_diagnose::{Failure, Known, LogScanner};

use crate::schema::{self, Entry, Row};

/// All rows, with their files. `GRIDGUARD_ROWS=word` keeps the files whose name has the word.
fn rows() -> Vec<(String, Row)> {
    let word = env::var("GRIDGUARD_ROWS").unwrap_or_default();
    let mut rows = Vec::new();
    for entry in fs::read_dir(Path::new(gridguard_data::FAILURES)).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if !name.ends_with(".ron") || !name.contains(&word) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("UTF-8");
        let entries = schema::parse(&text).expect("checked when the crate was built");
        for entry in entries {
            match entry {
                Entry::Row(row) => rows.push((name.clone(), *row)),
                Entry::Codes(codes) => rows.extend(codes.rows().map(|row| (name.clone(), row))),
            }
        }
    }
    rows
}

fn scanned(log: &str) -> LogScanner {
    let mut scanner = LogScanner::new();
    scanner.read(log.as_bytes()).expect("memory can be read");
    scanner
}

#[test]
fn every_example_is_explained_by_its_row() {
    let mut problems = Vec::new();
    let rows = rows();
    for (file, row) in &rows {
        let mut problem = |what: String| problems.push(format!("{file}: row {}: {what}", row.id));
        if row.examples.is_empty() && !row.lines.is_empty() && row.source.is_empty() {
            problem("it has no example".into());
        }
        for example in &row.examples {
            let log = scanned(&example.log);
            let Some((_, line, holds)) = log.rows().find(|(id, ..)| *id == row.id) else {
                problem(format!("its lines are not in {:?}", example.log));
                continue;
            };
            if !holds {
                problem(format!("its conditions do not hold in {:?}", example.log));
                continue;
            }
            let captured = log.captured(&row.id);
            for (name, expected) in &example.captures {
                match captured.get(name) {
                    Some(found) if found == expected => {}
                    found => problem(format!(
                        "{name} is {found:?}, not {expected:?}, in {:?}",
                        example.log
                    )),
                }
            }
            if row.evidence.0 == "Fact" || row.evidence.0 == "Harmless" {
                continue;
            }
            let answer = log.diagnosis(&Known::default());
            // Another row may say the same of the line, or more of another line.
            let is_said = |it: &Failure| {
                it.id == row.id
                    || it.evidence.iter().any(|it| it.line == line)
                    || it.consequences.iter().any(|it| it.id == row.id)
            };
            match answer.failures.first() {
                Some(first) if is_said(first) => {}
                Some(first) => {
                    problem(format!("{} comes before it in {:?}", first.id, example.log));
                }
                None => problem(format!("nothing is explained in {:?}", example.log)),
            }
        }
    }
    assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
    assert!(!rows.is_empty());
}

#[test]
fn every_name_of_a_code_is_found() {
    let mut problems = Vec::new();
    for (file, row) in rows().into_iter().filter(|(_, row)| row.examples.is_empty()) {
        let beside = row.here.first().map_or("", String::as_str);
        let words = row.words.iter().map(|name| format!("{beside}: {name}"));
        for line in row.lines.iter().cloned().chain(words).filter(|line| !line.contains('{')) {
            if !scanned(&line).rows().any(|(id, ..)| id == row.id) {
                problems.push(format!("{file}: row {}: not found in {line:?}", row.id));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
