//! The files of a run, and the guard, kernels and memory that a child process injects faults with.
#![allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use gridguard::Parameter;
use gridguard::cuda::{
    Args, CompileOptions, Compiler, Image, Kernel, LaunchError, Module, device_limits,
};
use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, Key, Provenance, StoredChoice, Summary,
};
use gridguard::{Axis, BatchAxis, ComputeCapability, DeviceLimits, Dim3, Guard, LaunchRequest};
use gridguard_test_support::fake_library::{self, COMPILER, DRIVER};

/// The value of memory that no kernel wrote.
pub(crate) const POISON: u64 = u64::MAX;
/// The kernels as the fake driver describes them.
pub(crate) const PTX: &str = include_str!("kernels.ptx");
/// The kernels for a real device.
const SOURCE: &str = include_str!("kernels.cu");
/// A whole cubin, for a driver that does not run it.
const CUBIN: &[u8] = include_bytes!("../../fuzz/seeds/image/cubin");
/// Architectures of the cubins.
const ARCHITECTURES: [(u32, u32); 7] = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)];

const IS_FAKE: &str = "GRIDGUARD_FAULTS_FAKE";
const FOLDER: &str = "GRIDGUARD_FAULTS_FOLDER";
const OWN_FOLDER: &str = "GRIDGUARD_FAULTS_OWN_FOLDER";

/// What the processes of a run share, and a process's own folder.
#[derive(Clone)]
pub(crate) struct Setup {
    /// Whether the fake driver is used.
    pub(crate) is_fake: bool,
    folder: PathBuf,
    pub(crate) own: PathBuf,
}

impl Setup {
    /// Creates the files of a run.
    pub(crate) fn create(is_fake: bool, folder: &Path) -> Self {
        let setup = Self { is_fake, folder: folder.to_owned(), own: folder.to_owned() };
        for folder in ["cubins", "libraries", "profiles", "processes"] {
            fs::create_dir(setup.folder.join(folder)).expect("a folder of its own");
        }
        setup.create_libraries();
        if is_fake {
            setup.write("kernels", PTX);
            for (major, minor) in ARCHITECTURES {
                let mut cubin = CUBIN.to_vec();
                cubin[48..52].copy_from_slice(&(major * 10 + minor).to_le_bytes());
                setup.write(&cubin_name((major, minor) == (9, 0), major, minor), cubin);
            }
        } else {
            setup.compile_images();
        }
        assert!(setup.foreign_cubins().len() > 2, "cubins of other architectures");
        setup
    }

    /// The same run, for a process with this folder.
    pub(crate) fn of_process(&self, own: PathBuf) -> Self {
        Self { own, ..self.clone() }
    }

    /// What the parent passed on.
    pub(crate) fn from_variables() -> Self {
        let folder = |name| PathBuf::from(std::env::var_os(name).expect("the parent names it"));
        let is_fake = std::env::var_os(IS_FAKE).is_some();
        Self { is_fake, folder: folder(FOLDER), own: folder(OWN_FOLDER) }
    }

