//! Per-thread flags in initial-exec thread-local storage. In a shared library `thread_local!` calls the loader, which
//! would double the cost of a launch.

use core::arch::{asm, global_asm};

/// A flag of this thread. The first three say that the thread is already in a replacement. This happens if another
/// preloaded library calls a replacement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flag {
    /// A replacement of a launch.
    Launch,
    /// A replacement that allocates or frees memory.
    Allocation,
    /// A replacement that loads an image.
    Load,
    /// The driver refused a launch since this was reset.
    Refused,
    /// The thread runs work of `guarded`.
    Guarded,
}

// A byte for each flag, in the loader's initial memory of a thread: it is 0 when the thread begins.
global_asm!(
    ".pushsection .tbss.gridguard_flags, \"awT\", %nobits",
    ".globl gridguard_preload_flags",
    ".hidden gridguard_preload_flags",
    ".type gridguard_preload_flags, %object",
    ".size gridguard_preload_flags, 5",
    "gridguard_preload_flags:",
    ".zero 5",
    ".popsection",
);

impl Flag {
    /// Sets the flag, and returns its old value.
    #[inline(always)]
    pub(crate) fn replace(self, value: bool) -> bool {
        let place = match self {
            Self::Launch => 0,
            Self::Allocation => 1,
            Self::Load => 2,
            Self::Refused => 3,
            Self::Guarded => 4,
        };
        // SAFETY: one of the five bytes, which live as long as the thread. They hold nothing but `bool`s, and
        // nothing else reads or writes them.
        unsafe { flags().add(place).cast::<bool>().replace(value) }
    }
}

/// The flags of this thread.
#[inline(always)]
fn flags() -> *mut u8 {
    let flags: *mut u8;
    // SAFETY: computes the address of the thread's copy of a variable, as the ABI describes for variables in the
    // initial memory of threads; neither changes memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "mov {flags}, qword ptr fs:[0]",
            "add {flags}, qword ptr [rip + gridguard_preload_flags@GOTTPOFF]",
            flags = out(reg) flags,
            options(pure, nomem, nostack),
        );
    }
    // SAFETY: computes the address of the thread's copy of a variable, as the ABI describes; changes no memory.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "mrs {flags}, tpidr_el0",
            "adrp {offset}, :gottprel:gridguard_preload_flags",
            "ldr {offset}, [{offset}, #:gottprel_lo12:gridguard_preload_flags]",
            "add {flags}, {flags}, {offset}",
            flags = out(reg) flags,
            offset = out(reg) _,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_flags() {
        let all = [Flag::Launch, Flag::Allocation, Flag::Load, Flag::Refused, Flag::Guarded];
        for one in all {
            assert!(!one.replace(true), "{one:?}");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for one in all {
                        assert!(!one.replace(true), "{one:?} of a new thread");
                    }
                });
            });
            assert!(one.replace(false), "{one:?}");
            assert!(!one.replace(false), "{one:?}");
        }
    }
}
