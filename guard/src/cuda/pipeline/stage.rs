//! Stages of pipelines on a device, and the memory that they work on.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::cuda::arguments::memory::wide;
use crate::cuda::kernel::Kernel;
use crate::cuda::product::{
    ProductBuffers, ProductError, ProductNumber, ProductShape, ProductStage,
};
use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::pipeline::buffer::{Access, Buffer, BufferId};
use crate::pipeline::builder::{PipelineBuilder, StageBuilder};
use crate::pipeline::definition::{Definition, Pipeline};
use crate::pipeline::error::{StageError, ViewError};
use crate::plan::arguments::KernelArgs;
use crate::plan::batch::BatchAxis;
use crate::plan::chunks::Chunk;
use crate::plan::slot::Scalar;

/// A pipeline on a CUDA device: [`Guard::run_pipeline`](crate::Guard::run_pipeline).
pub type CudaPipeline<'a> = Pipeline<CudaStage<'a>>;

/// What a stage does on a device.
pub struct CudaStage<'a>(pub(super) Body<'a>);

pub(super) enum Body<'a> {
    Kernel {
        kernel: Kernel,
        /// With an address of 0 for each buffer.
        arguments: Box<KernelArgs<'a>>,
        /// The places of buffers among the arguments, and the bytes of each that come before.
        buffers: Vec<(usize, BufferId, u64)>,
    },
    Product(Box<ProductStage>),
    Call {
        call: Box<Call<'a>>,
        /// Whether a graph of its work may be replayed.
        in_graphs: bool,
    },
}

pub(super) type Call<'a> =
    dyn FnMut(&Arc<CudaStream>, &Chunk, &DeviceViews<'_>) -> Result<(), StageError> + 'a;

impl fmt::Debug for CudaStage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CudaStage");
        if let Body::Kernel { kernel, .. } = &self.0 {
            debug.field("kernel", kernel);
        }
        debug.finish_non_exhaustive()
    }
}

impl<'a> PipelineBuilder<CudaStage<'a>> {
    /// Adds a stage after those before it that launches `kernel`, for the whole batch by `request`. The
    /// arguments follow, in the order of the kernel's parameters.
    ///
    /// For each chunk the kernel gets the addresses of the chunk's first item, in the caller's memory and
    /// in scratch. A [`dependent`](LaunchRequest::dependent) request becomes an ordinary one.
    pub fn kernel(
        &mut self,
        name: impl Into<String>,
        kernel: &Kernel,
        request: LaunchRequest,
        batch: BatchAxis,
    ) -> KernelStage<'_, 'a> {
        let (arguments, buffers) = (Box::new(KernelArgs::new()), Vec::new());
        #[cfg(feature = "profile")]
        if let Some(tuning) = kernel.tuning() {
            self.source(&*tuning.key().source);
        }
        let body = CudaStage(Body::Kernel { kernel: kernel.clone(), arguments, buffers });
        let (stage, body) = self.add_stage_and_body(name.into(), body);
        KernelStage { stage: stage.launches(request, batch, kernel.limits()), body }
    }

