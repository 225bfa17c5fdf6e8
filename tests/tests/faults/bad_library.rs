//! Libraries that are missing, invalid, or other ones than their names say.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use gridguard::cuda::{CompileOptions, Compiler, Image, device_count};
use gridguard::{Axis, BatchAxis, Choice, ComputeCapability, DeviceLimits, Dim3, Guard};
use gridguard::{KernelLimits, LaunchRequest};
use gridguard_test_support::Random;
use gridguard_test_support::fake_library::{COMPILER, DRIVER};

use crate::device_setup::DeviceSetup;
use crate::environment::{PTX, RunEnvironment, before_others};
use crate::expected::{Expected, Observed};
use crate::fault::Case;
use crate::observed_error::{Describe, ObservedError, describe, why_host};

/// What takes the place of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A file that is no library.
    NoDriver,
    /// A library without any function of the driver.
    ForeignDriver,
    /// The driver without one function.
    IncompleteDriver,
    /// The stub that a toolkit has to link against.
    Stub,
    /// A driver whose initialisation fails.
    Init,
    /// A driver from before CUDA 12.
    OldDriver,
    /// Another driver under the name that cudarc loads, beside a complete one.
    TwoDrivers,
    /// The same with an invalid library.
    TwoDriversOneForeign,
    NoCompiler,
    ForeignCompiler,
    IncompleteCompiler,
}

const WHATS: [What; 12] = [
    What::NoDriver,
    What::IncompleteDriver,
    What::ForeignDriver,
    What::IncompleteDriver,
    What::Stub,
    What::Init,
    What::OldDriver,
    What::TwoDrivers,
    What::TwoDriversOneForeign,
    What::NoCompiler,
    What::ForeignCompiler,
    What::IncompleteCompiler,
];

/// A file that is no library.
#[derive(Clone, Copy, Debug)]
enum File {
    Empty,
    Text,
    Noise,
    /// A truncated library.
    Cut,
    Folder,
}

/// Functions that the guard requires of a driver.
const DRIVER_NEEDS: [&str; 20] = [
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
const COMPILER_NEEDS: [&str; 5] = [
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetProgramLog",
];
/// Codes that `cuInit` may return.
const CODES: [i32; 8] = [2, 3, 46, 304, 802, 803, 804, 999];
/// Folders of a toolkit that are searched whatever the library path.
const TOOLKIT: [&str; 2] =
    ["/usr/local/cuda/lib64/libnvrtc.so", "/usr/local/cuda/targets/x86_64-linux/lib/libnvrtc.so"];

/// An unusable library.
#[derive(Debug)]
pub(crate) struct Library {
    what: What,
    file: File,
    /// The missing function.
    symbol: &'static str,
    code: i32,
    version: u64,
    number: u64,
}

pub(crate) fn draw(number: u64, random: &mut Random) -> Library {
    let count = u64::try_from(WHATS.len()).expect("few");
    let what = WHATS[usize::try_from(number % count).expect("few")];
    let symbols: &[&str] =
        if what == What::IncompleteCompiler { &COMPILER_NEEDS } else { &DRIVER_NEEDS };
    Library {
        what,
        file: random.pick(&[File::Empty, File::Text, File::Noise, File::Cut, File::Folder]),
        symbol: random.pick(symbols),
        code: random.pick(&CODES),
        version: 9000 + 10 * random.below(300),
        number: random.next(),
    }
}

impl Library {
    fn is_of_compiler(&self) -> bool {
        matches!(self.what, What::NoCompiler | What::ForeignCompiler | What::IncompleteCompiler)
    }

    /// Writes an invalid library to `path`.
    fn write_file(&self, environment: &RunEnvironment, path: &Path) {
        let length = usize::try_from(self.number % 3000).expect("few");
        let noise = || {
            let mut random = Random::new(self.number);
            (0..=length / 8).flat_map(|_| random.next().to_le_bytes()).collect::<Vec<u8>>()
        };
        let bytes = match self.file {
            File::Empty => Vec::new(),
            File::Text => b"The library is on another disk.\n".repeat(1 + length / 32),
            File::Noise => noise(),
            // Cut behind its headers, the C library's loader would crash.
            File::Cut => {
                let mut whole = fs::read(environment.libraries().join(DRIVER[0])).expect("built");
                whole.truncate(1 + length / 10);
                whole
            }
            File::Folder => return fs::create_dir(path).expect("a folder"),
        };
        fs::write(path, bytes).expect("the process's folder");
    }

    /// The fake library that a function is removed from.
    fn original(&self, environment: &RunEnvironment) -> Vec<u8> {
        let name = if self.is_of_compiler() { COMPILER[0] } else { DRIVER[0] };
        fs::read(environment.libraries().join(name)).expect("a library")
    }

    /// The library without the function: a copy of the real driver if there is one.
    fn incomplete(&self, environment: &RunEnvironment) -> Vec<u8> {
        let real = (self.what == What::IncompleteDriver && !environment.is_fake())
            .then(|| mapped("libcuda.so"))
            .flatten();
        let damaged =
            real.and_then(|path| renamed(fs::read(path).expect("the driver"), self.symbol, true));
        damaged
            .or_else(|| renamed(self.original(environment), self.symbol, true))
            .expect("it is there")
    }
}

/// The path of a library that this process has loaded.
fn mapped(name: &str) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find(|line| line.contains(name))?.split_whitespace().last()?;
    Some(PathBuf::from(path))
}

