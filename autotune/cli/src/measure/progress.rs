//! What is being measured, for people who wait.

use std::time::Duration;

use gridguard_autotune::{Candidate, Observer, SearchProgress, duration};
use gridguard_kernels::bench::Problem;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// The lines of all devices; nothing where standard error is no terminal.
pub(crate) struct Screen {
    lines: MultiProgress,
    all: ProgressBar,
}

impl Screen {
    /// `done` says what becomes of each problem, such as `tuned`.
    pub(crate) fn new(done: &str, problems: usize) -> Self {
        let lines = MultiProgress::new();
        let all = lines.add(ProgressBar::new(u64::try_from(problems).unwrap_or(u64::MAX)));
        let line =
            format!("{done:8} {{bar:40}} {{pos}}/{{len}} problems, {{elapsed}}, {{eta}} left");
        let all = all.with_style(style(&line));
        all.enable_steady_tick(TICK);
        Self { lines, all }
    }

    /// The line of one device.
    pub(crate) fn progress(&self, device: String) -> Progress {
        let line = self.lines.insert_before(&self.all, ProgressBar::new(0));
        let line = line.with_style(style("{prefix}  {bar:20} {pos}/{len} {msg}"));
        line.set_prefix(device);
        Progress { line, problem: String::new() }
    }

    /// One problem is through.
    pub(crate) fn tick(&self) {
        self.all.inc(1);
    }

    /// Writes above the lines.
    pub(crate) fn above(&self, write: impl FnOnce()) {
        self.lines.suspend(write);
    }

    pub(crate) fn clear(&self) {
        self.all.finish_and_clear();
        // A line that stays on the screen is an eyesore and no more.
        let _ = self.lines.clear();
    }
}

/// The line of one device.
pub(crate) struct Progress {
    line: ProgressBar,
    problem: String,
}

impl Progress {
    pub(crate) fn begin(&mut self, problem: &Problem) {
        self.problem = problem.to_string();
        self.line.set_position(0);
        self.line.set_length(0);
        self.line.set_message(format!("{}: compiling", self.problem));
    }
}

impl Observer for Progress {
    fn progress(&mut self, moment: &SearchProgress<'_>) {
        self.line.set_length(moment.expected.max(moment.evaluations));
        self.line.set_position(moment.evaluations);
        let best = moment.best.map_or_else(String::new, |(candidate, median_ns)| {
            format!(", best {} in {}", described(candidate), duration(median_ns))
        });
        let (problem, stage, now) = (&self.problem, moment.stage, described(moment.candidate));
        self.line.set_message(format!("{problem}: {stage} of {now}{best}"));
    }

    fn throttled(&mut self, pause: Duration) {
        let problem = &self.problem;
        self.line
            .set_message(format!("{problem}: the device lowered its clock, waiting {pause:?}"));
    }
}

/// `4096 items in 4 launches`.
fn described(candidate: &Candidate) -> String {
    let (items, launches) = (candidate.largest_chunk, candidate.launches);
    let plural = if launches == 1 { "" } else { "es" };
    format!("{items} items in {launches} launch{plural}")
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// So that the time goes on while nothing else does.
const TICK: Duration = Duration::from_millis(250);
