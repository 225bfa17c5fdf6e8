//! Requests out of safetensors bodies, and the bodies of replies.

use axum::body::Bytes;
use gridguard_kernels::Element;
use gridguard_kernels::temporal_attention::Shape;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::error::{ServeError, Served};

/// What is computed for an item: requests with equal keys can be batched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The type of all tensors.
    pub(crate) dtype: Dtype,
    pub(crate) heads: u64,
    pub(crate) frames: u64,
    pub(crate) head_dim: u64,
}

/// A request: parts of its body, which is not copied.
pub(crate) struct Request {
    pub(crate) key: Key,
    pub(crate) items: u64,
    /// The dimensions of each tensor.
    dims: Vec<usize>,
    /// The bytes of q, k and v, not aligned.
    inputs: [Bytes; 3],
}

impl Request {
    /// Reads `q`, `k` and `v`, of one type and shape.
    pub(crate) fn read(body: &Bytes, limit_frames: u64) -> Served<Self> {
        let wrong_file = |reason: String| {
            // The reason may quote the header.
            let reason: String = reason.chars().take(QUOTED_CHARS).collect();
            let message = format!("the body is not a valid safetensors file: {reason}");
            ServeError::new(400, "not_safetensors", message)
        };
        // Parsing a header takes many times its memory.
        let header = body.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
        if header > MAX_HEADER {
            let reason = format!("its header has {header} bytes, the limit is {MAX_HEADER}");
            return Err(wrong_file(reason));
        }
        let file = SafeTensors::deserialize(body).map_err(|error| wrong_file(error.to_string()))?;
        if file.len() > 3 {
            return Err(ServeError::new(422, "wrong_tensor", "expected q, k and v alone"));
        }
        let q = find(&file, "q", "F16, BF16 or F32", |view| {
            matches!(view.dtype(), Dtype::F16 | Dtype::BF16 | Dtype::F32)
        })?;
        let sizes = q.shape().iter().map(|size| u64::try_from(*size).unwrap_or(u64::MAX));
        let [items, heads, frames, head_dim] = sizes.collect::<Vec<_>>()[..] else {
            return Err(wrong("q", &q, "[items, heads, frames, head_dim]"));
        };
        if frames > limit_frames {
            let message = format!("frames is {frames}, the server accepts at most {limit_frames}");
            return Err(ServeError::new(422, "too_many_frames", message));
        }
        Shape::new(items, heads, frames, head_dim)?;
        let is_alike =
            |view: &TensorView<'_>| (view.dtype(), view.shape()) == (q.dtype(), q.shape());
        let [k, v] = ["k", "v"].map(|name| find(&file, name, "the type and shape of q", is_alike));
        let inputs = [q.data(), k?.data(), v?.data()].map(|data| body.slice_ref(data));
        let key = Key { dtype: q.dtype(), heads, frames, head_dim };
        Ok(Self { key, items, dims: q.shape().to_vec(), inputs })
    }

    /// Bytes of one of its tensors.
    pub(crate) fn tensor_bytes(&self) -> usize {
        self.inputs[0].len()
    }

    /// The body of the reply: the tensor `out`.
    pub(crate) fn reply(&self, out: &[u8]) -> Served<Bytes> {
        let view = TensorView::new(self.key.dtype, self.dims.clone(), out);
        let view = view.map_err(ServeError::failed)?;
        let body = safetensors::serialize([("out", view)], None).map_err(ServeError::failed)?;
        Ok(body.into())
    }
}

/// The elements of an input of all requests, one after another.
pub(crate) fn gather<T: Element>(requests: &[Request], input: usize) -> Vec<T> {
    let mut all = Vec::new();
    for part in requests.iter().filter_map(|request| request.inputs.get(input)) {
        // The bytes of a body need not be aligned for T.
        all.extend(bytemuck::pod_collect_to_vec::<u8, T>(part));
    }
    all
}

/// The bodies of the replies, out of the output of all requests.
pub(crate) fn scatter<T: Element>(requests: &[Request], out: &[T]) -> Served<Vec<Bytes>> {
    let mut rest: &[u8] = bytemuck::cast_slice(out);
    let next = |request: &Request| {
        let (own, others) = rest.split_at_checked(request.tensor_bytes()).unwrap_or_default();
        rest = others;
        request.reply(own)
    };
    requests.iter().map(next).collect()
}

fn find<'b>(
    file: &SafeTensors<'b>,
    name: &str,
    expected: &str,
    is_right: impl Fn(&TensorView<'b>) -> bool,
) -> Served<TensorView<'b>> {
    let missing = |_| ServeError::new(422, "wrong_tensor", format!("tensor {name} is missing"));
    let view = file.tensor(name).map_err(missing)?;
    if is_right(&view) { Ok(view) } else { Err(wrong(name, &view, expected)) }
}

fn wrong(tensor: &str, given: &TensorView<'_>, expected: &str) -> ServeError {
    // A shape may have as many dimensions as the header has bytes.
    let dims: Vec<_> = given.shape().iter().take(QUOTED_DIMS).collect();
    let message = format!("tensor {tensor} is {:?} {dims:?}, expected {expected}", given.dtype());
    ServeError::new(422, "wrong_tensor", message)
}

/// The most bytes of a header: three tensors take less than one KiB, the rest is for metadata.
const MAX_HEADER: u64 = 64 << 10;
/// The most of an error of the parser that a message quotes.
const QUOTED_CHARS: usize = 128;
/// The most dimensions that a message quotes.
const QUOTED_DIMS: usize = 8;
