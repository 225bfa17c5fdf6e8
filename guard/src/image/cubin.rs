//! The architecture and the kernels of a cubin.

use std::collections::HashMap;

use object::LittleEndian as LE;
use object::elf::{ET_REL, SHN_XINDEX, SHT_SYMTAB_SHNDX, STT_FUNC, SectionType};

use super::architecture::{Architecture, Scope, from_number};
use super::elf::{Elf, SHT_CUDA_INFO, Section};
use super::error::{ImageError, require};
use super::info::records;
use super::kernels::KernelAttributes;
use crate::dim::{Dim3, saturated};

/// The architecture of a cubin that is complete.
pub(super) fn architecture(bytes: &[u8]) -> Result<Architecture, ImageError> {
    let elf = Elf::of_cubin(bytes)?;
    let flags = elf.header.e_flags.get(LE).0;
    let (number, own) = if elf.header.e_ident.abi_version < NEW_ABI {
        (flags & 0xff, flags & OLD_ABI_ACCELERATED)
    } else {
        (flags >> 8 & 0xffff, flags & ACCELERATED)
    };
    let compatible = elf.sections.iter().filter(|section| section.sh_type.get(LE) == SHT_COMPAT);
    let mut own = own != 0;
    for section in compatible {
        own |= records(elf.data(section)?)
            .map_while(Result::ok)
            .any(|record| record.attribute == COMPAT_ACCELERATED && record.number & 0xff != 0);
    }
    let scope = if own { Scope::Own } else { Scope::Later };
    Ok(Architecture { capability: from_number(number), scope })
}

/// The kernels of a cubin that is complete, in the order of its symbols. Linear in its size.
pub(super) fn kernels(bytes: &[u8]) -> Result<Vec<KernelAttributes>, ImageError> {
    let elf = Elf::of_cubin(bytes)?;
    let (symbols, names) = elf.symbols()?;
    let is_linked = elf.header.e_type.get(LE) != ET_REL;
    let resources = Resources::read(&elf)?;
    let reserves = architecture(bytes)?.capability.major >= FIRST_THAT_RESERVES;
    let reserved = if reserves { RESERVED_SHARED_BYTES } else { 0 };
    let sections = large_section_numbers(&elf)?;
    let mut kernels = Vec::new();
    let mut looked_at = 0;
    for (index, symbol) in (0_u32..).zip(symbols) {
        if symbol.st_other.0 & ENTRY_POINT == 0 || symbol.st_type() != STT_FUNC {
            continue;
        }
        let name = name_at(names, symbol.st_name.get(LE), &mut looked_at, bytes)?;
        let code = match symbol.st_shndx.get(LE) {
            SHN_XINDEX => sections.get(position(index)).copied().unwrap_or(0),
            section => section.0.into(),
        };
        let (registers, stack) = resources.of_function(index);
        let shared = resources.shared.get(&code).copied().unwrap_or(0).saturating_sub(reserved);
        let declared = resources.declared.get(&code).cloned().unwrap_or_default();
        kernels.push(KernelAttributes {
            name,
            registers_per_thread: registers.filter(|_| is_linked),
            static_shared_bytes: is_linked.then_some(shared),
            local_bytes_per_thread: stack.filter(|_| is_linked),
            parameter_bytes: Some(declared.parameter_bytes.unwrap_or(0)),
            ..declared
        });
    }
    Ok(kernels)
}

