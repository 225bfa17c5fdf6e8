//! Missing devices, and objects of another device, context or kernel.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use gridguard::cuda::{Args, compute_mode, device_count, device_limits, free_memory};
use gridguard::profile::{DeviceIdentity, Document, Environment, Layers, publish};
use gridguard::{Choice, DeviceLimits, Guard};
use gridguard_test_support::Random;

use crate::device_setup::{
    DeviceSetup, along_y, context, counts_right, document, entry, kernel, poisoned,
};
use crate::environment::RunEnvironment;
use crate::expected::{Expected, Observed};
use crate::fault::Case;
use crate::observed_error::{ObservedError, describe, why_host};
use crate::raw;

/// What belongs to another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// An ordinal beyond the last device.
    Ordinal,
    /// A device that `CUDA_VISIBLE_DEVICES` hides, with all others.
    Hidden,
    /// A device that `CUDA_VISIBLE_DEVICES` hides, with one left.
    Cut,
    Stream,
    Memory,
    /// A guard and a kernel of different contexts.
    Guard,
    /// A plan for another kernel.
    Plan,
    /// Reading a profile of another device.
    Profile,
    /// Writing to a profile of another device.
    ProfileFile,
}

const WHATS: [What; 9] = [
    What::Ordinal,
    What::Hidden,
    What::Stream,
    What::Memory,
    What::Cut,
    What::Guard,
    What::Plan,
    What::Profile,
    What::ProfileFile,
];

/// Values that hide every device.
const HIDES_ALL: [&str; 8] = ["", "-1", "99", "NoDevFiles", "-1,0", "GPU-00000000", "0,0", "MIG-1"];
/// Values that leave the first device visible.
const HIDES_OTHERS: [&str; 5] = ["0", "0,99", "0,-1", "0,-1,1", "0,,1"];

/// A request for another device.
#[derive(Debug)]
pub(crate) struct OtherDevice {
    what: What,
    visible: &'static str,
    beyond: u64,
    call: u64,
    items: u64,
}

pub(crate) fn draw(number: u64, random: &mut Random) -> OtherDevice {
    let count = u64::try_from(WHATS.len()).expect("few");
    let what = WHATS[usize::try_from(number % count).expect("few")];
    let values: &[&str] = if what == What::Hidden { &HIDES_ALL } else { &HIDES_OTHERS };
    OtherDevice {
        what,
        visible: random.pick(values),
        beyond: random.pick(&[0, 1, 7, 1 << 16, (1 << 31) - 9, 1 << 32, u64::MAX >> 1]),
        call: random.below(4),
        items: 1 + random.below(100_000),
    }
}

impl OtherDevice {
    fn ask(&self, ordinal: usize) -> ObservedError {
        match self.call {
            0 => describe(&Guard::cuda(ordinal)),
            1 => describe(&device_limits(ordinal)),
            2 => describe(&free_memory(ordinal)),
            _ => describe(&compute_mode(ordinal)),
        }
    }

    /// Launches with an object of another context.
    fn mix(&self, setup: &DeviceSetup) -> ObservedError {
        let guard = setup.guard();
        let module = setup.module(&guard);
        let (iota, spill) = (kernel(&module, "iota_y"), kernel(&module, "spill_y"));
        let own: Arc<CudaContext> = Arc::clone(context(&guard));
        let other = raw::new_context();
        let pick =
            |what| if self.what == what { other.default_stream() } else { own.default_stream() };
        let (stream, owner) = (pick(What::Stream), pick(What::Memory));
        // The memory belongs to the stream, so that the argument is not the error.
        let owner = if self.what == What::Stream { Arc::clone(&stream) } else { owner };
        let mut out = poisoned(&owner, self.items);
        let (request, batch) = along_y(self.items);
        let limits = if self.what == What::Plan { spill.limits() } else { iota.limits() };
        let plan = guard.plan(&request, Some(&batch), limits, Choice::AUTOMATIC).expect("legal");
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length();
        match self.what {
            What::Guard => {
                let foreign = Guard::with_context(Arc::clone(&other)).expect("a guard");
                describe(&foreign.launch(&iota, &plan, args))
            }
            _ => describe(&guard.launch(&iota, &plan, args)),
        }
    }

    /// A profile of a device that differs in one property.
    fn other_profile(&self) -> Document {
        let mut limits = DeviceLimits::any_device();
        match self.call {
            0 => limits.name.push_str(" XL"),
            1 => limits.compute_capability.major += 1,
            2 => limits.multiprocessors += 1 + self.items,
            _ => limits.memory_bytes += 1 << 33,
        }
        Document::new(DeviceIdentity::new(&limits), Environment::default())
    }

