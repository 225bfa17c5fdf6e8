//! cuBLASLt writes f32, f16 or bf16. Few of these bit patterns are a valid `bool` or `char`.

use gridguard::Guard;
use gridguard_pipeline::{Pipeline, Product, ProductBuffers, ProductShape};

fn algorithms(guard: &Guard, shape: ProductShape) {
    Product::new::<[bool; 4]>(guard, shape, 0).expect("of as many bytes as f32");
}

fn stage(guard: &Guard, shape: ProductShape, buffers: ProductBuffers<char>) {
    let mut builder = Pipeline::builder(1);
    builder.product("product", guard, shape, buffers).expect("of as many bytes as f32");
}

fn main() {
    let _ = (algorithms, stage);
}
