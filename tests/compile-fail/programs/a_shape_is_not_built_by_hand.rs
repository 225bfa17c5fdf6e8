//! Device code and references rely on the checks of the constructors. A field that cannot be set cannot stand
//! in a literal either.

use gridguard_kernels::temporal_attention::Shape;
use gridguard_kernels::temporal_block::BlockShape;

fn change(shape: &mut Shape, block: &mut BlockShape) {
    shape.head_dim = 192;
    block.heads = 7;
    block.channels = 0;
}

fn main() {
    let _ = change;
}
