//! `gridguard profile explain`: shows which entry a launch would use, and why.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use gridguard::profile::{
    Backend, DefaultReason, DeviceIdentity, Entry, Key, Layer, Layers, LoadedProfile, Match,
    MatchKind, Named, Profile, Provenance, SizeRanges, TunedChoice,
};
use gridguard::{Choice, Plan, Strategy, count};
use gridguard_autotune::real;
use gridguard_problems::{ErrorKind, Problem};
use serde::Serialize;

use super::entry;
use super::foreign::KeyArgs;
use crate::error::{CommandError, Exit};
use crate::measure::args::{self, DeviceSelection};
use crate::measure::target::{DEFAULT_GPU, Target};
use crate::measure::workload::launch_config;
use crate::output::{OutputArgs, joined_sizes, known};
use crate::words::{Suggested, gpu_words};

#[derive(Args)]
pub(crate) struct Explain {
    /// Kernel of gridguard, or any other kernel in the profile
    kernel: String,
    /// Sizes of the kernel, for example 32768x4096
    shape: String,
    #[command(flatten)]
    key: KeyArgs,
    /// Profile or folder of profiles with precedence over the user's
    #[arg(long, value_name = "FILE|FOLDER")]
    profile: Option<PathBuf>,
    /// Device ordinal, or `host` [default: the first device, or the device of --profile FILE]
    #[arg(long, value_name = "N|host", value_parser = args::device)]
    device: Option<DeviceSelection>,
    /// GPU of the catalogue instead of a device; with --device host, the GPU whose limits apply [default: h200]
    #[arg(long, value_name = "NAME", value_parser = Suggested(gpu_words), hide_possible_values = true)]
    gpu: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct LookupReport<'a> {
    problem: String,
    device: &'a DeviceIdentity,
    #[serde(flatten)]
    key: &'a Key,
    matched: MatchKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    distance_octaves: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<Layer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<&'a Entry>,
    /// The row that decides, if no entry has the sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<DecisionJson>,
    degraded: bool,
    /// Absent for other kernels, with unknown launches.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<PlanJson>,
    findings: Vec<String>,
    #[serde(skip)]
    found: Match,
}

#[derive(Serialize)]
struct DecisionJson {
    /// From 1, of so many.
    row: usize,
    rows: usize,
    when: SizeRanges,
    /// The nearest measured shape that this row decides, and the nearest that another row decides.
    inside: Option<Named>,
    outside: Option<Named>,
}

#[derive(Serialize)]
struct PlanJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<Strategy>,
    launches: u64,
    largest_chunk: u64,
    /// Why the entry's choice is rejected, or no plan is legal.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

