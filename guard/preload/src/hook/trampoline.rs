//! The code of functions that other objects find in this library: it chooses the function to enter at each call.

use core::ffi::c_void;

/// The choice of a trampoline: a target that is entered with the arguments, or without a target the result.
#[repr(C)]
pub(super) struct Choice {
    value: *mut c_void,
    target: *mut c_void,
}

impl Choice {
    pub(super) const fn enter(target: *mut c_void) -> Self {
        Self { value: core::ptr::null_mut(), target }
    }

    pub(super) const fn value(value: *mut c_void) -> Self {
        Self { value, target: core::ptr::null_mut() }
    }
}

/// The body of a naked function. Calls `choose` with the first three arguments, `number` and the address to which the
/// function returns. The target is entered by a jump, with all arguments in their registers and the caller's return address.
macro_rules! trampoline {
    ($choose:path, $number:literal) => {
        #[cfg(target_arch = "x86_64")]
        core::arch::naked_asm!(
            ".cfi_startproc",
            "endbr64",
            "sub rsp, 56",
            ".cfi_adjust_cfa_offset 56",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "mov ecx, {number}",
            "mov r8, [rsp + 56]",
            "call {choose}",
            "mov r11, rdx",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "add rsp, 56",
            ".cfi_adjust_cfa_offset -56",
            "test r11, r11",
            "jz 2f",
            "jmp r11",
            "2: ret",
            ".cfi_endproc",
            number = const $number,
            choose = sym $choose,
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::naked_asm!(
            "hint #34",
            "stp x29, x30, [sp, #-80]!",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "mov x29, sp",
            "mov x3, #{number}",
            "mov x4, x30",
            "bl {choose}",
            "mov x9, x0",
            "mov x16, x1",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            "cbz x16, 2f",
            "br x16",
            "2: mov x0, x9",
            "ret",
            number = const $number,
            choose = sym $choose,
        );
    };
}
pub(super) use trampoline;
