//! Kernels with an illegal access or another fault, which surfaces at a later call.
#![allow(unsafe_code, reason = "launches of kernels that break their promise")]

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, DevicePtrMut, LaunchConfig};
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{Args, Kernel, LaunchError, Module, RawLaunch};
use gridguard::{Choice, Guard, Plan, RawArgs};
use gridguard_test_support::Random;

use crate::observed::{Expected, Observed, Seen};
use crate::setup::{Setup, along_y, context, kernel, launch_iota, launch_spill, poisoned};

/// The interface that launches the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plan,
    /// A plan with checked launches.
    Checked,
    Builder,
    Raw,
}

/// A call after the launch, which may report the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Synchronize,
    Launch,
    LaunchWithWorkspace,
    CopyBack,
    Load,
    FreeMemory,
    NewStream,
}

const CALLS: [Call; 7] = [
    Call::Synchronize,
    Call::Launch,
    Call::LaunchWithWorkspace,
    Call::CopyBack,
    Call::Load,
    Call::FreeMemory,
    Call::NewStream,
];

/// A faulting kernel.
#[derive(Debug)]
struct Fault {
    kernel: &'static str,
    /// The kernel's parameter `how`: the address of the access, for example.
    argument: u64,
    /// The codes that the driver may return.
    codes: &'static [i32],
    /// The code that the fake driver returns.
    code: i32,
    way: Way,
    first: Call,
    items: u64,
    chunk: u64,
    /// The faulting item.
    faulty: u64,
    /// Clock cycles before the item faults.
    cycles: u64,
    /// Launches before it that are synchronised.
    proven: u64,
    /// Launches before it that are not.
    under_way: u64,
    default_stream: bool,
}

/// Items of correct launches.
const INNOCENT: u64 = 100;
/// The most launches of the faulting plan: with the others, fewer than a stream's record holds.
const MOST_CHUNKS: u64 = 40;
/// Codes of a context that a kernel made unusable.
const POISONED: [i32; 8] = [700, 710, 714, 715, 716, 717, 718, 719];

fn draw(number: u64, random: &mut Random) -> Fault {
    let which = |number: u64| number << 56;
    // Beyond all memory of a device, and far from the addresses that a process maps.
    let far = (1 << 41) + random.below(1 << 42);
    let (near, place) = (random.below(1 << 16), random.below(1 << 22));
    const ACCESS: &str = "fault_access";
    let (kernel, argument, codes): (_, _, &'static [i32]) = match number % 10 {
        0 => (ACCESS, which(0) | near, &[700]),
        1 => (ACCESS, which(1) | far, &[700]),
        2 => (ACCESS, which(2) | far, &[700]),
        3 => (ACCESS, which(3) | (near % 8), &[716]),
        4 => (ACCESS, which(4) | ((1 << 18) + place), &POISONED),
        5 => (ACCESS, which(5) | (far >> 1), &[700]),
        6 => ("fault_trap", 0, &[719, 715]),
        7 => ("fault_assert", 0, &[710]),
        8 => ("fault_recursion", near % 1000, &POISONED),
        _ => ("fault_jump", 16 * (1 + random.below(1 << 36)), &POISONED),
    };
    let ways = [Way::Plan, Way::Plan, Way::Checked, Way::Checked, Way::Builder, Way::Raw];
    let items = 1 + random.below(4000);
    let least = items.div_ceil(MOST_CHUNKS);
    Fault {
        kernel,
        argument,
        codes,
        code: random.pick(codes),
        way: random.pick(&ways),
        first: CALLS[usize::try_from(number / 10 % 7).expect("few")],
        items,
        chunk: least + random.below(items - least + 1),
        faulty: random.below(items),
        cycles: random.pick(&[0, 0, 10_000, 1_000_000, 30_000_000]),
        proven: random.below(4),
        under_way: random.below(8),
        default_stream: random.percent(30),
    }
}

/// Correct and faulting launches in one context.
struct Scene<'a> {
    setup: &'a Setup,
    guard: &'a Guard,
    stream: &'a Arc<CudaStream>,
    out: CudaSlice<u64>,
    faulty: Kernel,
    /// The same kernel, as cudarc has it.
    function: CudaFunction,
    /// The same kernel, by its handle.
    raw: Kernel,
    spiller: Kernel,
    innocent_out: CudaSlice<u64>,
    workspace: CudaSlice<u64>,
}

