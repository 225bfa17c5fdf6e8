//! Images and sources that cannot be loaded.
#![allow(unsafe_code, reason = "kernels that are not there")]

use gridguard::Guard;
use gridguard::cuda::Image;
use gridguard_test_support::Random;

use crate::observed::{Expected, Observed, Seen};
use crate::setup::{PTX, Setup};

/// Starts of files that are no images.
const STARTS: [&[u8]; 9] = [
    b"",
    b"<html><body>404 Not Found</body></html>",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:",
    b"PK\x03\x04\x14\x00\x00\x00",
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
    // A host program.
    b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\x3e\x00\x01\x00\x00\x00",
    b"!<arch>\n",
    b"BC\xc0\xde",
    b"MZ\x90\x00",
];
/// Invalid lines of PTX.
const BAD_LINES: [&str; 5] = [
    "{ frobnicate.u64 %rd1, %rd2; ",
    "{ mov.u64 %rd1, ",
    ".visible .entry iota_y( { ret; ",
    "{ ld.global.u64 %rd1, [%rd2; ret; ",
    "{ @%p1 bra NOWHERE; ",
];
/// Code that does not compile; its braces do not match, which the fake NVRTC checks.
const BAD_SOURCES: [(&str, &str); 5] = [
    ("extern \"C\" __global__ void k() { undeclared = 1; ", "CudaError::Compilation"),
    ("#include <no/such/header.h>\n{", "CudaError::Compilation"),
    ("template <class T> { struct ", "CudaError::Compilation"),
    ("#error not today\n}", "CudaError::Compilation"),
    ("void\0", "CudaError::ZeroByte"),
];
/// Names that no kernel has.
const BAD_NAMES: [&str; 5] = ["", "no_such_kernel", "iota\0y", "iota_y ", "IOTA_Y"];
/// Fields of a cubin's header: place, bytes, and the least of the impossible numbers. The offset of the section table,
/// the size of its entries, the index of the section of names, the byte order.
const HEADER: [(usize, usize, u64); 4] =
    [(40, 8, 1 << 40), (58, 2, 1 << 15), (62, 2, 1 << 15), (5, 1, 2)];

const TRUNCATED: &str = "CudaError::Image/Truncated";
const UNKNOWN: &str = "CudaError::Image/Unknown";
const EMPTY: &str = "CudaError::Image/Empty";

pub(crate) fn inject(setup: &Setup, number: u64, random: &mut Random) -> Observed {
    let guard = &setup.guard();
    let replaced = |from: &str, to: String| PTX.replace(from, &to).into_bytes();
    let (drawn, bytes, outcomes): (_, _, &[&str]) = match number % 10 {
        0 => {
            let mut cubin = setup.cubin();
            cubin.truncate(below(random, cubin.len()));
            (format!("{} bytes of a cubin", cubin.len()), cubin, &[TRUNCATED, UNKNOWN, EMPTY])
        }
        1 => {
            let (at, bytes, least) = random.pick(&HEADER);
            let value = least + random.below(least.min(1 << 15) - u64::from(least == 2));
            let mut cubin = setup.cubin();
            cubin[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
            let outcomes = &[TRUNCATED, "CudaError::Image/Damaged"];
            (format!("a cubin with {value} at {at}"), cubin, outcomes)
        }
        2 => {
            let mut bytes = random.pick(&STARTS).to_vec();
            let more = below(random, 5000);
            bytes.extend(noise(random, more));
            (format!("{} bytes of garbage", bytes.len()), bytes, &[TRUNCATED, UNKNOWN, EMPTY])
        }
        3 => {
            let line = format!("{} // {number}", random.pick(&BAD_LINES));
            let text = format!("{PTX}{line}\n").into_bytes();
            (format!("PTX with {line}"), text, &["CudaError::Refused/218 "])
        }
        4 => {
            let version = format!(".version {}.{}", 10 + random.below(90), random.below(10));
            (version.clone(), replaced(".version 8.0", version), &["CudaError::PtxTooNew"])
        }
        5 => {
            let target = format!(".target sm_{}", 200 + 10 * random.below(80));
            (target.clone(), replaced(".target sm_90", target), &["CudaError::WrongArchitecture"])
        }
        6 => {
            let (mut text, place) = (PTX.as_bytes().to_vec(), below(random, PTX.len() - 1));
            text[place] = 0;
            // Within `.version`, there is no version.
            (format!("zero at {place}"), text, &["CudaError::Image/ZeroByte", UNKNOWN])
        }
        7 => {
            let length = 16 + below(random, 5000);
            let mut bytes: Vec<u8> = noise(random, length).collect();
            let stated = u64::try_from(length).expect("few") + random.below(10_000);
            bytes[..4].copy_from_slice(&0xba55_ed50_u32.to_le_bytes());
            bytes[6..8].copy_from_slice(&16_u16.to_le_bytes());
            bytes[8..16].copy_from_slice(&stated.to_le_bytes());
            (format!("a fatbin of {length} bytes that states {stated}"), bytes, &[TRUNCATED])
        }
        8 => {
            let name = format!("{}{number}", random.pick(&BAD_NAMES));
            // SAFETY: nothing is launched with it.
            let seen = Seen::of(&unsafe { setup.module(guard).kernel(&name, &[]) });
            return observed(setup, guard, name, &seen, &["CudaError::NoSuchKernel"], true);
        }
        _ => {
            let (source, outcome) = random.pick(&BAD_SOURCES);
            let source = format!("{source}// {number}");
            let seen = Seen::of(&guard.compile("bad.cu", &source));
            return observed(setup, guard, source, &seen, &[outcome], true);
        }
    };
    let seen = match Image::new(bytes).map(|image| guard.load(&image)) {
        Err(error) => Seen::failure(&gridguard::cuda::CudaError::from(error)),
        Ok(loaded) => Seen::of(&loaded),
    };
    observed(setup, guard, drawn, &seen, outcomes, false)
}

/// Compares what was seen, and launches as usual afterwards.
fn observed(
    setup: &Setup,
    guard: &Guard,
    drawn: String,
    seen: &Seen,
    outcomes: &[&str],
    without_diagnosis: bool,
) -> Observed {
    let expected = Expected { outcomes, without_diagnosis, ..Expected::default() };
    let mut observed = Observed::new(drawn, seen, &expected);
    let ordinary = setup.check_launch(guard);
    observed.require(ordinary.is_ok(), || format!("an ordinary launch: {ordinary:?}"));
    observed
}

fn below(random: &mut Random, end: usize) -> usize {
    usize::try_from(random.below(u64::try_from(end).expect("64 bits"))).expect("below")
}

fn noise(random: &mut Random, bytes: usize) -> impl Iterator<Item = u8> {
    let mut random = Random::new(random.next());
    (0..bytes).map(move |_| random.next().to_le_bytes()[0])
}
