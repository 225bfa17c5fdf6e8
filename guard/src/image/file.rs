//! The images of a file: a cubin, PTX, a fatbin, or a program or static library that contains fatbins.

use std::borrow::Cow;
use std::io::Read;

use super::architecture::{Architecture, Scope, from_number};
use super::checked::Image;
use super::elf::Elf;
use super::error::{ImageError, part, require};
use super::fatbin::{self, Entry, number};
use super::kernels::KernelAttributes;
use super::{archive, cubin, ptx_kernels};
use crate::dim::saturated;
use crate::limits::ComputeCapability;

/// The images of a file.
///
/// The images of a fatbin have the same kernels for different architectures. Programs and libraries contain a fatbin
/// for each source file. With relocatable device code (`-rdc=true`) they also contain a fatbin of the linked kernels.
/// The driver uses the other fatbins, whose kernels state no resources, only for devices without a linked image.
///
/// ```
/// use gridguard::ComputeCapability;
/// use gridguard::image::ImageFile;
///
/// let text = ".version 8.0\n.target sm_80\n.visible .entry scale(.param .u64 x) .maxntid 128 { ret; }";
/// let file = ImageFile::parse(text.as_bytes())?;
/// let image = file.images_for(ComputeCapability::new(9, 0)).next().expect("PTX runs on later GPUs");
/// let [kernel] = &image.kernels()?[..] else { panic!("one kernel") };
/// assert_eq!(kernel.max_threads_per_block, Some(128));
/// assert_eq!(kernel.parameter_bytes, Some(8));
/// assert_eq!(kernel.registers_per_thread, None);
/// # Ok::<(), gridguard::image::ImageError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFile<'a> {
    images: Vec<FileImage<'a>>,
}

/// An image of a file.
#[derive(Clone, Debug)]
pub struct FileImage<'a> {
    /// The number of its fatbin in the file.
    fatbin: usize,
    format: Format,
    architecture: Option<Architecture>,
    stored: &'a [u8],
    compression: Compression,
    options: &'a [u8],
    identifier: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Cubin,
    Ptx,
}

/// How an image is compressed, and its size before, in bytes.
#[derive(Clone, Copy, Debug)]
enum Compression {
    None,
    Lz4(u64),
    Zstd(u64),
}

impl<'a> ImageFile<'a> {
    /// Finds the images of a file without decompressing them. The file is a cubin, PTX, a fatbin, a 64-bit ELF
    /// file with fatbins (an object file, a library or a program), or a static library of such files.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if the file is none of these, incomplete, or contains no image.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ImageError> {
        let mut found = Found::default();
        if bytes.starts_with(archive::MAGIC) {
            found.read_archive(bytes)?;
        } else if bytes.starts_with(archive::THIN_MAGIC) {
            return Err(ImageError::ThinArchive);
        } else {
            found.read_file(bytes)?;
        }
        match (found.images.is_empty(), found.has_intermediate) {
            (false, _) => Ok(Self { images: found.images }),
            (true, false) => Err(ImageError::NoImage),
            (true, true) => Err(ImageError::Intermediate),
        }
    }

    /// All images, in the order of the file.
    pub fn images(&self) -> impl Iterator<Item = &FileImage<'a>> {
        self.images.iter()
    }

    /// The images that a device of `capability` uses. Like the driver, it chooses from each fatbin the machine
    /// code for the nearest architecture, or else the PTX for the latest architecture.
    pub fn images_for(
        &self,
        capability: ComputeCapability,
    ) -> impl Iterator<Item = &FileImage<'a>> {
        let fatbins = self.images.chunk_by(|one, other| one.fatbin == other.fatbin);
        fatbins.filter_map(move |images| {
            let usable = images.iter().filter(|image| image.runs_on(capability));
            usable.max_by_key(|image| (image.format == Format::Cubin, image.architecture))
        })
    }
}