    /// Environment variables for a child process.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![(FOLDER, self.folder.clone().into_os_string())];
        variables.push((OWN_FOLDER, self.own.clone().into_os_string()));
        if self.is_fake {
            variables.push((IS_FAKE, "1".into()));
            variables.push(("LD_LIBRARY_PATH", self.library_path(None)));
        }
        variables
    }

    /// `first`, the fake libraries if they are used, then the present `LD_LIBRARY_PATH`.
    pub(crate) fn library_path(&self, first: Option<PathBuf>) -> OsString {
        let present = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let fake = self.is_fake.then(|| self.libraries());
        let folders = first.into_iter().chain(fake).chain(std::env::split_paths(&present));
        std::env::join_paths(folders).expect("folders without a colon")
    }

    /// The folder of the fake libraries.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.folder.join("libraries")
    }

    /// The folders of the processes.
    pub(crate) fn processes(&self) -> PathBuf {
        self.folder.join("processes")
    }

    /// The profile that faults of a kind write.
    pub(crate) fn profile(&self, kind: &str) -> PathBuf {
        self.folder.join("profiles").join(kind).with_extension("ron")
    }

    /// A cubin of the device's own architecture.
    pub(crate) fn own_cubin(&self) -> Vec<u8> {
        fs::read(self.folder.join("cubins/own")).expect("made by the parent")
    }

    /// Cubins of architectures that do not run here, sorted.
    pub(crate) fn foreign_cubins(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.folder.join("cubins")).expect("the folder");
        let paths = files.map(|file| file.expect("a file").path());
        let mut paths: Vec<_> = paths.filter(|path| !path.ends_with("own")).collect();
        paths.sort();
        paths
    }

    /// Takes the packed libraries beside this program, or builds them.
    fn create_libraries(&self) {
        let program = std::env::current_exe().expect("this program");
        let packed = program.parent().expect("a folder").join("fake-driver");
        let folder = self.libraries();
        if packed.is_dir() {
            for name in [DRIVER[0], COMPILER[0]] {
                fs::copy(packed.join(name), folder.join(name)).expect("a packed library");
            }
            std::os::unix::fs::symlink(DRIVER[0], folder.join(DRIVER[1])).expect("a link");
        } else {
            fake_library::build(&folder, "libcuda.c", DRIVER[0], DRIVER[1], None);
            fake_library::build(&folder, "libnvrtc.c", COMPILER[0], COMPILER[2], None);
        }
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.folder.join(name), bytes).expect("the run's folder");
    }

    /// Needs NVRTC, and no context.
    fn compile_images(&self) {
        let compiler = Compiler::find().expect("NVRTC");
        let compile = |capability| {
            let options = CompileOptions::new("kernels.cu", capability);
            compiler.compile(SOURCE, &options).map(|compiled| compiled.image.bytes().to_vec())
        };
        let own = device_limits(0).expect("a CUDA device").compute_capability;
        let cubin = compile(own).expect("the kernels compile");
        self.write("kernels", &cubin);
        self.write(&cubin_name(true, own.major, own.minor), cubin);
        for (major, minor) in ARCHITECTURES {
            let runs_here = major == own.major && minor <= own.minor;
            // Not every compiler supports every architecture.
            if let (false, Ok(cubin)) = (runs_here, compile(ComputeCapability::new(major, minor))) {
                self.write(&cubin_name(false, major, minor), cubin);
            }
        }
    }

    pub(crate) fn guard(&self) -> Guard {
        Guard::cuda(0).expect("there is a device")
    }

    /// The kernels for this device.
    pub(crate) fn image(&self) -> Image {
        let bytes = fs::read(self.folder.join("kernels")).expect("made by the parent");
        Image::new(bytes).expect("it is whole")
    }

    pub(crate) fn module(&self, guard: &Guard) -> Module {
        guard.load(&self.image()).expect("it is for this device")
    }

    /// What is wrong with an ordinary launch in the guard's context.
    pub(crate) fn check_launch(&self, guard: &Guard) -> Result<(), String> {
        const ITEMS: u64 = 70_000;
        fn text(error: impl ToString) -> String {
            error.to_string()
        }
        let iota = kernel(&guard.load(&self.image()).map_err(text)?, "iota_y");
        let stream = context(guard).default_stream();
        let poison = vec![POISON; usize::try_from(ITEMS).expect("few items")];
        let mut out = stream.clone_htod(&poison).map_err(text)?;
        launch_iota(guard, &iota, &stream, &mut out, ITEMS).map_err(text)?;
        guard.synchronize(&stream).map_err(text)?;
        let written = stream.clone_dtoh(&out).map_err(text)?;
        is_iota(&written).then_some(()).ok_or_else(|| "the output is wrong".to_owned())
    }
}

