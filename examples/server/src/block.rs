//! The transformer block that the server runs: its weights, from a file or random.

use std::any::Any;
use std::fs;
use std::path::PathBuf;

use gridguard_kernels::temporal_block::{BlockShape, BlockWeights, WeightsFile};
use gridguard_kernels::{Element, ElementType, KernelError};
use half::{bf16, f16};

use crate::admission::Scratch;
use crate::error::{Fallible, ServeError, Served};

/// Which block.
#[derive(Clone, Debug, clap::Args)]
pub struct BlockOptions {
    /// Weights of the block: a safetensors file with diffusers' names; random ones otherwise
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// Which block of the file, such as `down_blocks.0.motion_modules.0.transformer_blocks.0`
    #[arg(long, value_name = "NAME", requires = "weights")]
    pub prefix: Option<String>,
    /// Channels of random weights
    #[arg(long, default_value_t = 64, conflicts_with = "weights")]
    pub channels: u64,
    /// Seed of random weights
    #[arg(long, default_value_t = 1, conflicts_with = "weights")]
    pub seed: u64,
    /// Heads of the block's attentions; one for 64 channels by default
    #[arg(long)]
    pub heads: Option<u64>,
    /// Type of the block's weights and tensors
    #[arg(long, value_name = "f16|bf16|f32", default_value = "f16", value_parser = element)]
    pub dtype: ElementType,
}

/// A block's weights on the host, of one type.
#[derive(Debug)]
pub struct Block {
    /// The type.
    pub element: ElementType,
    /// Channels.
    pub channels: u64,
    /// Heads of each attention.
    pub heads: u64,
    /// Bytes of the weights.
    pub bytes: u64,
    /// Bytes of scratch for a number of items and frames.
    pub(crate) scratch: fn(&Self, u64, u64) -> Served<Scratch>,
    /// [`BlockWeights`] of the type.
    weights: Box<dyn Any + Send + Sync>,
}

impl BlockOptions {
    /// Reads or makes the weights.
    ///
    /// # Errors
    ///
    /// What is wrong with the file or the channels.
    pub fn load(&self) -> Fallible<Block> {
        match self.dtype {
            ElementType::F16 => self.load_as::<f16>(),
            ElementType::Bf16 => self.load_as::<bf16>(),
            ElementType::F32 => self.load_as::<f32>(),
        }
    }

    fn load_as<T: Element + 'static>(&self) -> Fallible<Block> {
        let weights = match &self.weights {
            None => BlockWeights::<T>::random(self.channels, self.seed)?,
            Some(path) => {
                let read = || -> Fallible<_> {
                    Ok(WeightsFile::read(&fs::read(path)?)?.block::<T>(self.prefix.as_deref())?)
                };
                read().map_err(|error| format!("{}: {error}", path.display()))?
            }
        };
        let channels = weights.channels();
        let block = Block {
            element: T::TYPE,
            channels,
            heads: self.heads.unwrap_or((channels / HEAD_DIM).max(1)),
            bytes: weights.elements() * T::TYPE.bytes(),
            scratch: Scratch::of::<T>,
            weights: Box::new(weights),
        };
        block.shape(0, 1)?;
        Ok(block)
    }
}

impl Block {
    /// The weights.
    ///
    /// # Errors
    ///
    /// [`ServeError::Failed`] if they are not of this type.
    pub fn weights<T: Element + 'static>(&self) -> Served<&BlockWeights<T>> {
        let weights = self.weights.downcast_ref();
        weights.ok_or_else(|| ServeError::failed("the weights have another type"))
    }

    /// The shape of a request.
    ///
    /// # Errors
    ///
    /// Those of [`BlockShape::new`].
    pub fn shape(&self, items: u64, frames: u64) -> Result<BlockShape, KernelError> {
        BlockShape::new(items, frames, self.channels, self.heads)
    }
}

fn element(name: &str) -> Result<ElementType, String> {
    let found = ElementType::ALL.into_iter().find(|element| element.name() == name);
    found.ok_or_else(|| "expected f16, bf16 or f32".to_owned())
}

/// Channels of a head in most models.
const HEAD_DIM: u64 = 64;
