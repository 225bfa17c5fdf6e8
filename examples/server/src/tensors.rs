//! Requests out of safetensors bodies, and the bodies of replies.

use axum::body::Bytes;
use clap::ValueEnum;
use gridguard_kernels::temporal_attention::Shape;
use gridguard_kernels::{Element, ElementType};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use sha2::{Digest, Sha256};

use crate::block::Block;
use crate::error::{ServeError, Served};

/// What is computed for an item: requests with the same key can be batched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The resource.
    pub endpoint: Endpoint,
    /// The type of all tensors.
    pub element: ElementType,
    /// Heads of attention; 1 for the block.
    pub heads: u64,
    /// Frames.
    pub frames: u64,
    /// Elements of a head, or channels of the block.
    pub width: u64,
    /// The digest of the mask. The mask itself belongs to the request, so that a key keeps no body alive.
    pub mask: Option<[u8; 32]>,
}

/// A resource that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Endpoint {
    /// Attention over frames.
    Attention,
    /// The transformer block.
    Block,
}

/// A request: parts of its body, which is not copied.
#[derive(Debug)]
pub struct Request {
    /// What is computed.
    pub key: Key,
    /// Items.
    pub items: u64,
    /// The dimensions of the output.
    pub dims: Vec<usize>,
    /// q, k and v, or x: the elements' bytes, not aligned.
    pub inputs: Vec<Bytes>,
    /// What is added to the scores, or which of them count.
    pub mask: Option<Mask>,
}

/// The mask of a request, `[frames, frames]`.
#[derive(Debug)]
pub struct Mask {
    /// The elements' bytes, not aligned.
    bytes: Bytes,
    /// Whether elements are bytes, not 0 where a query attends to a key, or are added and have the tensors' type.
    is_boolean: bool,
}

impl Endpoint {
    /// The name of the resource.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Block => "block",
        }
    }
}

impl Key {
    /// Bytes of an item in all tensors: q, k, v and the output, or x and the output.
    pub const fn bytes_per_item(&self) -> u64 {
        let tensors = if matches!(self.endpoint, Endpoint::Attention) { 4 } else { 2 };
        // This product was checked when the shape was made.
        tensors * self.heads * self.frames * self.width * self.element.bytes()
    }

    /// Bytes that do not depend on the number of items: those of the mask.
    pub const fn fixed_bytes(&self) -> u64 {
        let mask = self.frames.saturating_mul(self.frames).saturating_mul(self.element.bytes());
        if self.mask.is_some() { mask } else { 0 }
    }
}

impl Request {
    /// A request for attention: `q`, `k`, `v` and possibly `mask`.
    ///
    /// # Errors
    ///
    /// [`ServeError`] if the body is not valid, or its tensors are not supported.
    pub fn attention(body: &Bytes, max_frames: u64) -> Served<Self> {
        let file = read(body, &["q", "k", "v", "mask"], "q, k, v and mask")?;
        let (q, element) = find(&file, "q", None)?;
        let dims: Vec<u64> = q.shape().iter().map(|size| wide(*size)).collect();
        let [items, heads, frames, head_dim] = match dims[..] {
            [items, frames, head_dim] => [items, 1, frames, head_dim],
            [items, heads, frames, head_dim] => [items, heads, frames, head_dim],
            _ => {
                let expected = "[items, frames, head_dim] or [items, heads, frames, head_dim]";
                return Err(wrong_shape("q", &q, expected.to_owned()));
            }
        };
        Shape::new(items, heads, frames, head_dim).map_err(ServeError::UnsupportedShape)?;
        check_frames(frames, max_frames)?;
        let mut inputs = vec![body.slice_ref(q.data())];
        for name in ["k", "v"] {
            let (tensor, _) = find(&file, name, Some(element))?;
            if tensor.shape() != q.shape() {
                return Err(wrong_shape(name, &tensor, format!("{:?} as q", q.shape())));
            }
            inputs.push(body.slice_ref(tensor.data()));
        }
        let mask = Mask::find(body, &file, frames, element)?;
        let (endpoint, digest) = (Endpoint::Attention, mask.as_ref().map(Mask::digest));
        let key = Key { endpoint, element, heads, frames, width: head_dim, mask: digest };
        Ok(Self { key, items, dims: q.shape().to_vec(), inputs, mask })
    }

