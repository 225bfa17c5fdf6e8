//! The stage of a pipeline that multiplies matrices: one product for each chunk size.

use core::fmt;
use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use crate::buffer::{Buffer, BufferId, Extent};
use crate::error::Error;
use crate::product::algorithms::{Product, no_such_algorithm};
use crate::product::library::LibraryHandle;
use crate::product::shape::{
    ALIGNMENT, MAX_SIZE, OPERANDS, Operands, ProductElement, ProductShape,
};
use gridguard::Guard;

/// The buffers of a product. x, residual and out are per item, the others the same for every chunk.
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
    /// The index of the [algorithm](Product::workspace_bytes) for every chunk size; `None` for the
    /// profile's.
    pub algorithm: Option<u64>,
}

/// The work of a stage that multiplies.
pub(crate) struct ProductStage {
    library: Rc<LibraryHandle>,
    /// With the rows of one item.
    shape: ProductShape,
    workspace_bytes: u64,
    operands: Operands<BufferId>,
    algorithm: Option<u64>,
    make: MakeProduct,
    /// The products of this plan and of earlier plans, each with its number of rows.
    products: Vec<Product>,
}

type MakeProduct = fn(&Guard, Rc<LibraryHandle>, ProductShape, u64) -> Result<Product, Error>;

impl ProductStage {
    /// Checks the shape and the extents of the buffers. A buffer of another pipeline has no extent; the
    /// builder reports it.
    pub(crate) fn new<T: ProductElement>(
        guard: &Guard,
        shape: ProductShape,
        buffers: &ProductBuffers<T>,
        extent: impl Fn(BufferId) -> Option<Extent>,
    ) -> Result<Self, Error> {
        shape.check()?;
        let ProductBuffers { x, weight, bias, residual, out, workspace, algorithm } = *buffers;
        shape.check_operands(bias.is_some(), residual.is_some())?;
        let [bias, residual] = [bias, residual].map(|buffer| buffer.map(|buffer| buffer.id));
        let (x, weight, out) = (Some(x.id), Some(weight.id), Some(out.id));
        let operands = [x, weight, bias, residual, out, Some(workspace.id)];
        let workspace_bytes = check_extents::<T>(&shape, &operands, extent)?;
        let library = Rc::new(LibraryHandle::of(guard)?);
        let make: MakeProduct = Product::with_handle::<T>;
        let products = Vec::new();
        Ok(Self { library, shape, workspace_bytes, operands, algorithm, make, products })
    }

    /// The most items of a chunk whose rows the library can count.
    pub(crate) const fn most_items(&self) -> u64 {
        MAX_SIZE / self.shape.rows
    }

    /// The context of the library's handle.
    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.library.context
    }

    pub(crate) const fn operands(&self) -> &Operands<BufferId> {
        &self.operands
    }

    /// Makes the products for two chunk sizes in items, and keeps products of earlier plans.
    pub(crate) fn prepare(&mut self, guard: &Guard, items: [u64; 2]) -> Result<(), Error> {
        let rows = items.map(|items| items.saturating_mul(self.shape.rows));
        if self.products.len() > MAX_KEPT {
            self.products.retain(|product| rows.contains(&product.shape().rows));
        }
        for rows in rows {
            if self.products.iter().all(|product| product.shape().rows != rows) {
                let (library, shape) = (Rc::clone(&self.library), self.shape);
                let shape = ProductShape { rows, ..shape };
                let mut product = (self.make)(guard, library, shape, self.workspace_bytes)?;
                if let Some(algorithm) = self.algorithm {
                    product.choose(algorithm)?;
                }
                self.products.push(product);
            }
        }
        Ok(())
    }

    /// Submits the product of a chunk of `items`.
    ///
    /// # Safety
    ///
    /// The stream is of [`Self::context`]. `operands` are the addresses of the stage's buffers for the chunk,
    /// and nothing else uses them until the stream has done this.
    pub(crate) unsafe fn submit(
        &mut self,
        stream: &CudaStream,
        items: u64,
        operands: &Operands<u64>,
    ) -> Result<(), Error> {
        let rows = items.saturating_mul(self.shape.rows);
        let Some(product) = self.products.iter_mut().find(|product| product.shape().rows == rows)
        else {
            return Err(no_such_algorithm(0, 0));
        };
        // SAFETY: `check_extents` checked that the buffers have the bytes of the shape. The rest is this
        // function's contract.
        unsafe { product.submit(stream, operands) }
    }
}

// SAFETY: the library's handle and objects belong to no thread, and are used through `&mut`. Every `Rc` of the
// handle is in this stage or its products, so all of them move together.
unsafe impl Send for ProductStage {}

impl ProductShape {
    /// Checks that a bias and a residual are given exactly if the product has them.
    pub(crate) fn check_operands(&self, bias: bool, residual: bool) -> Result<(), Error> {
        for (tensor, given, declared) in
            [("bias", bias, self.bias), ("residual", residual, self.residual)]
        {
            let (given, expected) = match (given, declared) {
                (true, false) => ("given", "without"),
                (false, true) => ("not given", "with"),
                _ => continue,
            };
            return Err(Error::product(format!(
                "{tensor} was {given}, the product was made {expected} it"
            )));
        }
        Ok(())
    }
}

/// Checks that the buffers have the bytes of the shape, and returns the bytes of the workspace.
pub(crate) fn check_extents<T>(
    shape: &ProductShape,
    operands: &Operands<BufferId>,
    extent: impl Fn(BufferId) -> Option<Extent>,
) -> Result<u64, Error> {
    let ProductShape { rows, inner, columns, .. } = *shape;
    let size = u64::try_from(size_of::<T>()).unwrap_or(u64::MAX);
    // The shape bounds rows, inner and columns to 31 bits.
    let per_item =
        |columns: u64| Extent::PerItem(rows.saturating_mul(columns).saturating_mul(size));
    let shared = |elements: u64| Extent::Fixed(elements.saturating_mul(size));
    let expected = [
        per_item(inner),
        shared(columns * inner),
        shared(columns),
        per_item(columns),
        per_item(columns),
    ];
    for ((tensor, id), expected) in OPERANDS.into_iter().zip(operands).zip(expected) {
        let Some(given) = id.and_then(&extent) else { continue };
        if given != expected {
            return Err(other_size(tensor, given, &expected));
        }
        let bytes = given.per_item();
        if !bytes.is_multiple_of(ALIGNMENT) {
            return Err(Error::product(format!(
                "{tensor} has {bytes} bytes an item, which is not a multiple of {ALIGNMENT}"
            )));
        }
    }
    let [.., workspace] = *operands;
    match workspace.and_then(extent) {
        None => Ok(0),
        Some(Extent::Fixed(bytes)) => Ok(bytes),
        Some(given @ Extent::PerItem(_)) => {
            Err(other_size("the workspace", given, &"a fixed size"))
        }
    }
}

fn other_size(tensor: &str, given: Extent, expected: &dyn fmt::Display) -> Error {
    Error::product(format!("{tensor} has {given}, the product takes {expected}"))
}

/// The most products that are kept for other chunk sizes: asking the library again takes longer than a
/// launch.
const MAX_KEPT: usize = 64;
