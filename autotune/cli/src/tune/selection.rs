//! Which problems are tuned.

use std::path::{Path, PathBuf};

use clap::Args;
use gridguard::DeviceLimits;
use gridguard::profile::{MissLog, MissedShape, Objective, Policy};
use gridguard_kernels::bench::{Problem, ProblemError};

use super::task::Task;
use super::values;
use crate::error::CommandError;

#[derive(Args)]
pub(crate) struct Selection {
    /// A kernel, or several; without shapes, the ten that a profile is shipped with
    #[arg(long = "kernel", value_name = "NAME")]
    pub(crate) kernels: Vec<String>,
    /// Sizes of that kernel, such as 32768x4096, or several
    #[arg(long = "shape", value_name = "SIZES", requires = "kernels")]
    pub(crate) shapes: Vec<String>,
    /// Types of the tensors of those shapes, such as f16, or `f16 i64` for get_rows
    #[arg(long, value_name = "TYPES", default_value = "f16", requires = "shapes")]
    pub(crate) dtype: String,
    /// A file of shapes, such as a server's log of those it did not find
    #[arg(long = "shapes", value_name = "FILE", conflicts_with = "shapes")]
    pub(crate) file: Option<PathBuf>,
    /// How times are taken: cold or hot L2 cache, eager launches or a graph; without it as the file
    /// of shapes says, else cold-eager
    #[arg(long, value_name = "L2-SUBMISSION", value_parser = values::policy)]
    policy: Option<Policy>,
    /// throughput, latency:TIME (the largest chunk whose launch stays within it), or
    /// memory:BYTES:BYTES_PER_ITEM (within a workspace); without it as the file of shapes says, else
    /// throughput
    #[arg(long, value_parser = values::objective)]
    objective: Option<Objective>,
}

/// What is to be tuned, and what was asked for but cannot be.
pub(crate) struct Selected {
    pub(crate) tasks: Vec<Task>,
    pub(crate) refused: Vec<String>,
}

impl Selection {
    /// What is asked for; where nothing is, the problems of a shipped profile, on the host small
    /// ones.
    pub(crate) fn tasks(
        &self,
        on_host: bool,
        device: &DeviceLimits,
    ) -> Result<Selected, CommandError> {
        if let Some(path) = &self.file {
            check_kernels(&self.kernels)?;
            return self.of_file(path, device);
        }
        let mut tasks = Vec::new();
        for problem in self.problems(on_host)? {
            let (policy, objective) = (self.policy, self.objective);
            let (policy, objective) = (policy.unwrap_or_default(), objective.unwrap_or_default());
            let task = Task { problem, policy, objective };
            if !self.shapes.is_empty() {
                // Sizes that the kernel does not take are told before anything is measured.
                task.key(device)?;
            }
            // Who names one twice does not want it measured twice.
            if !tasks.contains(&task) {
                tasks.push(task);
            }
        }
        Ok(Selected { tasks, refused: Vec::new() })
    }

    fn problems(&self, on_host: bool) -> Result<Vec<Problem>, CommandError> {
        if !self.shapes.is_empty() {
            let problem = |kernel: &String, shape| Problem::new(kernel, &self.dtype, shape);
            let of_kernel = |kernel| self.shapes.iter().map(move |shape| problem(kernel, shape));
            return Ok(self.kernels.iter().flat_map(of_kernel).collect::<Result<_, _>>()?);
        }
        check_kernels(&self.kernels)?;
        let mut problems = if on_host { Problem::small() } else { Problem::shipped() };
        problems.retain(|problem| self.takes(problem.kernel()));
        Ok(problems)
    }

    fn of_file(&self, path: &Path, device: &DeviceLimits) -> Result<Selected, CommandError> {
        let missing = || CommandError::missing_file(path);
        let parsed =
            MissLog::read(path).map_err(CommandError::profile(path))?.ok_or_else(missing)?;
        let mut selected = Selected { tasks: Vec::new(), refused: Vec::new() };
        for fault in parsed.faults {
            selected.refused.push(format!("{}:{fault}", path.display()));
        }
        let mut shapes = parsed.shapes;
        // What a server saw most is tuned first.
        shapes.sort_by_key(|shape| std::cmp::Reverse(shape.seen));
        for shape in shapes.iter().filter(|shape| self.takes(&shape.key.kernel)) {
            match self.task_of(shape, device) {
                Ok(task) if selected.tasks.contains(&task) => {}
                Ok(task) => selected.tasks.push(task),
                Err(reason) => selected.refused.push(format!("{}: {reason}", path.display())),
            }
        }
        Ok(selected)
    }

    /// A shape that somebody wrote down, or why it cannot be tuned here.
    fn task_of(&self, shape: &MissedShape, device: &DeviceLimits) -> Result<Task, String> {
        let task = Task {
            problem: problem_of(shape).map_err(|error| error.to_string())?,
            policy: self.policy.unwrap_or(shape.key.policy),
            objective: self.objective.unwrap_or(shape.key.objective),
        };
        let key = task.key(device).map_err(|error| error.to_string())?;
        let wanted = &shape.key.variant;
        if wanted.is_empty() || *wanted == key.variant {
            return Ok(task);
        }
        let (problem, made) = (task.problem, key.variant);
        Err(format!("{problem} is wanted of variant {wanted:?}, what can be made here is {made:?}"))
    }

    fn takes(&self, kernel: &str) -> bool {
        self.kernels.is_empty() || self.kernels.iter().any(|wanted| wanted == kernel)
    }
}

/// Whether there are kernels of these names.
pub(crate) fn check_kernels(names: &[String]) -> Result<(), ProblemError> {
    match names.iter().find(|name| !Problem::KERNELS.contains(&name.as_str())) {
        Some(given) => Err(ProblemError::Kernel { given: given.clone() }),
        None => Ok(()),
    }
}

/// The problem of a shape that somebody wrote down.
pub(crate) fn problem_of(shape: &MissedShape) -> Result<Problem, ProblemError> {
    let sizes: Vec<String> = shape.shape.iter().map(|(_, size)| size.to_string()).collect();
    Problem::new(&shape.key.kernel, &shape.key.dtypes, &sizes.join("x"))
}