    /// A request for the block: `x`.
    ///
    /// # Errors
    ///
    /// As [`Self::attention`].
    pub fn block(body: &Bytes, block: &Block, max_frames: u64) -> Served<Self> {
        let file = read(body, &["x"], "x")?;
        let (x, element) = find(&file, "x", Some(block.element))?;
        let (items, frames) = match x.shape() {
            [items, frames, channels] if wide(*channels) == block.channels => {
                (wide(*items), wide(*frames))
            }
            _ => {
                let expected = format!("[items, frames, {}]", block.channels);
                return Err(wrong_shape("x", &x, expected));
            }
        };
        check_frames(frames, max_frames)?;
        let shape = block.shape(items, frames).map_err(ServeError::UnsupportedShape)?;
        let width = shape.channels();
        let endpoint = Endpoint::Block;
        let key = Key { endpoint, element, heads: 1, frames, width, mask: None };
        let inputs = vec![body.slice_ref(x.data())];
        Ok(Self { key, items, dims: x.shape().to_vec(), inputs, mask: None })
    }

    /// Bytes of its output.
    pub fn output_bytes(&self) -> usize {
        // As many as each input has.
        self.inputs.first().map_or(0, Bytes::len)
    }

    /// The body of the reply: the tensor `out`.
    ///
    /// # Errors
    ///
    /// [`ServeError::Failed`] if `data` has another length.
    pub fn reply(&self, data: &[u8]) -> Served<Vec<u8>> {
        body_of(self.key.element, &self.dims, &[("out", data)])
    }
}

/// A safetensors body of tensors with the same shape.
///
/// # Errors
///
/// [`ServeError::Failed`] if the data has another length.
pub fn body_of(element: ElementType, dims: &[usize], tensors: &[(&str, &[u8])]) -> Served<Vec<u8>> {
    let dtype =
        DTYPES.into_iter().find(|(own, _)| *own == element).map_or(Dtype::F32, |(_, dtype)| dtype);
    let views: Result<Vec<(&str, _)>, SafeTensorError> = tensors
        .iter()
        .map(|(name, data)| Ok((*name, TensorView::new(dtype, dims.to_vec(), data)?)))
        .collect();
    views.and_then(|views| safetensors::serialize(views, None)).map_err(ServeError::failed)
}

/// Checks the length of the header, once the first bytes of a body are there: to parse one takes many times its memory.
///
/// # Errors
///
/// [`ServeError::HeaderTooLarge`].
pub fn check_header(body: &[u8]) -> Served<()> {
    let bytes = body.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    if bytes <= MAX_HEADER {
        return Ok(());
    }
    Err(ServeError::HeaderTooLarge { header_bytes: bytes, limit_bytes: MAX_HEADER })
}

/// Sizes and offsets are checked against the body.
fn read<'b>(body: &'b Bytes, known: &[&str], expected: &'static str) -> Served<SafeTensors<'b>> {
    check_header(body)?;
    // An error may quote the header.
    let reason = |error: SafeTensorError| error.to_string().chars().take(REASON_CHARS).collect();
    let file = SafeTensors::deserialize(body)
        .map_err(|error| ServeError::NotSafetensors { reason: reason(error) })?;
    let names = file.names();
    match names.into_iter().find(|name| !known.contains(name)) {
        Some(name) => {
            // A name may be as long as the body.
            let tensor = name.chars().take(SHOWN_CHARS).collect();
            Err(ServeError::UnexpectedTensor { tensor, expected })
        }
        None => Ok(file),
    }
}

