//! Kernels that do what no kernel may, noticed at one call or another.
#![allow(unsafe_code, reason = "launches of kernels that break their promise")]

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{Args, CudaError, GuardedStream, Kernel, LaunchError, Module, RawKernel};
use gridguard::{Choice, Guard, KernelArgs, Plan, WorkspaceUse};

use crate::bench::{Bench, address_of, along_y, context, count, kernel, poisoned, spill};
use crate::fault::Case;
use crate::ground::Ground;
use crate::judge::{Expected, Observed};
use crate::naming::{Tell, Told, told};
use crate::random::Random;

/// What the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    NearNull,
    FarWrite,
    FarRead,
    Misaligned,
    BeyondShared,
    FarAtomic,
    Trap,
    Assert,
    Recursion,
    Jump,
    Instruction,
}

const HOWS: [How; 11] = [
    How::NearNull,
    How::FarWrite,
    How::FarRead,
    How::Misaligned,
    How::BeyondShared,
    How::FarAtomic,
    How::Trap,
    How::Assert,
    How::Recursion,
    How::Jump,
    How::Instruction,
];

/// Which way the launch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plan,
    /// A plan whose launches are waited for.
    Checked,
    Builder,
    Raw,
}

/// The call after the launch, at which the fault is to be noticed.
#[derive(Clone, Copy, Debug)]
enum Notice {
    Synchronize,
    NextLaunch,
    Workspace,
    CopyBack,
    Load,
    FreeMemory,
    NewStream,
}

const NOTICES: [Notice; 7] = [
    Notice::Synchronize,
    Notice::NextLaunch,
    Notice::Workspace,
    Notice::CopyBack,
    Notice::Load,
    Notice::FreeMemory,
    Notice::NewStream,
];

/// A kernel at fault.
#[derive(Debug)]
pub(crate) struct Access {
    how: How,
    /// Where the access goes, and the like: the kernel's `how`.
    argument: u64,
    /// What a driver that only pretends is to answer.
    code: i32,
    way: Way,
    notice: Notice,
    items: u64,
    chunk: u64,
    /// The item at fault.
    faulty: u64,
    /// How long the faulty item takes before it is at fault.
    cycles: u64,
    /// Launches before it that have been waited for.
    proven: u64,
    /// Launches before it that have not.
    under_way: u64,
    default_stream: bool,
}

/// Launches of the plan at fault, at most: with the others fewer than a stream's record holds.
const MOST_CHUNKS: u64 = 40;
/// Codes of a context that a kernel has poisoned.
const POISONED: [i32; 8] = [700, 710, 714, 715, 716, 717, 718, 719];

pub(crate) fn draw(number: u64, random: &mut Random) -> Access {
    let place = |count: usize| u64::try_from(count).expect("few");
    let how = HOWS[usize::try_from(number % place(HOWS.len())).expect("few")];
    let notice =
        NOTICES[usize::try_from(number / place(HOWS.len()) % place(NOTICES.len())).expect("few")];
    let ways =
        [Way::Plan, Way::Plan, Way::Plan, Way::Checked, Way::Checked, Way::Builder, Way::Raw];
    let items = 1 + random.below(4000);
    let least = items.div_ceil(MOST_CHUNKS);
    let chunk = least + random.below(items - least + 1);
    let which = |number: u64| number << 56;
    // Past all memory that a device has, and far from all that a process maps.
    let far = (1 << 41) + random.below(1 << 42);
    let (argument, codes): (u64, &[i32]) = match how {
        How::NearNull => (which(0) | random.below(1 << 16), &[700]),
        How::FarWrite => (which(1) | far, &[700]),
        How::FarRead => (which(2) | far, &[700]),
        How::Misaligned => (which(3) | random.below(8), &[716]),
        How::BeyondShared => (which(4) | ((1 << 18) + random.below(1 << 22)), &[700, 717, 719]),
        How::FarAtomic => (which(5) | (far >> 1), &[700]),
        How::Trap => (0, &[719, 715]),
        How::Assert => (0, &[710]),
        How::Recursion => (random.below(1000), &[700, 714, 716, 717, 718, 719]),
        How::Jump => (16 * (1 + random.below(1 << 36)), &[718, 700, 714, 715, 717, 719]),
        How::Instruction => (0, &[715, 718, 719, 700]),
    };
    Access {
        how,
        argument,
        code: random.pick(codes),
        way: random.pick(&ways),
        notice,
        items,
        chunk,
        faulty: random.below(items),
        cycles: random.pick(&[0, 0, 10_000, 1_000_000, 30_000_000]),
        proven: random.below(4),
        under_way: random.below(8),
        default_stream: random.percent(30),
    }
}

