//! The child process: injects the faults that the environment names, and prints the result of each.

use std::io::Write;
use std::path::PathBuf;

use crate::device_setup::DeviceSetup;
use crate::environment::RunEnvironment;
use crate::expected::Observed;
use crate::fault::{Fault, Kind};

/// Environment variable: kind, seed and numbers of the faults.
pub(crate) const FAULTS: &str = "GRIDGUARD_FAULTS";
/// Environment variable: the process's own folder.
pub(crate) const OWN_FOLDER: &str = "GRIDGUARD_FAULTS_OWN_FOLDER";
/// Starts the line before a fault is injected; its number follows.
pub(crate) const BEGINS: &str = "begins ";
/// Starts the line with the number and the result of a fault.
pub(crate) const RESULT: &str = "result ";
/// Starts a line with the next action, which tells where a process hangs.
pub(crate) const DOES: &str = "does ";

/// Prints the next action of the fault.
pub(crate) fn does(what: &str) {
    say(&format!("{DOES}{what}"));
}

/// The value of [`FAULTS`] for `faults`.
pub(crate) fn requested(faults: &[Fault]) -> String {
    let numbers: Vec<_> = faults.iter().map(|fault| fault.number.to_string()).collect();
    let first = faults.first().expect("a fault");
    format!("{}:{}:{}", first.kind.name(), first.seed, numbers.join(","))
}

fn parse(text: &str) -> Vec<Fault> {
    let mut parts = text.split(':');
    let mut next = || parts.next().expect("three parts");
    let kind = Kind::of_name(next()).expect("a kind");
    let seed = next().parse().expect("a seed");
    let number = |text: &str| text.parse().expect("a number");
    next().split(',').map(|text| Fault { kind, seed, number: number(text) }).collect()
}

pub(crate) fn inject_requested() {
    let Ok(faults) = std::env::var(FAULTS) else {
        return;
    };
    let folder = PathBuf::from(std::env::var_os(OWN_FOLDER).expect("the parent names a folder"));
    let setup = DeviceSetup { environment: RunEnvironment::from_variables(), folder };
    let faults = parse(&faults);
    // These faults leave the context usable, so it is kept for all of them.
    let keeps = faults.first().is_some_and(|fault| fault.kind == Kind::BadImage);
    let _kept = keeps.then(|| setup.guard());
    for fault in faults {
        say(&format!("{BEGINS}{}", fault.number));
        let mut observed: Observed = fault.case().inject(&setup);
        observed.published = setup.publish(&fault);
        let text = serde_json::to_string(&observed).expect("plain data");
        say(&format!("{RESULT}{} {text}", fault.number));
    }
}

/// Prints on a line of its own, whatever the driver or the test harness print.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{line}\n").as_bytes()).expect("the parent listens");
    out.flush().expect("the parent listens");
}