    fn read_profile(&self, setup: &DeviceSetup) -> ObservedError {
        let path = setup.folder.join("other.ron");
        let _ = std::fs::remove_file(&path);
        let mut other = self.other_profile();
        other.insert(entry("copy", self.items, 1)).expect("within bounds");
        publish(&path, &other).expect("published");
        let own = DeviceIdentity::new(&DeviceLimits::any_device());
        let loaded = Layers::new().explicit(&path).load(&own, &Environment::default());
        match &loaded.notices[..] {
            [one] if loaded.profile.is_empty() => describe(&Err::<(), _>(one.notice.clone())),
            several => ObservedError::outcome(format!("it is used, with notices {several:?}")),
        }
    }

    fn write_profile(&self, setup: &DeviceSetup, observed: &mut Observed) -> ObservedError {
        let path = setup.folder.join("kept.ron");
        let _ = std::fs::remove_file(&path);
        publish(&path, &document([entry("copy", self.items, 1)])).expect("published");
        let before = std::fs::read(&path).expect("reads");
        let described = describe(&publish(&path, &self.other_profile()));
        let kept = std::fs::read(&path).is_ok_and(|after| after == before);
        observed.lost_profiles += u64::from(!kept);
        described
    }
}

impl Case for OtherDevice {
    fn name(&self) -> &'static str {
        match self.what {
            What::Ordinal => "ordinal",
            What::Hidden => "hidden_device",
            What::Cut => "hidden_beyond_the_first",
            What::Stream => "stream",
            What::Memory => "memory",
            What::Guard => "guard",
            What::Plan => "plan",
            What::Profile => "profile",
            What::ProfileFile => "profile_file",
        }
    }

    fn needs_a_process(&self) -> bool {
        matches!(self.what, What::Hidden | What::Cut)
    }

    fn prepare(&self, _ground: &RunEnvironment, _folder: &Path) -> Vec<(&'static str, OsString)> {
        match self.what {
            What::Hidden | What::Cut => vec![("CUDA_VISIBLE_DEVICES", self.visible.into())],
            _ => Vec::new(),
        }
    }

    fn expected(&self, _ground: &RunEnvironment) -> Expected {
        match self.what {
            What::Ordinal | What::Cut => Expected::one_of(["CudaError::NoSuchDevice"]),
            // Drivers fail to initialise if a device is named twice, and else see none (H200).
            What::Hidden => Expected::one_of([
                "CudaError::Unavailable/NoDevice",
                "CudaError::Unavailable/InitFailed/101 ",
            ]),
            What::Stream => Expected::one_of(["LaunchError::OtherContext the stream"]).guards_own(),
            What::Memory => {
                Expected::one_of(["LaunchError::OtherContext an argument's memory"]).guards_own()
            }
            What::Guard => Expected::one_of(["LaunchError::OtherContext the guard"]).guards_own(),
            What::Plan => Expected::one_of(["LaunchError::OtherKernel"]).guards_own(),
            What::Profile => Expected::one_of(["ProfileNotice::OtherDevice"]).guards_own(),
            What::ProfileFile => Expected::one_of(["ProfileError::OtherDevice"]).guards_own(),
        }
    }

    fn inject(&self, setup: &DeviceSetup) -> Observed {
        let mut observed = Observed::default();
        observed.error = match self.what {
            What::Ordinal => {
                let count = device_count().expect("a device");
                self.ask(count.saturating_add(usize::try_from(self.beyond).expect("64 bits")))
            }
            What::Hidden => {
                let (described, best) = (self.ask(0), Guard::best());
                let reason = why_host(&best);
                let same =
                    reason.as_ref().is_some_and(|reason| reason.outcome == described.outcome);
                observed.require(same, || format!("the best guard fell back for {reason:?}"));
                described
            }
            What::Cut => {
                let (described, first) = (self.ask(1), describe(&Guard::cuda(0)));
                observed.require(!first.is_error, || format!("device 0: {}", first.text));
                described
            }
            What::Profile => self.read_profile(setup),
            What::ProfileFile => self.write_profile(setup, &mut observed),
            _ => self.mix(setup),
        };
        if self.what != What::Hidden
            && let Err(error) = counts_right(setup, &setup.guard())
        {
            observed.complain(format!("an ordinary launch afterwards: {error}"));
        }
        observed
    }
}
