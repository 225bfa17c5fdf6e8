//! Compiles programs against the header and the libraries, and runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of this package.
pub(crate) const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// The shared library that cargo built beside this test program.
pub(crate) fn library() -> PathBuf {
    beside("libgridguard_capi.so")
}

/// The static library.
pub(crate) fn archive() -> PathBuf {
    beside("libgridguard_capi.a")
}

fn beside(name: &str) -> PathBuf {
    let path = std::env::current_exe().expect("this program").with_file_name(name);
    assert!(path.is_file(), "cargo built {}", path.display());
    path
}

/// A program built from a source of `tests`, in a folder that is deleted with it.
pub(crate) struct Program {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Program {
    /// Linked with `libraries`.
    pub(crate) fn linked(
        compiler: &str,
        options: &[&str],
        source: &str,
        libraries: &[PathBuf],
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("program");
        let output = Command::new(compiler)
            .args(options)
            .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-g", "-o"])
            .arg(&path)
            .arg("-I")
            .arg(Path::new(PACKAGE).join("include"))
            .arg(Path::new(PACKAGE).join("tests").join(source))
            // What follows is not in the source's language.
            .args(["-x", "none"])
            .args(libraries)
            .args(["-lpthread", "-ldl", "-lm"])
            .output()
            .unwrap_or_else(|error| panic!("{compiler}: {error}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler} {options:?} {source}:\n{errors}");
        Self { path, _folder: folder }
    }

    /// Runs the program, which must succeed, and returns what it prints.
    pub(crate) fn run(&self, arguments: &[&str], settings: &[(&str, &str)]) -> String {
        let Output { status, stdout, stderr } = self.output(arguments, settings);
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{status}\n{stdout}{stderr}");
        stdout.into_owned()
    }

    /// How the program ended.
    pub(crate) fn output(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Output {
        let mut command = self.command();
        command.args(arguments).envs(settings.iter().copied()).output().expect("it starts")
    }

    /// The command that runs it with the shared library, and the driver of the test's process.
    fn command(&self) -> Command {
        let mut folders = vec![library().parent().expect("a folder").to_owned()];
        let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        folders.extend(std::env::split_paths(&path));
        let mut command = Command::new(&self.path);
        command
            .env("LD_LIBRARY_PATH", std::env::join_paths(folders).expect("no colons"))
            .env("GRIDGUARD_PROFILES", "off")
            // The leak detector needs to trace its own process, which containers may forbid.
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env("UBSAN_OPTIONS", "halt_on_error=1");
        command
    }
}
