//! What runs batches: a device or the host.

use axum::body::Bytes;
use gridguard::pipeline::RunError;
use gridguard_kernels::temporal_attention::{Layout, Shape, TemporalAttention};
use gridguard_kernels::{Element, ElementType, KernelError};
use rayon::prelude::*;

use crate::error::ServeError;
use crate::queue::Pending;
use crate::tensors::{Key, Request};

/// A device or the host, used by one thread.
pub trait Backend {
    /// What it is, and the memory that it has for requests.
    fn device(&self) -> Device;

    /// The outputs of a batch's requests, each as the body of its reply.
    ///
    /// # Errors
    ///
    /// [`Failure`], for all requests of the batch.
    fn run(&mut self, batch: &Batch) -> Result<Vec<Vec<u8>>, Failure>;
}

/// What a backend runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, such as `NVIDIA H200 (0)`.
    pub name: String,
    /// Whether it is a GPU.
    pub is_gpu: bool,
    /// Bytes for tensors and scratch of requests.
    pub memory: u64,
}

/// Why a batch failed.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The device serves the next batch.
    Batch(ServeError),
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
        let (mut requests, mut waiting) = (Vec::new(), Vec::new());
        for Pending { request, reply, permit, .. } in pending {
            requests.push(request);
            waiting.push(Waiting { reply, permit });
        }
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

    /// Bytes of all tensors of items.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.items.saturating_mul(self.key.bytes_per_item())
    }

    /// The requests.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The elements of an input of all requests, one after another.
    ///
    /// # Errors
    ///
    /// [`ServeError::OutOfMemory`].
    pub fn gather<T: Element>(&self, input: usize) -> Result<Vec<T>, ServeError> {
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
    pub fn output<T: Element>(&self) -> Result<Vec<T>, ServeError> {
        let elements = self.output_elements::<T>();
        let mut out = reserved(elements)?;
        out.resize(elements, T::narrow(f32::NAN));
        Ok(out)
    }

    /// Elements of the outputs of all requests.
    #[must_use]
    pub fn output_elements<T: Element>(&self) -> usize {
        self.requests.iter().map(Request::output_bytes).sum::<usize>() / size_of::<T>()
    }

    /// The bodies of the replies, out of the output of all requests; in parallel.
    ///
    /// # Errors
    ///
    /// [`ServeError::Failed`] if it has another length.
    pub fn replies<T: Element>(&self, out: &[T]) -> Result<Vec<Vec<u8>>, ServeError> {
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

/// Where a reply goes, and what it holds of the memory of bodies.
#[derive(Debug)]
pub struct Waiting {
    /// Where it goes.
    pub reply: tokio::sync::oneshot::Sender<Result<crate::queue::Computed, ServeError>>,
    /// What it holds.
    pub permit: tokio::sync::OwnedSemaphorePermit,
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

/// A mask's elements.
///
/// # Errors
///
/// [`ServeError::OutOfMemory`].
pub fn mask<T: Element>(bytes: &Bytes) -> Result<Vec<T>, ServeError> {
    let length = bytes.len() / size_of::<T>();
    let mut elements = reserved(length)?;
    elements.resize(length, T::zeroed());
    // Bytes, since a body's need not be aligned for T.
    let whole = bytes.get(..length * size_of::<T>()).unwrap_or_default();
    bytemuck::cast_slice_mut(&mut elements).copy_from_slice(whole);
    Ok(elements)
}

/// The error of a pipeline that stopped.
#[must_use]
pub fn stopped(error: &RunError) -> ServeError {
    match error {
        RunError::Scratch { .. } => ServeError::OutOfMemory { reason: error.to_string() },
        _ => ServeError::Failed { reason: error.to_string() },
    }
}

fn reserved<T>(elements: usize) -> Result<Vec<T>, ServeError> {
    let mut memory = Vec::new();
    let reserved = memory.try_reserve_exact(elements);
    reserved.map_err(|error| ServeError::OutOfMemory { reason: error.to_string() })?;
    Ok(memory)
}