/// The library with each symbol that starts with `name`, or equals it if `ends`, renamed; `None` if
/// there is no such symbol.
fn renamed(mut library: Vec<u8>, name: &str, ends: bool) -> Option<Vec<u8>> {
    let end = if ends { "\0" } else { "" };
    let wanted = format!("\0{name}{end}").into_bytes();
    let windows = library.windows(wanted.len()).enumerate();
    let places: Vec<usize> =
        windows.filter(|(_, window)| *window == wanted).map(|(place, _)| place + 1).collect();
    for place in &places {
        library[*place] = b'z';
    }
    (!places.is_empty()).then_some(library)
}

impl Case for Library {
    fn name(&self) -> &'static str {
        match self.what {
            What::NoDriver => "no_driver",
            What::ForeignDriver => "foreign_driver",
            What::IncompleteDriver => "incomplete_driver",
            What::Stub => "stub",
            What::Init => "initialisation",
            What::OldDriver => "old_driver",
            What::TwoDrivers => "two_drivers",
            What::TwoDriversOneForeign => "two_drivers_one_foreign",
            What::NoCompiler => "no_compiler",
            What::ForeignCompiler => "foreign_compiler",
            What::IncompleteCompiler => "incomplete_compiler",
        }
    }

    fn needs_a_process(&self) -> bool {
        true
    }

    fn prepare(
        &self,
        environment: &RunEnvironment,
        folder: &Path,
    ) -> Vec<(&'static str, OsString)> {
        let names: &[&str] = match self.what {
            What::TwoDrivers | What::TwoDriversOneForeign => &DRIVER[1..],
            _ if self.is_of_compiler() => &COMPILER,
            _ => &DRIVER,
        };
        let own = folder.join("libraries");
        fs::create_dir(&own).expect("a folder of libraries");
        let library = match self.what {
            What::NoDriver | What::NoCompiler => None,
            What::ForeignDriver | What::TwoDriversOneForeign => {
                renamed(self.original(environment), "cu", false)
            }
            What::ForeignCompiler => renamed(self.original(environment), "nvrtc", false),
            What::IncompleteDriver | What::IncompleteCompiler => Some(self.incomplete(environment)),
            What::Stub | What::Init | What::OldDriver | What::TwoDrivers => {
                Some(self.original(environment))
            }
        };
        for name in names {
            let path = own.join(name);
            match &library {
                Some(library) if *name == names[0] => fs::write(path, library).expect("written"),
                Some(_) => std::os::unix::fs::symlink(names[0], path).expect("a link"),
                None => self.write_file(environment, &path),
            };
        }
        let code = if self.what == What::Stub { 34 } else { self.code };
        let mut environment = vec![("LD_LIBRARY_PATH", self.path(environment, &own))];
        match self.what {
            What::Stub | What::Init => {
                environment.push(("GRIDGUARD_FAKE_INIT", code.to_string().into()));
            }
            What::OldDriver => {
                environment
                    .push(("GRIDGUARD_FAKE_DRIVER_VERSION", self.version.to_string().into()));
            }
            _ => {}
        }
        for home in ["CUDA_HOME", "CUDA_PATH"] {
            environment.push((home, folder.join("no-toolkit").into_os_string()));
        }
        environment
    }

    fn expected(&self, _ground: &RunEnvironment) -> Expected {
        let unavailable = "CudaError::Unavailable";
        let compiler = "CudaError::Compile/Unavailable";
        match self.what {
            What::NoDriver => Expected::one_of([format!("{unavailable}/LibraryMissing")]),
            What::ForeignDriver => {
                Expected::one_of([format!("{unavailable}/SymbolMissing cuInit")])
            }
            What::IncompleteDriver => {
                Expected::one_of([format!("{unavailable}/SymbolMissing {}", self.symbol)])
            }
            What::Stub => Expected::one_of([format!("{unavailable}/InitFailed/34 ")]),
            What::Init => Expected::one_of([format!("{unavailable}/InitFailed/{} ", self.code)]),
            What::OldDriver => Expected::one_of([format!("{unavailable}/TooOld")]),
            What::TwoDrivers => Expected::one_of([format!("{unavailable}/OtherLibrary")]),
            What::TwoDriversOneForeign => {
                Expected::one_of([format!("{unavailable}/SymbolMissing cuGetErrorName")])
            }
            What::NoCompiler => {
                let found = TOOLKIT.iter().any(|path| Path::new(path).exists());
                let missing = format!("{compiler}/LibraryMissing");
                Expected::one_of([if found { "Ok, the toolkit's".into() } else { missing }])
            }
            What::ForeignCompiler => {
                Expected::one_of([format!("{compiler}/SymbolMissing nvrtcVersion")]).guards_own()
            }
            What::IncompleteCompiler => {
                Expected::one_of([format!("{compiler}/SymbolMissing {}", self.symbol)]).guards_own()
            }
        }
    }

    fn inject(&self, _bench: &DeviceSetup) -> Observed {
        if self.is_of_compiler() {
            return Observed::new(compile());
        }
        let described = match self.number % 3 {
            0 => describe(&Guard::cuda(0)),
            1 => describe(&device_count()),
            _ => describe(&gridguard::cuda::driver_version()),
        };
        let mut observed = Observed::new(described);
        fall_back(&mut observed);
        observed
    }
}

