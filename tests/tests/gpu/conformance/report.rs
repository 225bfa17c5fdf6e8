//! The report of a run: printed, and written as `conformance.json`.

use std::collections::BTreeMap;

use gridguard_test_support::conformance::kernel::KernelUnderTest;
use gridguard_test_support::conformance::session::Outcome;
use serde::Serialize;

/// Environment variable: the folder for results.
const RESULTS: &str = "GRIDGUARD_RESULTS";

/// The file `conformance.json`.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) device: &'a str,
    pub(crate) driver: String,
    pub(crate) seed: u64,
    pub(crate) kernels: Vec<Kernel<'a>>,
    /// Kernels that could not be compiled or loaded, with the reason.
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
    pub(crate) fn new(kernel: &'a KernelUnderTest) -> Self {
        let limits = kernel.limits.kernel();
        Self {
            name: &kernel.name,
            max_threads: limits.max_threads_per_block.expect("known"),
            registers: limits.registers_per_thread,
            static_shared_bytes: limits.static_shared_bytes,
            max_dynamic_shared_bytes: kernel.limits.max_dynamic_shared_bytes(),
            local_bytes: limits.local_bytes_per_thread,
            required_cluster: limits.required_cluster.map(|c| [c.x, c.y, c.z]),
            cluster_must_be_set: limits.cluster_must_be_set,
            parameter_bytes: kernel.parameter_bytes,
            unanswered: kernel.failed_queries.borrow().clone(),
        }
    }
}

impl Report<'_> {
    /// Prints the report and writes it to the folder for results.
    pub(crate) fn publish(&self) {
        let text = serde_json::to_string_pretty(self).expect("a report") + "\n";
        println!("{text}");
        keep("conformance.json", &text);
    }
}

/// Writes `file` to the folder for results, if the environment names one.
pub(crate) fn keep(file: &str, text: &str) {
    if let Some(folder) = std::env::var_os(RESULTS) {
        let path = std::path::Path::new(&folder).join(file);
        gridguard_files::publish(&path, text.as_bytes()).expect("the folder of results");
    }
}

/// Fails where guard and driver differ in anything.
pub(crate) fn assert_agreement(outcome: &Outcome) {
    let tally = &outcome.tally;
    assert_eq!(outcome.sticky, None, "a launch left a sticky error");
    assert_eq!(tally.disagreements, 0, "guard and driver differ: {:#?}", tally.kinds);
    let correct = tally.single.all_correct() && tally.several.all_correct();
    assert!(correct, "other error codes than predicted: {:#?}", tally.wrong_answers);
}