impl FileImage<'_> {
    /// Whether the image is PTX. Otherwise it is machine code.
    pub fn is_ptx(&self) -> bool {
        self.format == Format::Ptx
    }

    /// The architecture that it was compiled for. `None` for PTX without a target, or with an unknown one.
    pub const fn architecture(&self) -> Option<Architecture> {
        self.architecture
    }

    /// Whether devices of `capability` run it.
    pub fn runs_on(&self, capability: ComputeCapability) -> bool {
        self.architecture.is_none_or(|architecture| match self.format {
            Format::Cubin => architecture.runs_on(capability),
            Format::Ptx => architecture.compiles_for(capability),
        })
    }

    /// Its kernels, in the order of the image. Decompresses it.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if it is damaged, or too large to be decompressed.
    pub fn kernels(&self) -> Result<Vec<KernelAttributes>, ImageError> {
        let image = Image::new(self.contents()?)?;
        match image.ptx() {
            Some(text) => ptx_kernels::kernels(text),
            None => cubin::kernels(image.bytes()),
        }
    }

    /// The PTX, which may end with zeros. Decompresses it.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if it is machine code, damaged, or too large to be decompressed.
    pub fn ptx(&self) -> Result<Cow<'_, [u8]>, ImageError> {
        if self.is_ptx() { self.contents() } else { Err(ImageError::unknown(self.stored)) }
    }

    /// The cubin, which may end with zeros. Decompresses it.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if it is PTX, damaged, or too large to be decompressed.
    pub fn cubin(&self) -> Result<Cow<'_, [u8]>, ImageError> {
        if self.is_ptx() { Err(ImageError::unknown(self.stored)) } else { self.contents() }
    }

    /// The compiler options that the fatbin states for the image; often none.
    pub fn compiler_options(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.options.trim_ascii())
    }

    /// The name of the source file that the fatbin states for the image; often none.
    pub fn identifier(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.identifier)
    }

    fn contents(&self) -> Result<Cow<'_, [u8]>, ImageError> {
        let (Compression::Lz4(bytes) | Compression::Zstd(bytes)) = self.compression else {
            return Ok(Cow::Borrowed(self.stored));
        };
        // Keeps the work linear in the size of the file.
        let most = saturated(self.stored.len()).saturating_mul(MOST_TIMES_SMALLER).min(MOST_BYTES);
        let size = usize::try_from(bytes).ok().filter(|_| bytes <= most);
        let size = size.ok_or(ImageError::TooLarge { bytes, most })?;
        let damaged = |reason: String| ImageError::Compressed { reason };
        let mut contents = Vec::new();
        if let Compression::Lz4(_) = self.compression {
            contents = lz4_flex::block::decompress(self.stored, size)
                .map_err(|error| damaged(error.to_string()))?;
        } else {
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(self.stored)
                .map_err(|error| damaged(error.to_string()))?;
            // One byte more than the header states shows that the image is larger.
            let read = decoder.by_ref().take(bytes.saturating_add(1)).read_to_end(&mut contents);
            read.map_err(|error| damaged(error.to_string()))?;
        }
        match contents.len() == size {
            true => Ok(Cow::Owned(contents)),
            false => Err(damaged(format!("its size differs from the {size} bytes in its header"))),
        }
    }
}

/// A cubin or PTX.
fn read_plain(bytes: &[u8]) -> Result<FileImage<'_>, ImageError> {
    let image = Image::new(bytes)?;
    // Future suffixes are unknown, and only the driver knows their meaning.
    let known = |name| Architecture::from_name(name).ok();
    let (format, architecture) = match image.ptx() {
        Some(_) => (Format::Ptx, image.ptx_target().and_then(known)),
        None => (Format::Cubin, Some(cubin::architecture(bytes)?)),
    };
    let (stored, compression, none) = (bytes, Compression::None, &[]);
    let (options, identifier) = (none, none);
    Ok(FileImage { fatbin: 0, format, architecture, stored, compression, options, identifier })
}

/// The images that have been found in a file.
#[derive(Default)]
struct Found<'a> {
    images: Vec<FileImage<'a>>,
    fatbins: usize,
    /// Whether a fatbin has code of the compiler that only the linker turns into an image.
    has_intermediate: bool,
}

impl<'a> Found<'a> {
    /// Adds the images of all members of a static library.
    fn read_archive(&mut self, bytes: &'a [u8]) -> Result<(), ImageError> {
        for (index, member) in archive::members(bytes).enumerate() {
            let member = member?;
            if member.starts_with(&object::elf::ELFMAG) || member.starts_with(&fatbin::MAGIC) {
                let within =
                    |error| ImageError::InArchive { member: index, source: Box::new(error) };
                self.read_file(member).map_err(within)?;
            }
        }
        Ok(())
    }

