//! Reads the input of the block from a safetensors file.

use std::fs;
use std::path::Path;

use bytemuck::{AnyBitPattern, NoUninit};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// The elements and dimensions of `x`, of any type that the block takes.
pub(crate) enum Input {
    F16(Vec<f16>, [u64; 3]),
    Bf16(Vec<bf16>, [u64; 3]),
    F32(Vec<f32>, [u64; 3]),
}

impl Input {
    /// Reads the tensor `x`, whose sizes are checked against the file before it is copied.
    pub(crate) fn read(path: &Path) -> Result<Self, Box<dyn std::error::Error>> {
        let shown = path.display();
        let bytes = fs::read(path).map_err(|error| format!("{shown}: {error}"))?;
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|error| format!("{shown} is not a valid safetensors file: {error}"))?;
        let x = file.tensor("x").map_err(|_| format!("{shown} has no tensor \"x\""))?;
        let sizes: Result<Vec<u64>, _> =
            x.shape().iter().map(|size| u64::try_from(*size)).collect();
        let dims = <[u64; 3]>::try_from(sizes?).map_err(|given| {
            format!("tensor x has shape {given:?}, expected [items, frames, channels]")
        })?;
        match x.dtype() {
            Dtype::F16 => Ok(Self::F16(elements(&x), dims)),
            Dtype::BF16 => Ok(Self::Bf16(elements(&x), dims)),
            Dtype::F32 => Ok(Self::F32(elements(&x), dims)),
            dtype => {
                Err(format!("tensor x is {dtype:?}, the block takes F16, BF16 and F32").into())
            }
        }
    }
}

/// Copied, since the file's bytes need not be aligned for T.
fn elements<T: AnyBitPattern + NoUninit>(view: &TensorView<'_>) -> Vec<T> {
    bytemuck::pod_collect_to_vec(view.data())
}
