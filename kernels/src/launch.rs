//! The arguments that the launches of all kernels take.

pub(crate) use cudarc::driver::CudaStream;
pub(crate) use gridguard::cuda::Args;

pub(crate) use crate::kernels::Prepared;
pub(crate) use crate::tensor::{Tensor, TensorMut, check_element};
