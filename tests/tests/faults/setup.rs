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
use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest};
use gridguard_test_support::fake_library::{self, COMPILER, DRIVER};

use crate::observed::Seen;

/// The value of memory that no kernel wrote.
pub(crate) const POISON: u64 = u64::MAX;
/// The kernels as the fake driver describes them.
pub(crate) const PTX: &str = include_str!("kernels.ptx");
/// The kernels for a real device.
const SOURCE: &str = include_str!("kernels.cu");
/// A whole cubin, for a driver that does not run it.
const CUBIN: &[u8] = include_bytes!("../../fuzz/seeds/image/cubin");
const IS_FAKE: &str = "GRIDGUARD_FAULTS_FAKE";
const FOLDER: &str = "GRIDGUARD_FAULTS_FOLDER";

/// What the processes of a run share.
pub(crate) struct Setup {
    /// Whether the fake driver is used.
    pub(crate) is_fake: bool,
    pub(crate) folder: PathBuf,
}

impl Setup {
    /// Creates the files of a run.
    pub(crate) fn create(is_fake: bool, folder: &Path) -> Self {
        let setup = Self { is_fake, folder: folder.to_owned() };
        for folder in ["libraries", "profiles"] {
            fs::create_dir(setup.folder.join(folder)).expect("a folder of its own");
        }
        setup.create_libraries();
        if is_fake {
            let mut cubin = CUBIN.to_vec();
            cubin[48..52].copy_from_slice(&90_u32.to_le_bytes());
            setup.write("kernels", PTX);
            setup.write("cubin", cubin);
        } else {
            // Needs NVRTC, and no context.
            let own = device_limits(0).expect("a CUDA device").compute_capability;
            let options = CompileOptions::new("kernels.cu", own);
            let compiled = Compiler::find().expect("NVRTC").compile(SOURCE, &options);
            let image = compiled.expect("the kernels compile").image;
            setup.write("kernels", image.bytes());
            setup.write("cubin", image.bytes());
        }
        setup
    }

    /// What the parent passed on.
    pub(crate) fn from_variables() -> Self {
        let folder = std::env::var_os(FOLDER).expect("the parent names it").into();
        Self { is_fake: std::env::var_os(IS_FAKE).is_some(), folder }
    }

    /// Environment variables for a child process.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![(FOLDER, self.folder.clone().into_os_string())];
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

    /// The profile that faults of a kind write.
    pub(crate) fn profile(&self, kind: &str) -> PathBuf {
        self.folder.join("profiles").join(kind).with_extension("ron")
    }

    /// A cubin of the device's own architecture.
    pub(crate) fn cubin(&self) -> Vec<u8> {
        fs::read(self.folder.join("cubin")).expect("made by the parent")
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
        launch(guard, &iota, &stream, &mut out, ITEMS, 0).map_err(text)?;
        guard.synchronize(&stream).map_err(text)?;
        let written = stream.clone_dtoh(&out).map_err(text)?;
        is_iota(&written).then_some(()).ok_or_else(|| "the output is wrong".to_owned())
    }
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

/// Launches a kernel over `out`; `spill_y`, with a workspace of `bytes` per item that the guard allocates.
pub(crate) fn launch(
    guard: &Guard,
    kernel: &Kernel,
    stream: &Arc<CudaStream>,
    out: &mut CudaSlice<u64>,
    items: u64,
    bytes: u64,
) -> Result<u64, LaunchError> {
    let (request, mut batch) = along_y(items);
    let mut args = Args::new(stream);
    args.write_items(out, 1).offset().length();
    if bytes > 0 {
        batch = batch.workspace(bytes, u64::MAX);
        args.workspace();
    }
    guard.launch(kernel, (&request, &batch), args)
}

/// A call to the guard.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Synchronize,
    Launch,
    LaunchWithWorkspace,
    Load,
    FreeMemory,
    Occupancy,
}

pub(crate) const CALLS: [Call; 6] = [
    Call::Synchronize,
    Call::Launch,
    Call::LaunchWithWorkspace,
    Call::Load,
    Call::FreeMemory,
    Call::Occupancy,
];

/// What a program has in a context: `spill_y`, which alone keeps its module, and its memory.
pub(crate) struct Client<'a> {
    setup: &'a Setup,
    pub(crate) guard: Guard,
    pub(crate) stream: Arc<CudaStream>,
    spiller: Kernel,
    out: CudaSlice<u64>,
    workspace: CudaSlice<u64>,
    items: u64,
}

impl<'a> Client<'a> {
    pub(crate) fn new(setup: &'a Setup, guard: Guard, stream: Arc<CudaStream>, items: u64) -> Self {
        let spiller = kernel(&setup.module(&guard), "spill_y");
        let (out, workspace) = (poisoned(&stream, items), poisoned(&stream, items));
        Self { setup, guard, stream, spiller, out, workspace, items }
    }

    pub(crate) fn launch(&mut self) -> Result<u64, LaunchError> {
        let (request, batch) = along_y(self.items);
        let mut args = Args::new(&self.stream);
        args.write_items(&mut self.out, 1).offset().length().write(&mut self.workspace);
        self.guard.launch(&self.spiller, (&request, &batch), args)
    }

    pub(crate) fn call(&mut self, call: Call) -> Seen {
        let Self { setup, guard, stream, spiller, out, items, .. } = self;
        match call {
            Call::Synchronize => Seen::of(&guard.synchronize(stream)),
            Call::Launch => Seen::of(&self.launch()),
            Call::LaunchWithWorkspace => {
                Seen::of(&launch(guard, spiller, stream, out, *items, 256))
            }
            Call::Load => Seen::of(&guard.load(&setup.image())),
            Call::FreeMemory => Seen::of(&guard.free_memory()),
            Call::Occupancy => Seen::of(&spiller.occupancy(&along_y(1).0.cooperative())),
        }
    }
}
