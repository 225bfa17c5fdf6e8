//! The file of a captured launch: a tar archive with the launch as JSON, its image, and its memory before and after it.

use core::ops::Range;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;

use gridguard::{DeviceLimits, LaunchRequest};
use gridguard_files::{Draft, PublishError, ReadError};
use serde::{Deserialize, Serialize};
use tar::{Archive, Builder, Header};

use crate::memory::MemoryKind;
use crate::process::Format;

/// The format of captures.
pub const CAPTURE_FORMAT: u32 = 1;

/// A launch that was captured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapturedLaunch {
    /// [`CAPTURE_FORMAT`].
    pub format: u32,
    /// The path of the program.
    pub program: String,
    /// The kernel's name in its module.
    pub kernel: String,
    /// The launch's number among those of the kernel, from 1.
    pub number: u64,
    /// The device.
    pub device: DeviceLimits,
    /// The configuration.
    pub request: LaunchRequest,
    /// The ids of further attributes, whose values are not kept.
    pub other_attributes: Vec<u32>,
    /// The share of a multiprocessor's L1 cache that the program prefers as shared memory, in percent; none is the
    /// driver's default.
    pub carveout: Option<u8>,
    /// The value of each parameter.
    pub arguments: Vec<Vec<u8>>,
    /// The bytes of the module's image.
    pub image_bytes: u64,
    /// Allocations by ascending address, then variables.
    pub memory: Vec<CapturedMemory>,
    /// The 8-byte words of the memory that are addresses in an allocation, as far as known.
    pub pointers: u64,
}

/// An allocation or a variable of the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapturedMemory {
    /// Its address in the program.
    pub address: u64,
    /// Its size; not 0.
    pub bytes: u64,
    /// Its kind.
    pub kind: MemoryKind,
    /// The variable's name; none for an allocation.
    pub variable: Option<String>,
}

/// Why a capture cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file cannot be created or named.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The file cannot be opened.
    #[error(transparent)]
    Open(#[from] ReadError),
    /// Reading or writing fails.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no capture, or a damaged one.
    #[error("it is no whole capture of `gridguard run --capture`: {0}")]
    Malformed(String),
    /// Another version of this program wrote it.
    #[error("its format is {0}, this version reads {CAPTURE_FORMAT}: capture the launch again")]
    Format(u32),
}

/// Writes a capture.
#[allow(missing_debug_implementations, reason = "the archive has none")]
pub struct CaptureWriter(Builder<Draft>);

impl CaptureWriter {
    /// Begins the file `path`. It appears with [`Self::finish`].
    ///
    /// # Errors
    ///
    /// [`CaptureError`] if the file cannot be created or written.
    pub fn new(path: &Path, launch: &CapturedLaunch, image: &[u8]) -> Result<Self, CaptureError> {
        let mut writer = Self(Builder::new(Draft::new(path)?));
        let text = serde_json::to_vec(launch).map_err(io::Error::from)?;
        writer.append(LAUNCH, wide(text.len()), &*text)?;
        writer.append(IMAGE, wide(image.len()), image)?;
        Ok(writer)
    }

    /// Writes the contents of an allocation or variable: first all of them from before the launch, then those that the
    /// launch changed, in their order.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] if reading or writing fails.
    pub fn memory(
        &mut self,
        place: usize,
        is_after: bool,
        bytes: u64,
        contents: impl Read,
    ) -> Result<(), CaptureError> {
        let when = if is_after { AFTER } else { BEFORE };
        self.append(&format!("{when}{place}"), bytes, contents)
    }

    /// Gives the file its name. Keeps an existing file. Returns whether the file has its name.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] if writing or naming fails.
    pub fn finish(mut self) -> Result<bool, CaptureError> {
        self.append(END, 0, io::empty())?;
        Ok(self.0.into_inner()?.publish()?)
    }

