//! The block on memory of other CUDA bindings. Each run also gets its weights by address.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use gridguard_pipeline::DeviceMemory;

use super::device::{BlockMemory, TemporalBlock, Weights};
use super::error::BlockError;
use super::shape::BlockShape;
use super::weights::{BLOCK_TENSORS, check_positions};
use crate::element::{Element, to_u64};
use crate::kernels::Kernels;

/// Device addresses of a block's input, output and weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAddresses {
    /// The input, `[items, frames, channels]`.
    pub x: u64,
    /// The output, of the same size.
    pub y: u64,
    /// The weights, in the order of [`BLOCK_TENSORS`].
    pub tensors: [u64; BLOCK_TENSORS.len()],
    /// The embeddings of positions; not read if the block has none.
    pub positions: u64,
}

impl<T: Element> TemporalBlock<T> {
    /// A block without weights, for [`BlockMemory::bind_raw`], which gets them for each run. `positions` is the number
    /// of frames with an embedding of their position, `None` for a block without embeddings.
    ///
    /// # Errors
    ///
    /// [`BlockError`] if there are fewer embeddings than frames, or the kernels cannot be compiled.
    pub fn without_weights(
        kernels: &Kernels,
        shape: BlockShape,
        positions: Option<u64>,
    ) -> Result<Self, BlockError> {
        let position_elements = positions.unwrap_or(0).saturating_mul(shape.channels());
        check_positions(&shape, position_elements)?;
        let weights = Weights { tensors: Arc::default(), position_elements };
        Self::with_weights(kernels, shape, weights, true)
    }
}

impl<T: Element> BlockMemory<'_, T> {
    /// The memory of one run, all of it of another CUDA binding.
    ///
    /// # Safety
    ///
    /// `addresses` point to elements `T` on the device of the stream's context, as many as the block's shape and its
    /// embeddings of positions have. The memory lives until the run's work on the first stream is done. Earlier writes
    /// are ordered before the run on that stream. Until the run is done, nothing else writes the memory, or reads the
    /// output. If the run is captured into a graph, this holds for each launch of the graph.
    #[allow(unsafe_code, reason = "memory of other CUDA bindings")]
    pub unsafe fn bind_raw<'m>(
        &self,
        stream: &'m Arc<CudaStream>,
        addresses: &BlockAddresses,
    ) -> DeviceMemory<'m> {
        let bytes = |elements: u64| elements.saturating_mul(to_u64(size_of::<T>()));
        let whole = bytes(self.shape.elements());
        let memory = DeviceMemory::new(stream);
        // SAFETY: this function's contract.
        let memory = unsafe { memory.read_raw(self.x, addresses.x, whole) };
        // SAFETY: this function's contract, for the output.
        let memory = unsafe { memory.write_raw(self.y, addresses.y, whole) };
        let weights = addresses.tensors.into_iter().chain([addresses.positions]);
        self.buffers.iter().zip(weights).fold(memory, |memory, ((buffer, elements), address)| {
            // SAFETY: this function's contract, for the weights.
            unsafe { memory.read_raw(*buffer, address, bytes(*elements)) }
        })
    }
}
