//! Random requests, and whether a reply to one is correct.

use gridguard::DeviceLimits;
use gridguard_kernels::temporal_attention::{self, Shape, TemporalAttention};
use gridguard_kernels::temporal_block::{self, BlockReference};
use gridguard_kernels::{Deviation, Element, ElementType};
use gridguard_server::block::Block;
use gridguard_server::error::Fallible;
use gridguard_server::tensors::body_of;
use hyper::body::Bytes;
use safetensors::SafeTensors;

/// A few requests of one shape, sent in turn.
pub(crate) struct Inputs<T> {
    reference: Reference,
    items: usize,
    per_item: usize,
    requests: Vec<Input<T>>,
}

struct Input<T> {
    /// q, k and v, or x.
    tensors: Vec<Vec<T>>,
    body: Bytes,
}

enum Reference {
    Attention { attention: TemporalAttention, shape: Shape },
    Block(Box<BlockReference>),
}

impl<T: Element + 'static> Inputs<T> {
    /// Requests for attention of `[items, heads, frames, head_dim]`.
    pub(crate) fn attention(sizes: [u64; 4]) -> Fallible<Self> {
        let [items, heads, frames, head_dim] = sizes;
        let shape = Shape::new(items, heads, frames, head_dim)?;
        // What it computes does not depend on the device.
        let device = DeviceLimits::any_device();
        let attention = TemporalAttention::new(shape, ElementType::F32, &device)?;
        let reference = Reference::Attention { attention, shape };
        Self::new(reference, &sizes, shape.elements_per_item(), &["q", "k", "v"])
    }

    /// Requests for the block.
    pub(crate) fn block(items: u64, frames: u64, block: Block) -> Fallible<Self> {
        let shape = block.shape(items, frames)?;
        let reference = BlockReference::new(&shape, block.weights::<T>()?)?;
        let sizes = [items, frames, shape.channels()];
        let reference = Reference::Block(Box::new(reference));
        Self::new(reference, &sizes, shape.elements_per_item(), &["x"])
    }

    fn new(reference: Reference, sizes: &[u64], per_item: u64, names: &[&str]) -> Fallible<Self> {
        let dims: Vec<usize> =
            sizes.iter().map(|size| usize::try_from(*size)).collect::<Result<_, _>>()?;
        let (elements, per_item) = (dims.iter().product(), usize::try_from(per_item)?);
        let mut seed = 0;
        let mut request = || -> Fallible<Input<T>> {
            let mut random = || {
                seed += 1;
                let mut random = fastrand::Rng::with_seed(seed);
                let element = |_| T::narrow((random.f32() * 2.0 - 1.0) * 3.0_f32.sqrt());
                (0..elements).map(element).collect::<Vec<T>>()
            };
            let tensors: Vec<Vec<T>> = names.iter().map(|_| random()).collect();
            let named = names.iter().copied().zip(&tensors);
            let named: Vec<_> =
                named.map(|(name, tensor)| (name, bytemuck::cast_slice(tensor))).collect();
            let body = body_of(T::TYPE, &dims, &named)?.into();
            Ok(Input { tensors, body })
        };
        let requests = (0..DIFFERENT).map(|_| request()).collect::<Result<_, _>>()?;
        let items = dims.first().copied().unwrap_or(0);
        Ok(Self { reference, items, per_item, requests })
    }
}

impl<T: Element> Inputs<T> {
    /// The body of the request with this number.
    pub(crate) fn body(&self, number: u64) -> Bytes {
        self.input(number).map(|input| input.body.clone()).unwrap_or_default()
    }

    /// Whether the reply to it has the right elements at the first, the middle and the last item, and as
    /// many as it should.
    pub(crate) fn is_correct(&self, number: u64, reply: &[u8]) -> bool {
        let Ok(reply) = SafeTensors::deserialize(reply) else { return false };
        let (Ok(out), Some(input)) = (reply.tensor("out"), self.input(number)) else {
            return false;
        };
        let bytes = self.items * self.per_item * size_of::<T>();
        if out.data().len() != bytes {
            return false;
        }
        let out: Vec<T> = bytemuck::pod_collect_to_vec(out.data());
        let items = [0, self.items / 2, self.items.saturating_sub(1)];
        items.into_iter().all(|item| self.items == 0 || self.is_item_correct(item, input, &out))
    }

    fn is_item_correct(&self, item: usize, input: &Input<T>, out: &[T]) -> bool {
        let range = item * self.per_item..(item + 1) * self.per_item;
        let part = |tensor: &'_ [T]| tensor.get(range.clone()).unwrap_or_default().to_vec();
        let tensors: Vec<Vec<T>> = input.tensors.iter().map(|tensor| part(tensor)).collect();
        let (expected, tolerance) = match (&self.reference, tensors.as_slice()) {
            (Reference::Attention { attention, shape }, [q, k, v]) => {
                let head = usize::try_from(shape.elements_per_problem()).unwrap_or(1);
                let heads = q.chunks(head).zip(k.chunks(head)).zip(v.chunks(head));
                let problem = |((q, k), v)| {
                    temporal_attention::reference(attention, shape.scale(), [q, k, v], None)
                };
                let expected: Vec<f64> = heads.flat_map(problem).collect();
                (expected, temporal_attention::tolerance(T::TYPE))
            }
            (Reference::Block(reference), [x]) => {
                (reference.item(x), temporal_block::tolerance(T::TYPE))
            }
            _ => return false,
        };
        let mut deviation = Deviation::new();
        deviation.add(&part(out), &expected);
        deviation.within(tolerance)
    }

    fn input(&self, number: u64) -> Option<&Input<T>> {
        self.requests.get(usize::try_from(number).unwrap_or(0) % DIFFERENT)
    }
}

/// Different requests, so that a reply to another one shows.
const DIFFERENT: usize = 4;
