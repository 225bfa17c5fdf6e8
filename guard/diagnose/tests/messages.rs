//! Lines of many programs, each with the failure that it reports: `messages.txt`.

use gridguard_diagnose::{Known, LogScanner};

const MESSAGES: &str = include_str!("messages.txt");

#[test]
fn messages_of_many_programs_are_recognized() {
    let mut wrong = Vec::new();
    let mut expected = "";
    for line in MESSAGES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("== ") {
            expected = name;
            continue;
        }
        let mut log = LogScanner::new();
        log.line(line);
        let diagnosis = log.diagnosis(&Known::default());
        let found = diagnosis
            .failures
            .first()
            .map_or("nothing", |it| if it.title.is_empty() { it.id.as_str() } else { it.title });
        if found != expected
            && expected.strip_prefix(found).is_none_or(|rest| !rest.starts_with(" ("))
        {
            wrong.push(format!("{found}, not {expected}: {line}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}
