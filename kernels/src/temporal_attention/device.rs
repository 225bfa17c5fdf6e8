//! The kernels on a device.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};
use gridguard::cuda::{Args, CompileOptions, Compiler, CudaError, Kernel, NvrtcError};
use gridguard::{Choice, Guard, LaunchRequest, Parameter, Plan};
use parking_lot::RwLock;

use super::{Layout, Shape, Variant};
use crate::element::{Element, ElementType};
use crate::error::KernelError;

const GENERAL: &str = include_str!("../../cu/temporal_attention.cu");
const SHORT: &str = include_str!("../../cu/short_attention.cu");

/// q, k, v, out, scale, frames, `head_dim`.
const GENERAL_PARAMETERS: [Parameter; 7] = [
    Parameter::Memory,
    Parameter::Memory,
    Parameter::Memory,
    Parameter::Memory,
    Parameter::of::<f32>(),
    Parameter::of::<u32>(),
    Parameter::of::<u32>(),
];

/// What the short kernel loads at once.
const ALIGNED: Parameter = Parameter::AlignedMemory { bytes: 16 };
/// q, k, v, out, scale.
const SHORT_PARAMETERS: [Parameter; 5] =
    [ALIGNED, ALIGNED, ALIGNED, ALIGNED, Parameter::of::<f32>()];

/// Type, frames and head dimension of a specialised kernel.
type Specialisation = (ElementType, u64, u64);
/// A kernel on y and on x.
type Layouts = [Kernel; 2];

/// Temporal attention on a guard's device. Usable from any thread; clones share what is compiled.
#[derive(Clone, Debug)]
pub struct TemporalAttention {
    /// By element type, in the order of its `ALL`.
    general: [Layouts; 3],
    /// Compiled when a shape first asks for it.
    short: Arc<RwLock<HashMap<Specialisation, Layouts>>>,
}

impl TemporalAttention {
    /// Compiles the general kernel with NVRTC and loads it.
    ///
    /// # Errors
    ///
    /// [`KernelError::Cuda`] where the guard serves the host, NVRTC is missing, or the driver
    /// refuses.
    pub fn new(guard: &Guard) -> Result<Self, KernelError> {
        let module = guard.compile("temporal_attention.cu", GENERAL)?;
        let load = |element: ElementType, axis: &str| {
            let name = format!("temporal_attention_{element}_{axis}");
            crate::device::kernel(&module, &name, &GENERAL_PARAMETERS)
        };
        let both = |element| -> Result<Layouts, KernelError> {
            Ok([load(element, "y")?, load(element, "x")?])
        };
        let [f16, bf16, f32] = ElementType::ALL;
        Ok(Self { general: [both(f16)?, both(bf16)?, both(f32)?], short: Arc::default() })
    }

    /// The general kernel for an element type and a layout.
    #[must_use]
    pub const fn general(&self, element: ElementType, layout: Layout) -> &Kernel {
        let [f16, bf16, f32] = &self.general;
        of_layout(
            match element {
                ElementType::F16 => f16,
                ElementType::Bf16 => bf16,
                ElementType::F32 => f32,
            },
            layout,
        )
    }

    /// The kernel that serves `shape` best, compiled at its first use, and the launch that covers
    /// the whole shape at once, legal or not.
    ///
    /// # Errors
    ///
    /// [`KernelError::Cuda`] where the kernel does not compile or load.
    pub fn geometry(
        &self,
        guard: &Guard,
        shape: &Shape,
        element: ElementType,
        layout: Layout,
    ) -> Result<(Kernel, LaunchRequest), KernelError> {
        match shape.variant(element, guard.limits().compute_capability) {
            Variant::General => Ok((self.general(element, layout).clone(), shape.request(layout))),
            Variant::Short => {
                let kernels = self.specialise(guard, shape, element)?;
                Ok((of_layout(&kernels, layout).clone(), shape.short_request(layout)))
            }
        }
    }

