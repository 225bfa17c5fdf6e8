//! Images and sources that cannot be loaded.
#![allow(unsafe_code, reason = "kernels that are not there")]

use gridguard::cuda::{Image, LoadError};
use gridguard_test_support::Random;

use crate::cubin::{self, HEADER};
use crate::device_setup::DeviceSetup;
use crate::environment::RunEnvironment;
use crate::expected::{Expected, Observed};
use crate::fault::Case;
use crate::observed_error::{Describe, ObservedError, describe};

/// The defect of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A truncated cubin.
    Truncated,
    /// A cubin with an impossible header.
    Headers,
    /// A cubin for another architecture.
    OtherArchitecture,
    /// Bytes that are no CUDA image.
    Garbage,
    /// Text that is not PTX.
    NotPtx,
    /// PTX with an invalid line.
    BadPtx,
    /// PTX of a future version.
    FuturePtx,
    /// PTX for a future architecture.
    FutureTarget,
    /// PTX with a zero byte within.
    ZeroByte,
    Empty,
    /// Many zeros.
    Huge,
    /// A truncated fatbin.
    Fatbin,
    /// A complete image without the kernel.
    NoSuchKernel,
    /// CUDA C++ that does not compile.
    BadSource,
    /// CUDA C++ with a zero byte within.
    BrokenSource,
}

const WHATS: [What; 15] = [
    What::Truncated,
    What::Headers,
    What::OtherArchitecture,
    What::Garbage,
    What::NotPtx,
    What::BadPtx,
    What::FuturePtx,
    What::FutureTarget,
    What::ZeroByte,
    What::Empty,
    What::Huge,
    What::Fatbin,
    What::NoSuchKernel,
    What::BadSource,
    What::BrokenSource,
];

