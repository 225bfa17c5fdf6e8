//! Kernels with an illegal access or another fault, which surfaces at a later call.

use std::time::Duration;

use cudarc::driver::CudaSlice;
use gridguard::Choice;
use gridguard::cuda::{Args, Kernel, LaunchError, Module};
use gridguard_test_support::Random;

use crate::observed::{Expected, Observed, Seen};
use crate::setup::{CALLS, Call, Client, Setup, along_y, context, kernel, launch, poisoned};

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
    /// Whether each launch is synchronised.
    is_checked: bool,
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
    let items = 1 + random.below(4000);
    let least = items.div_ceil(MOST_CHUNKS);
    Fault {
        kernel,
        argument,
        codes,
        code: random.pick(codes),
        is_checked: random.percent(40),
        // The other calls need not fail.
        first: CALLS[usize::try_from(number / 10 % 4).expect("few")],
        items,
        chunk: least + random.below(items - least + 1),
        faulty: random.below(items),
        cycles: random.pick(&[0, 0, 10_000, 1_000_000, 30_000_000]),
        proven: random.below(4),
        under_way: random.below(8),
        default_stream: random.percent(30),
    }
}

pub(crate) fn inject(setup: &Setup, number: u64, random: &mut Random) -> Observed {
    let fault = draw(number, random);
    let guard = setup.guard().with_checked_launches(fault.is_checked);
    let module: Module = setup.module(&guard);
    let stream = match fault.default_stream {
        true => context(&guard).default_stream(),
        false => context(&guard).new_stream().expect("a stream"),
    };
    let mut out = poisoned(&stream, fault.items);
    let (iota, faulty) = (kernel(&module, "iota_y"), kernel(&module, fault.kernel));
    let mut client = Client::new(setup, guard, stream, INNOCENT);
    let Client { guard, stream, .. } = &client;
    for _ in 0..fault.proven {
        launch(guard, &iota, stream, &mut out, fault.items, 0).expect("no fault yet");
    }
    guard.synchronize(stream).expect("no fault yet");
    for _ in 0..fault.under_way {
        client.launch().expect("no fault yet");
    }
    let seen = match launch_faulty(&client, &faulty, &mut out, &fault) {
        Err(error) => Seen::failure(&error),
        Ok(_) => notice(&mut client, fault.first),
    };
    let outcomes: &[&str] = match fault.is_checked {
        true => &["LaunchError::Stopped/"],
        false => {
            &["LaunchError::", "CudaError::Driver/", "CudaError::Load/", "CudaError::Refused/"]
        }
    };
    let expected = Expected { outcomes, codes: fault.codes, ..Expected::default() };
    let mut observed = Observed::new(format!("{fault:?}"), &seen, &expected);
    let blamed = &seen.blamed;
    let is_faulty = |(kernel, items): &(String, core::ops::Range<u64>)| {
        *kernel == fault.kernel && items.contains(&fault.faulty)
    };
    let is_only = fault.is_checked && fault.under_way == 0;
    let is_blamed = blamed.iter().any(is_faulty)
        && (!is_only || blamed.len() == 1)
        // These launches ended before the first that may have caused it.
        && blamed.iter().all(|(kernel, _)| kernel != "iota_y");
    observed.require(is_blamed, || format!("suspects are {blamed:?}"));
    // Every later call returns a typed error with the same code, or succeeds if it does not need the device.
    let mut later = CALLS.map(|call| (format!("{call:?}"), client.call(call))).to_vec();
    let again = launch_faulty(&client, &faulty, &mut out, &fault);
    later.insert(0, ("the same launch".into(), Seen::of(&again)));
    for (place, (call, after)) in later.into_iter().enumerate() {
        let is_blamed = || after.blamed.iter().any(|(kernel, _)| *kernel == fault.kernel);
        let must_fail = place < 5;
        let right = if after.is_error { after.code == seen.code } else { !must_fail };
        observed.require(right && (!must_fail || is_blamed()), || {
            format!("afterwards {call} came to {} by {:?}", after.outcome, after.blamed)
        });
    }
    let recent = client.guard.recent_launches();
    let on_record = recent.iter().any(|launch| &*launch.kernel == fault.kernel);
    observed.require(on_record, || format!("recent launches are {recent:?}"));
    observed
}

fn launch_faulty(
    client: &Client<'_>,
    kernel: &Kernel,
    out: &mut CudaSlice<u64>,
    fault: &Fault,
) -> Result<u64, LaunchError> {
    let (request, batch) = along_y(fault.items);
    let choice = Choice::at_most(fault.chunk);
    let plan = client.guard.plan(&request, Some(&batch), kernel.limits(), choice)?;
    let mut args = Args::new(&client.stream);
    args.write_items(out, 1).offset().length();
    let code = u64::try_from(fault.code).expect("a code");
    args.value(fault.faulty).value(fault.argument).value(fault.cycles).value(code);
    client.guard.launch(kernel, &plan, args)
}

/// Calls until there is an error, for a limited time, since the driver learns of faults late; then waits for it.
fn notice(client: &mut Client<'_>, call: Call) -> Seen {
    let noticed = (0..12).find_map(|_| {
        std::thread::sleep(Duration::from_millis(4));
        Some(client.call(call)).filter(|seen| seen.is_error)
    });
    noticed.unwrap_or_else(|| client.call(Call::Synchronize))
}
