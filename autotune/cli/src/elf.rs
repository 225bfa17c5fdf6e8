//! What the loader reads of an ELF program: its machine, and which loader it names.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// A program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    /// Whether it runs in the same kind of process as this command.
    pub(crate) is_of_this_machine: bool,
    /// The path of its loader; `None` for a static program.
    pub(crate) interpreter: Option<String>,
}

/// Why a program could not be read.
#[derive(Debug)]
pub(crate) enum ElfError {
    NotElf,
    Malformed,
    Io(io::Error),
}

impl From<io::Error> for ElfError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Malformed,
            _ => Self::Io(error),
        }
    }
}

impl Elf {
    /// Reads the headers of the file at `path`.
    pub(crate) fn read(path: &Path) -> Result<Self, ElfError> {
        Self::from_file(File::open(path)?)
    }

    fn from_file(mut file: impl Read + Seek) -> Result<Self, ElfError> {
        let mut magic = [0; 4];
        match file.read_exact(&mut magic) {
            Ok(()) if magic == *b"\x7fELF" => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error.into()),
            _ => return Err(ElfError::NotElf),
        }
        let mut header = [0; HEADER - 4];
        file.read_exact(&mut header[..KIND])?;
        // 64 bits, little-endian.
        if header[..2] != [2, 1] {
            return Ok(Self { is_of_this_machine: false, interpreter: None });
        }
        file.read_exact(&mut header[KIND..])?;
        let at = |offset: usize| header.get(offset - 4..).unwrap_or_default();
        let is_of_this_machine = u16_at(at(18))? == MACHINE;
        let (table, size, count) = (u64_at(at(32))?, u16_at(at(54))?, u16_at(at(56))?);
        for number in 0..u64::from(count) {
            let place =
                number.checked_mul(size.into()).and_then(|offset| offset.checked_add(table));
            file.seek(SeekFrom::Start(place.ok_or(ElfError::Malformed)?))?;
            let mut segment = [0; SEGMENT];
            file.read_exact(&mut segment)?;
            if segment[..4] != INTERPRETER {
                continue;
            }
            let (place, length) = (u64_at(&segment[8..])?, u64_at(&segment[32..])?);
            file.seek(SeekFrom::Start(place))?;
            let mut path = Vec::new();
            (&mut file).take(length.min(LONGEST_PATH)).read_to_end(&mut path)?;
            let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
            let interpreter = Some(String::from_utf8_lossy(path).into_owned());
            return Ok(Self { is_of_this_machine, interpreter });
        }
        Ok(Self { is_of_this_machine, interpreter: None })
    }
}

fn u16_at(bytes: &[u8]) -> Result<u16, ElfError> {
    let (number, _) = bytes.split_first_chunk().ok_or(ElfError::Malformed)?;
    Ok(u16::from_le_bytes(*number))
}

fn u64_at(bytes: &[u8]) -> Result<u64, ElfError> {
    let (number, _) = bytes.split_first_chunk().ok_or(ElfError::Malformed)?;
    Ok(u64::from_le_bytes(*number))
}

/// Bytes of a file header, of its first part after the magic number, and of a program header.
const HEADER: usize = 64;
const KIND: usize = 12;
const SEGMENT: usize = 56;
/// `PT_INTERP`.
const INTERPRETER: [u8; 4] = 3_u32.to_le_bytes();
/// The longest path that the kernel takes.
const LONGEST_PATH: u64 = 4096;
/// `e_machine` of this command.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

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
    fn every_cut_of_a_program_is_an_error_or_a_program() {
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
