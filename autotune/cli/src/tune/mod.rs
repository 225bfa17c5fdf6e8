//! `gridguard tune`: measures which chunk and launch parameters are fastest, for gridguard's kernels or any program,
//! and stores the choice in a profile.

mod from;
mod group;
mod journal;
mod output;
mod program;
mod selection;
mod session;
mod shard;
mod task;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::vec;

use clap::Args;
use gridguard::DeviceLimits;
use gridguard_autotune::unended_processes;
use gridguard_files::check_output;

use self::from::{FAMILY, OtherProfile};
use self::group::DeviceGroup;
use self::output::{ProblemReport, Reporter, TuneSummary};
use self::selection::Selection;
use self::session::Session;
use self::shard::Shard;
use self::task::Task;
use crate::error::{CommandError, Exit};
use crate::interrupt;
use crate::measure::args::{self, DeviceSelection};
use crate::measure::idle::SharedDevice;
use crate::measure::process::MeasuringProcess;
use crate::measure::target::{Target, note_cache, select_targets};
use crate::output::{OutputArgs, note};
use crate::words::{Suggested, gpu_words};

#[derive(Args)]
pub(crate) struct Tune {
    /// Ordinal of a device, `all` for all devices concurrently, or `host` [default: all]
    #[arg(long, value_name = "N|all|host", value_parser = args::device)]
    device: Option<DeviceSelection>,
    /// GPU of the catalogue whose limits the host uses [default: h200]; with --command and without --device, the
    /// GPU of the program
    #[arg(long, value_name = "NAME", value_parser = Suggested(gpu_words), hide_possible_values = true)]
    gpu: Option<String>,
    #[command(flatten)]
    problems: Selection,
    /// This machine's share of the problems, for example 0/4 for the first of four machines
    #[arg(long, hide_short_help = true, value_name = "I/N", default_value_t = Shard::ALL)]
    shard: Shard,
    /// Time limit for the whole run, for example 30m; the next run tunes the remaining problems [default: none]
    #[arg(long, value_name = "TIME", value_parser = args::duration)]
    budget: Option<Duration>,
    /// Profile to store choices in, or folder of profiles [default: the user's folder]
    #[arg(long, value_name = "FILE|FOLDER")]
    profile: Option<PathBuf>,
    /// Skip problems whose tensors take more memory, for example 512MiB, to tune beside a model [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = args::bytes, conflicts_with = "command")]
    memory: Option<u64>,
    /// Tune only while no other process uses the device, at most 5 ms at a time; needs nvidia-smi
    ///
    /// Pauses while another process uses the device, and until the device was idle for a second, or longer if that
    /// happens often. Problems whose launches take longer than 5 ms fail
    #[arg(long, conflicts_with = "command")]
    idle: bool,
    /// Measure only the choices of another GPU's profile, for example of h100, or of a file
    ///
    /// At most five candidates a problem. Without a value: a GPU of the same compute capability that has a built-in profile
    #[arg(
        long, value_name = "GPU|FILE", num_args = 0..=1, default_missing_value = FAMILY, conflicts_with = "command"
    )]
    from: Option<String>,
    /// Admit only candidates whose output has the same bits as the default's
    #[arg(long, hide_short_help = true, conflicts_with = "command")]
    same_bits: bool,
    /// Launch each stored choice once instead, and remove those whose output is wrong
    ///
    /// For example after a change of the compiler
    #[arg(long, conflicts_with_all = ["command", "again", "from", "same_bits", "plot"])]
    verify: bool,
    /// Also measure problems with an entry in the profile
    #[arg(long)]
    again: bool,
    /// Show every candidate, not only the fastest
    #[arg(long)]
    all: bool,
    /// File for a plot of time against chunk size; several problems get a file each
    #[arg(long, hide_short_help = true, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

