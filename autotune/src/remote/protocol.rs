//! What a tuner and the process that measures for it say to each other: one JSON value a line.

use serde::{Deserialize, Serialize};

use crate::candidate::{Candidate, LaunchConfig};
use crate::measurer::MeasureFailure;
use crate::sample::{Portion, Sample};

/// The version of what follows: both sides are one program, unless one was replaced meanwhile.
pub(super) const PROTOCOL: u32 = 1;

/// What the tuner asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Request {
    /// Opens the problem, before anything else.
    Open { problem: String },
    /// Checks a candidate.
    Check { candidate: Candidate },
    /// Times a candidate.
    Sample { candidate: Candidate, portion: Portion, count: u32 },
    /// Ends.
    Close,
}

/// What the measuring process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Answer {
    /// That it listens: its first line of this kind. What is before, such as the banner of a program
    /// around it, is none of the protocol.
    Serving { protocol: u32 },
    /// The problem is open.
    Opened { configurations: Vec<LaunchConfig> },
    /// The candidate is right.
    Checked,
    /// Its times.
    Sampled { samples: Vec<Sample> },
    /// It could not do what was asked.
    Failed { failure: MeasureFailure },
}

#[cfg(test)]
mod tests {
    use gridguard::{
        Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest,
        Plan,
    };

    use super::*;

    #[test]
    fn a_configuration_that_was_sent_gives_the_same_plans() {
        let mut kernel = KernelLimits::unknown("attention");
        kernel.required_cluster = Some(Dim3::new(1, 2, 1));
        kernel.max_dynamic_shared_bytes = 100_000;
        let mut device = DeviceLimits::any_device();
        device.max_shared_bytes_per_block_opt_in = 101_376;
        device.cluster_launch = true;
        device.max_portable_cluster_blocks = 8;
        let configuration = LaunchConfig {
            parameters: vec![("rows".into(), 4)],
            request: LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1))
                .dynamic_shared_bytes(60_000),
            batch: BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5).align(3),
            limits: LaunchLimits::new(device, kernel),
        };
        let plan = |configuration: &LaunchConfig| {
            let LaunchConfig { request, batch, limits, .. } = configuration;
            let plan = Plan::new(request, Some(batch), limits, Choice::at_most(5000));
            let plan = plan.expect("a plan");
            plan.launches().map(|one| (one.chunk, one.launch.grid())).collect::<Vec<_>>()
        };
        let expected = plan(&configuration);
        let line = serde_json::to_string(&configuration).expect("data");
        let received: LaunchConfig = serde_json::from_str(&line).expect("a configuration");
        assert_eq!(received.parameters, [("rows".to_owned(), 4)]);
        assert_eq!(plan(&received), expected);
        assert_eq!(received.limits.kernel().max_threads_per_block, u64::MAX);
    }

    #[test]
    fn requests_are_one_line_each_and_unknown_ones_are_refused() {
        let line = serde_json::to_string(&Request::Open { problem: "a\nb".into() }).expect("data");
        assert_eq!(line, r#"{"open":{"problem":"a\nb"}}"#);
        assert_eq!(serde_json::to_string(&Request::Close).expect("data"), r#""close""#);
        for unknown in [r#"{"open":{}}"#, r#""stop""#, "", "{}"] {
            serde_json::from_str::<Request>(unknown).expect_err(unknown);
        }
    }
}
