//! What a run found, for people and as a file.

use std::collections::BTreeMap;

use serde::Serialize;

use super::session::Outcome;
use super::subject::Subject;

/// Where the suite keeps its results.
const RESULTS: &str = "GRIDGUARD_RESULTS";

/// The file `conformance.json`.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) device: &'a str,
    pub(crate) driver: String,
    pub(crate) seed: u64,
    pub(crate) kernels: Vec<Kernel<'a>>,
    /// Kernels that could not be had, with the reason.
    pub(crate) left_out: &'a [(String, String)],
    #[serde(flatten)]
    pub(crate) outcome: &'a Outcome,
}

/// A kernel of the family as the driver describes it.
#[derive(Serialize)]
pub(crate) struct Kernel<'a> {
    name: &'a str,
    max_threads: u64,
    registers: u64,
    static_shared_bytes: u64,
    max_dynamic_shared_bytes: u64,
    local_bytes: u64,
    required_cluster: Option<[u64; 3]>,
    cluster_must_be_set: bool,
    parameter_bytes: u64,
    unanswered: BTreeMap<String, u64>,
}

impl<'a> Kernel<'a> {
    pub(crate) fn new(subject: &'a Subject) -> Self {
        let kernel = subject.limits.kernel();
        Self {
            name: &subject.name,
            max_threads: kernel.max_threads_per_block,
            registers: kernel.registers_per_thread,
            static_shared_bytes: kernel.static_shared_bytes,
            max_dynamic_shared_bytes: kernel.max_dynamic_shared_bytes,
            local_bytes: kernel.local_bytes_per_thread,
            required_cluster: kernel.required_cluster.map(|c| [c.x, c.y, c.z]),
            cluster_must_be_set: kernel.cluster_must_be_set,
            parameter_bytes: subject.parameter_bytes,
            unanswered: subject.unanswered.borrow().clone(),
        }
    }
}

impl Report<'_> {
    /// Prints the report and writes it where the suite wants results.
    pub(crate) fn publish(&self) {
        let text = serde_json::to_string_pretty(self).expect("a report") + "\n";
        println!("{text}");
        keep("conformance.json", &text);
    }
}

/// Writes a result where the suite wants it, if anywhere.
pub(crate) fn keep(file: &str, text: &str) {
    if let Some(folder) = std::env::var_os(RESULTS) {
        let path = std::path::Path::new(&folder).join(file);
        std::fs::write(path, text).expect("the folder of results");
    }
}

impl Outcome {
    /// Fails where guard and driver differ in anything.
    pub(crate) fn assert_agreement(&self) {
        let tally = &self.tally;
        assert_eq!(self.sticky, None, "a launch left an error behind");
        assert_eq!(tally.disagreements, 0, "guard and driver differ: {:#?}", tally.kinds);
        let right = tally.single.all_right() && tally.several.all_right();
        assert!(right, "other answers than predicted: {:#?}", tally.wrong_answers);
    }
}
