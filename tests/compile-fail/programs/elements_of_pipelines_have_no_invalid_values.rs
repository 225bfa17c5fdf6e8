//! Stages write any bits, and unwritten scratch may be copied to the caller's memory.

use core::num::NonZeroU32;

use gridguard_pipeline::Pipeline;

#[derive(Clone, Copy)]
enum Sign {
    Plus,
}

/// With three bytes of padding.
#[derive(Clone, Copy)]
#[repr(C)]
struct Padded(u32, u8);

fn main() {
    let mut builder = Pipeline::builder(10);
    builder.input::<&'static u32>("references", 1);
    builder.shared_input::<Padded>("padded", 1);
    builder.output::<bool>("flags", 1);
    builder.in_place::<char>("letters", 1);
    builder.accumulator::<NonZeroU32>("counts", 1);
    builder.scratch::<Sign>("signs", 1);
    builder.fixed_scratch::<Option<bool>>("options", 1);
    let _ = (Sign::Plus, Padded(0, 0));
}
