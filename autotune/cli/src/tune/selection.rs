//! Selects the problems to tune: from the command line, a file of shapes, or the built-in list.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use gridguard::DeviceLimits;
use gridguard::profile::{MissLog, MissedShape, Objective, Policy};
use gridguard_problems::Problem;

use super::program::ProgramArgs;
use super::task::{Task, TaskProblem};
use crate::error::CommandError;
use crate::measure::args;
use crate::output::joined_sizes;

#[derive(Args)]
pub(crate) struct Selection {
    #[command(flatten)]
    kernels: args::KernelFilter,
    /// Sizes of the kernel, for example 32768x4096; repeat for several [default: the shapes of the built-in profiles,
    /// or small shapes on the host]
    #[arg(long = "shape", value_name = "SIZES", requires = "kernels", group = "problem")]
    shapes: Vec<String>,
    /// Data types of the tensors, for example f16 [default: f16; none with --command]
    #[arg(long, value_name = "TYPES", requires = "problem")]
    dtype: Option<String>,
    /// File of shapes, for example a server's log of missed lookups
    #[arg(long = "shapes", value_name = "FILE", conflicts_with = "shapes")]
    file: Option<PathBuf>,
    /// How to measure times: cold or hot L2 cache, a dash, eager or graph launches [default: from the file of shapes,
    /// or cold-eager]
    #[arg(long, value_name = "L2-SUBMISSION", value_parser = args::policy)]
    policy: Option<Policy>,
    /// Objective: throughput, latency:TIME (the largest chunk whose launch takes at most TIME), or
    /// memory:BYTES:BYTES_PER_ITEM (workspace limit) [default: from the file of shapes, or throughput]
    #[arg(long, value_parser = args::objective)]
    objective: Option<Objective>,
    #[command(flatten)]
    program: ProgramArgs,
}

impl Selection {
    /// Checks the arguments that do not depend on the device.
    pub(crate) fn check(&self) -> Result<(), CommandError> {
        if self.is_of_program() {
            return self.program_tasks().map(drop);
        }
        Ok(self.kernels.check()?)
    }

    pub(crate) const fn is_of_program(&self) -> bool {
        self.program.is_given()
    }

    fn program_tasks(&self) -> Result<Vec<Task>, CommandError> {
        let (policy, objective) =
            (self.policy.unwrap_or_default(), self.objective.unwrap_or_default());
        let (kernels, dtypes) = (&self.kernels.kernels, self.dtype.as_deref());
        let programs = self.program.tasks(kernels, dtypes, policy, objective)?.into_iter();
        let problems = programs.map(|program| TaskProblem::Program(Arc::new(program)));
        Ok(problems.map(|problem| Task { problem, policy, objective }).collect())
    }

    /// The selected tasks, each once, and why some shapes were skipped.
    pub(crate) fn tasks(
        &self,
        on_host: bool,
        device: &DeviceLimits,
    ) -> Result<(Vec<Task>, Vec<String>), CommandError> {
        let (all, skipped) = match &self.file {
            _ if self.is_of_program() => (self.program_tasks()?, Vec::new()),
            Some(path) => self.read_shapes(path, device)?,
            None => {
                let task = |problem| self.task(problem, Policy::default(), Objective::default());
                (self.problems(on_host)?.into_iter().map(task).collect(), Vec::new())
            }
        };
        let (mut tasks, mut named) = (Vec::new(), HashMap::<String, Vec<usize>>::new());
        for task in all {
            if !self.shapes.is_empty() {
                // Reports an invalid size before anything is measured.
                task.key(device)?;
            }
            // A fleet misses many shapes: only those of the same text are compared.
            let alike = named.entry(task.to_string()).or_default();
            if alike.iter().all(|place| tasks.get(*place) != Some(&task)) {
                alike.push(tasks.len());
                tasks.push(task);
            }
        }
        Ok((tasks, skipped))
    }

    fn problems(&self, on_host: bool) -> Result<Vec<Problem>, CommandError> {
        if self.shapes.is_empty() {
            let mut problems = if on_host { Problem::small() } else { Problem::shipped() };
            problems.retain(|problem| self.kernels.matches(problem.kernel()));
            return Ok(problems);
        }
        let mut problems = Vec::new();
        for kernel in &self.kernels.kernels {
            for shape in &self.shapes {
                let dtype = self.dtype.as_deref().unwrap_or("f16");
                problems.push(Problem::new(kernel, dtype, shape)?);
            }
        }
        Ok(problems)
    }

    fn read_shapes(
        &self,
        path: &Path,
        device: &DeviceLimits,
    ) -> Result<(Vec<Task>, Vec<String>), CommandError> {
        let file = MissLog::read(path).map_err(CommandError::profile(path))?;
        let file = file.ok_or_else(|| CommandError::missing_file(path))?;
        let faults = file.faults.iter().map(|fault| format!("{}:{fault}", path.display()));
        let (mut tasks, mut skipped) = (Vec::new(), faults.collect::<Vec<_>>());
        let mut shapes = file.shapes;
        // Most missed first.
        shapes.sort_by_key(|shape| std::cmp::Reverse(shape.seen));
        for shape in shapes.iter().filter(|shape| self.kernels.matches(&shape.key.kernel)) {
            match self.missed_task(shape, device) {
                Ok(task) => tasks.push(task),
                Err(reason) => skipped.push(format!("{}: {reason}", path.display())),
            }
        }
        Ok((tasks, skipped))
    }

    /// A task, with this policy and objective by default.
    fn task(&self, problem: Problem, policy: Policy, objective: Objective) -> Task {
        let policy = self.policy.unwrap_or(policy);
        let problem = TaskProblem::Kernel(problem);
        Task { problem, policy, objective: self.objective.unwrap_or(objective) }
    }

    /// The task of a missed shape, or why it cannot be tuned.
    fn missed_task(&self, shape: &MissedShape, device: &DeviceLimits) -> Result<Task, String> {
        let MissedShape { key, shape, .. } = shape;
        let problem = Problem::new(&key.kernel, &key.dtypes, &joined_sizes(shape))
            .map_err(|error| error.to_string())?;
        let task = self.task(problem, key.policy, key.objective);
        let tuned = task.key(device).map_err(|error| error.to_string())?.variant;
        if key.variant.is_empty() || key.variant == tuned {
            return Ok(task);
        }
        let wanted = &key.variant;
        Err(format!("{problem} was requested as variant {wanted:?}, this device runs {tuned:?}"))
    }
}