impl Access {
    fn kernel(&self) -> &'static str {
        match self.how {
            How::Trap => "fault_trap",
            How::Assert => "fault_assert",
            How::Recursion => "fault_recursion",
            How::Jump => "fault_jump",
            How::Instruction => "fault_instruction",
            _ => "fault_access",
        }
    }

    fn codes(&self) -> &'static [i32] {
        match self.how {
            How::Misaligned => &[716],
            How::Trap => &[719, 715],
            How::Assert => &[710],
            How::BeyondShared | How::Recursion | How::Jump | How::Instruction => &POISONED,
            _ => &[700],
        }
    }

    fn launch(&self, scene: &mut Scene<'_>) -> Result<u64, LaunchError> {
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
                let mut launch = stream.launch_builder_guarded(function);
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
                unsafe { raw.launch(stream.cu_stream().cast(), &plan, &args) }
            }
        }
    }

    fn notice(&self, bench: &Bench, scene: &mut Scene<'_>) -> Told {
        let Scene { guard, stream, .. } = *scene;
        let context = context(guard);
        // However the fault is timed, it has happened then.
        let noticed = match self.notice {
            Notice::Synchronize => None,
            Notice::NextLaunch => poll(|| told_error(&scene.count_innocent())),
            Notice::Workspace => poll(|| told_error(&scene.spill_innocent())),
            Notice::CopyBack => told_error(&stream.clone_dtoh(&*scene.out)),
            Notice::Load => poll(|| told_error(&guard.load(&bench.image("kernels")))),
            Notice::FreeMemory => poll(|| told_error(&guard.free_memory())),
            Notice::NewStream => poll(|| told_error(&context.new_stream())),
        };
        noticed.unwrap_or_else(|| told(&guard.synchronize(stream)))
    }
}

/// The innocent and the guilty, in a context.
struct Scene<'a> {
    guard: &'a Guard,
    stream: &'a Arc<CudaStream>,
    out: &'a mut CudaSlice<u64>,
    faulty: Kernel,
    function: Option<cudarc::driver::CudaFunction>,
    raw: Option<RawKernel>,
    spiller: Kernel,
    innocent_out: CudaSlice<u64>,
    workspace: CudaSlice<u64>,
}

/// Items of innocent launches.
const INNOCENT: u64 = 100;

impl Scene<'_> {
    /// Launches `spill_y` with memory that is there already.
    fn count_innocent(&mut self) -> Result<u64, LaunchError> {
        let (request, batch) = along_y(INNOCENT);
        let mut args = Args::new(self.stream);
        args.write_items(&mut self.innocent_out, 1).offset().length().write(&mut self.workspace);
        self.guard.plan_and_launch(&self.spiller, &request, Some(&batch), args)
    }

    /// Launches `spill_y` with memory that the guard brings.
    fn spill_innocent(&mut self) -> Result<(), LaunchError> {
        let (out, usage) = (&mut self.innocent_out, WorkspaceUse::Shared);
        spill(self.guard, &self.spiller, self.stream, out, INNOCENT, 256, usage).map(drop)
    }
}

fn told_error<T, E: Tell>(result: &Result<T, E>) -> Option<Told> {
    result.as_ref().err().map(Tell::told)
}

/// Asks again and again until there is an error, for a while: the driver learns of faults late.
fn poll(mut ask: impl FnMut() -> Option<Told>) -> Option<Told> {
    (0..12).find_map(|_| {
        std::thread::sleep(Duration::from_millis(4));
        ask()
    })
}

