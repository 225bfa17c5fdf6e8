//! Checks from its headers whether an ELF program can be run with a preloaded library.

use std::io::{self, Read, Seek};

use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};

/// Why the program in `file` cannot be run with the library; `None` if it can. Reads its headers.
pub(crate) fn refusal(mut file: impl Read + Seek) -> io::Result<Option<&'static str>> {
    let mut start = Vec::new();
    (&mut file).take(KIND).read_to_end(&mut start)?;
    Ok(match start.strip_prefix(b"\x7fELF") {
        None => Some(NOT_ELF),
        // 64 bits, little-endian.
        Some([2, 1]) => match machine_and_loader(file) {
            Err(_) => Some(MALFORMED),
            Ok((machine, _)) if machine != MACHINE => Some(OTHER_MACHINE),
            Ok((_, None)) => Some(STATIC),
            Ok((_, Some(loader))) if loader.contains("musl") => Some(MUSL),
            Ok(_) => None,
        },
        Some([_, _]) => Some(OTHER_MACHINE),
        Some(_) => Some(MALFORMED),
    })
}

fn machine_and_loader(
    file: impl Read + Seek,
) -> object::read::Result<(elf::Machine, Option<String>)> {
    let data = ReadCache::new(file);
    let header = elf::FileHeader64::<Endianness>::parse(&data)?;
    let endian = header.endian()?;
    let mut loader = None;
    for segment in header.program_headers(endian, &data)? {
        loader = segment.interpreter(endian, &data)?.or(loader);
    }
    let loader = loader.map(|loader| String::from_utf8_lossy(loader).into_owned());
    Ok((header.e_machine(endian), loader))
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

    #[test]
    fn a_truncated_program_is_an_error_or_a_program() {
        let mut whole = Vec::new();
        File::open(std::env::current_exe().unwrap())
            .unwrap()
            .take(2000)
            .read_to_end(&mut whole)
            .unwrap();
        for length in 0..whole.len() {
            let read = refusal(Cursor::new(&whole[..length])).unwrap();
            match length {
                0..4 => assert_eq!(read, Some(NOT_ELF)),
                4..64 => assert_eq!(read, Some(MALFORMED), "{length}"),
                _ => {}
            }
        }
        // Numbers that point outside of the file.
        let mut far = whole.clone();
        far[32..40].fill(0xff);
        assert!(refusal(Cursor::new(far)).unwrap().is_some());
    }
}
