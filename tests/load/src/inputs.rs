//! Random requests, and whether a reply to one is correct.

use gridguard::DeviceLimits;
use gridguard_kernels::temporal_attention::{Shape, TemporalAttention, reference, tolerance};
use gridguard_kernels::{Deviation, Element, ElementType};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::Fallible;

/// A few requests of one shape, sent in turn.
pub(crate) struct Inputs<T> {
    attention: TemporalAttention,
    shape: Shape,
    /// q, k and v, and the body.
    requests: Vec<([Vec<T>; 3], Vec<u8>)>,
}

impl<T: Element> Inputs<T> {
    pub(crate) fn new(sizes: [u64; 4]) -> Fallible<Self> {
        let [items, heads, frames, head_dim] = sizes;
        let shape = Shape::new(items, heads, frames, head_dim)?;
        // The result does not depend on the device.
        let attention =
            TemporalAttention::new(shape, ElementType::F32, &DeviceLimits::any_device())?;
        let dims = sizes.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>()?;
        let dtype = match T::TYPE {
            ElementType::F16 => Dtype::F16,
            ElementType::Bf16 => Dtype::BF16,
            ElementType::F32 => Dtype::F32,
        };
        let request = |seed: u64| -> Fallible<_> {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut element = || T::narrow((random.f32() * 2.0 - 1.0) * 3.0_f32.sqrt());
            let elements: usize = dims.iter().product();
            let qkv = [(); 3].map(|()| (0..elements).map(|_| element()).collect::<Vec<T>>());
            let mut tensors = Vec::new();
            for (name, tensor) in ["q", "k", "v"].into_iter().zip(&qkv) {
                let view = TensorView::new(dtype, dims.clone(), bytemuck::cast_slice(tensor))?;
                tensors.push((name, view));
            }
            let body = safetensors::serialize(tensors, None)?;
            Ok((qkv, body))
        };
        let requests = (0..DIFFERENT).map(request).collect::<Result<_, _>>()?;
        Ok(Self { attention, shape, requests })
    }

    /// The body of the request with this number.
    pub(crate) fn body(&self, number: u64) -> &[u8] {
        self.request(number).map_or(&[], |(_, body)| body)
    }

    /// Whether the reply to it has the right elements for the first, the middle and the last head, and as many as it
    /// should.
    pub(crate) fn is_correct(&self, number: u64, reply: &[u8]) -> bool {
        let Some((qkv, _)) = self.request(number) else { return false };
        let Ok(file) = SafeTensors::deserialize(reply) else { return false };
        let Ok(out) = file.tensor("out") else { return false };
        let out: Vec<T> = bytemuck::pod_collect_to_vec(out.data());
        let size = usize::try_from(self.shape.elements_per_problem()).unwrap_or(1);
        let heads = out.len() / size;
        let mut deviation = Deviation::new();
        for head in [0, heads / 2, heads.saturating_sub(1)].into_iter().filter(|_| heads > 0) {
            let of = |tensor: &'_ [T]| {
                tensor.get(head * size..(head + 1) * size).unwrap_or_default().to_vec()
            };
            let [q, k, v] = qkv.each_ref().map(|tensor| of(tensor));
            let expected = reference(&self.attention, self.shape.scale(), [&q, &k, &v], None);
            deviation.add(&of(&out), &expected);
        }
        out.len() == qkv[0].len() && deviation.within(tolerance(T::TYPE))
    }

    fn request(&self, number: u64) -> Option<&([Vec<T>; 3], Vec<u8>)> {
        self.requests.get(usize::try_from(number % DIFFERENT).unwrap_or(0))
    }
}

/// Different requests, so that a reply to another one shows.
const DIFFERENT: u64 = 4;
