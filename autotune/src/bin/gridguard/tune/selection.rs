//! Which problems are tuned.

use std::path::PathBuf;

use clap::Args;
use gridguard::profile::{MissLog, MissedShape};
use gridguard_kernels::exercise::{Problem, ProblemError};

use crate::failure::Failure;

#[derive(Args)]
pub(crate) struct Selection {
    /// A kernel, or several; without shapes, the ten that a profile is shipped with
    #[arg(long = "kernel", value_name = "NAME")]
    pub(crate) kernels: Vec<String>,
    /// Sizes of that kernel, such as 32768x4096, or several
    #[arg(long = "shape", value_name = "SIZES", requires = "kernels")]
    pub(crate) shapes: Vec<String>,
    /// Types of the tensors of those shapes, such as f16, or `f16 i64` for get_rows
    #[arg(long, value_name = "TYPES", default_value = "f16")]
    pub(crate) dtype: String,
    /// A file of shapes, such as a server's log of those it did not find
    #[arg(long = "shapes", value_name = "FILE", conflicts_with = "shapes")]
    pub(crate) file: Option<PathBuf>,
}

/// What is to be tuned, and what was asked for but cannot be.
pub(crate) struct Selected {
    pub(crate) problems: Vec<Problem>,
    pub(crate) refused: Vec<String>,
}

impl Selection {
    /// The problems asked for; without any, those of a shipped profile, on the host small ones.
    pub(crate) fn problems(&self, on_host: bool) -> Result<Selected, Failure> {
        if let Some(path) = &self.file {
            return self.of_file(path);
        }
        if let ([_, ..], kernels) = (&self.shapes[..], &self.kernels) {
            let problem = |kernel: &String, shape| Problem::new(kernel, &self.dtype, shape);
            let all = kernels
                .iter()
                .flat_map(|kernel| self.shapes.iter().map(move |shape| problem(kernel, shape)));
            let problems = all.collect::<Result<_, _>>()?;
            return Ok(Selected { problems, refused: Vec::new() });
        }
        if let Some(given) = self.unknown_kernel() {
            return Err(ProblemError::Kernel { given: given.clone() }.into());
        }
        let mut problems = if on_host { Problem::small() } else { Problem::shipped() };
        problems.retain(|problem| self.takes(problem.kernel()));
        Ok(Selected { problems, refused: Vec::new() })
    }

    fn of_file(&self, path: &std::path::Path) -> Result<Selected, Failure> {
        let missing = || Failure::Missing { path: path.to_owned() };
        let parsed = MissLog::read(path).map_err(Failure::profile(path))?.ok_or_else(missing)?;
        let mut selected = Selected { problems: Vec::new(), refused: Vec::new() };
        for fault in parsed.faults {
            selected.refused.push(format!("{}:{fault}", path.display()));
        }
        let mut shapes = parsed.shapes;
        // What a server saw most is tuned first.
        shapes.sort_by_key(|shape| std::cmp::Reverse(shape.seen));
        for shape in shapes {
            if !self.takes(&shape.key.kernel) {
                continue;
            }
            match problem_of(&shape) {
                Ok(problem) if selected.problems.contains(&problem) => {}
                Ok(problem) => selected.problems.push(problem),
                Err(error) => selected.refused.push(format!("{}: {error}", path.display())),
            }
        }
        Ok(selected)
    }

    fn takes(&self, kernel: &str) -> bool {
        self.kernels.is_empty() || self.kernels.iter().any(|wanted| wanted == kernel)
    }

    fn unknown_kernel(&self) -> Option<&String> {
        self.kernels.iter().find(|wanted| !Problem::KERNELS.contains(&wanted.as_str()))
    }
}

/// The problem of a shape that somebody wrote down.
pub(crate) fn problem_of(shape: &MissedShape) -> Result<Problem, ProblemError> {
    let sizes: Vec<String> = shape.shape.iter().map(|(_, size)| size.to_string()).collect();
    Problem::new(&shape.key.kernel, &shape.key.dtypes, &sizes.join("x"))
}
