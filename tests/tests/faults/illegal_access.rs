//! Kernels with an illegal access or another fault, which surfaces at a later call.

mod scene;

use std::time::Duration;

use gridguard_test_support::Random;

use self::scene::{INNOCENT, Scene};
use crate::child::does;
use crate::device_setup::{DeviceSetup, context, count, kernel, poisoned};
use crate::environment::RunEnvironment;
use crate::expected::{Expected, Observed};
use crate::fault::Case;
use crate::observed_error::{Describe, ObservedError, describe};

/// The fault of the kernel.
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

/// The interface that launches the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plan,
    /// A plan with checked launches.
    Checked,
    Builder,
    Raw,
}

/// The call after the launch that must report the fault.
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

/// A faulting kernel.
#[derive(Debug)]
pub(crate) struct Access {
    how: How,
    /// The kernel's parameter `how`: the address of the access, for example.
    argument: u64,
    /// The error code that the fake driver returns.
    code: i32,
    way: Way,
    notice: Notice,
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

/// The most launches of the faulting plan: with the others, fewer than a stream's record holds.
const MOST_CHUNKS: u64 = 40;
/// Codes of a context that a kernel made unusable.
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
    // Beyond all memory of a device, and far from the addresses that a process maps.
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
        // A kernel without instructions faults in every block.
        faulty: random.below(if how == How::Instruction { 1 } else { items }),
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

    fn notice(&self, setup: &DeviceSetup, scene: &mut Scene<'_>) -> ObservedError {
        let Scene { guard, stream, .. } = *scene;
        let context = context(guard);
        // The fault has happened by then, whatever its timing.
        let noticed = match self.notice {
            Notice::Synchronize => None,
            Notice::NextLaunch => poll(|| described_error(&scene.count_innocent())),
            Notice::Workspace => poll(|| described_error(&scene.spill_innocent())),
            Notice::CopyBack => described_error(&stream.clone_dtoh(&*scene.out)),
            Notice::Load => poll(|| described_error(&guard.load(&setup.image("kernels")))),
            Notice::FreeMemory => poll(|| described_error(&guard.free_memory())),
            Notice::NewStream => poll(|| described_error(&context.new_stream())),
        };
        noticed.unwrap_or_else(|| describe(&guard.synchronize(stream)))
    }
}

fn described_error<T, E: Describe>(result: &Result<T, E>) -> Option<ObservedError> {
    result.as_ref().err().map(Describe::describe)
}

/// Asks until there is an error, for a limited time: the driver learns of faults late.
fn poll(mut ask: impl FnMut() -> Option<ObservedError>) -> Option<ObservedError> {
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

    fn expected(&self, _ground: &RunEnvironment) -> Expected {
        let paths: &[&str] = match self.way {
            Way::Checked => &["LaunchError::Stopped/"],
            _ => {
                &["LaunchError::", "CudaError::Driver/", "CudaError::Load/", "cudarc::DriverError/"]
            }
        };
        Expected {
            codes: self.codes().to_vec(),
            faulting: Some((self.kernel(), self.faulty)),
            only_suspect: self.way == Way::Checked && self.under_way == 0,
            innocent: Some("iota_y"),
            ..Expected::one_of(paths.iter().copied())
        }
    }

    fn inject(&self, setup: &DeviceSetup) -> Observed {
        does("make a context");
        let guard = setup.guard().with_checked_launches(self.way == Way::Checked);
        let module = match self.how {
            How::Instruction => guard.load(&setup.image("instruction")).expect("it loads"),
            _ => setup.module(&guard),
        };
        let context = context(&guard);
        let stream = match self.default_stream {
            true => context.default_stream(),
            false => context.new_stream().expect("a stream"),
        };
        let innocent = kernel(&module, "iota_y");
        let mut out = poisoned(&stream, self.items);
        let (function, raw) = self.handles(setup, &guard);
        does("launch what is not");
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
        does("launch the faulty kernel");
        let launched = self.launch(&mut scene);
        does("notice the fault");
        let described = match launched {
            Err(error) => error.describe(),
            Ok(_) => self.notice(setup, &mut scene),
        };
        let mut observed = Observed::new(described);
        does("go on after the fault");
        self.look_after(setup, &module, &mut scene, &mut observed);
        does("let go of the context");
        observed
    }
}