    /// Adds a stage after those before it that submits work of another kind to a stream, such as a library
    /// call: `call` gets the stream, the chunk, and views of the buffers that the stage declares.
    ///
    /// It neither waits for the stream nor begins a capture on it: a capture that has begun when the call
    /// returns ends without a graph, and the run fails. A pipeline with such a stage cannot be
    /// captured into a graph: see [`Self::call_in_graphs`].
    pub fn call<F>(&mut self, name: impl Into<String>, call: F) -> StageBuilder<'_>
    where
        F: FnMut(&Arc<CudaStream>, &Chunk, &DeviceViews<'_>) -> Result<(), StageError> + 'a,
    {
        self.add_call(name.into(), Box::new(call), false)
    }

    /// As [`Self::call`]. The stage may also be captured into a graph, which repeats the work that it
    /// submitted without calling it again.
    ///
    /// # Safety
    ///
    /// `call` submits work to the stream that it gets, during the call and on its thread only. Of the
    /// memory, kernels and handles that this work uses, all but the buffers of the pipeline are alive as
    /// long as `call` is, and no other work writes them, or uses what this work writes, unless it is
    /// ordered before or after the graph.
    pub unsafe fn call_in_graphs<F>(&mut self, name: impl Into<String>, call: F) -> StageBuilder<'_>
    where
        F: FnMut(&Arc<CudaStream>, &Chunk, &DeviceViews<'_>) -> Result<(), StageError> + 'a,
    {
        self.add_call(name.into(), Box::new(call), true)
    }

    /// Adds a stage after those before it that multiplies matrices as [`Guard::product`] does: for each
    /// chunk by the algorithm for its rows in the profile of the guard that first runs one of so many, or else
    /// the one that the library expects to be fastest. `shape` has the rows of an item.
    ///
    /// # Errors
    ///
    /// [`ProductError`] if the library cannot be used, or the buffers have other sizes or elements than the
    /// shape.
    pub fn product<T: ProductNumber>(
        &mut self,
        name: impl Into<String>,
        guard: &Guard,
        shape: ProductShape,
        buffers: ProductBuffers<T>,
    ) -> Result<(), ProductError> {
        let product = ProductStage::new(guard, shape, &buffers, |id| self.extent(id))?;
        let at_most = product.most_items();
        let ProductBuffers { x, weight, bias, residual, out, workspace } = buffers;
        let stage = self.add_stage(name.into(), CudaStage(Body::Product(Box::new(product))));
        let stage = stage.at_most(at_most).reads(x).reads(weight).writes(workspace);
        let stage = bias.into_iter().fold(stage, StageBuilder::reads);
        match residual {
            Some(residual) if residual.id == out.id => stage.updates(out),
            Some(residual) => stage.reads(residual).writes(out),
            None => stage.writes(out),
        };
        Ok(())
    }

    fn add_call(&mut self, name: String, call: Box<Call<'a>>, in_graphs: bool) -> StageBuilder<'_> {
        self.add_stage(name, CudaStage(Body::Call { call, in_graphs }))
    }
}

/// Declares the arguments of a stage's kernel, in the order of its parameters.
#[derive(Debug)]
pub struct KernelStage<'b, 'a> {
    stage: StageBuilder<'b>,
    body: Option<&'b mut CudaStage<'a>>,
}

impl<'a> KernelStage<'_, 'a> {
    /// A buffer that the kernel reads.
    pub fn reads<T>(mut self, buffer: Buffer<T>) -> Self {
        self.stage = self.stage.reads(buffer);
        self.buffer(buffer.id, 0)
    }

    /// A buffer that the kernel reads, from its element `first` on; of a buffer per item, from that element
    /// of each item on. A kernel may read several parts of a buffer so, such as queries, keys and values
    /// that one product wrote side by side.
    pub fn reads_from<T>(mut self, buffer: Buffer<T>, first: u64) -> Self {
        self.stage = self.stage.reads_from(buffer, first);
        self.buffer(buffer.id, first.saturating_mul(wide(size_of::<T>())))
    }

    /// A buffer of which the kernel writes all that belongs to the chunk, whatever it held.
    pub fn writes<T>(mut self, buffer: Buffer<T>) -> Self {
        self.stage = self.stage.writes(buffer);
        self.buffer(buffer.id, 0)
    }

    /// A buffer that the kernel reads and writes.
    pub fn updates<T>(mut self, buffer: Buffer<T>) -> Self {
        self.stage = self.stage.updates(buffer);
        self.buffer(buffer.id, 0)
    }

    /// As [`KernelArgs::value`].
    pub fn value<T: Scalar>(self, value: T) -> Self {
        self.argument(|arguments| arguments.value(value))
    }

    /// As [`KernelArgs::constant`].
    pub fn constant<T: Scalar>(self, value: T) -> Self {
        self.argument(|arguments| arguments.constant(value))
    }

    /// As [`KernelArgs::bytes`].
    pub fn bytes(self, bytes: &'a [u8]) -> Self {
        self.argument(|arguments| arguments.bytes(bytes))
    }

    /// As [`KernelArgs::offset`].
    pub fn offset(self) -> Self {
        self.argument(KernelArgs::offset)
    }

    /// As [`KernelArgs::offset_u32`].
    pub fn offset_u32(self) -> Self {
        self.argument(KernelArgs::offset_u32)
    }

    /// As [`KernelArgs::offset_i32`].
    pub fn offset_i32(self) -> Self {
        self.argument(KernelArgs::offset_i32)
    }

    /// As [`KernelArgs::length`].
    pub fn length(self) -> Self {
        self.argument(KernelArgs::length)
    }

    /// As [`KernelArgs::length_u32`].
    pub fn length_u32(self) -> Self {
        self.argument(KernelArgs::length_u32)
    }

    /// As [`KernelArgs::length_i32`].
    pub fn length_i32(self) -> Self {
        self.argument(KernelArgs::length_i32)
    }

    /// As [`KernelArgs::parts`].
    pub fn parts(self, per_item: u64) -> Self {
        self.argument(|arguments| arguments.parts(per_item))
    }

    fn buffer(mut self, id: BufferId, bytes_before: u64) -> Self {
        if let Some(CudaStage(Body::Kernel { arguments, buffers, .. })) = &mut self.body {
            buffers.push((arguments.len(), id, bytes_before));
        }
        self.argument(|arguments| arguments.address(0))
    }

    fn argument(
        mut self,
        add: impl for<'k> FnOnce(&'k mut KernelArgs<'a>) -> &'k mut KernelArgs<'a>,
    ) -> Self {
        if let Some(CudaStage(Body::Kernel { arguments, .. })) = &mut self.body {
            add(arguments);
        }
        self
    }
}

/// Where the buffers that a stage declared are on the device: of a buffer per item, the part of the chunk's
/// items.
#[derive(Debug)]
pub struct DeviceViews<'v> {
    pub(super) definition: &'v Definition,
    pub(super) stage: &'v str,
    pub(super) views: Vec<(usize, Access, DeviceRange)>,
}

/// Memory on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceRange {
    /// The address of its first byte.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

impl DeviceViews<'_> {
    /// A buffer that the stage reads or updates. Work on the stage's stream may read it.
    ///
    /// # Errors
    ///
    /// [`ViewError`] if it declared something else.
    pub fn read<T>(&self, buffer: Buffer<T>) -> Result<DeviceRange, ViewError> {
        self.find(buffer.id, Access::reads).ok_or_else(|| {
            let (stage, buffer) = (self.stage.to_owned(), self.definition.buffer_name(buffer.id));
            ViewError::NotRead { stage, buffer }
        })
    }

