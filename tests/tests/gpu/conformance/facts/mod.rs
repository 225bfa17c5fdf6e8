//! Measures results of the driver that shaped a rule, or that no rule can predict.

mod clusters;
mod features;
mod memory;
mod parameters;

use std::collections::BTreeMap;

use cudarc::driver::CudaFunction;
use gridguard::{Dim3, LaunchRequest};
use gridguard_test_support::conformance::kernel::KernelUnderTest;
use gridguard_test_support::conformance::raw::{LaunchCall, RawDriver, RawLaunch};

use super::kernels::{Opened, compile, load, open, under_test};
use super::report::keep;
use crate::support::context;

/// The measured values, by question.
#[derive(Default)]
struct Facts(BTreeMap<String, String>);

impl Facts {
    fn note(&mut self, what: impl Into<String>, answer: impl ToString) {
        let (what, answer) = (what.into(), answer.to_string());
        println!("fact  {what}: {answer}");
        self.0.insert(what, answer);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_driver_s_answers_beyond_the_rules_are_measured() {
    context().bind_to_thread().expect("a context");
    let driver = RawDriver::open();
    let mut facts = Facts::default();
    features::measure(&driver, &mut facts);
    parameters::measure(&driver, &mut facts);
    clusters::measure(&driver, &mut facts);
    memory::measure(&driver, &mut facts);
    let text = serde_json::to_string_pretty(&facts.0).expect("text") + "\n";
    keep("facts.json", &text);
    assert_eq!(driver.synchronize(), 0, "the device is well afterwards");
}

/// A kernel with the module that holds it.
struct Loaded {
    kernel: KernelUnderTest,
    _function: CudaFunction,
}

fn loaded(driver: &RawDriver, macros: &[(&str, &str)], opened: Opened) -> Result<Loaded, String> {
    let function = open(driver, compile(macros).and_then(load)?, opened)?;
    let kernel = under_test(driver, "k", &function, 8);
    Ok(Loaded { kernel, _function: function })
}

impl Loaded {
    /// The driver's answer to `request`, at once and after it has run.
    fn answer(&self, driver: &RawDriver, request: &LaunchRequest, call: LaunchCall) -> (i32, i32) {
        let launch = RawLaunch::new(request).expect("32 bits");
        let answer = driver.launch(self.kernel.function, &launch, call);
        (answer, driver.synchronize())
    }
}

fn blocks_of(threads: u64, blocks: u64) -> LaunchRequest {
    LaunchRequest::new(Dim3::new(blocks, 1, 1), Dim3::new(threads, 1, 1))
}
