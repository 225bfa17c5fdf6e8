//! The protocol between a tuner and its measuring process.

use std::io::Cursor;

use gridguard::Plan;
use gridguard_autotune::{
    Candidate, FailureKind, LaunchConfig, MeasureFailure, Measurer, Portion, Sample, Space,
    serve_on,
};

/// For any input the measuring process replies to each request with one line of JSON, or ends with a reason. Every plan
/// made from its replies is legal.
pub(super) fn check(bytes: &[u8]) {
    let mut output = Vec::new();
    let open = |problem: &str| -> Result<Box<dyn Measurer>, MeasureFailure> {
        match problem {
            "none" => Err(MeasureFailure::new(FailureKind::Launch, "no such problem")),
            _ => Ok(Box::new(Quick)),
        }
    };
    let ended = serve_on(Cursor::new(bytes.to_vec()), &mut output, open);
    let requests = bytes.split(|byte| *byte == b'\n').count();
    let output = String::from_utf8(output).expect("text");
    // After the greeting.
    let answers: Vec<&str> = output.lines().skip(1).collect();
    assert!(answers.len() <= requests);
    for answer in answers {
        serde_json::from_str::<serde_json::Value>(answer).expect("JSON");
    }
    if let Err(error) = ended {
        assert!(!error.to_string().starts_with("cannot write a response"), "{error}");
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(configuration) = serde_json::from_slice::<LaunchConfig>(line) {
            makes_legal_plans(configuration);
        }
    }
}

/// Launches of a plan that are looked at.
const LOOKED_AT: usize = 100;

fn makes_legal_plans(configuration: LaunchConfig) {
    let (batch, limits) = (configuration.batch, configuration.limits.clone());
    let text = serde_json::to_string(&configuration).expect("data");
    let again: LaunchConfig = serde_json::from_str(&text).expect("its own text");
    assert_eq!((again.request, again.batch), (configuration.request, batch));
    assert_eq!(again.limits.device(), limits.device());
    assert_eq!(again.limits.kernel(), limits.kernel());
    let space = Space::new(vec![configuration]);
    for candidate in space.candidates() {
        let plan = space.plan(candidate).expect("it was planned before");
        assert_eq!(plan.len(), candidate.launches);
        // Plans of a rewritten kernel count blocks, and without a batch there are no items.
        if let (Some(batch), None) = (batch, limits.form_limits()) {
            let items = (plan.items(), plan.largest_chunk());
            assert_eq!(items, (batch.items(), candidate.largest_chunk));
        }
        is_exact(&plan);
    }
}

fn is_exact(plan: &Plan) {
    let mut next = 0;
    for one in plan.launches().take(LOOKED_AT) {
        assert!(one.chunk.start == next && one.chunk.items > 0, "{:?}", one.chunk);
        next = one.chunk.end();
    }
    assert!(plan.launches().nth(LOOKED_AT).is_some() || next == plan.items());
}

/// Measures in no time.
struct Quick;

impl Measurer for Quick {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        match candidate.launches {
            0 => Err(MeasureFailure::new(FailureKind::Illegal, "no launch")),
            _ => Ok(()),
        }
    }

    fn sample(&mut self, _: &Candidate, _: Portion) -> Result<Sample, MeasureFailure> {
        Ok(Sample { time_ns: 1.0, clock_mhz: None, disturbed: false })
    }
}