pub(crate) fn inject(setup: &Setup, number: u64, random: &mut Random) -> Observed {
    let fault = draw(number, random);
    let guard = setup.guard().with_checked_launches(fault.way == Way::Checked);
    let module: Module = setup.module(&guard);
    let context = context(&guard);
    let stream = match fault.default_stream {
        true => context.default_stream(),
        false => context.new_stream().expect("a stream"),
    };
    let image = Ptx::from_binary(setup.image().bytes().to_vec());
    let function = context.load_module(image).expect("it loads").load_function(fault.kernel);
    let function = function.expect("it is in the image");
    // SAFETY: the function lives beside it, and keeps its module and context alive.
    let raw = unsafe { guard.raw_kernel(function.cu_function().cast(), Some(fault.kernel)) };
    let mut scene = Scene {
        setup,
        guard: &guard,
        stream: &stream,
        out: poisoned(&stream, fault.items),
        faulty: kernel(&module, fault.kernel),
        function,
        raw: raw.expect("its limits can be asked"),
        spiller: kernel(&module, "spill_y"),
        innocent_out: poisoned(&stream, INNOCENT),
        workspace: poisoned(&stream, INNOCENT),
    };
    let iota = kernel(&module, "iota_y");
    for _ in 0..fault.proven {
        launch_iota(&guard, &iota, &stream, &mut scene.out, fault.items).expect("no fault yet");
    }
    guard.synchronize(&stream).expect("no fault yet");
    for _ in 0..fault.under_way {
        scene.launch_innocent().expect("no fault yet");
    }
    let seen = match scene.launch(&fault) {
        Err(error) => Seen::failure(&error),
        Ok(_) => scene.notice(fault.first),
    };
    let outcomes: &[&str] = match fault.way {
        Way::Checked => &["LaunchError::Stopped/"],
        _ => {
            &["LaunchError::", "CudaError::Driver/", "CudaError::Refused/", "cudarc::DriverError/"]
        }
    };
    let expected = Expected { outcomes, codes: fault.codes, ..Expected::default() };
    let mut observed = Observed::new(format!("{fault:?}"), &seen, &expected);
    let blamed = match seen.outcome.starts_with("cudarc") {
        // The program's own call got the error; the guard knows the suspects.
        true => scene.call(Call::Synchronize).blamed,
        false => seen.blamed.clone(),
    };
    let is_faulty = |(kernel, items): &(String, core::ops::Range<u64>)| {
        *kernel == fault.kernel && items.contains(&fault.faulty)
    };
    let only = fault.way == Way::Checked && fault.under_way == 0;
    let is_blamed = blamed.iter().any(is_faulty)
        && (!only || blamed.len() == 1)
        // These launches ended before the first that may have caused it.
        && blamed.iter().all(|(kernel, _)| kernel != "iota_y");
    observed.require(is_blamed, || format!("suspects are {blamed:?}"));
    scene.require_same_code(&fault, seen.code, &mut observed);
    // SAFETY: nothing is launched with it.
    let missing = unsafe { module.kernel("no_such_kernel", &[]) };
    observed.require(missing.is_err(), || "a kernel that is not there was found".into());
    observed
}

