//! The child process: injects the faults that it is asked for, and tells what came of each.

use std::io::Write;
use std::path::PathBuf;

use crate::bench::Bench;
use crate::fault::{Fault, Kind};
use crate::ground::Ground;
use crate::judge::Observed;

/// Which faults: the kind, the seed, and the numbers.
pub(crate) const FAULTS: &str = "GRIDGUARD_FAULTS";
/// The process's own folder.
pub(crate) const OWN_FOLDER: &str = "GRIDGUARD_FAULTS_OWN_FOLDER";
/// What goes before the number of a fault that is about to be injected.
pub(crate) const BEGINS: &str = "begins ";
/// What goes before the number of a fault and what came of it.
pub(crate) const TOLD: &str = "told ";
/// What goes before what a process is about to do, so that it is known where one hangs.
pub(crate) const DOES: &str = "does ";

/// Says what the fault at hand is about to do.
pub(crate) fn does(what: &str) {
    say(&format!("{DOES}{what}"));
}

/// The faults as the environment names them.
pub(crate) fn asked_for(faults: &[Fault]) -> String {
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

pub(crate) fn inject_what_is_asked_for() {
    let Ok(faults) = std::env::var(FAULTS) else {
        return;
    };
    let folder = PathBuf::from(std::env::var_os(OWN_FOLDER).expect("the parent names a folder"));
    let bench = Bench { ground: Ground::of_environment(), folder };
    let faults = parse(&faults);
    // A context that none of them harms need not be made for each anew.
    let keeps = faults.first().is_some_and(|fault| fault.kind == Kind::BadImage);
    let _kept = keeps.then(|| bench.guard());
    for fault in faults {
        say(&format!("{BEGINS}{}", fault.number));
        let mut observed: Observed = fault.case().inject(&bench);
        observed.published = bench.publish(&fault);
        let text = serde_json::to_string(&observed).expect("plain data");
        say(&format!("{TOLD}{} {text}", fault.number));
    }
}

/// On a line of its own, whatever the driver or the test harness print.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{line}\n").as_bytes()).expect("the parent listens");
    out.flush().expect("the parent listens");
}