    /// A buffer that the stage writes or updates. Work on the stage's stream may write it; what it held, if
    /// the stage writes it, is unspecified.
    ///
    /// # Errors
    ///
    /// [`ViewError`] if it declared something else.
    pub fn write<T>(&self, buffer: Buffer<T>) -> Result<DeviceRange, ViewError> {
        self.find(buffer.id, Access::writes).ok_or_else(|| {
            let (stage, buffer) = (self.stage.to_owned(), self.definition.buffer_name(buffer.id));
            ViewError::NotWritten { stage, buffer }
        })
    }

    /// The address of a buffer that the stage uses.
    pub(super) fn address(&self, id: BufferId) -> Result<u64, ViewError> {
        self.find(id, |_| true).map(|range| range.address).ok_or_else(|| {
            let (stage, buffer) = (self.stage.to_owned(), self.definition.buffer_name(id));
            ViewError::NotRead { stage, buffer }
        })
    }

    fn find(&self, id: BufferId, allows: fn(Access) -> bool) -> Option<DeviceRange> {
        let is = |(index, access, _): &&(usize, Access, DeviceRange)| {
            *index == id.index && id.pipeline == self.definition.id && allows(*access)
        };
        self.views.iter().find(is).map(|(_, _, range)| *range)
    }
}
