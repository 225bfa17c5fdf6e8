//! Declares stages on a device: kernels, products and calls that submit other work.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::buffer::BufferId;
use crate::builder::{PipelineBuilder, StageBuilder};
use crate::cuda::views::{Argument, Call, DeviceViews};
use crate::error::{Error, StageResult};
use crate::pipeline::StageWork;
use crate::product::{ProductBuffers, ProductElement, ProductShape, ProductStage};
use gridguard::cuda::Kernel;
use gridguard::{BatchAxis, Chunk, Guard, LaunchRequest, RawArgs, Scalar};

impl<'a> PipelineBuilder<'a> {
    /// Adds a stage after the stages before it that launches `kernel`, for the whole batch by `request`.
    /// Declare the arguments in the order of the kernel's parameters.
    ///
    /// For each chunk the kernel gets the addresses of the chunk's first item. A
    /// [`dependent`](LaunchRequest::dependent) request becomes an ordinary one.
    pub fn kernel(
        &mut self,
        name: impl Into<String>,
        kernel: &Kernel,
        request: LaunchRequest,
        batch: BatchAxis,
    ) -> StageBuilder<'_, 'a> {
        #[cfg(feature = "profile")]
        if let Some(key) = kernel.tuning_key() {
            self.source(&*key.source);
        }
        let stage = StageWork::Kernel { kernel: kernel.clone(), arguments: Vec::new() };
        let stage = self.add_stage(name.into(), stage);
        stage.launches(request, batch, kernel.limits())
    }

    /// Adds a stage after the stages before it that submits other work to a stream, for example a library
    /// call. `call` gets the stream, the chunk, and the buffers that the stage declares.
    ///
    /// It must not wait for the stream or begin a capture on it: a capture that it leaves open is
    /// discarded, and the run fails. The pipeline cannot run as a graph: see [`Self::call_in_graphs`].
    pub fn call<F>(&mut self, name: impl Into<String>, call: F) -> StageBuilder<'_, 'a>
    where
        F: FnMut(&Arc<CudaStream>, &Chunk, &DeviceViews<'_>) -> StageResult + Send + 'a,
    {
        self.add_call(name.into(), Box::new(call), false)
    }

    /// As [`Self::call`]. A graph may also capture the stage, and repeat the submitted work without
    /// calling it again.
    ///
    /// # Safety
    ///
    /// `call` only submits work to the stream that it gets, during the call and on its thread. The memory,
    /// kernels and handles that this work uses, except the buffers of the pipeline, live as long as `call`.
    /// Other work that writes them, or uses what this work writes, is ordered before or after the graph.
    /// That includes runs of the pipeline without a graph.
    pub unsafe fn call_in_graphs<F>(
        &mut self,
        name: impl Into<String>,
        call: F,
    ) -> StageBuilder<'_, 'a>
    where
        F: FnMut(&Arc<CudaStream>, &Chunk, &DeviceViews<'_>) -> StageResult + Send + 'a,
    {
        self.add_call(name.into(), Box::new(call), true)
    }

    /// Adds a stage after the stages before it that multiplies matrices with cuBLASLt. `shape` has the rows
    /// of one item, so a chunk multiplies its items times `shape.rows` rows.
    ///
    /// Each chunk size uses the algorithm of `buffers`, else the algorithm in the profile of the guard that
    /// runs the pipeline, else cuBLASLt's first choice. The results of an algorithm are reproducible.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Product`](crate::ErrorKind) if the library cannot be used, or the sizes of the buffers differ from
    /// the shape.
    pub fn product<T: ProductElement>(
        &mut self,
        name: impl Into<String>,
        guard: &Guard,
        shape: ProductShape,
        buffers: ProductBuffers<T>,
    ) -> Result<(), Error> {
        let extent = |id| self.definition.spec(id).map(|spec| spec.extent);
        let product = ProductStage::new(guard, shape, &buffers, extent)?;
        let at_most = product.most_items();
        let ProductBuffers { x, weight, bias, residual, out, workspace, algorithm: _ } = buffers;
        let product = StageWork::Product(Box::new(product));
        let stage = self.add_stage(name.into(), product).at_most(at_most);
        let stage = stage.read(x).read(weight).write(workspace);
        let stage = bias.into_iter().fold(stage, StageBuilder::read);
        match residual {
            Some(residual) if residual.id == out.id => stage.update(out),
            Some(residual) => stage.read(residual).write(out),
            None => stage.write(out),
        };
        Ok(())
    }

    fn add_call(
        &mut self,
        name: String,
        call: Box<Call<'a>>,
        in_graphs: bool,
    ) -> StageBuilder<'_, 'a> {
        self.add_stage(name, StageWork::Call { call, in_graphs })
    }
}

/// Arguments of a stage's kernel, in the order of its parameters.
impl<'a> StageBuilder<'_, 'a> {
    /// As [`RawArgs::value`].
    pub fn value<T: Scalar>(self, value: T) -> Self {
        self.argument(move |arguments| _ = arguments.value(value))
    }

    /// As [`RawArgs::constant`].
    pub fn constant<T: Scalar>(self, value: T) -> Self {
        self.argument(move |arguments| _ = arguments.constant(value))
    }

    /// As [`RawArgs::bytes`].
    pub fn bytes(self, bytes: &'a [u8]) -> Self {
        self.argument(|arguments| _ = arguments.bytes(bytes))
    }

    /// As [`RawArgs::offset`].
    pub fn offset(self) -> Self {
        self.argument(|arguments| _ = arguments.offset())
    }

    /// As [`RawArgs::length`].
    pub fn length(self) -> Self {
        self.argument(|arguments| _ = arguments.length())
    }

    /// As [`RawArgs::parts`].
    pub fn parts(self, per_item: u64) -> Self {
        self.argument(move |arguments| _ = arguments.parts(per_item))
    }

    /// Adds the address of a buffer to the arguments of the stage's kernel, if it launches one.
    pub(crate) fn argument_at(mut self, id: BufferId, offset: u64) -> Self {
        if let Some(StageWork::Kernel { arguments, .. }) = self.body() {
            arguments.push(Argument::Buffer { id, offset });
        }
        self
    }

    fn argument(mut self, add: impl Fn(&mut RawArgs<'a>) + Send + 'a) -> Self {
        match self.body() {
            Some(StageWork::Kernel { arguments, .. }) => {
                arguments.push(Argument::Value(Box::new(add)));
                self
            }
            _ => self.refuse_argument(),
        }
    }
}
