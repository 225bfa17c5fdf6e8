//! What runs batches: a device or the host.

use gridguard::pipeline::Budget;
use gridguard_kernels::temporal_attention::{Layout, Shape, TemporalAttention};
use gridguard_kernels::{Element, ElementType, KernelError};
use rayon::prelude::*;
use serde::Serialize;

use crate::error::{ServeError, Served};
use crate::queue::{Pending, Waiting};
use crate::tensors::{Key, Mask, Request, reserved};

/// A device or the host, used by one thread.
pub trait Backend {
    /// What it is, and the memory that it has for requests.
    fn device(&self) -> Device;

    /// The outputs of a batch's requests, each as the body of its reply. Between chunks it asks whether they are still
    /// `wanted`.
    ///
    /// # Errors
    ///
    /// [`Failure`], for all requests of the batch.
    fn run(&mut self, batch: &Batch, wanted: Wanted<'_>) -> Bodies;
}

/// The bodies of the replies of a batch.
pub type Bodies = Result<Vec<Vec<u8>>, Failure>;

/// Whether any client still waits for a batch.
pub type Wanted<'w> = &'w (dyn Fn() -> bool + Sync);

/// What a backend runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its name, such as `NVIDIA H200 (0)`.
    #[serde(rename = "device")]
    pub name: String,
    /// Whether it is a GPU.
    #[serde(rename = "gpu")]
    pub is_gpu: bool,
    /// Bytes for tensors and scratch of requests.
    #[serde(rename = "memory_bytes")]
    pub memory: u64,
    /// Its estimated operations per second, divided by the number of backends that share it.
    pub operations_per_second: u64,
}

/// Why a batch failed.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The device serves the next batch.
    Batch(ServeError),
    /// All clients left.
    Abandoned,
    /// The device does not work any more.
    Lost(String),
}

impl<E: Into<ServeError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Batch(error.into())
    }
}

/// Requests with the same key, of one item or more in all.
#[derive(Debug)]
pub struct Batch {
    /// What is computed.
    pub key: Key,
    /// Items of all requests.
    pub items: u64,
    requests: Vec<Request>,
}

impl Batch {
    /// A batch, and where its requests' replies go; `None` without a request.
    #[must_use]
    pub fn new(pending: Vec<Pending>) -> Option<(Self, Vec<Waiting>)> {
        // Each place in the queue is free from here on.
        let taken = pending.into_iter().map(|pending| (pending.request, pending.waiting));
        let (requests, waiting) = taken.unzip();
        Some((Self::of(requests)?, waiting))
    }

    /// A batch of requests with the same key; `None` without a request.
    #[must_use]
    pub fn of(requests: Vec<Request>) -> Option<Self> {
        let key = requests.first()?.key.clone();
        let items = requests.iter().map(|request| request.items).sum();
        Some(Self { key, items, requests })
    }

    /// A batch of each request.
    pub fn singles(self) -> impl Iterator<Item = Self> {
        self.requests.into_iter().filter_map(|request| Self::of(vec![request]))
    }

    /// What the tensors of all items leave of `memory` bytes.
    pub fn budget(&self, memory: u64) -> Budget {
        let tensors = self.items.saturating_mul(self.key.bytes_per_item());
        Budget::bytes(memory.saturating_sub(tensors))
    }

    /// What is added to the scores of attention: the same for all requests.
    ///
    /// # Errors
    ///
    /// [`ServeError::OutOfMemory`].
    pub fn mask<T: Element>(&self) -> Served<Option<Vec<T>>> {
        let mask = self.requests.first().and_then(|request| request.mask.as_ref());
        mask.map(Mask::added).transpose()
    }

    /// The elements of an input of all requests, one after another.
    ///
    /// # Errors
    ///
    /// [`ServeError::OutOfMemory`].
    pub fn gather<T: Element>(&self, input: usize) -> Served<Vec<T>> {
        let mut all = self.output()?;
        self.gather_into(input, &mut all);
        Ok(all)
    }

    /// Copies an input of all requests, one after another, as far as `to` reaches; requests in parallel.
    pub fn gather_into<T: Element>(&self, input: usize, to: &mut [T]) {
        // Bytes, since a body's need not be aligned for T.
        let mut rest: &mut [u8] = bytemuck::cast_slice_mut(to);
        let mut parts = Vec::with_capacity(self.requests.len());
        for part in self.requests.iter().filter_map(|request| request.inputs.get(input)) {
            let (own, others) = rest.split_at_mut(part.len().min(rest.len()));
            parts.push((own, part));
            rest = others;
        }
        parts.into_par_iter().for_each(|(own, part)| {
            own.copy_from_slice(part.get(..own.len()).unwrap_or_default());
        });
    }

    /// Memory for the output of all requests, filled with NaN.
    ///
    /// # Errors
    ///
    /// [`ServeError::OutOfMemory`].
    pub fn output<T: Element>(&self) -> Served<Vec<T>> {
        let elements = self.output_elements::<T>();
        let mut out = reserved(elements)?;
        out.resize(elements, T::narrow(f32::NAN));
        Ok(out)
    }

    /// Elements of the outputs of all requests.
    pub fn output_elements<T: Element>(&self) -> usize {
        self.requests.iter().map(Request::output_bytes).sum::<usize>() / size_of::<T>()
    }

    /// The bodies of the replies, out of the output of all requests; in parallel.
    ///
    /// # Errors
    ///
    /// [`ServeError::Failed`] if it has another length.
    pub fn replies<T: Element>(&self, out: &[T]) -> Served<Vec<Vec<u8>>> {
        let mut rest: &[u8] = bytemuck::cast_slice(out);
        let mut parts = Vec::with_capacity(self.requests.len());
        for request in &self.requests {
            let (own, others) = rest.split_at_checked(request.output_bytes()).unwrap_or_default();
            parts.push((request, own));
            rest = others;
        }
        parts.into_par_iter().map(|(request, own)| request.reply(own)).collect()
    }
}

/// The attention of a batch, in the layout that `gridguard tune` tunes, without its mask.
///
/// # Errors
///
/// [`KernelError`] if the device does not support it.
pub fn attention(
    shape: Shape,
    element: ElementType,
    device: &gridguard::DeviceLimits,
) -> Result<TemporalAttention, KernelError> {
    Ok(TemporalAttention::new(shape, element, device)?.with_layout(Layout::FoldedY))
}
