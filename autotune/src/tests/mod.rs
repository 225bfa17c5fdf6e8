//! Tests of the search, the evaluation and the chart on a simulated device.

mod idle;
mod latency;
mod measurements;
mod pipelines;
mod plot;
pub(crate) mod recorded;
pub(crate) mod simulation;
mod space;
mod tune;
