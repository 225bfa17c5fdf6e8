//! Device code relies on the size and layout of elements.

use gridguard_kernels::compare::Compared;
use gridguard_kernels::{Element, ElementType};

#[derive(Clone, Copy)]
struct Byte(u8);

impl From<Byte> for f32 {
    fn from(byte: Byte) -> f32 {
        byte.0.into()
    }
}

impl Element for Byte {
    const TYPE: ElementType = ElementType::F32;

    fn narrow(_: f32) -> Self {
        Self(0)
    }
}

impl Compared for Byte {
    const SIZED_AS: ElementType = ElementType::F32;
    const IS_INTEGER: bool = true;

    fn value(self) -> f64 {
        0.0
    }

    fn nearest(_: f64) -> Self {
        Self(0)
    }

    fn bits(self) -> u32 {
        0
    }

    fn poisons() -> [Self; 2] {
        [Self(0), Self(1)]
    }
}

fn main() {}
