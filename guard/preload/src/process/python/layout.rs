//! Offsets, for each version of Python, of the fields that lead to a thread's frames.

use super::memory;

macro_rules! offsets {
    ($($(#[$meta:meta])* $field:ident,)*) => {
        /// Offsets in bytes; 0 for fields that the version lacks.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Layout {
            $($(#[$meta])* pub(super) $field: usize,)*
        }

        impl From<[usize; COUNT]> for Layout {
            fn from([$($field),*]: [usize; COUNT]) -> Self {
                Self { $($field),* }
            }
        }
    };
}

offsets! {
    interpreters_head,
    interpreter_next,
    threads_head,
    thread_next,
    thread_id,
    /// The innermost frame of the thread; in Python 3.11 and 3.12 the `_PyCFrame` that has it.
    thread_frame,
    c_frame,
    frame_back,
    frame_code,
    /// The number of the instruction, or a pointer to it.
    frame_instruction,
    frame_owner,
    file_name,
    name,
    first_line,
    lines,
    instructions,
    object_type,
    text_length,
    text_state,
    text_ascii,
    bytes_length,
    bytes,
}

impl Layout {
    /// The layout of Python 3.`minor`, whose `_PyRuntime` stands at `runtime`; `None` for other versions, and for
    /// builds without a global lock, where each thread has its own instructions.
    pub(super) fn of(minor: u8, runtime: usize) -> Option<Self> {
        let (_, row) = LAYOUTS.iter().find(|(version, _)| *version == minor)?;
        let mut row = row.map(usize::from);
        if minor >= FIRST_WITH_OFFSETS {
            if memory::word(runtime, FREE_THREADED)? != 0 {
                return None;
            }
            for offset in row.iter_mut().filter(|offset| **offset > 0) {
                // No structure of Python is larger than this.
                *offset = memory::word(runtime, *offset).filter(|known| *known < 1 << 24)?;
            }
        }
        Some(row.into())
    }
}

/// The number of offsets.
const COUNT: usize = 22;
/// The first version whose `_PyRuntime` begins with the offsets of its structures, `_Py_DebugOffsets`.
const FIRST_WITH_OFFSETS: u8 = 13;
/// Where `_Py_DebugOffsets` tells of a build without a global lock.
const FREE_THREADED: usize = 16;

/// The offsets of each version on 64-bit Linux, which `tests/python/layout.c` prints. For versions with
/// `_Py_DebugOffsets`, their places in that structure.
#[rustfmt::skip]
const LAYOUTS: [(u8, [u16; COUNT]); 5] = [
    (10, [32, 0, 8, 8, 176, 24, 0, 24, 32, 96, 0, 104, 112, 40, 120, 0, 8, 16, 32, 48, 16, 32]),
    (11, [40, 0, 16, 8, 152, 56, 8, 48, 32, 56, 69, 112, 128, 72, 136, 184, 8, 16, 32, 48, 16, 32]),
    (12, [40, 0, 72, 8, 136, 56, 0, 8, 0, 56, 70, 112, 128, 68, 136, 192, 8, 16, 32, 40, 16, 32]),
    (13, [40, 64, 72, 168, 192, 184, 0, 232, 240, 248, 264, 280, 296, 312, 304, 344, 360, 552, 544, 560, 520, 528]),
    (14, [40, 64, 72, 192, 216, 208, 0, 256, 264, 272, 288, 320, 336, 352, 344, 384, 408, 632, 624, 640, 600, 608]),
];