/// The name at an offset of the names. `looked_at` counts the bytes of all names.
fn name_at(names: &[u8], at: u32, looked_at: &mut u64, image: &[u8]) -> Result<String, ImageError> {
    let name = names.get(position(at)..).unwrap_or_default();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    // Overlapping names would make the work quadratic.
    *looked_at += saturated(name.len());
    require(
        "names",
        "size of all symbols' names",
        *looked_at,
        *looked_at <= saturated(image.len()),
    )?;
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// The section number of each symbol, for numbers above 16 bits.
fn large_section_numbers(elf: &Elf<'_>) -> Result<Vec<u32>, ImageError> {
    let mut sections = elf.sections.iter();
    let table = sections.find(|section| section.sh_type.get(LE) == SHT_SYMTAB_SHNDX);
    let (numbers, _) = table.map_or(Ok(&[][..]), |table| elf.data(table))?.as_chunks::<4>();
    Ok(numbers.iter().map(|number| u32::from_le_bytes(*number)).collect())
}

fn position(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

/// The resources of the functions of a cubin.
#[derive(Default)]
struct Resources {
    /// By the index of the function's symbol.
    registers: HashMap<u32, u64>,
    frames: HashMap<u32, u64>,
    stacks: HashMap<u32, u64>,
    /// Bytes of shared memory, by the section of the code.
    shared: HashMap<u32, u64>,
    /// Attributes declared in the source, by the section of the code.
    declared: HashMap<u32, KernelAttributes>,
}

impl Resources {
    fn read(elf: &Elf<'_>) -> Result<Self, ImageError> {
        let mut resources = Self::default();
        for section in elf.sections {
            let code = section.sh_info.get(LE);
            if section.sh_type.get(LE) == SHT_CUDA_INFO {
                if code == 0 {
                    resources.read_functions(elf.data(section)?);
                } else {
                    resources.declared.insert(code, declared(elf, section)?);
                }
            } else if code != 0 && elf.name_begins(section, SHARED_MEMORY) {
                resources.shared.insert(code, section.sh_size.get(LE));
            }
        }
        Ok(resources)
    }

    /// The records of all functions. Each has a symbol and a number.
    fn read_functions(&mut self, section: &[u8]) {
        for record in records(section).map_while(Result::ok) {
            let of = match record.attribute {
                REGISTERS => &mut self.registers,
                FRAME_BYTES => &mut self.frames,
                STACK_BYTES => &mut self.stacks,
                _ => continue,
            };
            if let [symbol, number, ..] = words(record.bytes)[..] {
                of.insert(symbol, number.into());
            }
        }
    }

    /// Registers, and bytes of the stack, of the function with the symbol `index`.
    fn of_function(&self, index: u32) -> (Option<u64>, Option<u64>) {
        let stack = self.stacks.get(&index).or_else(|| self.frames.get(&index));
        (self.registers.get(&index).copied(), stack.copied().filter(|bytes| *bytes != UNKNOWN))
    }
}

/// The attributes in the records of one kernel.
fn declared(elf: &Elf<'_>, section: &Section) -> Result<KernelAttributes, ImageError> {
    let mut kernel = KernelAttributes::default();
    for record in records(elf.data(section)?).map_while(Result::ok) {
        let size = match words(record.bytes)[..] {
            [x, y, z] => Some(Dim3::new(x.into(), y.into(), z.into())),
            _ => None,
        };
        let threads = size.map(|size| u64::try_from(size.volume()).unwrap_or(u64::MAX));
        match record.attribute {
            PARAMETER_BYTES => kernel.parameter_bytes = Some(record.number.into()),
            MAX_THREADS => kernel.max_threads_per_block = threads,
            REQUIRED_BLOCK => {
                (kernel.required_block, kernel.max_threads_per_block) = (size, threads);
            }
            REQUIRED_CLUSTER => kernel.required_cluster = size,
            EXPLICIT_CLUSTER => kernel.cluster_must_be_set = true,
            _ => {}
        }
    }
    Ok(kernel)
}

/// The first three 32-bit numbers of a record.
fn words(bytes: &[u8]) -> arrayvec::ArrayVec<u32, 3> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().take(3).map(|word| u32::from_le_bytes(*word)).collect()
}

/// The first version of the ABI that states the architecture in other bits of the flags.
const NEW_ABI: u8 = 8;
/// Flags of code that only runs on its own compute capability. From CUDA 13.0 on they are in [`SHT_COMPAT`].
const OLD_ABI_ACCELERATED: u32 = 0x800;
const ACCELERATED: u32 = 0x8;
/// Sections about compatibility, and the record that replaces these flags.
const SHT_COMPAT: SectionType = SectionType(0x7000_0086);
const COMPAT_ACCELERATED: u8 = 9;

/// The bit of `st_other` that kernels have.
const ENTRY_POINT: u8 = 0x10;
/// The prefix of the names of shared memory sections.
const SHARED_MEMORY: &[u8] = b".nv.shared.";
/// From compute capability 9.0 on, the shared memory of a kernel begins with the driver's reserved part.
const FIRST_THAT_RESERVES: u32 = 9;
const RESERVED_SHARED_BYTES: u64 = 1024;

/// Records about all functions: a symbol and a number. The stack includes the frames of called functions.
const REGISTERS: u8 = 0x2f;
const FRAME_BYTES: u8 = 0x11;
const STACK_BYTES: u8 = 0x12;
/// The stack of a recursive function, or of a function that calls through pointers.
const UNKNOWN: u64 = 0xffff_ffff;
/// Records about one kernel.
const MAX_THREADS: u8 = 0x05;
const REQUIRED_BLOCK: u8 = 0x10;
const PARAMETER_BYTES: u8 = 0x19;
const REQUIRED_CLUSTER: u8 = 0x3d;
const EXPLICIT_CLUSTER: u8 = 0x3e;
