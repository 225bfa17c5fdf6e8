//! Arguments of several subcommands, and their parsers.

use std::time::Duration;

use clap::Args;
use gridguard::profile::{L2, Objective, Policy, Submission};
use gridguard_problems::Problem;

use crate::words::Suggested;

/// The argument `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceSelection {
    Ordinal(usize),
    All,
    Host,
}

/// The argument `--kernel`.
#[derive(Args)]
pub(crate) struct KernelFilter {
    /// Only this kernel; repeat for several [default: all]
    #[arg(long = "kernel", value_name = "NAME", value_parser = Suggested(kernel_names))]
    #[arg(hide_possible_values = true)]
    pub(crate) kernels: Vec<String>,
}

fn kernel_names() -> Vec<String> {
    Problem::KERNELS.iter().map(ToString::to_string).collect()
}

impl KernelFilter {
    pub(crate) fn matches(&self, kernel: &str) -> bool {
        self.kernels.is_empty() || self.kernels.iter().any(|named| named == kernel)
    }

    pub(crate) fn check(&self) -> Result<(), gridguard_problems::Error> {
        match self.kernels.iter().find(|name| !Problem::KERNELS.contains(&name.as_str())) {
            Some(given) => Err(Problem::unknown_kernel(given)),
            None => Ok(()),
        }
    }
}

pub(crate) fn device(text: &str) -> Result<DeviceSelection, String> {
    match text {
        "all" => Ok(DeviceSelection::All),
        "host" => Ok(DeviceSelection::Host),
        _ => text
            .parse()
            .map(DeviceSelection::Ordinal)
            .map_err(|_| "expected an ordinal such as 0, all, or host".into()),
    }
}

/// `cold-eager`, `cold-graph`, `hot-eager` or `hot-graph`.
pub(crate) fn policy(text: &str) -> Result<Policy, String> {
    let all = [L2::Cold, L2::Hot].into_iter().flat_map(|l2| {
        [Submission::Eager, Submission::Graph].map(|submission| Policy { l2, submission })
    });
    let expected = "expected cold or hot, a dash, eager or graph, such as cold-eager";
    all.into_iter().find(|policy| policy.to_string() == text).ok_or_else(|| expected.into())
}

/// `throughput`, `latency:200us` or `memory:BYTES:BYTES_PER_ITEM`.
pub(crate) fn objective(text: &str) -> Result<Objective, String> {
    let expected = "expected throughput, latency:TIME such as latency:200us, or \
                    memory:BYTES:BYTES_PER_ITEM such as memory:1073741824:65536";
    match text.split(':').collect::<Vec<_>>()[..] {
        ["throughput"] => Ok(Objective::Throughput),
        ["latency", time] => match u64::try_from(duration(time)?.as_micros()) {
            Ok(max_launch_us) if max_launch_us > 0 => Ok(Objective::Latency { max_launch_us }),
            _ => Err("a latency limit is 1 to 18446744073709551615 microseconds".into()),
        },
        ["memory", bytes, per_item] => match (bytes.parse(), per_item.parse()) {
            (Ok(bytes), Ok(bytes_per_item)) if bytes_per_item > 0 => {
                Ok(Objective::Memory { bytes_per_item, bytes })
            }
            _ => Err(expected.into()),
        },
        _ => Err(expected.into()),
    }
}

/// A duration with its unit, for example `60s` or `2m 30s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "expected numbers with their units, such as 60s, 200us or 2m 30s".into())
}

/// A number of bytes: `4096`, `512MiB` or `2Gi`. `K` without an `i` is 1,000.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    parse_size::parse_size(text)
        .map_err(|_| "expected a number of bytes, such as 4096, 64KiB or 2GiB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_are_parsed_with_their_units() {
        assert_eq!(objective("throughput"), Ok(Objective::Throughput));
        assert_eq!(objective("latency:2ms"), Ok(Objective::Latency { max_launch_us: 2000 }));
        let memory = Objective::Memory { bytes_per_item: 64, bytes: 4096 };
        assert_eq!(objective("memory:4096:64"), Ok(memory));
        for text in ["", "fast", "latency", "latency:0us", "latency:5", "memory:1", "memory:1:0"] {
            assert!(objective(text).is_err(), "{text}");
        }
    }
}
