//! Undefined behaviour: damage that no header shows, and stale handles. The result is recorded, and
//! the driver may crash.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use gridguard::Guard;
use gridguard::cuda::Image;
use gridguard_test_support::Random;

use crate::cubin::{self, HEADER, Section};
use crate::device_setup::{DeviceSetup, context, count, kernel, poisoned};
use crate::environment::RunEnvironment;
use crate::expected::{Expected, Observed};
use crate::fault::Case;
use crate::observed_error::{Describe, ObservedError, describe};
use crate::raw;

/// A cubin with random bytes in one of its parts.
#[derive(Debug)]
pub(crate) struct DamagedBody {
    part: Part,
    number: u64,
    /// Random bytes.
    bytes: u64,
}

/// Which part of a cubin is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The header of the file.
    Header,
    /// The headers of its sections.
    Table,
    /// Anything else.
    Section,
    /// The content of a fatbin.
    Fatbin,
}

pub(crate) fn damaged_body(number: u64, random: &mut Random) -> DamagedBody {
    let parts = [Part::Section, Part::Header, Part::Section, Part::Table, Part::Fatbin];
    DamagedBody {
        part: parts[usize::try_from(number % 5).expect("few")],
        number: random.next(),
        bytes: 1 + random.below(32),
    }
}

impl DamagedBody {
    fn image(&self, environment: &RunEnvironment) -> (String, Vec<u8>) {
        let mut random = Random::new(self.number);
        let mut below = |end: usize| {
            usize::try_from(random.below(u64::try_from(end).expect("64 bits"))).expect("below")
        };
        let mut bytes = environment.own_cubin();
        if self.part == Part::Fatbin {
            bytes.splice(0..0, [0; 16]);
            let content = u64::try_from(bytes.len() - 16).expect("64 bits");
            bytes[..4].copy_from_slice(&0xba55_ed50_u32.to_le_bytes());
            bytes[4..6].copy_from_slice(&1_u16.to_le_bytes());
            bytes[6..8].copy_from_slice(&16_u16.to_le_bytes());
            bytes[8..16].copy_from_slice(&content.to_le_bytes());
            return ("a fatbin's content".into(), bytes);
        }
        let sections = cubin::sections(&bytes);
        let section = sections[below(sections.len())].clone();
        let Section { name, start, bytes: length, header } = section;
        let (what, start, length) = match self.part {
            // The marks of a cubin stay.
            Part::Header => ("the file's header".to_owned(), 20, HEADER - 20),
            Part::Table => (format!("the header of {name}"), header, 64),
            Part::Section | Part::Fatbin => (name, start, length),
        };
        let noise = usize::try_from(self.bytes).expect("few").min(length);
        let place = start + below(length - noise + 1);
        for byte in &mut bytes[place..place + noise] {
            *byte = below(256).to_le_bytes()[0];
        }
        (what, bytes)
    }
}

impl Case for DamagedBody {
    fn name(&self) -> &'static str {
        match self.part {
            Part::Header => "file_header",
            Part::Table => "section_header",
            Part::Section => "section",
            Part::Fatbin => "fatbin",
        }
    }

    fn needs_a_process(&self) -> bool {
        true
    }

    fn prepare(
        &self,
        environment: &RunEnvironment,
        folder: &Path,
    ) -> Vec<(&'static str, OsString)> {
        let _ = folder;
        // For the message: the part is chosen as in the child.
        let (what, _) = self.image(environment);
        vec![("GRIDGUARD_FAULTS_DAMAGED", what.into())]
    }

    fn expected(&self, _ground: &RunEnvironment) -> Expected {
        Expected::one_of(["CudaError::Load/", "LoadError::", "Ok"])
    }

    fn inject(&self, setup: &DeviceSetup) -> Observed {
        let (what, bytes) = self.image(&setup.environment);
        let loaded = match Image::new(bytes) {
            Err(error) => error.describe(),
            Ok(image) => {
                // If the process crashes, this is its result.
                eprintln!("the driver is given damage in {what}");
                let guard = setup.guard();
                match guard.load(&image) {
                    Err(error) => error.describe(),
                    #[allow(unsafe_code, reason = "a kernel that is not launched")]
                    // SAFETY: nothing is launched with it.
                    Ok(module) => describe(&unsafe { module.kernel("no_such_kernel", &[]) }),
                }
            }
        };
        let mut observed = Observed::new(loaded);
        if observed.error.outcome == "LoadError::NoSuchKernel" {
            observed.error = ObservedError::outcome("Ok, it loads");
        }
        observed.error.text = format!("damage in {what}: {}", observed.error.text);
        observed
    }
}

