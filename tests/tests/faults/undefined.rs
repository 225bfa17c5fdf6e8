//! Beyond what anyone can promise: damage that no header shows, and handles of what is gone. What
//! the driver makes of it is told, and may be its death.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use gridguard::Guard;
use gridguard::cuda::Image;
use gridguard_test_support::Random;

use crate::bench::{Bench, context, count, kernel, poisoned};
use crate::cubin::{self, HEADER, Section};
use crate::fault::Case;
use crate::ground::Ground;
use crate::judge::{Expected, Observed};
use crate::naming::{Tell, Told, told};
use crate::raw;

/// A cubin with noise in one of its parts.
#[derive(Debug)]
pub(crate) struct DamagedBody {
    part: Part,
    number: u64,
    /// Bytes of noise.
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
    fn image(&self, ground: &Ground) -> (String, Vec<u8>) {
        let mut random = Random::new(self.number);
        let mut below = |end: usize| {
            usize::try_from(random.below(u64::try_from(end).expect("64 bits"))).expect("below")
        };
        let mut bytes = ground.own_cubin();
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
            // What says that it is a cubin stays.
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

    fn prepare(&self, ground: &Ground, folder: &Path) -> Vec<(&'static str, OsString)> {
        let _ = folder;
        // For the message: the part is chosen here as in the process.
        let (what, _) = self.image(ground);
        vec![("GRIDGUARD_FAULTS_DAMAGED", what.into())]
    }

    fn expected(&self, _ground: &Ground) -> Expected {
        Expected::one_of(["CudaError::Load/", "LoadError::", "Ok"])
    }

    fn inject(&self, bench: &Bench) -> Observed {
        let (what, bytes) = self.image(&bench.ground);
        let loaded = match Image::new(bytes) {
            Err(error) => error.told(),
            Ok(image) => {
                // Where the process dies, this is what is left of it.
                eprintln!("the driver is given damage in {what}");
                let guard = bench.guard();
                match guard.load(&image) {
                    Err(error) => error.told(),
                    #[allow(unsafe_code, reason = "a kernel that is not launched")]
                    // SAFETY: nothing is launched with it.
                    Ok(module) => told(&unsafe { module.kernel("no_such_kernel", &[]) }),
                }
            }
        };
        let mut observed = Observed::new(loaded);
        if observed.told.outcome == "LoadError::NoSuchKernel" {
            observed.told = Told::outcome("Ok, it loads");
        }
        observed.told.text = format!("damage in {what}: {}", observed.told.text);
        observed
    }
}

/// A handle that is used after what it is of was destroyed.
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
    /// A kernel of a primary context that was reset and taken up again.
    KernelAfterRenewal,
    /// A context that was destroyed, on a thread where it never was current.
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

    fn expected(&self, _ground: &Ground) -> Expected {
        Expected::one_of(["LaunchError::", "CudaError::"])
    }

    fn inject(&self, bench: &Bench) -> Observed {
        let of_the_program = matches!(self.what, Stale::ContextElsewhere | Stale::Context);
        let guard = match of_the_program {
            true => Guard::with_context(raw::new_context()).expect("a guard"),
            false => bench.guard(),
        };
        let module = bench.module(&guard);
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
            Stale::KernelAfterRenewal => (raw::reset_primary_context(), Some(bench.guard())),
            Stale::ContextElsewhere | Stale::Context => {
                (raw::destroy_context(context(&guard)), None)
            }
        };
        let (status, renewed) = fresh;
        let mut launch = || told(&count(&guard, &iota, &stream, &mut out, self.items));
        let launched = match self.what {
            Stale::ContextElsewhere => {
                std::thread::scope(|scope| scope.spawn(launch).join().expect("no panic"))
            }
            _ => launch(),
        };
        let waited = told(&guard.synchronize(&stream));
        let first = if launched.is_error { launched } else { waited };
        let mut observed = Observed::new(first);
        observed.require(status == 0, || format!("destroying answered {status}"));
        drop((renewed, Arc::clone(&stream)));
        observed
    }
}
