//! Products over the items of a pipeline: one for each number of rows that its chunks have.

use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use super::check::MAX_SIZE;
use super::error::{ALIGNMENT, ProductError};
use super::launch::{Product, ProductAddresses};
use super::library::LibraryHandle;
use super::shape::{ProductNumber, ProductShape};
use crate::guard::Guard;
use crate::pipeline::buffer::{Buffer, BufferId, Extent};
use crate::pipeline::error::ViewError;

/// The buffers of a product that is a stage of a pipeline.
///
/// x, residual and out are per item, the others the same for every chunk.
#[derive(Clone, Copy, Debug)]
pub struct ProductBuffers<T> {
    /// `[rows, inner]`.
    pub x: Buffer<T>,
    /// `[columns, inner]`.
    pub weight: Buffer<T>,
    /// `[columns]`.
    pub bias: Option<Buffer<T>>,
    /// `[rows, columns]`. It may be out.
    pub residual: Option<Buffer<T>>,
    /// `[rows, columns]`.
    pub out: Buffer<T>,
    /// Scratch of a fixed size: the most workspace of an algorithm.
    pub workspace: Buffer<u8>,
}

/// What a stage that multiplies does.
pub(in crate::cuda) struct ProductStage {
    library: Rc<LibraryHandle>,
    /// With the rows of an item.
    shape: ProductShape,
    workspace_bytes: u64,
    operands: Operands,
    /// Those of the present plan and of earlier ones, by their rows.
    products: Vec<Product>,
}

/// [`ProductBuffers`] of any element.
struct Operands {
    x: BufferId,
    weight: BufferId,
    bias: Option<BufferId>,
    residual: Option<BufferId>,
    out: BufferId,
    workspace: BufferId,
}

impl ProductStage {
    /// A product of `shape`, with the rows of an item, over buffers of these extents; those of another
    /// pipeline have none, and are reported elsewhere.
    pub(in crate::cuda) fn new<T: ProductNumber>(
        guard: &Guard,
        shape: ProductShape,
        buffers: &ProductBuffers<T>,
        extent: impl Fn(BufferId) -> Option<Extent>,
    ) -> Result<Self, ProductError> {
        shape.check_element::<T>()?;
        let ProductShape { rows, inner, columns, element, .. } = shape;
        let ProductBuffers { x, weight, bias, residual, out, workspace } = *buffers;
        shape.check_operands(bias.is_some(), residual.is_some())?;
        // Within the address space: the shape bounds each factor to 31 bits.
        let per_item = |columns: u64| {
            let bytes = u128::from(rows) * u128::from(columns) * u128::from(element.bytes());
            Extent::PerItem(u64::try_from(bytes).unwrap_or(u64::MAX))
        };
        let shared = |elements: u64| Extent::Fixed(elements.saturating_mul(element.bytes()));
        let all = [
            ("x", Some(x.id), per_item(inner)),
            ("weight", Some(weight.id), shared(columns * inner)),
            ("bias", bias.map(|bias| bias.id), shared(columns)),
            ("residual", residual.map(|residual| residual.id), per_item(columns)),
            ("out", Some(out.id), per_item(columns)),
        ];
        for (tensor, id, expected) in all {
            let Some(given) = id.and_then(&extent) else { continue };
            if given != expected {
                let (given, expected) = (given.to_string(), expected.to_string());
                return Err(ProductError::Buffer { tensor, given, expected });
            }
            if let Extent::PerItem(bytes) = given
                && !bytes.is_multiple_of(ALIGNMENT)
            {
                return Err(ProductError::MisalignedItems { tensor, bytes });
            }
        }
        let workspace_bytes = match extent(workspace.id) {
            None => 0,
            Some(Extent::Fixed(bytes)) => bytes,
            Some(given @ Extent::PerItem(_)) => {
                let (tensor, expected) = ("the workspace", "a fixed size".to_owned());
                return Err(ProductError::Buffer { tensor, given: given.to_string(), expected });
            }
        };
        let operands = Operands {
            x: x.id,
            weight: weight.id,
            bias: bias.map(|bias| bias.id),
            residual: residual.map(|residual| residual.id),
            out: out.id,
            workspace: workspace.id,
        };
        let library = Rc::new(LibraryHandle::of(guard)?);
        Ok(Self { library, shape, workspace_bytes, operands, products: Vec::new() })
    }

    /// The most items of a chunk whose rows the library can count.
    pub(in crate::cuda) const fn most_items(&self) -> u64 {
        MAX_SIZE / self.shape.rows
    }

    /// The context that addresses and streams are of.
    pub(in crate::cuda) fn context(&self) -> &Arc<CudaContext> {
        &self.library.context
    }

    /// Makes the products for chunks of so many items each, with the algorithms of the guard's profile. Those
    /// of earlier plans are kept.
    pub(in crate::cuda) fn prepare(
        &mut self,
        guard: &Guard,
        items: [u64; 2],
    ) -> Result<(), ProductError> {
        let rows = items.map(|items| items.saturating_mul(self.shape.rows));
        if self.products.len() > MAX_KEPT {
            self.products.retain(|product| rows.contains(&product.shape().rows));
        }
        for rows in rows {
            if self.products.iter().all(|product| product.shape().rows != rows) {
                let shape = self.shape.with_rows(rows)?;
                let library = Rc::clone(&self.library);
                self.products.push(Product::new(guard, library, shape, self.workspace_bytes)?);
            }
        }
        Ok(())
    }

    /// Where the operands are, by the address of each buffer.
    pub(in crate::cuda) fn addresses(
        &self,
        address: impl Fn(BufferId) -> Result<u64, ViewError>,
    ) -> Result<ProductAddresses, ViewError> {
        let Operands { x, weight, bias, residual, out, workspace } = self.operands;
        Ok(ProductAddresses {
            x: address(x)?,
            weight: address(weight)?,
            bias: bias.map(&address).transpose()?,
            residual: residual.map(&address).transpose()?,
            out: address(out)?,
            workspace: address(workspace)?,
            workspace_bytes: self.workspace_bytes,
        })
    }

    /// Submits the product of a chunk of so many items.
    ///
    /// # Safety
    ///
    /// The stream is of [`Self::context`]; the addresses are those of the stage's buffers for a chunk of so
    /// many items, which nothing else uses until the stream has done this.
    pub(in crate::cuda) unsafe fn submit(
        &mut self,
        stream: &CudaStream,
        items: u64,
        addresses: &ProductAddresses,
    ) -> Result<(), ProductError> {
        let rows = items.saturating_mul(self.shape.rows);
        let product = self.products.iter_mut().find(|product| product.shape().rows == rows);
        let Some(product) = product else {
            let (shape, workspace_bytes) = (self.shape, self.workspace_bytes);
            return Err(ProductError::NoAlgorithm { shape, workspace_bytes });
        };
        // SAFETY: `new` found that the buffers have the bytes of the shape for each item, or as a whole; the
        // rest is this function's contract.
        unsafe { product.submit(stream, addresses) }
    }
}

/// The most products that are kept for chunks of other sizes: asking the library again takes longer than a
/// launch.
const MAX_KEPT: usize = 64;
