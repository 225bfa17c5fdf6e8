//! Correct and faulting launches in one context, and the calls to the guard afterwards.
#![allow(unsafe_code, reason = "launches of kernels that break their promise")]

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig};
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{Args, CudaError, Kernel, LaunchError, Module, RawLaunch};
use gridguard::{Choice, Guard, KernelArgs, Plan};

use super::{Access, How, Way};
use crate::device_setup::{DeviceSetup, address_of, along_y, context, spill};
use crate::expected::Observed;
use crate::observed_error::describe;

/// Correct and faulting launches in one context.
pub(super) struct Scene<'a> {
    pub(super) guard: &'a Guard,
    pub(super) stream: &'a Arc<CudaStream>,
    pub(super) out: &'a mut CudaSlice<u64>,
    pub(super) faulty: Kernel,
    pub(super) function: Option<CudaFunction>,
    pub(super) raw: Option<Kernel>,
    pub(super) spiller: Kernel,
    pub(super) innocent_out: CudaSlice<u64>,
    pub(super) workspace: CudaSlice<u64>,
}

/// Items of correct launches.
pub(super) const INNOCENT: u64 = 100;

impl Scene<'_> {
    /// Launches `spill_y` with memory that exists already.
    pub(super) fn count_innocent(&mut self) -> Result<u64, LaunchError> {
        let (request, batch) = along_y(INNOCENT);
        let mut args = Args::new(self.stream);
        args.write_items(&mut self.innocent_out, 1).offset().length().write(&mut self.workspace);
        self.guard.plan_and_launch(&self.spiller, &request, Some(&batch), args)
    }

    /// Launches `spill_y` with memory that the guard allocates.
    pub(super) fn spill_innocent(&mut self) -> Result<(), LaunchError> {
        let out = &mut self.innocent_out;
        spill(self.guard, &self.spiller, self.stream, out, INNOCENT, 256).map(drop)
    }
}

impl Access {
    pub(super) fn launch(&self, scene: &mut Scene<'_>) -> Result<u64, LaunchError> {
        let (items, code) = (self.items, u64::try_from(self.code).expect("a code"));
        let Scene { guard, stream, out, .. } = scene;
        let (request, batch) = along_y(items);
        let choice = Choice::at_most(self.chunk);
        match self.way {
            Way::Plan | Way::Checked => {
                let plan = guard.plan(&request, Some(&batch), scene.faulty.limits(), choice)?;
                let mut args = Args::new(stream);
                args.write_items(*out, 1).offset().length();
                args.value(self.faulty).value(self.argument).value(self.cycles).value(code);
                guard.launch(&scene.faulty, &plan, args)
            }
            Way::Builder => {
                let function = scene.function.as_ref().expect("loaded");
                let mut launch = guard.builder(stream, function);
                let (first, faulty) = (0_u64, self.faulty);
                launch.arg(&mut **out).arg(&first).arg(&items).arg(&faulty);
                launch.arg(&self.argument).arg(&self.cycles).arg(&code);
                let blocks = u32::try_from(items).expect("few");
                let (grid_dim, block_dim) = ((1, blocks, 1), (1, 1, 1));
                let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 };
                // SAFETY: the arguments are the kernel's; that it breaks its contract is the test.
                unsafe { launch.launch(config) }.map(|_| 1)
            }
            Way::Raw => {
                let raw = scene.raw.as_ref().expect("loaded");
                let plan = Plan::new(&request, Some(&batch), raw.limits(), choice)?;
                let mut args = KernelArgs::new();
                args.items_at(address_of(out, stream), 8).offset().length();
                args.value(self.faulty).value(self.argument).value(self.cycles).value(code);
                // SAFETY: as above; the stream is of the same context.
                unsafe {
                    guard.launch_raw(raw, stream.cu_stream().cast(), RawLaunch::Plan(&plan, &args))
                }
            }
        }
    }

    /// The kernel as cudarc and as raw handles have it, if the launch uses these.
    pub(super) fn handles(
        &self,
        setup: &DeviceSetup,
        guard: &Guard,
    ) -> (Option<CudaFunction>, Option<Kernel>) {
        if !matches!(self.way, Way::Builder | Way::Raw) {
            return (None, None);
        }
        let image = if self.how == How::Instruction { "instruction" } else { "kernels" };
        let image = Ptx::from_binary(setup.image(image).bytes().to_vec());
        let (context, name) = (context(guard), self.kernel());
        let module = context.load_module(image).expect("it loads");
        let function = module.load_function(name).expect("it is in the image");
        // SAFETY: the function lives beside it, and keeps its module and context alive.
        let raw = unsafe { guard.raw_kernel(function.cu_function().cast(), Some(name)) };
        (Some(function), Some(raw.expect("its limits can be asked")))
    }

    /// Every later call to the guard returns a typed error with the same code, or succeeds if it does
    /// not need the device.
    pub(super) fn look_after(
        &self,
        setup: &DeviceSetup,
        module: &Module,
        scene: &mut Scene<'_>,
        observed: &mut Observed,
    ) {
        let (guard, stream) = (scene.guard, scene.stream);
        let waited = describe(&guard.synchronize(stream));
        if observed.error.outcome.starts_with("cudarc") {
            // The program's own call got the error; the guard knows the suspects.
            observed.error.blamed = waited.blamed.clone();
        }
        let code = observed.error.code;
        let image = setup.image("kernels");
        let must = [
            ("synchronize", waited),
            ("launch", describe(&scene.count_innocent())),
            ("launch again", describe(&self.launch(scene))),
            ("launch with a workspace", describe(&scene.spill_innocent())),
            ("load", describe(&guard.load(&image))),
        ];
        for (call, described) in must {
            let same = described.is_error && described.code == code;
            observed.require(same, || format!("afterwards {call} came to {}", described.outcome));
            let blamed = described.blamed.iter().any(|one| one.kernel == self.kernel());
            observed.require(blamed, || format!("afterwards {call} blamed {:?}", described.blamed));
        }
        let (request, _) = along_y(1);
        let cooperative = request.cooperative();
        let fresh: Result<Guard, CudaError> = Guard::with_context(Arc::clone(context(guard)));
        // SAFETY: nothing is launched with it.
        let function = unsafe { module.kernel("no_such_kernel", &[]) };
        let may = [
            ("free_memory", describe(&guard.free_memory())),
            ("priorities", describe(&guard.priorities())),
            ("residency", describe(&scene.spiller.occupancy(&cooperative))),
            ("with_context", describe(&fresh)),
            ("cuda", describe(&Guard::cuda(0))),
        ];
        for (call, described) in may {
            let typed = !described.is_error || described.code == code;
            observed.require(typed, || format!("afterwards {call} came to {}", described.outcome));
        }
        observed.require(function.is_err(), || "a kernel that is not there was found".into());
        let recent = guard.recent_launches();
        let on_record = recent.iter().any(|launch| &*launch.kernel == self.kernel());
        // A launch that is rejected at once is not recorded.
        let accepted = on_record || observed.error.blamed.is_empty();
        observed.require(accepted, || format!("recent launches are {recent:?}"));
    }
}
