//! Appends a form's words to the arguments of the program.

use core::ffi::c_void;

use crate::driver::abi::{PARAM_BUFFER_POINTER, PARAM_BUFFER_SIZE, PARAM_END};
use crate::watch::handle_record::Reason;

/// The arguments of a form.
#[derive(Debug)]
pub(super) enum Arguments {
    /// The addresses of the parameters; the last address is of the words.
    Addresses(Vec<*mut c_void>),
    /// All parameters in one buffer.
    Buffer {
        buffer: Vec<u8>,
        /// Where the words begin.
        words_at: usize,
    },
}

/// The arguments of a launch: addresses of the parameters, or options with a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawArguments {
    pub(crate) parameters: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
}

/// The place of a form's words: after `index` parameters, at `offset` bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WordSlot {
    pub(super) index: usize,
    pub(super) offset: usize,
    /// Bytes of the kernel's own parameters.
    pub(super) own_bytes: usize,
}

impl Arguments {
    /// The program's arguments.
    ///
    /// # Safety
    ///
    /// The program passes `passed` to a launch of a kernel, whose form takes its words at `slot`.
    pub(super) unsafe fn new(passed: RawArguments, slot: WordSlot) -> Result<Self, Reason> {
        let RawArguments { parameters, extra } = passed;
        // SAFETY: by this function's contract.
        unsafe {
            match (parameters.is_null(), extra.is_null()) {
                (false, true) => Ok(Self::Addresses(
                    (0..slot.index).map(|place| *parameters.add(place)).collect(),
                )),
                (true, true) if slot.index == 0 => Ok(Self::Addresses(Vec::new())),
                (true, true) => Err("the launch passes no arguments".into()),
                (_, false) => Self::of_buffer(extra, slot),
            }
        }
    }

    /// # Safety
    ///
    /// `extra` is a list of options, which ends with [`PARAM_END`].
    unsafe fn of_buffer(extra: *mut *mut c_void, slot: WordSlot) -> Result<Self, Reason> {
        let (mut bytes, mut size) = (core::ptr::null::<u8>(), None);
        let mut at = extra;
        // SAFETY: each option but the last is followed by its value.
        unsafe {
            while (*at).addr() != PARAM_END {
                let value = *at.add(1);
                match (*at).addr() {
                    PARAM_BUFFER_POINTER => bytes = value.cast(),
                    PARAM_BUFFER_SIZE if !value.is_null() => size = Some(*value.cast::<usize>()),
                    other => return Err(format!("the launch has the option {other}").into()),
                }
                at = at.add(2);
            }
        }
        let Some(size) = size.filter(|_| !bytes.is_null()) else {
            return Err("the launch passes no whole buffer of arguments".into());
        };
        if size < slot.own_bytes {
            let own = slot.own_bytes;
            return Err(
                format!("it passes {size} bytes of arguments, the kernel takes {own}").into()
            );
        }
        // SAFETY: the buffer has as many bytes.
        let own = unsafe { core::slice::from_raw_parts(bytes, slot.own_bytes) };
        let mut buffer = own.to_owned();
        buffer.resize(slot.offset, 0);
        Ok(Self::Buffer { buffer, words_at: slot.offset })
    }

    /// Passes these arguments with `words` to `launch`.
    pub(super) fn with<T>(
        &mut self,
        words: &mut [u32],
        launch: impl FnOnce(RawArguments) -> T,
    ) -> T {
        match self {
            Self::Addresses(addresses) => {
                let own = addresses.len();
                addresses.push(words.as_mut_ptr().cast());
                let passed = RawArguments {
                    parameters: addresses.as_mut_ptr(),
                    extra: core::ptr::null_mut(),
                };
                let result = launch(passed);
                addresses.truncate(own);
                result
            }
            Self::Buffer { buffer, words_at } => {
                buffer.truncate(*words_at);
                buffer.extend(words.iter().flat_map(|word| word.to_le_bytes()));
                let mut size = buffer.len();
                let option = core::ptr::without_provenance_mut::<c_void>;
                let mut extra = [
                    option(PARAM_BUFFER_POINTER),
                    buffer.as_mut_ptr().cast(),
                    option(PARAM_BUFFER_SIZE),
                    (&raw mut size).cast(),
                    option(PARAM_END),
                ];
                launch(RawArguments {
                    parameters: core::ptr::null_mut(),
                    extra: extra.as_mut_ptr(),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: WordSlot = WordSlot { index: 2, offset: 12, own_bytes: 10 };

    fn option(number: usize) -> *mut c_void {
        core::ptr::without_provenance_mut(number)
    }

    fn new(passed: RawArguments) -> Result<Arguments, Reason> {
        // SAFETY: live arguments of a kernel that takes two.
        unsafe { Arguments::new(passed, SLOT) }
    }

    #[test]
    fn a_launch_without_whole_arguments_is_not_fixed() {
        let none = RawArguments { parameters: core::ptr::null_mut(), extra: core::ptr::null_mut() };
        assert_eq!(new(none).unwrap_err(), "the launch passes no arguments");
        let with = |extra: &mut [*mut c_void]| {
            new(RawArguments { extra: extra.as_mut_ptr(), ..none }).unwrap_err().into_owned()
        };
        let (mut bytes, mut size) = ([0_u8; 8], 8_usize);
        let buffer = [option(PARAM_BUFFER_POINTER), bytes.as_mut_ptr().cast()];
        let end = option(PARAM_END);
        let no_buffer = "the launch passes no whole buffer of arguments";
        assert_eq!(with(&mut [end]), no_buffer);
        assert_eq!(with(&mut [buffer[0], buffer[1], end]), no_buffer);
        assert_eq!(with(&mut [option(7), end, end]), "the launch has the option 7");
        let short = with(&mut [
            buffer[0],
            buffer[1],
            option(PARAM_BUFFER_SIZE),
            (&raw mut size).cast(),
            end,
        ]);
        assert_eq!(short, "it passes 8 bytes of arguments, the kernel takes 10");
    }
}
