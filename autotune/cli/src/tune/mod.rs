//! `gridguard tune`: measures which chunk is fastest, and keeps it in a profile.

pub(crate) mod child;
mod group;
mod journal;
mod output;
pub(crate) mod progress;
pub(crate) mod selection;
mod session;
pub(crate) mod target;
mod task;
pub(crate) mod values;
pub(crate) mod workload;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;
use gridguard_autotune::{Shard, WorkQueue};

use crate::error::{CommandError, Exit, check_writable};
use crate::interrupt;
use crate::output::{OutputArgs, note};
use group::Group;
use output::{Output, Summary, Tuning};
use selection::Selected;
use session::{Found, Run, Session};
use target::Target;
use task::Task;
use values::DeviceSelection;

pub(crate) use child::Measure;

#[derive(Args)]
pub(crate) struct Tune {
    /// A device by ordinal, all devices at the same time, or the host; without it all devices, or
    /// the host where there are none
    #[arg(long, value_name = "N|all|host", value_parser = values::device)]
    device: Option<DeviceSelection>,
    /// The GPU of the catalogue whose limits the host takes on, h200 where none is named
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    #[command(flatten)]
    problems: selection::Selection,
    /// The machine's share of the problems, such as 0/4 for the first of four
    #[arg(long, value_name = "I/N", default_value_t = Shard::default())]
    shard: Shard,
    /// Time for all problems together; what is not begun by then is left for another run
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    budget: Option<Duration>,
    /// The profile to keep choices in, or a folder of profiles; without it the user's own
    #[arg(long, value_name = "FILE|FOLDER")]
    profile: Option<PathBuf>,
    /// Measures again what the profile has
    #[arg(long)]
    again: bool,
    /// Draws time against chunk size; with several problems, one file each
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

impl Tune {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let target::Selected { targets, gpu, fallback } =
            target::targets(self.device, self.gpu.as_deref())?;
        if let Some(reason) = fallback {
            note(format_args!("the host tunes, under the limits of {gpu}: {reason}"));
        }
        if let Some(path) = &self.plot {
            check_writable(path)?;
        }
        let first = targets
            .first()
            .ok_or(CommandError::Failed("there is no device to measure on".into()))?;
        let Selected { tasks, refused } =
            self.problems.tasks(targets.iter().all(Target::is_host), &first.limits)?;
        for reason in &refused {
            note(format_args!("passed over: {reason}"));
        }
        let tasks = self.shard.of(tasks);
        let groups = Group::all(targets, self.profile.as_deref())?;
        let start = Instant::now();
        let deadline = self.budget.and_then(|budget| start.checked_add(budget));
        let interrupt = interrupt::flag()?;
        let run = Run { gpu, deadline, interrupt };

        let unknown: Vec<_> =
            groups.iter().map(|group| group.unknown(&tasks, self.again)).collect();
        let known = unknown.iter().map(|(_, known)| known).sum();
        let wanted = unknown.iter().map(|(tasks, _)| tasks.len()).sum();
        let output = Output::new(self.output, self.plot.as_deref(), wanted);
        let deals: Vec<_> = groups
            .iter()
            .zip(unknown)
            .map(|(group, (tasks, _))| (group, WorkQueue::new(tasks, group.targets.len())))
            .collect();
        serve_all(&run, &deals, &output)?;

        let undrawn = output.is_undrawn();
        let tuned = output.finish();
        let ended = tuned.iter().filter(|one| one.has_failed() || one.is_complete()).count();
        let failed = tuned.iter().any(Tuning::has_failed);
        let interrupted = interrupt.load(Ordering::Relaxed);
        let profiles = groups.iter().map(|group| group.file.display().to_string()).collect();
        let (left, wall_time_s) = (wanted - ended, start.elapsed().as_secs_f64());
        let summary = Summary { profiles, tuned: &tuned, left, known, interrupted, wall_time_s };
        self.output.write(&summary, |out| summary.write_text(out))?;
        Ok(match () {
            () if interrupted => Exit::Interrupted,
            () if !refused.is_empty() => Exit::InvalidInput,
            () if failed || left > 0 => Exit::No,
            () if undrawn => Exit::Unknown,
            () => Exit::Yes,
        })
    }
}

/// Lets every device of every group measure, all at the same time, each one thing after another.
fn serve_all(
    run: &Run<'_>,
    deals: &[(&Group, WorkQueue<Task, Found>)],
    output: &Output<'_>,
) -> Result<(), CommandError> {
    let mut sessions = Vec::new();
    for (group, deal) in deals {
        for target in &group.targets {
            let progress = output.progress(target.to_string());
            let session = Session::new(run, target, target.environment()?, &group.file, progress);
            sessions.push((deal, session));
        }
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(sessions.len()).build()?;
    pool.scope(|scope| {
        for (deal, mut session) in sessions {
            scope.spawn(move |_| deal.serve(|turn| session.turn(turn, |one| output.tell(one))));
        }
    });
    Ok(())
}
