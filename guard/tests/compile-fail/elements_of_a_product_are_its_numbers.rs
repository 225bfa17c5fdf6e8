//! cuBLASLt writes f32, f16 or bf16. Few of these bit patterns are a valid `bool` or `char`.

use cudarc::driver::CudaStream;
use gridguard::Guard;
use gridguard::cuda::{CudaPipeline, Product, ProductBuffers, ProductMemory, ProductShape};

fn launch(product: &mut Product, stream: &CudaStream, memory: ProductMemory<'_, [bool; 4]>) {
    product.launch(stream, memory).expect("of as many bytes as f32");
}

fn stage(guard: &Guard, shape: ProductShape, buffers: ProductBuffers<char>) {
    let mut builder = CudaPipeline::builder(1);
    builder.product("product", guard, shape, buffers).expect("of as many bytes as f32");
}

fn main() {
    let _ = (launch, stage);
}