/// A tensor and its type, which is `expected` if that is given.
fn find<'b>(
    file: &SafeTensors<'b>,
    tensor: &'static str,
    expected: Option<ElementType>,
) -> Served<(TensorView<'b>, ElementType)> {
    let view = file.tensor(tensor).map_err(|_| ServeError::MissingTensor { tensor })?;
    let known = DTYPES.into_iter().find(|(_, dtype)| *dtype == view.dtype());
    let expected = match (known, expected) {
        (Some((element, _)), None) => return Ok((view, element)),
        (Some((element, _)), Some(expected)) if element == expected => return Ok((view, element)),
        (Some(_), Some(expected)) => expected.to_string().to_uppercase(),
        (None, _) => "F16, BF16 or F32".to_owned(),
    };
    Err(ServeError::WrongDtype { tensor, given: format!("{:?}", view.dtype()), expected })
}

fn check_frames(frames: u64, limit_frames: u64) -> Served<()> {
    if frames <= limit_frames {
        Ok(())
    } else {
        Err(ServeError::TooManyFrames { frames, limit_frames })
    }
}

impl Mask {
    fn find(
        body: &Bytes,
        file: &SafeTensors<'_>,
        frames: u64,
        element: ElementType,
    ) -> Served<Option<Self>> {
        let Ok(mask) = file.tensor("mask") else { return Ok(None) };
        if !mask.shape().iter().map(|size| wide(*size)).eq([frames; 2]) {
            return Err(wrong_shape("mask", &mask, format!("[{frames}, {frames}]")));
        }
        let is_boolean = mask.dtype() == Dtype::BOOL;
        if !is_boolean {
            find(file, "mask", Some(element))?;
        }
        Ok(Some(Self { bytes: body.slice_ref(mask.data()), is_boolean }))
    }

    /// What is added to the scores: the mask itself, or 0 where a boolean one is true and -inf where not.
    ///
    /// # Errors
    ///
    /// [`ServeError::OutOfMemory`].
    pub fn added<T: Element>(&self) -> Served<Vec<T>> {
        let length = self.bytes.len() / if self.is_boolean { 1 } else { size_of::<T>() };
        let mut values = reserved(length)?;
        if self.is_boolean {
            let value = |attends: &u8| if *attends == 0 { f32::NEG_INFINITY } else { 0.0 };
            values.extend(self.bytes.iter().map(|attends| T::narrow(value(attends))));
        } else {
            values.resize(length, T::zeroed());
            // Bytes, since a body's need not be aligned for T.
            let whole = self.bytes.get(..length * size_of::<T>()).unwrap_or_default();
            bytemuck::cast_slice_mut(&mut values).copy_from_slice(whole);
        }
        Ok(values)
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::new()
            .chain_update([u8::from(self.is_boolean)])
            .chain_update(&self.bytes)
            .finalize()
            .into()
    }
}

fn wrong_shape(tensor: &'static str, view: &TensorView<'_>, expected: String) -> ServeError {
    // A shape may have as many dimensions as the header has bytes.
    let given = view.shape().iter().take(SHOWN_DIMS).copied().collect();
    ServeError::WrongShape { tensor, given, expected }
}

/// A length in memory as 64 bits.
pub fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Memory for `elements` elements.
///
/// # Errors
///
/// [`ServeError::OutOfMemory`].
pub fn reserved<T>(elements: usize) -> Served<Vec<T>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(elements)?;
    Ok(memory)
}

/// The types of tensors, and their names in safetensors files.
const DTYPES: [(ElementType, Dtype); 3] = [
    (ElementType::F16, Dtype::F16),
    (ElementType::Bf16, Dtype::BF16),
    (ElementType::F32, Dtype::F32),
];
/// The most bytes of a header: four tensors take less than one KiB, the rest is for metadata.
pub const MAX_HEADER: u64 = 64 << 10;
/// The most of an error of the parser that a message has.
const REASON_CHARS: usize = 256;
/// The most of a name that a message has.
const SHOWN_CHARS: usize = 64;
/// The most dimensions that a message has.
const SHOWN_DIMS: usize = 8;
