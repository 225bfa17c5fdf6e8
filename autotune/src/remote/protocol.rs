//! The protocol between a tuner and its measuring process: one JSON value per line.
//!
//! It does not use standard output, because device code and libraries print there.

use std::io::{self, BufReader, Read};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::lines::read_line;
use crate::measure::Portion;

/// The version of the protocol. The two sides differ only if the program is replaced during a search.
pub(super) const PROTOCOL: u32 = 4;

/// The longest line, without its newline.
pub(super) const MAX_LINE_BYTES: u64 = 1 << 20;

/// A request with its number, from 1, or the response to it: a result, or a failure. The greeting has the number 0,
/// and its result is the version of the protocol.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Numbered<T> {
    pub(super) id: u64,
    pub(super) message: T,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Request {
    Open { problem: String },
    Check { candidate: Candidate },
    Sample { candidate: Candidate, portion: Portion },
    Close,
}

/// The lines of `input`. A new thread reads them until the input ends, a line is invalid, or the receiver is gone, and
/// then calls `after`.
pub(super) fn read_lines(
    input: impl Read + Send + 'static,
    after: impl FnOnce() + Send + 'static,
) -> io::Result<Receiver<io::Result<String>>> {
    let (send, lines) = mpsc::sync_channel(MAX_QUEUED);
    thread::Builder::new().spawn(move || {
        let mut input = BufReader::new(input);
        while let Some(line) = read_line(&mut input, MAX_LINE_BYTES).transpose() {
            let is_last = line.is_err();
            if send.send(line).is_err() || is_last {
                break;
            }
        }
        drop(send);
        after();
    })?;
    Ok(lines)
}

/// Lines in a queue. Each side waits for the other, so more than one is already a fault of the other side.
const MAX_QUEUED: usize = 4;

#[cfg(test)]
mod tests {
    use gridguard::{
        Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest,
        Plan,
    };

    use super::*;
    use crate::candidate::LaunchConfig;

    #[test]
    fn a_configuration_gives_the_same_plans_on_both_sides() {
        let mut kernel = KernelLimits::unknown("attention");
        kernel.required_cluster = Some(Dim3::new(1, 2, 1));
        kernel.max_dynamic_shared_bytes = Some(100_000);
        let mut device = DeviceLimits::any_device();
        device.max_shared_bytes_per_block_opt_in = 101_376;
        device.cluster_launch = true;
        device.max_portable_cluster_blocks = 8;
        let configuration = LaunchConfig {
            parameters: vec![("rows".into(), 4)],
            request: LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1))
                .dynamic_shared_bytes(60_000),
            batch: Some(BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5).align(3)),
            limits: LaunchLimits::new(device, kernel),
        };
        let plan = |configuration: &LaunchConfig| {
            let LaunchConfig { request, batch, limits, .. } = configuration;
            let plan = Plan::new(request, batch.as_ref(), limits, Choice::at_most(5000));
            let plan = plan.expect("a plan");
            plan.launches().map(|one| (one.chunk, one.launch.grid())).collect::<Vec<_>>()
        };
        let expected = plan(&configuration);
        let line = serde_json::to_string(&configuration).expect("data");
        let received: LaunchConfig = serde_json::from_str(&line).expect("a configuration");
        assert_eq!(received.parameters, [("rows".to_owned(), 4)]);
        assert_eq!(plan(&received), expected);
        assert_eq!(received.limits.kernel().max_threads_per_block, None);
    }

    #[test]
    fn requests_are_one_line_each_and_unknown_ones_are_rejected() {
        let message = Request::Open { problem: "a\nb".into() };
        let line = serde_json::to_string(&Numbered { id: 7, message }).expect("data");
        assert_eq!(line, r#"{"id":7,"message":{"open":{"problem":"a\nb"}}}"#);
        assert_eq!(serde_json::to_string(&Request::Close).expect("data"), r#""close""#);
        for unknown in [r#"{"open":{}}"#, r#""stop""#, r#""close""#, "", "{}"] {
            serde_json::from_str::<Numbered<Request>>(unknown).expect_err(unknown);
        }
    }
}