fn cubin_name(is_own: bool, major: u32, minor: u32) -> String {
    if is_own { "cubins/own".into() } else { format!("cubins/sm_{major}{minor}") }
}

/// An entry of `kernel` for `rows` rows, found so many seconds after midnight.
pub(crate) fn entry(kernel: &str, rows: u64, seconds: u64) -> Entry {
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let date = format!("2026-11-20T{hour:02}:{minute:02}:{second:02}Z");
    Entry {
        key: Key { kernel: kernel.into(), dtypes: "f16".into(), ..Key::default() },
        // Sizes are not 0.
        shape: vec![("rows".into(), rows + 1)],
        choice: StoredChoice::Whole,
        parameters: Vec::new(),
        launches: 1,
        chosen: Summary::default(),
        default: Summary::default(),
        found: Provenance { date, ..Provenance::default() },
    }
}

/// A profile of no device in particular.
pub(crate) fn document(entries: impl IntoIterator<Item = Entry>) -> Document {
    let device = DeviceIdentity::new(&DeviceLimits::any_device());
    let mut document = Document::new(device, Environment::default());
    for entry in entries {
        document.insert(entry).expect("within bounds");
    }
    document
}

/// The kernel `name` of `kernels.cu`.
pub(crate) fn kernel(module: &Module, name: &str) -> Kernel {
    const U64: Parameter = Parameter::of::<u64>();
    let parameters: &[Parameter] = match name {
        "iota_y" | "local_heavy" => &[Parameter::Memory, U64, U64],
        "spill_y" => &[Parameter::Memory, U64, U64, Parameter::AlignedMemory { bytes: 256 }],
        _ => &[Parameter::Memory, U64, U64, U64, U64, U64, U64],
    };
    // SAFETY: the counting kernels keep their contract. The others break it at one item. The device protects all other
    // memory from this access, and the process ends soon after.
    unsafe { module.kernel(name, parameters) }.expect("it is in the image")
}

pub(crate) fn context(guard: &Guard) -> &Arc<CudaContext> {
    guard.context().expect("the guard serves a device")
}

/// One block per item along y.
pub(crate) fn along_y(items: u64) -> (LaunchRequest, BatchAxis) {
    (LaunchRequest::new(Dim3::new(1, items, 1), Dim3::ONE), BatchAxis::new(Axis::Y, items))
}

pub(crate) fn poisoned(stream: &Arc<CudaStream>, items: u64) -> CudaSlice<u64> {
    let items = usize::try_from(items).expect("few items");
    stream.clone_htod(&vec![POISON; items]).expect("memory")
}

/// Whether each number is its place.
pub(crate) fn is_iota(written: &[u64]) -> bool {
    written.iter().zip(0..).all(|(number, place)| *number == place)
}

/// Launches `iota_y` or `local_heavy` over `out`.
pub(crate) fn launch_iota(
    guard: &Guard,
    kernel: &Kernel,
    stream: &CudaStream,
    out: &mut CudaSlice<u64>,
    items: u64,
) -> Result<u64, LaunchError> {
    let (request, batch) = along_y(items);
    let mut args = Args::new(stream);
    args.write_items(out, 1).offset().length();
    guard.launch(kernel, (&request, &batch), args)
}

/// Launches `spill_y` over `out`, with a workspace of `bytes` per item that the guard allocates.
pub(crate) fn launch_spill(
    guard: &Guard,
    kernel: &Kernel,
    stream: &Arc<CudaStream>,
    out: &mut CudaSlice<u64>,
    items: u64,
    bytes: u64,
) -> Result<u64, LaunchError> {
    let (request, batch) = along_y(items);
    let batch = batch.workspace(bytes, u64::MAX);
    let mut args = Args::new(stream);
    args.write_items(out, 1).offset().length().workspace();
    guard.launch(kernel, (&request, &batch), args)
}
