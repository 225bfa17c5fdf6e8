//! Progress bars on a terminal, for each device and for all problems.

use std::fmt::Display;
use std::thread;
use std::time::Duration;

use gridguard::count;
use gridguard_autotune::{Candidate, Observer, SearchProgress, duration};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::output::note;

/// The bars of all devices; hidden unless standard error is a terminal.
pub(crate) struct ProgressBars {
    bars: MultiProgress,
    total: ProgressBar,
}

impl ProgressBars {
    /// `done` labels the finished problems, for example `tuned`.
    pub(crate) fn new(done: &str, problems: usize) -> Self {
        let bars = MultiProgress::new();
        let total = bars.add(ProgressBar::new(u64::try_from(problems).unwrap_or(u64::MAX)));
        let template =
            format!("{done:8} {{bar:40}} {{pos}}/{{len}} problems, {{elapsed}}, {{eta}} left");
        let total = total.with_style(style(&template));
        // Updates the elapsed time during long measurements.
        total.enable_steady_tick(Duration::from_millis(250));
        Self { bars, total }
    }

    pub(crate) fn device(&self, device: String) -> DeviceProgress {
        let bar = self.bars.insert_before(&self.total, ProgressBar::new(0));
        let bar = bar.with_style(style("{prefix}  {bar:20} {pos}/{len} {msg}"));
        bar.set_prefix(device);
        DeviceProgress { bar, problem: String::new() }
    }

    pub(crate) fn tick(&self) {
        self.total.inc(1);
    }

    /// Hides the bars while `write` writes to the terminal.
    pub(crate) fn suspend(&self, write: impl FnOnce()) {
        self.bars.suspend(write);
    }

    pub(crate) fn clear(&self) {
        self.total.finish_and_clear();
        // A remaining bar does no harm.
        let _ = self.bars.clear();
    }
}

pub(crate) struct DeviceProgress {
    bar: ProgressBar,
    problem: String,
}

impl DeviceProgress {
    pub(crate) fn begin(&mut self, problem: &impl Display) {
        self.problem = problem.to_string();
        self.bar.set_position(0);
        self.bar.set_length(0);
        self.bar.set_message(format!("{}: compiling", self.problem));
    }

    pub(crate) fn note(&self, line: impl Display) {
        self.bar.suspend(|| note(line));
    }
}

impl Observer for DeviceProgress {
    fn progress(&mut self, progress: &SearchProgress<'_>) {
        self.bar.set_length(progress.expected.max(progress.evaluations));
        self.bar.set_position(progress.evaluations);
        let best = progress.best.map_or_else(String::new, |(candidate, median_ns)| {
            format!(", best {} in {}", described(candidate), duration(median_ns))
        });
        let (problem, stage) = (&self.problem, progress.stage);
        let candidate = described(progress.candidate);
        self.bar.set_message(format!("{problem}: {stage} of {candidate}{best}"));
    }

    fn throttled(&mut self, pause: Duration) {
        let problem = &self.problem;
        self.bar.set_message(format!("{problem}: the device lowered its clock, waiting {pause:?}"));
        thread::sleep(pause);
    }
}

/// `4096 items in 4 launches`.
fn described(candidate: &Candidate) -> String {
    let launches = count(candidate.launches, "launch");
    format!("{} in {launches}", count(candidate.largest_chunk, "item"))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
