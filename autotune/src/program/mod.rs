//! Tunes external programs that take their parameters on the command line and print their times as JSON.

mod measurer;
mod problem;
mod report;
mod template;

pub use measurer::ProgramMeasurer;
pub use problem::ProgramProblem;
