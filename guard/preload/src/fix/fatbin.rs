//! The PTX in a fat binary that its machine code was compiled from: that of the same architecture and source file, if the
//! notes of the machine code name no other PTX and no option that the driver does not apply.

use gridguard::ComputeCapability;
use gridguard::image::{FileImage, ImageError, ImageFile};

use crate::fix::assembler;
use crate::watch::handle_record::{Digest, Reason};

/// The PTX of a fat binary's machine code for a device: its pair, or else what a `ptxas` of the run assembled to it.
pub(super) fn in_fatbin(bytes: &[u8], capability: ComputeCapability) -> Result<Vec<u8>, Reason> {
    let file = match ImageFile::parse(bytes) {
        Err(ImageError::NoImage) => return Err(NO_PTX.into()),
        parsed => parsed.map_err(unreadable)?,
    };
    let code = file.images_for(capability).next();
    let code = code.ok_or("its fat binary has nothing for the device")?;
    if code.is_ptx() {
        return text_of(code);
    }
    let cubin = code.cubin().map_err(unreadable)?;
    pair(&file, code, &cubin)
        .and_then(text_of)
        .or_else(|reason| assembler::find(Digest::of_cubin(&cubin)).unwrap_or(Err(reason)))
}

/// The PTX of the compilation that made this machine code.
fn pair<'i, 'a>(
    file: &'i ImageFile<'a>,
    code: &FileImage<'a>,
    cubin: &[u8],
) -> Result<&'i FileImage<'a>, Reason> {
    let mut all = file.images().filter(|image| image.is_ptx()).peekable();
    if all.peek().is_none() {
        return Err(NO_PTX.into());
    }
    let is_pair = |image: &&FileImage<'_>| {
        image.architecture() == code.architecture() && image.identifier() == code.identifier()
    };
    let mut pairs = all.filter(is_pair);
    let of = code.architecture().map_or_else(String::new, |of| of.to_string());
    let (Some(ptx), None) = (pairs.next(), pairs.next()) else {
        let number = of.trim_start_matches("sm_");
        return Err(format!(
            "its fat binary has no PTX of the compilation that made its code for {of}: compile it with -gencode \
             arch=compute_{number},code=[sm_{number},compute_{number}]"
        )
        .into());
    };
    let compiled_for = virtual_architecture(cubin);
    if compiled_for
        .is_some_and(|number| !of.trim_end_matches(['a', 'f']).ends_with(&format!("_{number}")))
    {
        return Err(format!(
            "its code for {of} was compiled from PTX for compute_{}, which its fat binary lacks",
            compiled_for.unwrap_or(0)
        )
        .into());
    }
    match options_of(cubin).and_then(assembler::other_option) {
        Some(option) => Err(format!(
            "its code was compiled with an option that the driver does not apply: {option}"
        )
        .into()),
        None => Ok(ptx),
    }
}

/// The text of PTX in a fat binary, with a zero at its end.
pub(super) fn text_of(image: &FileImage<'_>) -> Result<Vec<u8>, Reason> {
    let options = image.compiler_options();
    if !options.is_empty() {
        return Err(format!(
            "the PTX of its fat binary is compiled with options that a rewritten one would lose: {options}"
        )
        .into());
    }
    Ok(with_zero(image.ptx().map_err(unreadable)?.into_owned()))
}

/// The text with one zero byte at its end, as the driver takes it.
pub(super) fn with_zero(mut text: Vec<u8>) -> Vec<u8> {
    let end = text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    text.truncate(end);
    text.push(0);
    text
}

pub(super) fn unreadable(error: ImageError) -> Reason {
    format!("its fat binary cannot be read: {error}").into()
}

/// The architecture of the PTX that a cubin was assembled from, as its note or its header states it: 90 for `compute_90`.
fn virtual_architecture(cubin: &[u8]) -> Option<u16> {
    const OF_HEADER: [(usize, u8); 3] = [(7, 51), (8, 7), (18, 190)];
    if let Some([_, _, low, high, ..]) = note(cubin, 1000) {
        return Some(u16::from_le_bytes([*low, *high]));
    }
    // `EF_CUDA_VIRTUAL_SM`, up to version 7 of the format.
    let is_old = OF_HEADER.iter().all(|(at, byte)| cubin.get(*at) == Some(byte));
    cubin.get(50).filter(|_| is_old).map(|number| u16::from(*number))
}

/// The options that a cubin was assembled with, as the note of its tool states them.
fn options_of(cubin: &[u8]) -> Option<&str> {
    let note = note(cubin, 2000)?;
    let at = u32::from_le_bytes(*note.get(20..)?.first_chunk()?);
    let options = note.get(24..)?.get(usize::try_from(at).ok()?..)?;
    str::from_utf8(options.split(|byte| *byte == 0).next()?).ok()
}

/// The contents of the first note of NVIDIA's of this kind.
fn note(cubin: &[u8], kind: u32) -> Option<&[u8]> {
    const OWNER: &[u8] = b"NVIDIA Corp\0";
    let found = cubin.windows(OWNER.len()).enumerate().filter(|(_, bytes)| *bytes == OWNER);
    let mut notes = found.filter_map(|(at, _)| Some((cubin.get(at.checked_sub(12)?..at)?, at)));
    let (head, at) = notes.find(|(head, _)| head[8..] == kind.to_le_bytes())?;
    let bytes = usize::try_from(u32::from_le_bytes(*head[4..].first_chunk()?)).ok()?;
    cubin.get(at + OWNER.len()..)?.get(..bytes)
}

const NO_PTX: &str = "its fat binary has machine code without PTX: compile it also for code=compute_XX (nvcc); the \
                      attention of a package is served by gridguard.torch";