/// A handle that is used after its object was destroyed.
#[derive(Debug)]
pub(crate) struct StaleHandle {
    what: Stale,
    items: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stale {
    /// A stream of a primary context that was reset.
    StreamAfterReset,
    /// A stream that another part of the program destroyed.
    Stream,
    /// A kernel of a primary context that was reset and retained again.
    KernelAfterRenewal,
    /// A destroyed context, on a thread where it never was current.
    ContextElsewhere,
    /// The program's own context, destroyed by the same thread.
    Context,
}

pub(crate) fn stale_handle(number: u64, random: &mut Random) -> StaleHandle {
    let stale = [
        Stale::StreamAfterReset,
        Stale::Stream,
        Stale::KernelAfterRenewal,
        Stale::ContextElsewhere,
        Stale::Context,
    ];
    StaleHandle {
        what: stale[usize::try_from(number % 5).expect("few")],
        items: 1 + random.below(1000),
    }
}

impl Case for StaleHandle {
    fn name(&self) -> &'static str {
        match self.what {
            Stale::StreamAfterReset => "stream_after_reset",
            Stale::Stream => "stream",
            Stale::KernelAfterRenewal => "kernel_after_renewal",
            Stale::ContextElsewhere => "context_on_another_thread",
            Stale::Context => "context",
        }
    }

    fn needs_a_process(&self) -> bool {
        true
    }

    fn expected(&self, _ground: &RunEnvironment) -> Expected {
        Expected::one_of(["LaunchError::", "CudaError::"])
    }

    fn inject(&self, setup: &DeviceSetup) -> Observed {
        let of_the_program = matches!(self.what, Stale::ContextElsewhere | Stale::Context);
        let guard = match of_the_program {
            true => Guard::with_context(raw::new_context()).expect("a guard"),
            false => setup.guard(),
        };
        let module = setup.module(&guard);
        let iota = kernel(&module, "iota_y");
        let stream = match self.what {
            Stale::Stream | Stale::StreamAfterReset => context(&guard).new_stream().expect("one"),
            _ => context(&guard).default_stream(),
        };
        let mut out = poisoned(&stream, self.items);
        stream.synchronize().expect("nothing is wrong yet");
        let fresh = match self.what {
            Stale::StreamAfterReset => (raw::reset_primary_context(), None),
            Stale::Stream => (raw::destroy_stream(&stream), None),
            Stale::KernelAfterRenewal => (raw::reset_primary_context(), Some(setup.guard())),
            Stale::ContextElsewhere | Stale::Context => {
                (raw::destroy_context(context(&guard)), None)
            }
        };
        let (status, renewed) = fresh;
        let mut launch = || describe(&count(&guard, &iota, &stream, &mut out, self.items));
        let launched = match self.what {
            Stale::ContextElsewhere => {
                std::thread::scope(|scope| scope.spawn(launch).join().expect("no panic"))
            }
            _ => launch(),
        };
        let waited = describe(&guard.synchronize(&stream));
        let first = if launched.is_error { launched } else { waited };
        let mut observed = Observed::new(first);
        observed.require(status == 0, || format!("destroying answered {status}"));
        drop((renewed, Arc::clone(&stream)));
        observed
    }
}
