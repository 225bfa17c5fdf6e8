//! Which processor runs what the host runs.

use core::fmt;
use std::fs;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};

/// A processor, and how much of it a process has.
///
/// ```
/// use gridguard::profile::Processor;
///
/// let processor = Processor::of_this_machine();
/// assert!(!processor.name.is_empty() && processor.threads > 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Its model as `/proc/cpuinfo` has it, or `unknown processor` where nothing says.
    pub name: String,
    /// Threads that run at the same time, as affinity and control groups allow.
    pub threads: u64,
}

impl Processor {
    /// That of this process, asked once. Processors without a name are told apart by their threads
    /// alone.
    pub fn of_this_machine() -> &'static Self {
        static THIS: OnceLock<Processor> = OnceLock::new();
        THIS.get_or_init(|| {
            let name = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| model(&text));
            let threads = available_parallelism().map_or(1, |threads| threads.get());
            Self {
                name: name.unwrap_or_else(|| UNKNOWN.to_owned()),
                threads: u64::try_from(threads).unwrap_or(u64::MAX),
            }
        })
    }
}

impl fmt::Display for Processor {
    /// `AMD EPYC 9654 96-Core Processor with 192 threads`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, threads } = self;
        write!(f, "{name} with {threads} thread{}", if *threads == 1 { "" } else { "s" })
    }
}

/// The model in the text of `/proc/cpuinfo`.
fn model(text: &str) -> Option<String> {
    let value = |wanted: &str| {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let mut values =
            fields.filter(|(name, _)| name.trim() == wanted).map(|(_, value)| plain(value));
        values.find(|value| !value.is_empty())
    };
    let numbered = || {
        // Arm's processors have numbers for names.
        let (implementer, part) = (value("CPU implementer")?, value("CPU part")?);
        Some(format!("Arm processor {implementer} {part}"))
    };
    value("model name").or_else(numbered).or_else(|| value("cpu"))
}

/// With single spaces, nothing that no terminal shows, and no longer than a name may be.
fn plain(value: &str) -> String {
    let words: Vec<&str> = value.split_whitespace().collect();
    let shown = |character: &char| !character.is_control();
    words.join(" ").chars().filter(shown).take(MAX_CHARACTERS).collect()
}

const UNKNOWN: &str = "unknown processor";
/// Characters of a name: a quarter of the bytes that a header takes.
const MAX_CHARACTERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_read_where_a_system_says_it() {
        let named = |text: &str| model(text).unwrap_or_default();
        let x86 = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654  96-Core Processor\n";
        assert_eq!(named(&x86.repeat(2)), "AMD EPYC 9654 96-Core Processor");
        let arm =
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n";
        assert_eq!(named(arm), "Arm processor 0x41 0xd4f");
        assert_eq!(named("cpu\t\t: POWER9, altivec supported\n"), "POWER9, altivec supported");
        assert_eq!(model("model name\t:\n\nprocessor : 0\n"), None);
        let long = format!("model name : {}\u{7}", "\u{1f4bb}".repeat(1000));
        assert_eq!(named(&long).len(), 256);
    }

    #[test]
    fn a_processor_reads_with_its_threads() {
        let processor = |threads| Processor { name: UNKNOWN.into(), threads }.to_string();
        assert_eq!(processor(1), "unknown processor with 1 thread");
        assert_eq!(processor(2), "unknown processor with 2 threads");
    }
}
