//! An inference server for temporal attention and transformer blocks, in front of gridguard.
//!
//! Requests are safetensors bodies. Those of the same shape and type are batched within a deadline, run by
//! threads for each device, and split again. What cannot fit a device's memory, or finds the queue full,
//! is refused before it costs anything. Without a GPU the host computes, and says so.
//!
//! A request flows `server -> api -> tensors -> admission -> queue -> worker -> backend`, and back.

pub mod admission;
pub mod api;
pub mod backend;
pub mod block;
pub mod device;
pub mod error;
pub mod health;
pub mod host;
pub mod options;
pub mod queue;
pub mod server;
pub mod share;
pub mod telemetry;
pub mod tensors;
pub mod tuning;
pub mod worker;
