//! The golden tensors of `bench-data/golden`, built in: q, k, v and what PyTorch makes of them.

use gridguard_kernels::Element;
use gridguard_kernels::temporal_attention::Shape;
use half::f16;
use safetensors::tensor::{SafeTensors, TensorView};

/// q, k and v of one shape, and attention over them in float64, rounded to f32.
#[derive(Clone, Debug)]
pub struct Golden<T> {
    /// The file's name.
    pub name: &'static str,
    /// The shape of all four.
    pub shape: Shape,
    /// Queries.
    pub q: Vec<T>,
    /// Keys.
    pub k: Vec<T>,
    /// Values.
    pub v: Vec<T>,
    /// What attention gives.
    pub out: Vec<f64>,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$((
            $name,
            &include_bytes!(concat!("../../bench-data/golden/attention_", $name, ".safetensors"))[..],
        ),)*]
    };
}

/// The golden tensors in half precision.
#[must_use]
pub fn f16() -> Vec<Golden<f16>> {
    files!["f16_6x5x16x64", "f16_4x3x25x40", "f16_3x2x24x72", "f16_2x2x81x64", "f16_3x5x1x7"]
        .map(|(name, bytes)| read(name, bytes, |[low, high]| f16::from_le_bytes([low, high])))
        .into()
}

/// The golden tensors in single precision.
#[must_use]
pub fn f32() -> Vec<Golden<f32>> {
    files!["f32_6x5x16x64", "f32_4x3x25x40", "f32_3x2x24x72", "f32_2x2x81x64", "f32_3x5x1x7"]
        .map(|(name, bytes)| read(name, bytes, f32::from_le_bytes))
        .into()
}

#[allow(clippy::expect_used, reason = "the files are part of the tests")]
fn read<T: Element, const N: usize>(
    name: &'static str,
    bytes: &[u8],
    element: fn([u8; N]) -> T,
) -> Golden<T> {
    let file = SafeTensors::deserialize(bytes).expect("a whole file");
    let tensor = |name: &str| file.tensor(name).expect("q, k, v and out");
    let elements = |view: TensorView<'_>| -> Vec<T> {
        view.data().as_chunks::<N>().0.iter().map(|bytes| element(*bytes)).collect()
    };
    let out = tensor("out");
    let dims: Vec<u64> =
        out.shape().iter().map(|size| u64::try_from(*size).expect("u64")).collect();
    let [items, heads, frames, head_dim] = dims[..].try_into().expect("four dimensions");
    let out = out.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into());
    Golden {
        name,
        shape: Shape::new(items, heads, frames, head_dim).expect("a shape that the kernel takes"),
        q: elements(tensor("q")),
        k: elements(tensor("k")),
        v: elements(tensor("v")),
        out: out.collect(),
    }
}