impl Explain {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let dtype = self.key.dtype.as_deref().unwrap_or("f16");
        let problem = match Problem::new(&self.kernel, dtype, &self.shape) {
            Err(error) if *error.kind() == ErrorKind::UnknownKernel => None,
            known => Some(known?),
        };
        let target = self.target()?;
        let device = &target.identity;
        let layers = self.profile.iter().fold(Layers::new(), Layers::explicit);
        let layers = layers.user().built_in(device);
        let LoadedProfile { profile, notices } = layers.load(device, &target.environment()?);
        let (key, shape) = match &problem {
            Some(problem) => {
                self.key.reject(&self.kernel)?;
                let policy = self.key.policy.unwrap_or_default();
                (problem.key(&target.limits, policy, self.key.objective)?, problem.shape())
            }
            None => self.key.find(&self.kernel, &self.shape, &profile, &target)?,
        };
        let sizes: Vec<u64> = shape.iter().map(|(_, size)| *size).collect();
        let found = profile.lookup(&key, &sizes);
        let reason = reason(found.matched, &shape);
        let file = found.layer.and_then(|layer| layers.path(layer, device));
        let report = LookupReport {
            problem: [&*key.kernel, &*key.dtypes, &*joined_sizes(&shape)]
                .into_iter()
                .filter(|word| !word.is_empty())
                .collect::<Vec<_>>()
                .join(" "),
            device,
            key: &key,
            matched: found.matched.kind(),
            distance_octaves: match found.matched {
                Match::Neighbour { distance_millioctaves: distance } => {
                    Some(f64::from(distance) / 1000.0)
                }
                _ => None,
            },
            reason: reason.as_deref(),
            layer: found.layer,
            file: file.map(|path| path.display().to_string()),
            entry: found.entry,
            decision: decision(&profile, &key, &sizes, found.matched),
            degraded: found.degraded,
            plan: problem.map(|problem| self.plan(&problem, &target, &found)),
            findings: notices.iter().map(ToString::to_string).collect(),
            found: found.matched,
        };
        self.output.print(&report, &report)?;
        let is_refused = report.plan.as_ref().is_some_and(|plan| plan.refused.is_some());
        let is_confirmed = matches!(found.matched, Match::Default(DefaultReason::Confirmed { .. }));
        let is_used = (found.entry.is_some() || is_confirmed) && !is_refused;
        Ok(if is_used { Exit::Yes } else { Exit::No })
    }

    fn target(&self) -> Result<Target, CommandError> {
        match (self.device, self.gpu.as_deref()) {
            (Some(device), gpu) => Target::select(device, gpu, DEFAULT_GPU),
            (None, Some(gpu)) => Target::absent(gpu),
            (None, None) => self.usual_target(),
        }
    }

    /// The host for a profile of the host. Otherwise the first device, or without one the GPU of the profile.
    fn usual_target(&self) -> Result<Target, CommandError> {
        let file = self.profile.as_deref().filter(|path| path.is_file());
        let read = file.map(entry::read).transpose()?;
        let device = read.as_ref().map(|read| read.document.device());
        if let Some(device) = device.filter(|device| device.backend == Backend::Host) {
            return Target::host(&device.name);
        }
        match (device, Target::device(0)) {
            (_, Ok(target)) => Ok(target),
            (Some(device), Err(_)) => Target::absent(&device.name),
            (None, Err(reason)) => {
                let advice = "name a GPU of the catalogue with --gpu, or use --device host";
                Err(CommandError::failed(format_args!("{reason}: {advice}")))
            }
        }
    }

    /// Plans the launch with the entry's choice, or else with the planner's default.
    fn plan(&self, problem: &Problem, target: &Target, found: &TunedChoice<'_>) -> PlanJson {
        let plan = |parameters: &[(String, u64)], choice| -> Result<Plan, String> {
            let setup =
                problem.setup(&target.limits, parameters).map_err(|error| error.to_string())?;
            let planned = launch_config(setup).plan(choice, self.key.objective);
            planned.map_err(|violations| violations.to_string())
        };
        let (plan, refused) = match plan(found.parameters(), found.choice()) {
            Ok(plan) => (Some(plan), None),
            Err(refused) => {
                let default = plan(&[], Choice::AUTOMATIC).ok();
                (default.filter(|_| found.entry.is_some()), Some(refused))
            }
        };
        PlanJson {
            strategy: plan.as_ref().map(Plan::strategy),
            launches: plan.as_ref().map_or(0, Plan::len),
            largest_chunk: plan.as_ref().map_or(0, Plan::largest_chunk),
            refused,
        }
    }
}

fn reason(matched: Match, shape: &Named) -> Option<String> {
    let Match::Default(reason) = matched else { return None };
    if let DefaultReason::OutOfRange { index, .. } = reason
        && let Some((name, size)) = shape.get(usize::try_from(index).unwrap_or(usize::MAX))
    {
        return Some(format!("{name} {size} is outside the tuned range: tune this shape"));
    }
    Some(reason.to_string())
}

/// The row that decides these sizes, with the measured shapes on both sides of its bounds.
fn decision(profile: &Profile, key: &Key, sizes: &[u64], matched: Match) -> Option<DecisionJson> {
    let (layer, list, row) =
        profile.decision(key, sizes).filter(|_| matched.kind() == MatchKind::Row)?;
    let log2 = |size: u64| real(size.max(1)).log2();
    let nearest = |is_inside: bool| {
        let entries = profile.entries().filter(|(of, entry)| *of == layer && entry.key == *key);
        let shapes = entries.filter_map(|(_, entry)| {
            let own: Vec<u64> = entry.shape.iter().map(|(_, size)| *size).collect();
            let is_wanted = (list.row(&own)? == row) == is_inside;
            let octaves = own.iter().zip(sizes).map(|(own, size)| (log2(*own) - log2(*size)).abs());
            is_wanted.then(|| (octaves.sum::<f64>(), entry.shape.clone()))
        });
        shapes.min_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, shape)| shape)
    };
    let (inside, outside) = (nearest(true), nearest(false));
    let when = list.rows.get(row)?.when.clone();
    Some(DecisionJson { row: row + 1, rows: list.rows.len(), when, inside, outside })
}