    fn append(&mut self, name: &str, bytes: u64, contents: impl Read) -> Result<(), CaptureError> {
        let mut header = Header::new_gnu();
        header.set_path(name)?;
        header.set_mode(0o600);
        header.set_size(bytes);
        header.set_cksum();
        Ok(self.0.append(&header, contents)?)
    }
}

/// A capture that was opened and whose sizes were checked.
#[derive(Debug)]
pub struct Capture {
    file: File,
    launch: CapturedLaunch,
    /// Where the image begins in the file.
    image: u64,
    /// Where the contents before and after the launch begin. Those that the launch did not change have no second one.
    contents: Vec<(u64, Option<u64>)>,
}

impl Capture {
    /// Opens a capture. Reads the launch and the headers, not the contents.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] if it cannot be read, or is no whole capture.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let file = gridguard_files::open(path)?;
        let mut sections = Sections { left: Vec::new(), end: file.metadata()?.len() };
        sections.read(file.try_clone()?)?;
        let (at, bytes) = sections.take(LAUNCH)?;
        if bytes > MOST_LAUNCH_BYTES {
            return Err(malformed(format!("its launch has {bytes} bytes")));
        }
        let mut text = vec![0; usize::try_from(bytes).unwrap_or(0)];
        file.read_exact_at(&mut text, at)?;
        let unreadable = |error: serde_json::Error| malformed(error.to_string());
        // Another version may have other fields.
        let Format { format } = serde_json::from_slice(&text).map_err(unreadable)?;
        if format != CAPTURE_FORMAT {
            return Err(CaptureError::Format(format));
        }
        let launch: CapturedLaunch = serde_json::from_slice(&text).map_err(unreadable)?;
        launch.check()?;
        let image = sections.take_sized(IMAGE, launch.image_bytes)?;
        let mut contents = Vec::new();
        for (place, one) in launch.memory.iter().enumerate() {
            contents.push((sections.take_sized(&format!("{BEFORE}{place}"), one.bytes)?, None));
        }
        for ((place, one), (_, after)) in launch.memory.iter().enumerate().zip(&mut contents) {
            let name = format!("{AFTER}{place}");
            if sections.next_is(&name) {
                *after = Some(sections.take_sized(&name, one.bytes)?);
            }
        }
        sections.take_sized(END, 0)?;
        Ok(Self { file, launch, image, contents })
    }

    /// The launch.
    pub const fn launch(&self) -> &CapturedLaunch {
        &self.launch
    }

    /// The module's image.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] if the file cannot be read.
    pub fn image(&self) -> Result<Vec<u8>, CaptureError> {
        let mut image = vec![0; usize::try_from(self.launch.image_bytes).unwrap_or(0)];
        self.file.read_exact_at(&mut image, self.image)?;
        Ok(image)
    }

    /// Whether the launch changed this allocation or variable.
    pub fn is_changed(&self, place: usize) -> bool {
        self.contents.get(place).is_some_and(|(_, after)| after.is_some())
    }

    /// From the first to the last byte that the launch changed.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] if the file cannot be read.
    pub fn changed(&self, place: usize) -> Result<Range<u64>, CaptureError> {
        let mut changed: Option<Range<u64>> = None;
        for part in self.parts(place).filter(|_| self.is_changed(place)) {
            let [old, new] = [false, true].map(|is_after| self.read(place, is_after, &part));
            let (old, new) = (old?, new?);
            let differs = |(one, other): (&u8, &u8)| one != other;
            let first = old.iter().zip(&new).position(differs);
            if let Some((first, last)) = first.zip(old.iter().zip(&new).rposition(differs)) {
                let start = changed.map_or(part.start + wide(first), |changed| changed.start);
                changed = Some(start..part.start + wide(last) + 1);
            }
        }
        Ok(changed.unwrap_or(0..0))
    }

    /// The offsets of parts of an allocation or variable, which fit into memory.
    pub fn parts(&self, place: usize) -> impl Iterator<Item = Range<u64>> + use<> {
        let bytes = self.launch.memory.get(place).map_or(0, |memory| memory.bytes);
        let starts = core::iter::successors(Some(0_u64), |start| start.checked_add(PART_BYTES));
        starts
            .take_while(move |start| *start < bytes)
            .map(move |start| start..start.saturating_add(PART_BYTES).min(bytes))
    }

    /// A part of an allocation or variable before the launch, or after it.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] if the file cannot be read.
    pub fn read(
        &self,
        place: usize,
        is_after: bool,
        part: &Range<u64>,
    ) -> Result<Vec<u8>, CaptureError> {
        let (before, after) = self.contents.get(place).copied().unwrap_or_default();
        let at = after.filter(|_| is_after).unwrap_or(before).saturating_add(part.start);
        let bytes = part.end.saturating_sub(part.start).min(PART_BYTES);
        let mut contents = vec![0; usize::try_from(bytes).unwrap_or(0)];
        self.file.read_exact_at(&mut contents, at)?;
        Ok(contents)
    }
}