impl Scene<'_> {
    fn launch(&mut self, fault: &Fault) -> Result<u64, LaunchError> {
        let Self { guard, stream, out, faulty, function, raw, .. } = self;
        let Fault { argument, items, cycles, .. } = *fault;
        let (item, code) = (fault.faulty, u64::try_from(fault.code).expect("a code"));
        let ((request, batch), choice) = (along_y(items), Choice::at_most(fault.chunk));
        match fault.way {
            Way::Plan | Way::Checked => {
                let plan = guard.plan(&request, Some(&batch), faulty.limits(), choice)?;
                let mut args = Args::new(stream);
                args.write_items(out, 1).offset().length();
                args.value(item).value(argument).value(cycles).value(code);
                guard.launch(faulty, &plan, args)
            }
            Way::Builder => {
                let mut launch = guard.builder(stream, function);
                launch.arg(out).arg(&0_u64).arg(&items).arg(&item);
                launch.arg(&argument).arg(&cycles).arg(&code);
                let blocks = u32::try_from(items).expect("few");
                let (grid_dim, block_dim) = ((1, blocks, 1), (1, 1, 1));
                let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 };
                // SAFETY: the arguments are the kernel's; that it breaks its contract is the test.
                unsafe { launch.launch(config) }.map(|_| 1)
            }
            Way::Raw => {
                let plan = Plan::new(&request, Some(&batch), raw.limits(), choice)?;
                let mut args = RawArgs::new();
                args.items_at(out.device_ptr_mut(stream).0, 8).offset().length();
                args.value(item).value(argument).value(cycles).value(code);
                let (stream, launch) = (stream.cu_stream().cast(), RawLaunch::Plan(&plan, &args));
                // SAFETY: as above; the stream is of the same context.
                unsafe { guard.launch_raw(raw, stream, launch) }
            }
        }
    }

    /// Launches `spill_y` with memory that exists already.
    fn launch_innocent(&mut self) -> Result<u64, LaunchError> {
        let (request, batch) = along_y(INNOCENT);
        let mut args = Args::new(self.stream);
        args.write_items(&mut self.innocent_out, 1).offset().length().write(&mut self.workspace);
        self.guard.launch(&self.spiller, (&request, &batch), args)
    }

    fn call(&mut self, call: Call) -> Seen {
        let Self { setup, guard, stream, .. } = *self;
        match call {
            Call::Synchronize => Seen::of(&guard.synchronize(stream)),
            Call::Launch => Seen::of(&self.launch_innocent()),
            Call::LaunchWithWorkspace => {
                let out = &mut self.innocent_out;
                Seen::of(&launch_spill(guard, &self.spiller, stream, out, INNOCENT, 256))
            }
            Call::CopyBack => Seen::of(&stream.clone_dtoh(&self.out)),
            Call::Load => Seen::of(&guard.load(&setup.image())),
            Call::FreeMemory => Seen::of(&guard.free_memory()),
            Call::NewStream => Seen::of(&context(guard).new_stream()),
        }
    }

    /// Calls until there is an error, for a limited time, since the driver learns of faults late; then waits for it.
    fn notice(&mut self, call: Call) -> Seen {
        let noticed = (0..12).find_map(|_| {
            std::thread::sleep(Duration::from_millis(4));
            Some(self.call(call)).filter(|seen| seen.is_error)
        });
        noticed.unwrap_or_else(|| self.call(Call::Synchronize))
    }

    /// Every later call to the guard returns a typed error with the same code, or succeeds if it does not need the
    /// device.
    fn require_same_code(&mut self, fault: &Fault, code: Option<i32>, observed: &mut Observed) {
        let again = [Call::Synchronize, Call::Launch, Call::LaunchWithWorkspace, Call::Load];
        let mut must = again.map(|call| (format!("{call:?}"), self.call(call))).to_vec();
        must.push(("the same launch".into(), Seen::of(&self.launch(fault))));
        for (call, seen) in must {
            let same = seen.is_error && seen.code == code;
            let blamed = seen.blamed.iter().any(|(kernel, _)| *kernel == fault.kernel);
            observed.require(same && blamed, || {
                format!("afterwards {call} came to {} by {:?}", seen.outcome, seen.blamed)
            });
        }
        let guard = self.guard;
        let occupancy = self.spiller.occupancy(&along_y(1).0.cooperative());
        let may = [
            ("free_memory", Seen::of(&guard.free_memory())),
            ("priorities", Seen::of(&guard.priorities())),
            ("occupancy", Seen::of(&occupancy)),
            ("with_context", Seen::of(&Guard::with_context(Arc::clone(context(guard))))),
            ("cuda", Seen::of(&Guard::cuda(0))),
        ];
        for (call, seen) in may {
            let typed = !seen.is_error || seen.code == code;
            observed.require(typed, || format!("afterwards {call} came to {}", seen.outcome));
        }
        let recent = guard.recent_launches();
        let on_record = recent.iter().any(|launch| &*launch.kernel == fault.kernel);
        observed.require(on_record, || format!("recent launches are {recent:?}"));
    }
}
