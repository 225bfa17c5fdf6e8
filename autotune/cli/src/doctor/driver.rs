//! Driver and devices, seen from outside of the process that touches them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gridguard::ComputeCapability;

use super::child::{self, Line, Program};
use super::device;
use super::examine::{Driver, Event, MARK};
use super::finding::Finding;

const SUBJECT: &str = "driver";

/// What the examination told, and how it ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told {
    events: Vec<Event>,
    end: End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Whole,
    /// It said nothing more in all that time.
    Late(Duration),
    /// It died, with its last words.
    Died(String),
    Unstarted(String),
}

/// A device that the driver named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) ordinal: usize,
    pub(super) name: String,
    pub(super) capability: ComputeCapability,
}

/// Has driver and devices examined, which may take so long.
pub(super) fn ask(profile: Option<&Path>, within: Duration) -> Told {
    let mut events = Vec::new();
    let unstarted = |error: std::io::Error| End::Unstarted(error.to_string());
    let program = std::env::current_exe().map_err(unstarted).and_then(|program| {
        let mut command = Command::new(program);
        command.arg("examine");
        if let Some(path) = profile {
            command.arg("--profile").arg(path);
        }
        Program::start(command).map_err(unstarted)
    });
    let mut program = match program {
        Ok(program) => program,
        Err(end) => return Told { events, end },
    };
    let deadline = program.begun() + within;
    let end = loop {
        match program.line_until(deadline) {
            Line::Told(line) => {
                let told = line.strip_prefix(MARK).and_then(|text| serde_json::from_str(text).ok());
                match told {
                    Some(Event::Done) => {
                        // Its contexts are gone then, which the next process may need; how it ends
                        // is its own matter.
                        program.ended();
                        break End::Whole;
                    }
                    event => events.extend(event),
                }
            }
            Line::Late => break End::Late(within),
            Line::None => break End::Died(words(&mut program)),
        }
    };
    Told { events, end }
}

fn words(program: &mut Program) -> String {
    let status = program.ended().map_or("it closed its output".to_owned(), |it| it.to_string());
    let errors = program.errors();
    match child::last_line(&errors) {
        Some(line) => format!("{status}, {line}"),
        None => status,
    }
}

impl Told {
    /// What the driver said of itself, where it did.
    pub(super) fn driver(&self) -> Option<&Driver> {
        self.events.iter().find_map(|event| match event {
            Event::Driver(driver) => Some(driver),
            _ => None,
        })
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = Named> + '_ {
        self.events.iter().filter_map(|event| match event.clone() {
            Event::Device { ordinal, name, capability } => {
                Some(Named { ordinal, name, capability })
            }
            _ => None,
        })
    }

    /// Why there is nothing of the driver: it hangs, or ends whoever asks it.
    pub(super) fn silence(&self) -> Option<Finding> {
        if self.driver().is_some() {
            return None;
        }
        let (what, remedy) = match &self.end {
            End::Late(within) => {
                (format!("it did not answer within {}", humantime::format_duration(*within)), HANGS)
            }
            End::Died(words) => (format!("asking it ends the process: {words}"), CRASHES),
            End::Unstarted(why) => {
                let what = format!("gridguard could not start itself to ask it: {why}");
                return Some(Finding::unknown(SUBJECT, what, "look at what is said"));
            }
            End::Whole => ("it said nothing".to_owned(), CRASHES),
        };
        Some(Finding::bad(SUBJECT, what, remedy))
    }

    /// What each device came to, in their order, and then the profiles.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let shown = self.driver().and_then(|driver| driver.shown).unwrap_or(0);
        let mut findings: Vec<Finding> = (0..shown).flat_map(|it| self.of_device(it)).collect();
        for event in &self.events {
            if let Event::Profiles(profiles) = event {
                findings.extend(profiles.iter().cloned());
            }
        }
        findings
    }

    fn of_device(&self, place: usize) -> Vec<Finding> {
        let examined = self.events.iter().find_map(|event| match event {
            Event::Examined { ordinal, findings } if *ordinal == place => Some(findings.clone()),
            _ => None,
        });
        examined.unwrap_or_else(|| {
            let name = self.devices().find(|it| it.ordinal == place).map(|it| it.name);
            let name = name.unwrap_or_else(|| "it".to_owned());
            let what = match &self.end {
                End::Late(within) => {
                    let within = humantime::format_duration(*within);
                    format!("{name} was not there and back within {within}")
                }
                End::Died(words) => format!("using {name} ends the process: {words}"),
                End::Whole | End::Unstarted(_) => format!("{name} was not examined"),
            };
            vec![Finding::bad(device::subject(place), what, HANGS)]
        })
    }
}

const HANGS: &str = "look for an Xid (dmesg | grep -i xid) and whether nvidia-smi answers; end what \
                     uses the GPU, reset it (nvidia-smi --gpu-reset) or reboot; a slow machine may \
                     need more --patience";
const CRASHES: &str = "the library is no driver, or not the one of the kernel module: install the \
                       driver anew, and take other folders out of LD_LIBRARY_PATH";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    fn told(events: Vec<Event>, end: End) -> Told {
        Told { events, end }
    }

    fn two_devices() -> Vec<Event> {
        let capability = ComputeCapability::new(9, 0);
        let device = |ordinal| Event::Device { ordinal, name: "NVIDIA H200".into(), capability };
        let driver = Driver { shown: Some(2), version: Some(13_000), ..Driver::default() };
        let findings = vec![Finding::good("device 1", "well")];
        let examined = Event::Examined { ordinal: 1, findings };
        vec![Event::Driver(driver), device(0), device(1), examined]
    }

    #[test]
    fn a_driver_that_hangs_or_kills_is_bad() {
        let silence = |end| told(Vec::new(), end).silence().expect("nothing was told");
        let late = silence(End::Late(Duration::from_secs(20)));
        assert_eq!((late.level, late.what.as_str()), (Level::Bad, "it did not answer within 20s"));
        let died = silence(End::Died("signal: 11 (SIGSEGV)".into()));
        assert_eq!(died.what, "asking it ends the process: signal: 11 (SIGSEGV)");
        assert_eq!(silence(End::Unstarted("no".into())).level, Level::Unknown);
        assert_eq!(told(two_devices(), End::Whole).silence(), None);
    }

    #[test]
    fn what_was_told_before_a_device_hangs_counts() {
        let findings = told(two_devices(), End::Late(Duration::from_secs(2))).findings();
        let whats: Vec<&str> = findings.iter().map(|it| it.what.as_str()).collect();
        assert_eq!(whats, ["NVIDIA H200 was not there and back within 2s", "well"]);
        let died = told(two_devices(), End::Died("signal: 6".into())).findings().remove(0);
        assert_eq!(died.what, "using NVIDIA H200 ends the process: signal: 6");
    }

    #[test]
    fn events_survive_their_way() {
        for event in two_devices() {
            let line = serde_json::to_string(&event).expect("JSON");
            assert_eq!(serde_json::from_str::<Event>(&line).expect("JSON"), event);
        }
    }
}