impl Case for Access {
    fn name(&self) -> &'static str {
        self.kernel()
    }

    fn needs_a_process(&self) -> bool {
        true
    }

    fn expected(&self, _ground: &Ground) -> Expected {
        let paths: &[&str] = match self.way {
            Way::Checked => &["LaunchError::Stopped/"],
            _ => {
                &["LaunchError::", "CudaError::Driver/", "CudaError::Load/", "cudarc::DriverError/"]
            }
        };
        Expected {
            codes: self.codes().to_vec(),
            guilty: Some((self.kernel(), self.faulty)),
            guilty_alone: self.way == Way::Checked && self.under_way == 0,
            innocent: Some("iota_y"),
            ..Expected::one_of(paths.iter().copied())
        }
    }

    fn inject(&self, bench: &Bench) -> Observed {
        let guard = bench.guard().with_checked_launches(self.way == Way::Checked);
        let module = match self.how {
            How::Instruction => guard.load(&bench.image("instruction")).expect("it loads"),
            _ => bench.module(&guard),
        };
        let context = context(&guard);
        let stream = match self.default_stream {
            true => context.default_stream(),
            false => context.new_stream().expect("a stream"),
        };
        let innocent = kernel(&module, "iota_y");
        let mut out = poisoned(&stream, self.items);
        let (function, raw) = self.handles(bench, &guard);
        for _ in 0..self.proven {
            count(&guard, &innocent, &stream, &mut out, self.items).expect("no fault of its own");
        }
        guard.synchronize(&stream).expect("no fault yet");
        let mut scene = Scene {
            guard: &guard,
            stream: &stream,
            out: &mut out,
            faulty: kernel(&module, self.kernel()),
            function,
            raw,
            spiller: kernel(&module, "spill_y"),
            innocent_out: poisoned(&stream, INNOCENT),
            workspace: poisoned(&stream, INNOCENT),
        };
        for _ in 0..self.under_way {
            scene.count_innocent().expect("no fault of its own");
        }
        let launched = self.launch(&mut scene);
        let told = match launched {
            Err(error) => error.told(),
            Ok(_) => self.notice(bench, &mut scene),
        };
        let mut observed = Observed::new(told);
        self.look_after(bench, &module, &mut scene, &mut observed);
        observed
    }
}

impl Access {
    /// The kernel as cudarc and as raw handles have it, where the launch goes that way.
    fn handles(
        &self,
        bench: &Bench,
        guard: &Guard,
    ) -> (Option<cudarc::driver::CudaFunction>, Option<RawKernel>) {
        if !matches!(self.way, Way::Builder | Way::Raw) {
            return (None, None);
        }
        let image = if self.how == How::Instruction { "instruction" } else { "kernels" };
        let image = Ptx::from_binary(bench.image(image).bytes().to_vec());
        let (context, name) = (context(guard), self.kernel());
        let module = context.load_module(image).expect("it loads");
        let function = module.load_function(name).expect("it is in the image");
        let handles = (context.cu_ctx().cast(), function.cu_function().cast());
        // SAFETY: the function is kept beside it, and with it its module and context.
        let raw = unsafe { RawKernel::from_handles(handles.0, handles.1, name) };
        (Some(function), Some(raw.expect("its limits can be asked")))
    }

    /// Whatever is asked of the guard afterwards gets a typed error of the same code, or an answer
    /// where none of the device's is needed.
    fn look_after(
        &self,
        bench: &Bench,
        module: &Module,
        scene: &mut Scene<'_>,
        observed: &mut Observed,
    ) {
        let (guard, stream) = (scene.guard, scene.stream);
        let waited = told(&guard.synchronize(stream));
        if observed.told.outcome.starts_with("cudarc") {
            // The program's own call was told; the guard knows whom to blame.
            observed.told.blamed = waited.blamed.clone();
        }
        let code = observed.told.code;
        let image = bench.image("kernels");
        let must = [
            ("synchronize", waited),
            ("launch", told(&scene.count_innocent())),
            ("launch again", told(&self.launch(scene))),
            ("launch_with_workspace", told(&scene.spill_innocent())),
            ("load", told(&guard.load(&image))),
        ];
        for (call, told) in must {
            let same = told.is_error && told.code == code;
            observed.require(same, || format!("afterwards {call} came to {}", told.outcome));
            let blamed = told.blamed.iter().any(|one| one.kernel == self.kernel());
            observed.require(blamed, || format!("afterwards {call} blamed {:?}", told.blamed));
        }
        let (request, _) = along_y(1);
        let cooperative = request.cooperative();
        let fresh: Result<Guard, CudaError> = Guard::with_context(Arc::clone(context(guard)));
        // SAFETY: nothing is launched with it.
        let function = unsafe { module.kernel("no_such_kernel", &[]) };
        let may = [
            ("free_memory", told(&guard.free_memory())),
            ("priorities", told(&guard.priorities())),
            ("residency", told(&scene.spiller.residency(&cooperative))),
            ("with_context", told(&fresh)),
            ("cuda", told(&Guard::cuda(0))),
        ];
        for (call, told) in may {
            let typed = !told.is_error || told.code == code;
            observed.require(typed, || format!("afterwards {call} came to {}", told.outcome));
        }
        observed.require(function.is_err(), || "a kernel that is not there was found".into());
        let recent = guard.recent_launches();
        let on_record = recent.iter().any(|launch| &*launch.kernel == self.kernel());
        // What a launch refuses at once is not on record.
        let accepted = on_record || observed.told.blamed.is_empty();
        observed.require(accepted, || format!("recent launches are {recent:?}"));
    }
}
