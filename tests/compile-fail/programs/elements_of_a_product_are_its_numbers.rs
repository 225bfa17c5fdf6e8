//! cuBLASLt writes f32, f16 or bf16. Few of these bit patterns are a valid `bool` or `char`.

use gridguard::Guard;
use gridguard::cuda::{ProductBuffers, ProductShape};
use gridguard::pipeline::Pipeline;

fn algorithms(guard: &Guard, shape: ProductShape) {
    guard.product::<[bool; 4]>(shape, 0).expect("of as many bytes as f32");
}

fn stage(guard: &Guard, shape: ProductShape, buffers: ProductBuffers<char>) {
    let mut builder = Pipeline::builder(1);
    builder.product("product", guard, shape, buffers).expect("of as many bytes as f32");
}

fn main() {
    let _ = (algorithms, stage);
}