impl Tune {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        self.problems.check()?;
        let targets = match (self.device, self.gpu.as_deref()) {
            // A GPU that only the program can reach.
            (None, Some(gpu)) if self.problems.is_of_program() => {
                vec![Target::absent(gpu)?]
            }
            (device, gpu) => select_targets(device, gpu)?,
        };
        if let Some(path) = &self.plot {
            check_output(path).map_err(CommandError::publish(path))?;
        }
        let no_target = || CommandError::failed("no device to tune on");
        let limits = &targets.first().ok_or_else(no_target)?.limits;
        let (tasks, skipped) = self.problems.tasks(targets.iter().all(Target::is_host), limits)?;
        for reason in &skipped {
            note(format_args!("skipped: {reason}"));
        }
        let from = self.from.as_deref().map(|from| OtherProfile::find(from, limits)).transpose()?;
        let tasks = self.within_memory(self.shard.of(tasks), limits);
        note_cache(&targets);
        let groups = DeviceGroup::all(targets, self.profile.as_deref())?;
        let start = Instant::now();
        let deadline = self.budget.and_then(|budget| start.checked_add(budget));
        let interrupt = interrupt::flag()?;

        let missing: Vec<_> =
            groups.iter().map(|group| group.wanted(&tasks, self.again, self.verify)).collect();
        let wanted: usize = missing.iter().map(Vec::len).sum();
        let plot = self.plot.as_deref();
        let reporter = Reporter::new(self.output.format, self.all, plot, wanted);
        let tasks_of = missing.into_iter().map(|tasks| Mutex::new(tasks.into_iter()));
        let queues: Vec<_> = groups.iter().zip(tasks_of).collect();
        tune_all(self, &queues, from.as_ref(), deadline, interrupt, &reporter)?;

        let tuned = reporter.finish();
        let ended = tuned.iter().filter(|one| one.has_failed() || one.is_decided()).count();
        let summary = TuneSummary {
            profiles: groups.iter().map(|group| group.file.display().to_string()).collect(),
            tuned: &tuned,
            left: wanted.saturating_sub(ended),
            known: if self.verify { 0 } else { groups.len() * tasks.len() - wanted },
            verified: self.verify,
            are_left_out: !self.all && tuned.iter().any(ProblemReport::leaves_out),
            unended: unended_processes(),
            interrupted: interrupt.load(Ordering::Relaxed),
            wall_time_s: start.elapsed().as_secs_f64(),
            held_out: groups.iter().filter_map(DeviceGroup::held_out).collect(),
        };
        self.output.print(&summary, &summary)?;
        Ok(match () {
            () if summary.interrupted => Exit::Interrupted,
            () if tuned.iter().any(|one| one.plot_failed) => Exit::Unknown,
            () if !skipped.is_empty() => Exit::InvalidInput,
            () if tuned.iter().any(ProblemReport::has_failed) || summary.left > 0 => Exit::No,
            () => Exit::Yes,
        })
    }
}

impl Tune {
    /// The tasks whose memory is within the limit. Notes the others.
    fn within_memory(&self, mut tasks: Vec<Task>, device: &DeviceLimits) -> Vec<Task> {
        let Some(limit) = self.memory else { return tasks };
        tasks.retain(|task| {
            let bytes = task.memory_bytes(device);
            let fits = bytes.is_none_or(|bytes| bytes <= u128::from(limit));
            if let (false, Some(bytes)) = (fits, bytes) {
                note(format_args!("skipped: {task}: it takes {bytes} bytes, --memory is {limit}"));
            }
            fits
        });
        tasks
    }
}

/// Tunes on all devices of all groups concurrently, on each device one problem after another.
fn tune_all(
    tune: &Tune,
    queues: &[(&DeviceGroup, Mutex<vec::IntoIter<Task>>)],
    from: Option<&OtherProfile>,
    deadline: Option<Instant>,
    interrupt: &AtomicBool,
    reporter: &Reporter<'_>,
) -> Result<(), CommandError> {
    let mut sessions = Vec::new();
    for (group, queue) in queues {
        for target in &group.targets {
            let session = Session {
                target,
                environment: target.environment()?,
                group,
                from,
                verifies: tune.verify,
                shared: tune
                    .idle
                    .then(|| SharedDevice::new(target, interrupt, deadline))
                    .transpose()?,
                process: MeasuringProcess::new(target, tune.idle, tune.same_bits),
                reporter,
                progress: reporter.bars.device(target.to_string()),
                deadline,
                interrupt,
            };
            sessions.push((queue, session));
        }
    }
    thread::scope(|scope| {
        for (queue, mut session) in sessions {
            let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let work = move || {
                while let Some(task) = next() {
                    session.process(&task);
                }
            };
            let thread = thread::Builder::new().spawn_scoped(scope, work);
            thread.map_err(CommandError::io("starting a thread"))?;
        }
        Ok(())
    })
}
