//! `gridguard tune --replay`: measures a captured launch in other ways, and shows their gain.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gridguard::profile::{Objective, Policy, Submission};
use gridguard_autotune::{Budget, Measurer, Space, TuningReport, tune};
use gridguard_report::{Capture, CapturedLaunch, MemoryKind};
use serde::Serialize;

use crate::error::{CommandError, Exit};
use crate::interrupt;
use crate::measure::args::DeviceSelection;
use crate::measure::captured::PROBLEM;
use crate::measure::process::MeasuringProcess;
use crate::measure::progress::ProgressBars;
use crate::measure::target::Target;
use crate::output::{OutputArgs, note};

/// The result of a replay.
#[derive(Serialize)]
struct Replayed<'a> {
    kernel: &'a str,
    number: u64,
    captured_on: &'a str,
    device: String,
    /// Whether another launch is clearly faster.
    gains: bool,
    #[serde(skip)]
    all: bool,
    report: TuningReport,
}

/// Measures the launch in `file` on one device.
pub(super) fn run(
    file: &Path,
    device: Option<DeviceSelection>,
    policy: Policy,
    budget: Option<Duration>,
    (output, all): (OutputArgs, bool),
) -> Result<Exit, CommandError> {
    let invalid = |message: &str| CommandError::Invalid(message.to_owned());
    if policy.submission == Submission::Graph {
        return Err(invalid(
            "a captured launch is replayed outside of graphs: use an eager policy",
        ));
    }
    let ordinal = match device {
        None => 0,
        Some(DeviceSelection::Ordinal(ordinal)) => ordinal,
        Some(_) => {
            return Err(invalid("a captured launch is replayed on one device: name its ordinal"));
        }
    };
    let capture = Capture::open(file).map_err(|error| CommandError::invalid_file(file, error))?;
    let target = Target::device(ordinal)?;
    let launch = capture.launch();
    for line in differences(launch, &target) {
        note(line);
    }
    let path = std::path::absolute(file).map_err(CommandError::io(file.display().to_string()))?;
    let path = path.to_str().ok_or_else(|| invalid("the path of the capture is not Unicode"))?;
    let interrupt = interrupt::flag()?;
    let bars = ProgressBars::new("replayed", 1);
    let mut progress = bars.device(target.to_string());
    progress.begin(&launch.kernel);
    let mut remote =
        MeasuringProcess::new(&target, false).open(&format!("{PROBLEM}{path}"), policy)?;
    let mut space = Space::new(remote.configurations()?);
    let budget = Budget { wall_time: budget, interrupt: Some(interrupt), ..Budget::default() };
    let outcome = tune(&mut remote, &mut space, Objective::Throughput, &budget, &mut progress);
    bars.clear();
    // A process that replaces a crashed one says the same again.
    let printed = remote.take_printed().unwrap_or_default();
    printed.lines().collect::<BTreeSet<_>>().iter().for_each(note);
    let outcome = outcome?;
    let (kernel, number) = (&*launch.kernel, launch.number);
    let title = format!("launch {number} of {kernel} on {target}");
    let replayed = Replayed {
        kernel,
        number,
        captured_on: &launch.device.name,
        device: target.to_string(),
        gains: outcome.winner != outcome.default,
        all,
        report: TuningReport::new(title, &outcome),
    };
    output.print(&replayed, &replayed)?;
    Ok(match () {
        () if outcome.complete => Exit::Yes,
        () if interrupt.load(Ordering::Relaxed) => Exit::Interrupted,
        () => Exit::No,
    })
}

/// How the replay differs from the program's launch.
fn differences<'a>(
    launch: &'a CapturedLaunch,
    target: &'a Target,
) -> impl Iterator<Item = String> + 'a {
    let CapturedLaunch { device, memory, other_attributes, request, .. } = launch;
    let other = device.name != target.limits.name;
    let pinned = memory.iter().filter(|one| one.kind == MemoryKind::Pinned).count();
    let lines = [
        other.then(|| {
            format!("it was captured on {}, the times are those of {target}", device.name)
        }),
        (pinned > 0).then(|| {
            format!("{pinned} of its allocations were host memory; here they are device memory")
        }),
        (!other_attributes.is_empty())
            .then(|| format!("its launch attributes {other_attributes:?} are not replayed")),
        request.dependent.then(|| "it does not begin before an earlier launch ends".to_owned()),
    ];
    lines.into_iter().flatten()
}

impl fmt::Display for Replayed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.all {
            true => write!(f, "{:#}", self.report)?,
            false => write!(f, "{}", self.report)?,
        }
        if !self.gains {
            return writeln!(
                f,
                "gain: none, no other launch is clearly faster than the captured one"
            );
        }
        writeln!(
            f,
            "gain: {:.3} times as fast as the captured launch, in alternating runs. The memory afterwards was the \
             same, byte for byte; other data and sizes are not known",
            self.report.speedup
        )
    }
}
