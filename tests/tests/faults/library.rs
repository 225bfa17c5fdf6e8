//! Libraries that are missing, invalid, or other ones than their names say.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use gridguard::cuda::{Image, device_count, driver_version};
use gridguard::{DeviceLimits, Guard};
use gridguard_test_support::Random;
use gridguard_test_support::fake_library::{COMPILER, DRIVER};

use crate::device::require_fallback;
use crate::observed::{Expected, Observed, Seen};
use crate::setup::{PTX, Setup};

/// What takes the place of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// A file of about so many bytes that is no library: text, noise or a part of a library; or a folder.
    NoLibrary(u64, usize),
    /// The library without one function.
    Without(&'static str),
    /// The fake driver, which fails to initialise with this code.
    Fails(i32),
}

/// Functions that the guard requires of a driver.
const OF_DRIVER: [&str; 20] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuDeviceGetCount",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuDevicePrimaryCtxRetain",
    "cuMemGetInfo_v2",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuLaunchKernel",
    "cuLaunchCooperativeKernel",
    "cuStreamSynchronize",
    "cuMemAllocAsync",
    "cuMemcpyDtoHAsync_v2",
    "cuEventRecord",
    "cuEventDestroy_v2",
];
/// Functions that the guard requires of NVRTC.
const OF_COMPILER: [&str; 5] = [
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetProgramLog",
];
/// Codes that `cuInit` may return. 34 is a toolkit's stub.
const CODES: [i32; 9] = [2, 3, 34, 46, 304, 802, 803, 804, 999];

/// The names of the replaced libraries, the content, the expected outcome, and part of the message.
fn draw(
    number: u64,
    random: &mut Random,
) -> (&'static [&'static str], Content, &'static str, String) {
    let (file, length) = (random.below(4), usize::try_from(random.below(3000)).expect("few"));
    let (code, of_compiler) = (random.pick(&CODES), random.pick(&OF_COMPILER));
    let symbol = OF_DRIVER[usize::try_from(number).expect("few") / 3 % OF_DRIVER.len()];
    match number % 11 {
        0..=3 => (&DRIVER, Content::NoLibrary(file, length), "LibraryMissing", String::new()),
        4..=8 => (&DRIVER, Content::Without(symbol), "SymbolMissing", symbol.into()),
        9 => (&DRIVER, Content::Fails(code), "InitFailed", format!("({code})")),
        _ => (&COMPILER, Content::Without(of_compiler), "SymbolMissing", of_compiler.into()),
    }
}

pub(crate) fn prepare(
    setup: &Setup,
    own: &Path,
    number: u64,
    random: &mut Random,
) -> Vec<(&'static str, OsString)> {
    let (names, content, ..) = draw(number, random);
    let own = own.join("libraries");
    fs::create_dir(&own).expect("a folder of libraries");
    let whole = if names == COMPILER { COMPILER[0] } else { DRIVER[0] };
    let whole = fs::read(setup.libraries().join(whole)).expect("built");
    let mut variables = vec![("LD_LIBRARY_PATH", setup.library_path(Some(own.clone())))];
    for home in ["CUDA_HOME", "CUDA_PATH"] {
        variables.push((home, own.join("no-toolkit").into_os_string()));
    }
    let bytes = match content {
        Content::NoLibrary(0, length) => b"on another disk\n".repeat(1 + length / 16),
        Content::NoLibrary(1, length) => {
            (0..length).map(|_| random.next().to_le_bytes()[0]).collect()
        }
        // Cut behind its headers, the C library's loader would crash.
        Content::NoLibrary(2, length) => whole[..=length / 10].to_vec(),
        Content::NoLibrary(..) => {
            names.iter().for_each(|name| fs::create_dir(own.join(name)).expect("a folder"));
            return variables;
        }
        Content::Without(symbol) => renamed(whole, symbol),
        Content::Fails(code) => {
            variables.push(("GRIDGUARD_FAKE_INIT", code.to_string().into()));
            whole
        }
    };
    fs::write(own.join(names[0]), &bytes).expect("written");
    // The guard and cudarc must find the same file.
    let link = |name| std::os::unix::fs::symlink(names[0], own.join(name)).expect("a link");
    names[1..].iter().for_each(link);
    variables
}

/// The library with the function `name` renamed.
fn renamed(mut library: Vec<u8>, name: &str) -> Vec<u8> {
    let wanted = format!("\0{name}\0").into_bytes();
    let windows = library.windows(wanted.len()).enumerate();
    let places: Vec<usize> =
        windows.filter(|(_, window)| *window == wanted).map(|(place, _)| place + 1).collect();
    assert!(!places.is_empty(), "no {name}");
    places.iter().for_each(|place| library[*place] = b'z');
    library
}

pub(crate) fn inject(_: &Setup, number: u64, random: &mut Random) -> Observed {
    let (names, content, outcome, message) = draw(number, random);
    let is_of_compiler = names == COMPILER;
    let call = random.below(3);
    let seen = match call {
        // Needs no device: the compiler is missing.
        _ if is_of_compiler => Seen::of(
            &Guard::host(DeviceLimits::any_device()).compile("empty.cu", "__global__ void k() {}"),
        ),
        0 => Seen::of(&Guard::cuda(0)),
        1 => Seen::of(&device_count()),
        _ => Seen::of(&driver_version()),
    };
    let expected = Expected {
        outcomes: &[&format!("CudaError::{outcome}")],
        message: &message,
        without_diagnosis: is_of_compiler,
        ..Expected::default()
    };
    let mut observed =
        Observed::new(format!("{content:?} as {names:?}, call {call}"), &seen, &expected);
    if !is_of_compiler {
        let guard = require_fallback(&mut observed);
        let loaded = Seen::of(&guard.load(&Image::new(PTX).expect("PTX"))).outcome;
        let same = loaded == observed.outcome;
        observed.require(same, || format!("loading came to {loaded}"));
    }
    observed
}
