//! Selects the problems to tune: from the command line, a file of shapes, or the built-in list.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use gridguard::DeviceLimits;
use gridguard::profile::{MissLog, MissedShape, Objective, Policy};
use gridguard_kernels::bench::Problem;

use super::program::ProgramArgs;
use super::task::{Task, TaskProblem};
use crate::error::CommandError;
use crate::measure::args;

#[derive(Args)]
pub(crate) struct Selection {
    #[command(flatten)]
    kernels: args::KernelFilter,
    /// Sizes of the kernel, for example 32768x4096; repeat for several [default: the shapes of the built-in profiles,
    /// or small shapes on the host]
    #[arg(long = "shape", value_name = "SIZES", requires = "kernels", group = "problem")]
    shapes: Vec<String>,
    /// Data types of the tensors, for example f16, or `f16 i64` for get_rows [default: f16; none with --command]
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

/// The selected tasks, and why some shapes were skipped.
pub(crate) struct SelectedTasks {
    pub(crate) tasks: Vec<Task>,
    pub(crate) skipped: Vec<String>,
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
        let mut tasks = Vec::new();
        for program in self.program.tasks(kernels, dtypes, policy, objective)? {
            let problem = TaskProblem::Program(Arc::new(program));
            let task = Task { problem, policy, objective };
            if !tasks.contains(&task) {
                tasks.push(task);
            }
        }
        Ok(tasks)
    }

    pub(crate) fn tasks(
        &self,
        on_host: bool,
        device: &DeviceLimits,
    ) -> Result<SelectedTasks, CommandError> {
        if self.is_of_program() {
            return Ok(SelectedTasks { tasks: self.program_tasks()?, skipped: Vec::new() });
        }
        if let Some(path) = &self.file {
            return self.read_shapes(path, device);
        }
        let mut tasks = Vec::new();
        for problem in self.problems(on_host)? {
            let task = self.task(problem, Policy::default(), Objective::default());
            if !self.shapes.is_empty() {
                // Reports an invalid size before anything is measured.
                task.key(device)?;
            }
            if !tasks.contains(&task) {
                tasks.push(task);
            }
        }
        Ok(SelectedTasks { tasks, skipped: Vec::new() })
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
    ) -> Result<SelectedTasks, CommandError> {
        let file = MissLog::read(path).map_err(CommandError::profile(path))?;
        let file = file.ok_or_else(|| CommandError::missing_file(path))?;
        let skipped = file.faults.iter().map(|fault| format!("{}:{fault}", path.display()));
        let mut selected = SelectedTasks { tasks: Vec::new(), skipped: skipped.collect() };
        let mut shapes = file.shapes;
        // Most missed first.
        shapes.sort_by_key(|shape| std::cmp::Reverse(shape.seen));
        for shape in shapes.iter().filter(|shape| self.kernels.matches(&shape.key.kernel)) {
            match self.missed_task(shape, device) {
                Ok(task) if selected.tasks.contains(&task) => {}
                Ok(task) => selected.tasks.push(task),
                Err(reason) => selected.skipped.push(format!("{}: {reason}", path.display())),
            }
        }
        Ok(selected)
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
        let sizes: Vec<String> = shape.iter().map(|(_, size)| size.to_string()).collect();
        let problem = Problem::new(&key.kernel, &key.dtypes, &sizes.join("x"))
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