impl fmt::Display for DecisionJson {
    /// `row 1 of 3: columns 32 to 256; measured on this side: 1000x64; measured on the other: 4096x1024`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, rows, when, inside, outside } = self;
        write!(f, "row {row} of {rows}: ")?;
        if when.is_empty() {
            write!(f, "all other sizes")?;
        }
        for (place, (name, (low, high))) in when.iter().enumerate() {
            write!(f, "{}{name} {low} to {high}", if place == 0 { "" } else { ", " })?;
        }
        for (side, shape) in [("this side", inside), ("the other", outside)] {
            let shape = shape.as_ref().map_or("none".into(), joined_sizes);
            write!(f, "; measured on {side}: {shape}")?;
        }
        writeln!(f)
    }
}

impl fmt::Display for LookupReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device.name;
        match self.device.backend {
            Backend::Host => writeln!(f, "{} on the host as {device}", self.problem)?,
            Backend::Cuda => writeln!(f, "{} on {device}", self.problem)?,
        }
        let Key { source, variant, policy, objective, .. } = self.key;
        let (policy, objective) = (policy.to_string(), objective.to_string());
        let parts = [("source", source), ("variant", variant), ("", &policy), ("", &objective)];
        writeln!(f, "key: {}", known(&parts))?;
        match (self.entry, self.reason) {
            (Some(entry), _) => self.write_entry(f, entry)?,
            (None, Some(reason)) if self.layer.is_some() => {
                writeln!(f, "match: default, {reason}")?;
            }
            (None, Some(reason)) => writeln!(f, "match: none, {reason}")?,
            (None, None) => writeln!(f, "match: none")?,
        }
        self.decision.iter().try_for_each(|decision| write!(f, "{decision}"))?;
        match &self.plan {
            Some(plan) => write!(f, "{plan}")?,
            None => writeln!(f, "plan: made by the program that launches it, not known here")?,
        }
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

impl LookupReport<'_> {
    fn write_entry(&self, f: &mut fmt::Formatter<'_>, entry: &Entry) -> fmt::Result {
        let Entry { shape, choice, parameters, launches, chosen, default, found, .. } = entry;
        write!(f, "match: {}, entry {}", self.found, joined_sizes(shape))?;
        if let Some(layer) = self.layer {
            write!(f, " of {layer} profile")?;
        }
        match &self.file {
            Some(file) => writeln!(f, " {file}")?,
            None => writeln!(f)?,
        }
        let choice = entry::full_choice(*choice, parameters);
        let launches = count(*launches, "launch");
        writeln!(f, "choice: {choice}, {launches} for the entry's shape")?;
        if let Some(time) = entry::time(chosen.median_ns) {
            write!(f, "measured: {time} in {} samples", chosen.samples)?;
            let change = entry::change(default.median_ns, chosen.median_ns);
            if let Some((default, change)) = entry::time(default.median_ns).zip(change) {
                write!(f, ", {} vs default {default}", entry::percent(change))?;
            }
            writeln!(f)?;
        }
        let Provenance { date, driver, compiler, tuner, candidates, failed, samples, .. } = found;
        let by = [("driver", driver), ("compiler", compiler), ("tuner", tuner), ("", date)];
        let by = known(&by);
        let separator = if by.is_empty() { "" } else { ", " };
        writeln!(
            f,
            "tuned: {candidates} candidates, {failed} failed, {samples} samples{separator}{by}"
        )?;
        if found.attained_percent > 0 {
            let percent = found.attained_percent;
            writeln!(f, "limit: {percent} % of what the device can move")?;
        }
        match &*found.tolerance {
            "" => {}
            "0" => writeln!(f, "bits: the same as the default's")?,
            some => writeln!(f, "bits: within {some} of the default's values, relative")?,
        }
        if self.degraded {
            writeln!(f, "measured with another major version of the driver: may not be fastest")?;
        }
        Ok(())
    }
}

impl fmt::Display for PlanJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(refused) = &self.refused {
            writeln!(f, "rejected: {refused}")?;
        }
        let Some(strategy) = self.strategy else {
            return writeln!(f, "plan: none is legal");
        };
        let title = if self.refused.is_some() { "default plan" } else { "plan" };
        let launches = count(self.launches, "launch");
        writeln!(
            f,
            "{title}: {strategy}, {launches} of up to {}",
            count(self.largest_chunk, "item")
        )
    }
}
