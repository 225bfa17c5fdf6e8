//! Captures one launch of the program with its memory, as `--capture` asks for it.

mod kept;
mod memory;

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::BTreeSet;

use gridguard::abi::LaunchAttribute;

use self::kept::Begun;
use crate::driver::Driver;
use crate::driver::abi::Status;
use crate::driver::request::Launch;
use crate::driver::written;
use crate::fix::arguments::Passed;
use crate::process::demangle::demangled;
use crate::process::output::without_signals;
use crate::process::{self, Capture, guarded};
use crate::watch::kept::{Kept, hash_of};
use crate::watch::kernel::{Kernel, MAX_KERNELS};
use crate::watch::table::{self, Entry};

/// Whether the launch is still awaited.
static AWAITED: AtomicBool = AtomicBool::new(false);
/// The process that [`begin`] was called in: not a child without a program of its own.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Launches of the kernel so far.
static SEEN: AtomicU64 = AtomicU64::new(0);
/// Whether a launch of the kernel was captured into a graph.
static IN_GRAPH: AtomicBool = AtomicBool::new(false);
/// Whether each kernel has the wanted name.
static NAMED: Kept<bool, { 1 << 15 }, MAX_KERNELS> = Kept::new();

/// Prepares for the launch before the program begins.
pub(crate) fn begin() {
    if process::options().capture.is_some() {
        AWAITED.store(true, Ordering::Relaxed);
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        process::register_end(at_exit);
    }
}

/// Whether launches may have to be captured.
#[inline(always)]
pub(crate) fn is_awaited() -> bool {
    AWAITED.load(Ordering::Relaxed)
}

/// Makes a launch by `call`, and captures it if it is the wanted one. `entry` is that of its kernel.
#[cold]
pub(crate) fn around(
    launch: &Launch,
    entry: Option<&'static Entry>,
    (passed, attributes): (Passed, &[LaunchAttribute]),
    call: impl FnOnce() -> Status,
) -> Status {
    let begun = writing(|| {
        let wanted = process::options().capture.as_ref()?;
        let (entry, number) = next(wanted, launch, entry?)?;
        // SAFETY: the program is making the launch just now.
        let begun = unsafe { Begun::new(wanted, (launch, number), entry, passed, attributes) };
        begun.map_err(|reason| complain(wanted, number, &reason)).ok()
    });
    let status = call();
    if let Some(begun) = begun.flatten() {
        writing(|| {
            let number = begun.number;
            if let (Some(wanted), Err(reason)) = (&process::options().capture, begun.end(status)) {
                complain(wanted, number, &reason);
            }
        });
    }
    status
}

/// Does work that may write the file, and closes it if that fails.
fn writing<R>(work: impl FnOnce() -> R) -> Option<R> {
    guarded::run(|| without_signals(work))
}

/// The entry and the number of the launch, if it is the wanted one.
fn next(wanted: &Capture, launch: &Launch, entry: &'static Entry) -> Option<(&'static Entry, u64)> {
    let kernel = entry.kernel();
    let place = hash_of(&core::ptr::from_ref::<Kernel>(kernel).addr());
    if !NAMED.get(place, || is_named(&kernel.name(), &wanted.kernel)).copied()? {
        return None;
    }
    // SAFETY: the program launches on the stream; the pointer is to a live integer.
    let capturing = written(0, |state| unsafe {
        Some(Driver::of(launch.through).stream_capturing?(launch.stream, state))
    });
    if capturing.is_some_and(|state| state != 0) {
        IN_GRAPH.store(true, Ordering::Relaxed);
        return None;
    }
    let number = SEEN.fetch_add(1, Ordering::Relaxed) + 1;
    (number == wanted.number && AWAITED.swap(false, Ordering::Relaxed)).then_some((entry, number))
}

/// Whether a kernel has this name: as the driver has it, demangled, or demangled without parameters, return type and
/// arguments of its template.
fn is_named(mangled: &str, wanted: &str) -> bool {
    let whole = demangled(mangled);
    let before = |text: &'_ str, open: u8, close: u8| {
        let mut depth = 0_usize;
        let start = text.bytes().rposition(|byte| {
            depth += usize::from(byte == close);
            depth -= usize::from(byte == open && depth > 0);
            depth == 0
        });
        let ends_there = text.ends_with(char::from(close));
        text[..start.filter(|_| ends_there).unwrap_or(text.len())].to_owned()
    };
    let head = before(&whole, b'(', b')');
    let mut depth = 0_usize;
    let name = head.rsplit(|c: char| {
        depth += usize::from(c == '>' || c == ')');
        depth -= usize::from((c == '<' || c == '(') && depth > 0);
        c == ' ' && depth == 0
    });
    let name = name.take(1).collect::<String>();
    let plain = before(&name, b'<', b'>');
    [mangled, &whole, &head, &name, &plain].contains(&wanted)
}

/// Says why a launch was not captured.
fn complain(Capture { kernel, .. }: &Capture, number: u64, reason: &str) {
    process::complain(&format!(
        "gridguard: launch {number} of {kernel} is not captured: {reason}\n"
    ));
}

/// Says at the end of the process that the launch did not come.
extern "C" fn at_exit() {
    guarded::run(|| {
        let Some(Capture { kernel, number, file, .. }) = &process::options().capture else {
            return;
        };
        let launched = table::launches() > 0;
        let is_own = PROCESS.load(Ordering::Relaxed) == std::process::id();
        // Another process of the run may have captured it.
        if !AWAITED.swap(false, Ordering::Relaxed) || !is_own || file.exists() {
            return;
        }
        let seen = SEEN.load(Ordering::Relaxed);
        let why = match seen {
            _ if IN_GRAPH.load(Ordering::Relaxed) => {
                format!(
                    "{seen} launches ran outside of graphs, and those in graphs are not captured"
                )
            }
            0 if launched => format!("the program launched {}", names()),
            // A helper process of the program.
            0 if !process::is_first() => return,
            0 => "this process launched no kernel".to_owned(),
            1 => "there was 1 launch of it".to_owned(),
            several => format!("there were {several} launches of it"),
        };
        process::complain(&format!(
            "gridguard: launch {number} of {kernel} is not captured: {why}\n"
        ));
    });
}

/// The names of some launched kernels.
fn names() -> String {
    let (kernels, _) = table::counted();
    let names: BTreeSet<_> = kernels.iter().map(|(kernel, _)| demangled(&kernel.name())).collect();
    let count = names.len();
    let shown: Vec<_> = names.into_iter().take(SHOWN).collect();
    let more = count.saturating_sub(SHOWN);
    shown.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// Names that are printed.
const SHOWN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_by_its_mangled_and_by_its_source_name() {
        for (mangled, wanted) in [
            ("_Z5touchPfi", &["_Z5touchPfi", "touch(float*, int)", "touch"][..]),
            ("add_kernel", &["add_kernel"]),
            ("_ZN2at6native4copyIfEEvPT_", &["at::native::copy<float>", "at::native::copy"]),
            (
                "_ZN12_GLOBAL__N_14scanIiEEvPT_",
                &["(anonymous namespace)::scan<int>", "(anonymous namespace)::scan"],
            ),
        ] {
            for wanted in wanted {
                assert!(is_named(mangled, wanted), "{mangled} {wanted}");
            }
            for other in ["", "touc", "copy", "scan", "kernel", "float", "void"] {
                assert!(!is_named(mangled, other), "{mangled} {other}");
            }
        }
    }
}