impl Library {
    fn path(&self, environment: &RunEnvironment, own: &Path) -> OsString {
        let mut folders = vec![own.to_owned()];
        if environment.is_fake() {
            folders.push(environment.libraries());
        }
        folders.extend(std::env::split_paths(&before_others(own)));
        std::env::join_paths(folders).expect("folders without a colon")
    }
}

fn compile() -> ObservedError {
    let capability = ComputeCapability::new(9, 0);
    // Needs no device: the compiler is missing.
    let guard = Guard::host(DeviceLimits::any_device());
    let found = Compiler::find().map(|compiler| {
        let options = CompileOptions::new("empty.cu", capability);
        compiler.compile("extern \"C\" __global__ void empty() {}", &options)
    });
    match found {
        Ok(Ok(_)) => ObservedError::outcome("Ok, the toolkit's"),
        Ok(Err(error)) => error.describe(),
        Err(_) => describe(&guard.compile("empty.cu", "extern \"C\" __global__ void empty() {}")),
    }
}

/// The guard falls back to the CPU with its reason.
fn fall_back(observed: &mut Observed) {
    let guard = Guard::best();
    let reason = why_host(&guard);
    let same = reason.as_ref().is_some_and(|reason| reason.outcome == observed.error.outcome);
    observed.require(!guard.is_cuda() && same, || format!("the host serves for {reason:?}"));
    let loaded = describe(&guard.load(&Image::new(PTX).expect("PTX")));
    let refused = loaded.outcome == observed.error.outcome;
    observed.require(refused, || format!("loading came to {}", loaded.outcome));
    let limits = guard.limits_for(KernelLimits::unknown("host"));
    let request = LaunchRequest::new(Dim3::new(1, 70_000, 1), Dim3::ONE);
    let batch = BatchAxis::new(Axis::Y, 70_000);
    let plan = guard.plan(&request, Some(&batch), &limits, Choice::AUTOMATIC).expect("it splits");
    let mut out = vec![0; 70_000];
    let ran = guard.launch_on_host(&plan, &mut out, 1, |item, out: &mut [u64]| out[0] = item);
    let right = out.iter().zip(0..).all(|(number, place)| *number == place);
    observed.require(ran == Ok(2) && right, || "the host did not run the plan".into());
}