    /// Adds the images of a file that is no static library.
    fn read_file(&mut self, bytes: &'a [u8]) -> Result<(), ImageError> {
        if bytes.starts_with(&fatbin::MAGIC) {
            self.read_fatbin(bytes)
        } else if bytes.starts_with(&object::elf::ELFMAG) && Elf::of_cubin(bytes).is_err() {
            self.read_program(bytes)
        } else {
            self.images.push(FileImage { fatbin: self.fatbins, ..read_plain(bytes)? });
            self.fatbins += 1;
            Ok(())
        }
    }

    /// Adds the images of the fatbins in an object file, a library or a program.
    fn read_program(&mut self, bytes: &'a [u8]) -> Result<(), ImageError> {
        let elf = Elf::parse(bytes)?;
        let mut looked_at = 0;
        for section in elf.sections {
            if !FATBIN_SECTIONS.iter().any(|name| elf.name_begins(section, name)) {
                continue;
            }
            let mut rest = elf.data(section)?;
            // Overlapping sections would make the work quadratic.
            looked_at += saturated(rest.len());
            let most = saturated(bytes.len());
            require("section table", "size of all fatbins", looked_at, looked_at <= most)?;
            // Fatbins are padded.
            while let Some(start) = rest.iter().position(|byte| *byte != 0) {
                rest = rest.get(start..).unwrap_or_default();
                if !rest.starts_with(&fatbin::MAGIC) {
                    return Err(ImageError::unknown(rest));
                }
                self.read_fatbin(rest)?;
                rest = fatbin::after(rest)?;
            }
        }
        Ok(())
    }

    /// Adds the cubins and PTX of a fatbin.
    fn read_fatbin(&mut self, bytes: &'a [u8]) -> Result<(), ImageError> {
        for entry in fatbin::entries(bytes)? {
            let entry = entry?;
            match entry.kind {
                fatbin::CUBIN => self.push_entry(&entry, Format::Cubin)?,
                fatbin::PTX => self.push_entry(&entry, Format::Ptx)?,
                fatbin::INTERMEDIATE => self.has_intermediate = true,
                _ => {}
            }
        }
        self.fatbins += 1;
        Ok(())
    }

    fn push_entry(&mut self, entry: &Entry<'a>, format: Format) -> Result<(), ImageError> {
        let (header, stored) = (entry.header, entry.stored);
        let flags = number(header, 40, 8);
        let scope = match flags & (FOR_OWN | FOR_FAMILY) {
            0 => Scope::Later,
            FOR_FAMILY => Scope::Family,
            _ => Scope::Own,
        };
        let capability = from_number(u32::try_from(number(header, 28, 4)).unwrap_or(0));
        let (stored_bytes, bytes) = (number(header, 16, 4), number(header, 56, 8));
        let compression = match flags & (LZ4 | ZSTD) {
            0 => Compression::None,
            LZ4 => Compression::Lz4(bytes),
            _ => Compression::Zstd(bytes),
        };
        // Entries are padded.
        let stored = match compression {
            Compression::None => stored,
            _ => part(stored, "compressed fatbin entry", 0, stored_bytes)?,
        };
        let architecture = Some(Architecture { capability, scope });
        // Older headers lack the fields of texts.
        let text = |at| {
            let text = part(header, "text", number(header, at, 4), number(header, at + 4, 4));
            text.unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default()
        };
        self.images.push(FileImage {
            fatbin: self.fatbins,
            format,
            architecture,
            stored,
            compression,
            options: text(64),
            identifier: text(32),
        });
        Ok(())
    }
}

/// Sections of fatbins in programs and in relocatable objects.
const FATBIN_SECTIONS: [&[u8]; 2] = [b".nv_fatbin\0", b"__nv_relfatbin\0"];
/// Flags of a fatbin's entry: its compression, and the suffix of its architecture.
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
const FOR_OWN: u64 = 0x10_0000;
const FOR_FAMILY: u64 = 0x20_0000;
/// The largest image that is decompressed. Real images have about 10 MiB.
const MOST_BYTES: u64 = 1 << 30;
/// The highest accepted compression ratio.
const MOST_TIMES_SMALLER: u64 = 1024;
