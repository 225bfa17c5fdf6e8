//! A pipeline of one product, for tests and benchmarks of cuBLASLt's algorithms.

use gridguard::Guard;
use gridguard_pipeline::{
    Budget, Error, Pipeline, PipelinePlan, ProductBuffers, ProductElement, ProductShape,
};

/// A pipeline of one item with all rows, and its buffers.
#[derive(Debug)]
pub struct OneProduct<T> {
    /// The pipeline.
    pub pipeline: Pipeline<'static>,
    /// All rows at once.
    pub plan: PipelinePlan,
    /// The buffers. The workspace is scratch.
    pub buffers: ProductBuffers<T>,
}

impl<T: ProductElement> OneProduct<T> {
    /// A product by this algorithm. If `in_place`, the residual is out.
    ///
    /// # Errors
    ///
    /// [`Error`] if the library cannot be used.
    ///
    /// # Panics
    ///
    /// If the pipeline cannot be built.
    #[allow(clippy::expect_used, reason = "tests")]
    pub fn new(
        guard: &Guard,
        shape: ProductShape,
        workspace_bytes: u64,
        algorithm: Option<u64>,
        in_place: bool,
    ) -> Result<Self, Error> {
        let ProductShape { rows, inner, columns, bias, residual } = shape;
        let mut builder = Pipeline::builder(1);
        let x = builder.input::<T>("x", rows * inner);
        let weight = builder.shared_input("weight", columns * inner);
        let bias = bias.then(|| builder.shared_input("bias", columns));
        let out = match in_place {
            true => builder.in_place("out", rows * columns),
            false => builder.output("out", rows * columns),
        };
        let residual = residual.then(|| match in_place {
            true => out,
            false => builder.input("residual", rows * columns),
        });
        let workspace = builder.fixed_scratch("workspace", workspace_bytes.max(1));
        let buffers = ProductBuffers { x, weight, bias, residual, out, workspace, algorithm };
        builder.product("product", guard, shape, buffers)?;
        let pipeline = builder.build().expect("one stage");
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        Ok(Self { pipeline, plan, buffers })
    }
}
