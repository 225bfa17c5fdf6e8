//! The kernel on a device.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};
use gridguard::cuda::{Args, Kernel};
use gridguard::{Choice, Guard, Parameter, Plan};

use super::{Layout, Shape};
use crate::element::{Element, ElementType};
use crate::error::KernelError;

/// q, k, v, out, scale, frames, `head_dim`.
const PARAMETERS: [Parameter; 7] = [
    Parameter::Memory,
    Parameter::Memory,
    Parameter::Memory,
    Parameter::Memory,
    Parameter::of::<f32>(),
    Parameter::of::<u32>(),
    Parameter::of::<u32>(),
];

const SOURCE: &str = include_str!("../../cu/temporal_attention.cu");

/// Temporal attention, compiled for a guard's device. Usable from any thread.
#[derive(Clone, Debug)]
pub struct TemporalAttention {
    /// By element type and layout, in the order of their `ALL`.
    kernels: [[Kernel; 2]; 3],
}

impl TemporalAttention {
    /// Compiles the device code with NVRTC and loads it.
    ///
    /// # Errors
    ///
    /// [`KernelError::Cuda`] where the guard serves the host, NVRTC is missing, or the driver
    /// refuses.
    pub fn new(guard: &Guard) -> Result<Self, KernelError> {
        let module = guard.compile("temporal_attention.cu", SOURCE)?;
        let load = |element: ElementType, axis: &str| {
            let name = format!("temporal_attention_{element}_{axis}");
            crate::device::kernel(&module, &name, &PARAMETERS)
        };
        let both = |element| -> Result<[Kernel; 2], KernelError> {
            Ok([load(element, "y")?, load(element, "x")?])
        };
        let [f16, bf16, f32] = ElementType::ALL;
        Ok(Self { kernels: [both(f16)?, both(bf16)?, both(f32)?] })
    }

    /// The kernel for an element type and a layout.
    #[must_use]
    pub const fn kernel(&self, element: ElementType, layout: Layout) -> &Kernel {
        let [f16, bf16, f32] = &self.kernels;
        let [y, x] = match element {
            ElementType::F16 => f16,
            ElementType::Bf16 => bf16,
            ElementType::F32 => f32,
        };
        match layout {
            Layout::FoldedY => y,
            Layout::FlatX => x,
        }
    }

    /// Plans a launch over `shape`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Violations`] where no plan is legal.
    pub fn plan(
        &self,
        guard: &Guard,
        shape: &Shape,
        element: ElementType,
        layout: Layout,
        choice: Choice,
    ) -> Result<Plan, KernelError> {
        let limits = self.kernel(element, layout).limits();
        Ok(guard.plan(&shape.request(layout), Some(&shape.batch(layout)), limits, choice)?)
    }

    /// Submits `plan` to `stream` and answers the number of launches; returns before they have
    /// run. q, k, v and out are `[items, heads, frames, head_dim]`, contiguous.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] where a tensor has another length than its shape, before anything
    /// is launched; [`KernelError::Launch`] where the driver refuses.
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
        let narrow = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        let mut args = Args::new(stream);
        args.read_items(q, per_item)
            .read_items(k, per_item)
            .read_items(v, per_item)
            .write_items(out, per_item)
            .value(scale)
            .value(narrow(shape.frames))
            .value(narrow(shape.head_dim));
        Ok(guard.launch(self.kernel(T::TYPE, layout), plan, args)?)
    }
}
