//! Compares the guard with a CUDA driver, launch by launch.
//!
//! Random launches, dense around every limit, go to the driver without the guard. Each result is
//! compared with the guard's verdict and with the error code that the guard predicts.

pub mod compare;
pub mod draw;
pub mod kernel;
pub mod raw;
pub mod session;