/// Starts of files that are no images.
const STARTS: [&[u8]; 8] = [
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
const BAD_SOURCES: [&str; 6] = [
    "extern \"C\" __global__ void k() { undeclared = 1; ",
    "extern \"C\" __global__ void k(no_such_type x) { ",
    "#include <no/such/header.h>\n{",
    "extern \"C\" __global__ void k() { int x = \"text\"; }}",
    "template <class T> { struct ",
    "#error not today\n}",
];

/// An image that cannot be loaded.
#[derive(Debug)]
pub(crate) struct BadImage {
    what: What,
    /// A random number for a length, an offset or a version.
    number: u64,
    /// Another random number.
    other: u64,
}

pub(crate) fn draw(number: u64, random: &mut Random) -> BadImage {
    let count = u64::try_from(WHATS.len()).expect("few");
    let what = WHATS[usize::try_from(number % count).expect("few")];
    BadImage { what, number: random.next(), other: random.next() }
}

impl BadImage {
    /// One of `from`, by the first number.
    fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A number below `end` by the first number.
    fn below(&self, end: usize) -> usize {
        usize::try_from(self.number % u64::try_from(end).expect("64 bits")).expect("below")
    }

    fn noise(&self, bytes: usize) -> Vec<u8> {
        let mut random = Random::new(self.other);
        (0..bytes.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(bytes).collect()
    }

    fn bytes(&self, environment: &RunEnvironment) -> Vec<u8> {
        let ptx = crate::environment::PTX;
        match self.what {
            What::Truncated => {
                let mut cubin = environment.own_cubin();
                cubin.truncate(self.below(cubin.len()));
                cubin
            }
            What::Headers => self.with_bad_headers(environment.own_cubin()),
            What::OtherArchitecture => {
                let cubins = environment.foreign_cubins();
                std::fs::read(&cubins[self.below(cubins.len())]).expect("made by the parent")
            }
            What::Garbage => {
                let mut bytes = self.pick(&STARTS).to_vec();
                bytes.extend(self.noise(self.below(5000)));
                bytes
            }
            What::NotPtx => {
                let printable = |byte: u8| 32 + byte % 95;
                self.noise(1 + self.below(5000)).into_iter().map(printable).collect()
            }
            What::BadPtx => format!("{ptx}{}\n", self.pick(&BAD_LINES)).into_bytes(),
            What::FuturePtx => {
                let version = format!(".version {}.{}", 10 + self.below(90), self.other % 10);
                ptx.replace(".version 8.0", &version).into_bytes()
            }
            What::FutureTarget => {
                let target = format!(".target sm_{}", 200 + 10 * self.below(80));
                ptx.replace(".target sm_90", &target).into_bytes()
            }
            What::ZeroByte => {
                let mut text = ptx.as_bytes().to_vec();
                let place = self.below(text.len() - 1);
                text[place] = 0;
                text
            }
            What::Empty => Vec::new(),
            What::Huge => {
                let bytes = (8 << 20) + self.below(56 << 20);
                vec![self.pick(&[0, b' ', b'a', 0xff]); bytes]
            }
            What::Fatbin => {
                let mut bytes = self.noise(16 + self.below(5000));
                bytes[..4].copy_from_slice(&0xba55_ed50_u32.to_le_bytes());
                bytes[6..8].copy_from_slice(&16_u16.to_le_bytes());
                let announced = u64::try_from(bytes.len()).expect("few") + self.other % 10_000;
                bytes[8..16].copy_from_slice(&announced.to_le_bytes());
                bytes
            }
            What::NoSuchKernel | What::BadSource | What::BrokenSource => {
                environment.image("kernels")
            }
        }
    }

    /// The cubin with an impossible number in one header.
    fn with_bad_headers(&self, mut cubin: Vec<u8>) -> Vec<u8> {
        let beyond = u64::try_from(cubin.len()).expect("64 bits") + self.other % (1 << 40);
        let sections = cubin::sections(&cubin);
        let section = &sections[self.below(sections.len())];
        let number = (1 << 15) + self.other % (1 << 15);
        let (at, bytes, value) = match self.other % 8 {
            // Offset of the section table, size of its entries, index of the section of names.
            0 => (HEADER - 24, 8, beyond),
            1 => (HEADER - 6, 2, number),
            2 => (HEADER - 2, 2, number),
            // Byte order.
            3 => (5, 1, 2 + self.other % 250),
            // Offset, size, name and linked section of one section.
            4 => (section.header + 24, 8, beyond),
            5 => (section.header + 32, 8, beyond),
            6 => (section.header, 4, beyond % (1 << 31)),
            _ => (section.header + 40, 4, number),
        };
        cubin[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        cubin
    }

    fn load(&self, setup: &DeviceSetup) -> ObservedError {
        let guard = setup.guard();
        match self.what {
            What::BadSource => return describe(&guard.compile("bad.cu", self.pick(&BAD_SOURCES))),
            What::BrokenSource => return describe(&guard.compile("bad.cu", "void\0")),
            _ => {}
        }
        let image = match Image::new(self.bytes(&setup.environment)) {
            Ok(image) => image,
            Err(error) => return error.describe(),
        };
        let module = match guard.load(&image) {
            Ok(module) => module,
            Err(error) => return error.describe(),
        };
        let names = ["", "no_such_kernel", "iota\0y", "iota_y ", "IOTA_Y"];
        let name = if self.what == What::NoSuchKernel { self.pick(&names) } else { "iota_y" };
        // SAFETY: nothing is launched with it.
        let found: Result<_, LoadError> = unsafe { module.kernel(name, &[]) };
        describe(&found)
    }
}

impl Case for BadImage {
    fn name(&self) -> &'static str {
        match self.what {
            What::Truncated => "truncated_cubin",
            What::Headers => "damaged_headers",
            What::OtherArchitecture => "another_architecture",
            What::Garbage => "garbage",
            What::NotPtx => "text",
            What::BadPtx => "bad_ptx",
            What::FuturePtx => "future_ptx",
            What::FutureTarget => "future_target",
            What::ZeroByte => "zero_byte",
            What::Empty => "empty",
            What::Huge => "huge",
            What::Fatbin => "truncated_fatbin",
            What::NoSuchKernel => "no_such_kernel",
            What::BadSource => "bad_source",
            What::BrokenSource => "zero_byte_in_source",
        }
    }

    fn needs_a_process(&self) -> bool {
        false
    }

    fn expected(&self, _ground: &RunEnvironment) -> Expected {
        let load = "CudaError::Load";
        let of_image = |variant: &str| format!("{load}/Image/{variant}");
        match self.what {
            What::Truncated => {
                let outcomes = ["Truncated", "Unknown", "Empty"].map(of_image);
                Expected::one_of(outcomes)
            }
            What::Headers => Expected::one_of([of_image("Truncated"), of_image("Damaged")]),
            What::Fatbin => Expected::one_of([of_image("Truncated")]),
            What::OtherArchitecture | What::FutureTarget => {
                Expected::one_of([format!("{load}/WrongArchitecture")])
            }
            What::Garbage | What::NotPtx | What::Huge => {
                Expected::one_of([of_image("Unknown"), of_image("Truncated")])
            }
            What::BadPtx => Expected::one_of([format!("{load}/Refused/218 ")]),
            What::FuturePtx => Expected::one_of([format!("{load}/PtxTooNew")]),
            // Cut within `.version`, there is no version.
            What::ZeroByte => Expected::one_of([of_image("ZeroByte"), of_image("Unknown")]),
            What::Empty => Expected::one_of([of_image("Empty")]),
            What::NoSuchKernel => Expected::one_of(["LoadError::NoSuchKernel"]).guards_own(),
            What::BadSource => Expected::one_of(["CudaError::Compile/Compilation"]).guards_own(),
            What::BrokenSource => Expected::one_of(["CudaError::Compile/ZeroByte"]).guards_own(),
        }
    }

    fn inject(&self, setup: &DeviceSetup) -> Observed {
        let mut observed = Observed::new(self.load(setup));
        if let Err(error) = crate::device_setup::counts_right(setup, &setup.guard()) {
            observed.complain(format!("an ordinary launch afterwards: {error}"));
        }
        observed
    }
}
