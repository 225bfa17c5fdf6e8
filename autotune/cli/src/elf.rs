//! Reads which loader an ELF program names, and whether it is a program of this machine.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    pub(crate) is_of_this_machine: bool,
    /// The path of its loader; `None` for a static program.
    pub(crate) interpreter: Option<String>,
}

#[derive(Debug)]
pub(crate) enum ElfError {
    NotElf,
    Malformed,
    Io(io::Error),
}

impl From<object::read::Error> for ElfError {
    fn from(_: object::read::Error) -> Self {
        Self::Malformed
    }
}

impl Elf {
    /// Reads the headers of the file at `path`.
    pub(crate) fn read(path: &Path) -> Result<Self, ElfError> {
        Self::from_file(File::open(path).map_err(ElfError::Io)?)
    }

    fn from_file(mut file: impl Read + Seek) -> Result<Self, ElfError> {
        let mut start = Vec::new();
        (&mut file).take(KIND).read_to_end(&mut start).map_err(ElfError::Io)?;
        match start.strip_prefix(b"\x7fELF") {
            None => return Err(ElfError::NotElf),
            // 64 bits, little-endian.
            Some([2, 1]) => {}
            Some([_, _]) => return Ok(Self { is_of_this_machine: false, interpreter: None }),
            Some(_) => return Err(ElfError::Malformed),
        }
        let data = ReadCache::new(file);
        let header = elf::FileHeader64::<Endianness>::parse(&data)?;
        let endian = header.endian()?;
        let mut interpreter = None;
        for segment in header.program_headers(endian, &data)? {
            if let Some(path) = segment.interpreter(endian, &data)? {
                interpreter = Some(String::from_utf8_lossy(path).into_owned());
            }
        }
        Ok(Self { is_of_this_machine: header.e_machine(endian) == MACHINE, interpreter })
    }
}

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
    use std::io::Cursor;

    use super::*;

    #[test]
    fn this_program_names_its_loader() {
        let own = Elf::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(own.is_of_this_machine);
        assert!(own.interpreter.unwrap().contains("ld-linux"));
    }

    #[test]
    fn a_truncated_program_is_an_error_or_a_program() {
        let mut whole = Vec::new();
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        own.take(2000).read_to_end(&mut whole).unwrap();
        for length in 0..whole.len() {
            let read = Elf::from_file(Cursor::new(&whole[..length]));
            match length {
                0..4 => assert!(matches!(read, Err(ElfError::NotElf))),
                4..64 => assert!(matches!(read, Err(ElfError::Malformed)), "{length}"),
                _ => {}
            }
        }
        // Numbers that point outside of the file.
        let mut far = whole.clone();
        far[32..40].fill(0xff);
        assert!(Elf::from_file(Cursor::new(far)).is_err());
    }

    #[test]
    fn programs_of_32_bits_are_of_another_machine() {
        let mut header = [0; 64];
        header[..6].copy_from_slice(b"\x7fELF\x01\x01");
        let read = Elf::from_file(Cursor::new(header)).unwrap();
        assert_eq!(read, Elf { is_of_this_machine: false, interpreter: None });
    }
}