    /// Plans a launch over `shape` of the kernel that serves it best.
    ///
    /// # Errors
    ///
    /// [`KernelError::Violations`] where no plan is legal, and as [`Self::geometry`].
    pub fn plan(
        &self,
        guard: &Guard,
        shape: &Shape,
        element: ElementType,
        layout: Layout,
        choice: Choice,
    ) -> Result<Plan, KernelError> {
        let (kernel, request) = self.geometry(guard, shape, element, layout)?;
        Ok(guard.plan(&request, Some(&shape.batch(layout)), kernel.limits(), choice)?)
    }

    /// Submits `plan` to `stream` and answers the number of launches; returns before they have
    /// run. q, k, v and out are `[items, heads, frames, head_dim]`, contiguous.
    ///
    /// The kernel is the one that the plan was made for: [`Self::plan`] takes the best one, which
    /// wants memory at multiples of 16 bytes; plan with the limits of [`Self::general`] for memory
    /// that is not.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] where a tensor has another length than its shape, before anything
    /// is launched; [`KernelError::Launch`] where memory is misaligned or the driver refuses.
    #[allow(clippy::too_many_arguments, reason = "the tensors and what belongs to them")]
    pub fn launch<T, R, W>(
        &self,
        guard: &Guard,
        stream: &CudaStream,
        plan: &Plan,
        shape: &Shape,
        layout: Layout,
        scale: f32,
        [q, k, v]: [&R; 3],
        out: &mut W,
    ) -> Result<u64, KernelError>
    where
        T: Element + DeviceRepr,
        R: DevicePtr<T>,
        W: DevicePtrMut<T>,
    {
        for (tensor, length) in [("q", q.len()), ("k", k.len()), ("v", v.len()), ("out", out.len())]
        {
            shape.check_length(tensor, length)?;
        }
        let per_item = shape.elements_per_item();
        let mut args = Args::new(stream);
        args.read_items(q, per_item)
            .read_items(k, per_item)
            .read_items(v, per_item)
            .write_items(out, per_item)
            .value(scale);
        if let Some(kernel) = self.specialised_for(plan, shape, T::TYPE, layout) {
            return Ok(guard.launch(&kernel, plan, args)?);
        }
        let narrow = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        args.value(narrow(shape.frames)).value(narrow(shape.head_dim));
        Ok(guard.launch(self.general(T::TYPE, layout), plan, args)?)
    }

    /// The specialised kernel that `plan` was made for, if it was made for one.
    fn specialised_for(
        &self,
        plan: &Plan,
        shape: &Shape,
        element: ElementType,
        layout: Layout,
    ) -> Option<Kernel> {
        let known = self.short.read();
        let kernels = known.get(&(element, shape.frames, shape.head_dim))?;
        let kernel = of_layout(kernels, layout);
        plan.is_for(kernel.limits()).then(|| kernel.clone())
    }

    fn specialise(
        &self,
        guard: &Guard,
        shape: &Shape,
        element: ElementType,
    ) -> Result<Layouts, KernelError> {
        let key = (element, shape.frames, shape.head_dim);
        if let Some(kernels) = self.short.read().get(&key) {
            return Ok(kernels.clone());
        }
        let options = short_options(shape, element, guard.limits().compute_capability);
        let compiler = Compiler::find().map_err(NvrtcError::from).map_err(CudaError::from)?;
        let compiled = compiler.compile(SHORT, &options).map_err(CudaError::from)?;
        let module = guard.load(&compiled.image)?;
        let load = |name| crate::device::kernel(&module, name, &SHORT_PARAMETERS);
        let kernels = [load("short_attention_y")?, load("short_attention_x")?];
        // Two threads may get here at once; plans of either stay valid only if the first one stays.
        Ok(self.short.write().entry(key).or_insert(kernels).clone())
    }
}

fn short_options(
    shape: &Shape,
    element: ElementType,
    architecture: gridguard::ComputeCapability,
) -> CompileOptions {
    CompileOptions::new("short_attention.cu", architecture)
        .define("FRAMES", shape.frames)
        .define("HEAD_DIM", shape.head_dim)
        .define("BF16", u8::from(element == ElementType::Bf16))
}

const fn of_layout(kernels: &Layouts, layout: Layout) -> &Kernel {
    let [y, x] = kernels;
    match layout {
        Layout::FoldedY => y,
        Layout::FlatX => x,
    }
}
