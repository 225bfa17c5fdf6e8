//! The Python frames of this thread, read from the memory of the interpreter. No function of Python is called and no
//! lock is taken, because a launch may come from a thread that released the global lock, or from a broken process.

mod layout;
mod lines;
mod memory;

use core::ffi::{CStr, c_void};
use std::env;

use gridguard_report::PythonFrame;

use self::layout::Layout;
use self::memory::{bytes, copy, int, word};
use crate::process::elf::{self, Object};

/// The frames of this thread, the innermost first; none outside Python and in versions that are not known.
pub(crate) fn frames() -> Vec<PythonFrame> {
    let mut interpreters = [None; MOST_COPIES];
    let mut count = 0;
    elf::find_map(|object| {
        *interpreters.get_mut(count)? = Some(Interpreter::of(object)?);
        count += 1;
        (count == MOST_COPIES).then_some(())
    });
    // Several copies of Python can be loaded; this thread runs one of them.
    let mut each = interpreters.into_iter().flatten().filter_map(|one| one.frames());
    each.find(|frames| !frames.is_empty()).unwrap_or_default()
}

/// A library or program with the interpreter.
#[derive(Clone, Copy)]
struct Interpreter {
    /// `_PyRuntime`.
    runtime: usize,
    /// `PyCode_Type`.
    code_type: usize,
    minor: u8,
}

impl Interpreter {
    fn of(object: &Object<'_>) -> Option<Self> {
        let address = |name: &CStr| object.find(name).map(<*mut c_void>::addr);
        let runtime = address(c"_PyRuntime")?;
        let code_type = address(c"PyCode_Type")?;
        let minor = match address(c"Py_Version") {
            Some(version) => minor_of(word(version, 0)?)?,
            // Python 3.10 added this function.
            None => address(c"PyIter_Send").map(|_| 10)?,
        };
        Some(Self { runtime, code_type, minor })
    }

    fn frames(self) -> Option<Vec<PythonFrame>> {
        let layout = Layout::of(self.minor, self.runtime)?;
        // SAFETY: takes nothing, and cannot fail.
        let own = usize::try_from(unsafe { libc::pthread_self() }).ok()?;
        let first = word(self.runtime, layout.interpreters_head)?;
        let interpreters = chain(first, next(layout.interpreter_next)).take(MOST_INTERPRETERS);
        let heads = interpreters.filter_map(|one| word(one, layout.threads_head));
        let threads = heads.flat_map(|head| chain(head, next(layout.thread_next)));
        let mut own = threads
            .take(MOST_THREADS)
            .filter(|thread| word(*thread, layout.thread_id) == Some(own))
            .take(MOST_STATES)
            .map(|thread| self.frames_of(&layout, thread));
        own.find(|frames| !frames.is_empty())
    }

    fn frames_of(self, layout: &Layout, thread: usize) -> Vec<PythonFrame> {
        let mut frame = word(thread, layout.thread_frame);
        if (11..=12).contains(&self.minor) {
            frame = frame.and_then(|frame| word(frame, layout.c_frame));
        }
        let frames = chain(frame.unwrap_or(0), next(layout.frame_back));
        let of_code = frames.take(MOST_FRAMES).filter_map(|frame| self.frame(layout, frame));
        of_code.take(KEPT_FRAMES).collect()
    }

    /// The frame; `None` for frames that the interpreter pushes for itself.
    fn frame(self, layout: &Layout, frame: usize) -> Option<PythonFrame> {
        let is_own = layout.frame_owner > 0
            && bytes(frame, layout.frame_owner).is_none_or(|[owner]| owner >= OWN_FRAMES);
        // The lowest bits of a reference are not part of the address.
        let code = word(frame, layout.frame_code)? & !7;
        if is_own || word(code, layout.object_type)? != self.code_type {
            return None;
        }
        let file = self.text(layout, word(code, layout.file_name)?)?;
        let function = self.text(layout, word(code, layout.name)?)?;
        let first = i64::from(int(code, layout.first_line)?);
        let at = match layout.instructions {
            // The number of the instruction, of two bytes. -1 before the first.
            0 => usize::try_from(int(frame, layout.frame_instruction)?).map_or(0, |at| 2 * at),
            offset => {
                word(frame, layout.frame_instruction)?.saturating_sub(code.wrapping_add(offset))
            }
        };
        let table = word(code, layout.lines)?;
        let table =
            copy(table.wrapping_add(layout.bytes), word(table, layout.bytes_length)?, MOST_BYTES);
        let line = lines::line(self.minor, &table.unwrap_or_default(), first, at);
        Some(PythonFrame { file, line: line.try_into().unwrap_or(0), function })
    }

    /// The text of a string, cut if it is long, without control characters.
    fn text(self, layout: &Layout, string: usize) -> Option<String> {
        let state = int(string, layout.text_state)?;
        let (kind, is_compact, is_ascii) =
            (state >> 2 & 7, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
        let width =
            usize::try_from(kind).ok().filter(|width| is_compact && [1, 2, 4].contains(width))?;
        let utf8 = match (is_ascii, self.minor) {
            (true, _) => 0,
            // A pointer, and up to Python 3.11 two lengths.
            (false, ..=11) => 24,
            (false, _) => 16,
        };
        let length = word(string, layout.text_length)?.min(MOST_CHARACTERS) * width;
        let text = copy(string.wrapping_add(layout.text_ascii + utf8), length, length)?;
        let character = |bytes: &[u8]| {
            let code = bytes.iter().rev().fold(0, |code, byte| code << 8 | u32::from(*byte));
            char::from_u32(code)
                .filter(|one| !one.is_control())
                .unwrap_or(char::REPLACEMENT_CHARACTER)
        };
        Some(text.chunks(width).map(character).collect())
    }
}

/// The frame of the program, in one line.
pub(crate) fn shown(frames: &[PythonFrame]) -> Option<String> {
    let frame = PythonFrame::of_program(frames)?;
    let folder = env::current_dir().ok();
    Some(frame.below(folder.as_deref()))
}

/// The minor version, from the hexadecimal version of Python 3.
fn minor_of(version: usize) -> Option<u8> {
    let [.., 3, minor, _, _] = version.to_be_bytes() else { return None };
    Some(minor)
}

/// The addresses that follow each other from `first` on, up to 0 or memory that is not mapped.
fn chain(first: usize, next: impl Fn(&usize) -> Option<usize>) -> impl Iterator<Item = usize> {
    core::iter::successors(Some(first).filter(|first| *first > 0), move |from| {
        next(from).filter(|address| *address > 0)
    })
}

/// Reads the field at `offset`.
fn next(offset: usize) -> impl Fn(&usize) -> Option<usize> {
    move |from| word(*from, offset)
}

/// The first owner of frames that the interpreter pushes for itself.
const OWN_FRAMES: u8 = 3;
/// The most copies of Python in a process that are examined.
const MOST_COPIES: usize = 4;
const MOST_INTERPRETERS: usize = 64;
const MOST_THREADS: usize = 4096;
/// States of this thread, one in each interpreter that it runs.
const MOST_STATES: usize = 8;
/// The most frames that are examined, and that are kept.
const MOST_FRAMES: usize = 512;
const KEPT_FRAMES: usize = 32;
/// Bytes of a table of lines. Larger ones are generated code.
const MOST_BYTES: usize = 1 << 20;
/// Characters of a path or name.
const MOST_CHARACTERS: usize = 1024;
