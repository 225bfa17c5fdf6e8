//! Kernels that a program of their own measures: any program that takes its parameters on the command
//! line and prints its times as JSON.

mod measurer;
mod problem;
mod report;
mod template;

pub use measurer::ProgramMeasurer;
pub use problem::{ProgramError, ProgramProblem};
pub use template::{CommandTemplate, TemplateError};
