//! The environment of a run: platform, libraries and images.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use gridguard::ComputeCapability;
use gridguard::cuda::{CompileOptions, Compiler, device_limits};
use gridguard_test_support::fake_library;

use crate::cubin;

/// The kernels as the fake driver describes them.
pub(crate) const PTX: &str = include_str!("kernels.ptx");
/// The kernels for a real device.
const SOURCE: &str = include_str!("kernels.cu");
/// Architectures of the cubins.
const ARCHITECTURES: [(u32, u32); 7] = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)];

/// Which driver is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Platform {
    /// The fake driver.
    Fake,
    /// The machine's driver.
    Real,
}

/// What the processes of a run share: a platform, and a folder of files.
#[derive(Clone, Debug)]
pub(crate) struct RunEnvironment {
    pub(crate) platform: Platform,
    pub(crate) folder: PathBuf,
    /// Deletes the folder at the end of the run.
    _owned: Option<std::sync::Arc<tempfile::TempDir>>,
}

const PLATFORM: &str = "GRIDGUARD_FAULTS_PLATFORM";
const FOLDER: &str = "GRIDGUARD_FAULTS_FOLDER";

impl RunEnvironment {
    /// Creates the files of a run.
    pub(crate) fn prepare(platform: Platform) -> Self {
        let owned = tempfile::tempdir().expect("a folder for the run");
        let folder = owned.path().to_owned();
        let environment = Self { platform, folder, _owned: Some(owned.into()) };
        for folder in ["cubins", "libraries", "profiles", "processes"] {
            fs::create_dir(environment.folder.join(folder)).expect("a folder of its own");
        }
        environment.prepare_libraries();
        match platform {
            Platform::Fake => environment.prepare_fake_images(),
            Platform::Real => environment.prepare_images(),
        }
        environment
    }

    /// The environment that the parent passed on.
    pub(crate) fn from_variables() -> Self {
        let platform = match std::env::var(PLATFORM).as_deref() {
            Ok("real") => Platform::Real,
            _ => Platform::Fake,
        };
        let folder = PathBuf::from(std::env::var_os(FOLDER).expect("the parent names a folder"));
        Self { platform, folder, _owned: None }
    }

    /// Environment variables for a child process.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let platform = if self.is_fake() { "fake" } else { "real" };
        let mut environment =
            vec![(PLATFORM, platform.into()), (FOLDER, self.folder.clone().into_os_string())];
        if self.is_fake() {
            environment.push(("LD_LIBRARY_PATH", before_others(&self.libraries())));
        }
        environment
    }

    pub(crate) const fn is_fake(&self) -> bool {
        matches!(self.platform, Platform::Fake)
    }

    /// The folder of the fake libraries.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.folder.join("libraries")
    }

    /// The profile that faults of `kind` write.
    pub(crate) fn profile(&self, kind: &str) -> PathBuf {
        self.folder.join("profiles").join(kind).with_extension("ron")
    }

    /// An image that children load: `kernels`, or `instruction`, whose kernel `fault_instruction`
    /// has no valid instruction.
    pub(crate) fn image(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.join(name)).expect("made by the parent")
    }

    /// A cubin of the device's own architecture.
    pub(crate) fn own_cubin(&self) -> Vec<u8> {
        self.image("cubins/own")
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
    fn prepare_libraries(&self) {
        let program = std::env::current_exe().expect("this program");
        let packed = program.parent().expect("a folder").join("fake-driver");
        let folder = self.libraries();
        let [driver, other] = fake_library::DRIVER;
        let compiler = fake_library::COMPILER[0];
        if packed.is_dir() {
            for name in [driver, compiler] {
                fs::copy(packed.join(name), folder.join(name)).expect("a packed library");
            }
            std::os::unix::fs::symlink(driver, folder.join(other)).expect("a link");
            return;
        }
        fake_library::build(&folder, "libcuda.c", driver, other, None);
        fake_library::build(&folder, "libnvrtc.c", compiler, "libnvrtc.so.12", None);
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.folder.join(name), bytes).expect("the run's folder");
    }

    fn prepare_fake_images(&self) {
        self.write("kernels", PTX);
        self.write("instruction", PTX);
        for (major, minor) in ARCHITECTURES {
            let cubin = cubin::synthetic(major * 10 + minor);
            let name = if (major, minor) == (9, 0) { "own".into() } else { sm(major, minor) };
            self.write(&format!("cubins/{name}"), cubin);
        }
    }

    /// Needs NVRTC, and no context.
    fn prepare_images(&self) {
        let compiler = Compiler::find().expect("NVRTC");
        let compile = |capability| {
            let options = CompileOptions::new("kernels.cu", capability);
            compiler.compile(SOURCE, &options).map(|compiled| compiled.image.bytes().to_vec())
        };
        let own = device_limits(0).expect("a CUDA device").compute_capability;
        let cubin = compile(own).expect("the kernels compile");
        self.write("kernels", &cubin);
        self.write("cubins/own", &cubin);
        self.write("instruction", cubin::without_instructions(cubin, "fault_instruction"));
        for (major, minor) in ARCHITECTURES {
            let runs_here = major == own.major && minor <= own.minor;
            // Not every compiler supports every architecture.
            if let (false, Ok(cubin)) = (runs_here, compile(ComputeCapability::new(major, minor))) {
                self.write(&format!("cubins/{}", sm(major, minor)), cubin);
            }
        }
        assert!(self.foreign_cubins().len() > 2, "cubins of other architectures");
    }
}

/// `folder`, then the present `LD_LIBRARY_PATH`.
pub(crate) fn before_others(folder: &Path) -> OsString {
    let mut folders = vec![folder.to_owned()];
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&path));
    }
    std::env::join_paths(folders).expect("folders without a colon")
}

fn sm(major: u32, minor: u32) -> String {
    format!("sm_{major}{minor}")
}
