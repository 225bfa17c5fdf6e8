//! `gridguard profile explain`: which entry would serve a launch, and why.

use std::path::PathBuf;

use clap::Args;
use gridguard::profile::{
    DeviceIdentity, Layer, Layers, Loaded, Match, Named, Objective, Policy, Reason, TunedChoice,
    user_folder,
};
use gridguard::{Choice, Plan};
use gridguard_kernels::bench::Problem;

use super::explanation::{Explanation, Planned};
use super::nearest::Wanted;
use super::record::EntryRecord;
use crate::error::{CommandError, Exit};
use crate::output::OutputArgs;
use crate::tune::target::{DEFAULT_GPU, Target, gpu_of_no_host};
use crate::tune::values::{self, DeviceSelection};

#[derive(Args)]
pub(crate) struct Explain {
    /// The kernel
    kernel: String,
    /// Its sizes, such as 32768x4096
    shape: String,
    /// Types of the tensors, such as f16, or `f16 i64` for get_rows
    #[arg(long, value_name = "TYPES", default_value = "f16")]
    dtype: String,
    /// How times were taken
    #[arg(long, value_name = "L2-SUBMISSION", default_value = "cold-eager", value_parser = values::policy)]
    policy: Policy,
    /// What the choice is to be good at
    #[arg(long, default_value = "throughput", value_parser = values::objective)]
    objective: Objective,
    /// A profile, or a folder of profiles, that goes before the user's own
    #[arg(long, value_name = "FILE|FOLDER")]
    profile: Option<PathBuf>,
    /// The device that launches, by ordinal, or the host; without it the first one
    #[arg(long, value_name = "N|host", value_parser = values::device)]
    device: Option<DeviceSelection>,
    /// A GPU of the catalogue in the place of a device; with the host, the one whose limits it takes
    /// on, which is h200 else
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

impl Explain {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let problem = Problem::new(&self.kernel, &self.dtype, &self.shape)?;
        let target = self.target()?;
        let key = problem.key(&target.limits, self.policy, self.objective)?;
        let running = target.environment()?;
        let Loaded { profile, findings } =
            self.layers(&target.identity).load(&target.identity, &running);
        let shape = problem.shape();
        let sizes: Vec<u64> = shape.iter().map(|(_, size)| *size).collect();
        let found = profile.lookup(&key, &sizes);
        let reason = reason(found.matched, &shape);
        let wanted = Wanted { key: &key, shape: &shape, reason: reason.as_deref() };
        let considered = wanted.passed(&profile, &found);
        let record = Explanation {
            problem: problem.to_string(),
            device: &target.identity,
            policy: self.policy,
            objective: self.objective,
            source: &key.source,
            variant: &key.variant,
            matched: found.matched.kind().to_string(),
            distance_octaves: distance(found.matched),
            reason,
            layer: found.layer.map(|layer| layer.to_string()),
            file: found.layer.and_then(|layer| self.file_of(layer, &target.identity)),
            entry: found.entry.map(EntryRecord::from),
            degraded: found.degraded,
            plan: self.plan(&problem, &target, &found),
            findings: findings.iter().map(ToString::to_string).collect(),
            considered,
        };
        self.output.write(&record, |out| record.write_text(out, &key, &found))?;
        let serves = found.entry.is_some() && record.plan.refused.is_none();
        Ok(if serves { Exit::Yes } else { Exit::No })
    }

    /// Whom the lookup is for.
    fn target(&self) -> Result<Target, CommandError> {
        match (self.device, self.gpu.as_deref()) {
            (Some(DeviceSelection::All), _) => {
                Err(CommandError::Invalid("a lookup is for one device: name one, or host".into()))
            }
            (Some(DeviceSelection::Host), gpu) => Target::host(gpu.unwrap_or(DEFAULT_GPU)),
            (Some(DeviceSelection::One(_)), Some(_)) => Err(gpu_of_no_host()),
            (Some(DeviceSelection::One(ordinal)), None) => Target::device(ordinal),
            (None, Some(gpu)) => {
                // As the GPU would be if it were here.
                let Target { limits, .. } = Target::host(gpu)?;
                let identity = DeviceIdentity::of(&limits);
                Ok(Target { ordinal: None, limits, identity })
            }
            (None, None) => Target::device(0).map_err(no_device),
        }
    }

    /// Where profiles are looked for, the first before the others.
    fn layers(&self, device: &DeviceIdentity) -> Layers {
        let layers = match &self.profile {
            Some(path) => Layers::new().explicit(path),
            None => Layers::new(),
        };
        layers.user().built_in(device)
    }

    /// The file of a layer, where it has one.
    fn file_of(&self, layer: Layer, device: &DeviceIdentity) -> Option<String> {
        let path = match layer {
            Layer::Explicit => match self.profile.clone()? {
                folder if folder.is_dir() => folder.join(device.file_name()),
                file => file,
            },
            Layer::User => user_folder()?.join(device.file_name()),
            Layer::Shipped | Layer::Embedded => return None,
        };
        Some(path.display().to_string())
    }

    /// Plans the launch as the entry says, else as the planner does by itself.
    fn plan(&self, problem: &Problem, target: &Target, found: &TunedChoice<'_>) -> Planned {
        let plan = |parameters: &[(String, u64)], choice| -> Result<Plan, String> {
            let configuration =
                problem.setup(&target.limits, parameters).map_err(|error| error.to_string())?;
            let batch = match self.objective {
                Objective::Memory { bytes_per_item, bytes } => {
                    configuration.batch.workspace(bytes_per_item, bytes)
                }
                _ => configuration.batch,
            };
            Plan::new(&configuration.request, Some(&batch), &configuration.limits, choice)
                .map_err(|violations| violations.to_string())
        };
        match plan(found.parameters(), found.choice()) {
            Ok(plan) => Planned::new(&plan, None),
            Err(refused) => match plan(&[], Choice::AUTOMATIC) {
                Ok(default) if found.entry.is_some() => Planned::new(&default, Some(refused)),
                _ => {
                    let (launches, largest_chunk, refused) = (0, 0, Some(refused));
                    Planned { strategy: None, launches, largest_chunk, refused }
                }
            },
        }
    }
}

fn distance(matched: Match) -> Option<f64> {
    match matched {
        Match::Neighbour { distance_millioctaves } => {
            Some(f64::from(distance_millioctaves) / 1000.0)
        }
        _ => None,
    }
}

/// Why no entry serves, with the name of the size that is to blame.
fn reason(matched: Match, shape: &Named) -> Option<String> {
    let Match::Default(reason) = matched else { return None };
    Some(match reason {
        Reason::OutOfRange { size } => match shape.get(size) {
            Some((name, size)) => {
                format!("{name} {size} is out of the tuned range: tune this shape")
            }
            None => reason.to_string(),
        },
        other => other.to_string(),
    })
}

fn no_device(failure: CommandError) -> CommandError {
    match failure {
        CommandError::Device(reason) => CommandError::Failed(format!(
            "{reason}: name a GPU of the catalogue with --gpu, or the host with --device host"
        )),
        other => other,
    }
}
