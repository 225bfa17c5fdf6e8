//! Runs batches on a CUDA device, or on the host for machines without one.

use std::sync::Arc;

use axum::body::Bytes;
use cudarc::driver::CudaStream;
use gridguard::{Guard, KernelLimits, LaunchLimits};
use gridguard_kernels::temporal_attention::{Shape, TemporalAttention, run_on_host};
use gridguard_kernels::{Element, Kernels, Operation, Tensor, TensorMut};
use half::{bf16, f16};
use safetensors::Dtype;

use crate::Fallible;
use crate::error::{ServeError, Served};
use crate::options::Options;
use crate::profiles::Profile;
use crate::tensors::{Key, Request, gather, scatter};

/// What a worker runs batches on.
pub(crate) trait Backend: Send {
    fn name(&self) -> &str;

    /// The bodies of the replies to requests of one key, and the number of launches.
    fn run(&mut self, key: Key, requests: &[Request], is_whole: bool) -> Served<(Vec<Bytes>, u64)>;

    /// After a failure: whether the device does not work any more.
    fn is_lost(&self) -> bool;
}

/// Attention on a device or on the host.
pub(crate) struct Attention {
    name: String,
    /// The profile of its device, which others may share.
    pub(crate) profile: Arc<Profile>,
    kind: Kind,
}

enum Kind {
    Host { guard: Box<Guard>, limits: Box<LaunchLimits> },
    Cuda { kernels: Arc<Kernels>, stream: Arc<CudaStream> },
}

impl Attention {
    /// The host, under the limits of a GPU.
    pub(crate) fn host(guard: Guard, options: &Options) -> Self {
        let limits = guard.limits_for(KernelLimits::unknown("temporal_attention"));
        let limits = Box::new(limits.with_automatic_opt_in());
        let name = format!("host, under the limits of {}", guard.limits().name);
        let profile = Profile::open(&guard, options);
        Self { name, profile, kind: Kind::Host { guard: Box::new(guard), limits } }
    }

    /// Back ends on the device with this ordinal, with a stream each: while one copies, another one computes.
    pub(crate) fn cuda(ordinal: usize, options: &Options) -> Fallible<Vec<Self>> {
        let guard = Arc::new(Guard::cuda(ordinal)?);
        let profile = Profile::open(&guard, options);
        let context = Arc::clone(guard.context().ok_or("the guard has no context")?);
        let name = format!("{} ({ordinal})", guard.limits().name);
        let kernels = Arc::new(Kernels::new(guard));
        let backend = |_| {
            let kind = Kind::Cuda { kernels: Arc::clone(&kernels), stream: context.new_stream()? };
            Ok(Self { name: name.clone(), profile: Arc::clone(&profile), kind })
        };
        (0..options.streams).map(backend).collect()
    }

    fn run_as<T: Element>(
        &self,
        key: Key,
        requests: &[Request],
        is_whole: bool,
    ) -> Served<(Vec<Bytes>, u64)> {
        let items = requests.iter().map(|request| request.items).sum();
        let shape = Shape::new(items, key.heads, key.frames, key.head_dim)?;
        let [q, k, v] = [0, 1, 2].map(|input| gather::<T>(requests, input));
        let (out, launches) = match &self.kind {
            Kind::Host { guard, limits } => {
                let plan = |attention: TemporalAttention, choice| {
                    let (request, batch) = attention.grid();
                    let plan = guard.plan(&request, Some(&batch), limits, choice)?;
                    Ok((attention, plan))
                };
                let attention = TemporalAttention::new(shape, T::TYPE, guard.limits())?;
                let (attention, plan) = self.profile.choose(attention, is_whole, plan)?;
                let mut out = vec![T::zeroed(); q.len()];
                let (scale, inputs) = (shape.scale(), [&q[..], &k, &v]);
                let launches =
                    run_on_host(guard, &plan, &attention, scale, inputs, None, &mut out, || {})?;
                (out, launches)
            }
            Kind::Cuda { kernels, stream } => {
                let attention = TemporalAttention::new(shape, T::TYPE, kernels.guard().limits())?;
                let prepare = |attention, choice| kernels.prepare(attention, choice);
                let prepared = self.profile.choose(attention, is_whole, prepare)?;
                let inputs =
                    [stream.clone_htod(&q)?, stream.clone_htod(&k)?, stream.clone_htod(&v)?];
                let mut out = stream.alloc_zeros(q.len())?;
                let tensors = inputs.each_ref().map(|tensor| Tensor::new(tensor, shape.dims()));
                let to = TensorMut::new(&mut out, shape.dims());
                let launches = prepared.launch(stream, tensors, None, shape.scale(), to)?;
                let out = stream.clone_dtoh(&out)?;
                kernels.guard().synchronize(stream).map_err(ServeError::failed)?;
                (out, launches)
            }
        };
        Ok((scatter(requests, &out)?, launches))
    }
}

impl Backend for Attention {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self, key: Key, requests: &[Request], is_whole: bool) -> Served<(Vec<Bytes>, u64)> {
        match key.dtype {
            Dtype::F16 => self.run_as::<f16>(key, requests, is_whole),
            Dtype::BF16 => self.run_as::<bf16>(key, requests, is_whole),
            // No other type is read.
            _ => self.run_as::<f32>(key, requests, is_whole),
        }
    }

    fn is_lost(&self) -> bool {
        // A device that failed fails every call from then on; an error of a batch alone leaves it usable.
        match &self.kind {
            Kind::Cuda { kernels, stream } => kernels.guard().synchronize(stream).is_err(),
            Kind::Host { .. } => false,
        }
    }
}
