//! Checks from its headers whether an ELF program can be run with a preloaded library.

use std::io::{self, Read, Seek};

use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};

#[derive(Debug)]
pub(crate) enum ElfError {
    /// Why the program cannot be run with the library.
    Refused(&'static str),
    Io(io::Error),
}

impl From<object::read::Error> for ElfError {
    fn from(_: object::read::Error) -> Self {
        Self::Refused(MALFORMED)
    }
}

/// Reads the headers of `file`.
pub(crate) fn check(mut file: impl Read + Seek) -> Result<(), ElfError> {
    let mut start = Vec::new();
    (&mut file).take(KIND).read_to_end(&mut start).map_err(ElfError::Io)?;
    match start.strip_prefix(b"\x7fELF") {
        None => return Err(ElfError::Refused(NOT_ELF)),
        // 64 bits, little-endian.
        Some([2, 1]) => {}
        Some([_, _]) => return Err(ElfError::Refused(OTHER_MACHINE)),
        Some(_) => return Err(ElfError::Refused(MALFORMED)),
    }
    let data = ReadCache::new(file);
    let header = elf::FileHeader64::<Endianness>::parse(&data)?;
    let endian = header.endian()?;
    let mut loader = None;
    for segment in header.program_headers(endian, &data)? {
        loader = segment.interpreter(endian, &data)?.or(loader);
    }
    let is_musl = |loader: &[u8]| String::from_utf8_lossy(loader).contains("musl");
    match loader {
        _ if header.e_machine(endian) != MACHINE => Err(ElfError::Refused(OTHER_MACHINE)),
        None => Err(ElfError::Refused(STATIC)),
        Some(loader) if is_musl(loader) => Err(ElfError::Refused(MUSL)),
        Some(_) => Ok(()),
    }
}

const NOT_ELF: &str = "is no program: neither ELF nor a script with `#!`";
const MALFORMED: &str = "is a malformed ELF file";
const OTHER_MACHINE: &str = "is a program of another architecture than this command";
const STATIC: &str = "is a static program: it has no loader that could preload a library";
const MUSL: &str = "is a program of musl; the library is one of glibc";
/// The machine of this command.
#[cfg(target_arch = "x86_64")]
const MACHINE: elf::Machine = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: elf::Machine = elf::EM_AARCH64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MACHINE: elf::Machine = elf::EM_NONE;
/// Bytes up to the class and the byte order.
const KIND: u64 = 6;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Cursor;

    use super::*;

    fn own_file() -> File {
        File::open(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn this_program_can_be_run_with_a_library() {
        check(own_file()).unwrap();
    }

    #[test]
    fn a_truncated_program_is_an_error_or_a_program() {
        let mut whole = Vec::new();
        own_file().take(2000).read_to_end(&mut whole).unwrap();
        for length in 0..whole.len() {
            let read = check(Cursor::new(&whole[..length]));
            match length {
                0..4 => assert!(matches!(read, Err(ElfError::Refused(NOT_ELF)))),
                4..64 => assert!(matches!(read, Err(ElfError::Refused(MALFORMED))), "{length}"),
                _ => {}
            }
        }
        // Numbers that point outside of the file.
        let mut far = whole.clone();
        far[32..40].fill(0xff);
        assert!(check(Cursor::new(far)).is_err());
    }

    #[test]
    fn programs_of_32_bits_are_of_another_machine() {
        let mut header = [0; 64];
        header[..6].copy_from_slice(b"\x7fELF\x01\x01");
        let read = check(Cursor::new(header));
        assert!(matches!(read, Err(ElfError::Refused(OTHER_MACHINE))));
    }
}