impl CapturedLaunch {
    /// Checks the properties that a reader relies on.
    fn check(&self) -> Result<(), CaptureError> {
        let mut end = 0;
        for CapturedMemory { address, bytes, variable, .. } in &self.memory {
            let ends_at = address.checked_add(*bytes).filter(|_| *bytes > 0);
            let is_ordered = variable.is_some() || *address >= end;
            match ends_at.filter(|_| is_ordered) {
                Some(ends_at) => end = if variable.is_some() { u64::MAX } else { ends_at },
                None => {
                    return Err(malformed(format!("memory at {address:#x} with {bytes} bytes")));
                }
            }
        }
        Ok(())
    }
}

/// The entries of an archive that were not taken yet, the last one first.
struct Sections {
    left: Vec<(String, u64, u64)>,
    /// The size of the file.
    end: u64,
}

impl Sections {
    /// Reads the headers. Raw: the archive has neither long names nor sparse files, whose sizes are only claims.
    fn read(&mut self, file: impl Read + Seek) -> Result<(), CaptureError> {
        let broken = |error: io::Error| malformed(error.to_string());
        let mut archive = Archive::new(file);
        for entry in archive.entries_with_seek().map_err(broken)?.raw(true) {
            let entry = entry.map_err(broken)?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let (at, bytes) = (entry.raw_file_position(), entry.size());
            if !entry.header().entry_type().is_file() {
                return Err(malformed(format!("{name:?} is no file")));
            }
            if at.checked_add(bytes).is_none_or(|end| end > self.end) {
                return Err(malformed(format!("it ends within {name:?}")));
            }
            self.left.push((name, at, bytes));
        }
        self.left.reverse();
        Ok(())
    }

    fn next_is(&self, name: &str) -> bool {
        self.left.last().is_some_and(|(next, ..)| next == name)
    }

    /// Where the next entry is, which must have this name.
    fn take(&mut self, name: &str) -> Result<(u64, u64), CaptureError> {
        match self.left.pop() {
            Some((next, at, bytes)) if next == name => Ok((at, bytes)),
            Some((next, ..)) => Err(malformed(format!("{next:?} is in the place of {name:?}"))),
            None => Err(malformed(format!("it ends before {name:?}"))),
        }
    }

    fn take_sized(&mut self, name: &str, expected: u64) -> Result<u64, CaptureError> {
        match self.take(name)? {
            (at, bytes) if bytes == expected => Ok(at),
            (_, bytes) => Err(malformed(format!("{name:?} has {bytes} bytes, not {expected}"))),
        }
    }
}

fn malformed(why: String) -> CaptureError {
    CaptureError::Malformed(why)
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

const LAUNCH: &str = "launch.json";
const IMAGE: &str = "image";
const BEFORE: &str = "before/";
const AFTER: &str = "after/";
const END: &str = "end";
/// More than the arguments and allocations of a launch take.
const MOST_LAUNCH_BYTES: u64 = 16 << 20;
/// Bytes of memory that are handled at once.
const PART_BYTES: u64 = 4 << 20;
