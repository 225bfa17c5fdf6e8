//! Finds the library that `gridguard run` preloads: a named one, the one in this command, or one beside it.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection, ObjectSymbol, ReadCache};

#[cfg(feature = "embedded-library")]
use super::embedded;
use super::loader::{LIBRARY, check_path};
use crate::error::CommandError;

const LIBRARY_VARIABLE: &str = "GRIDGUARD_PRELOAD";
/// Where the library may be, from the folder of the command. The last is cargo's folder for tests.
const PLACES: [&str; 5] = ["", "../libexec/gridguard", "../lib/gridguard", "../lib", "deps"];
/// The variable in which the library states its version.
const VERSION_SYMBOL: &str = "gridguard_preload_version";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The path of the library, which the loader can take.
pub(super) fn find_library(named: Option<&Path>) -> Result<PathBuf, CommandError> {
    let variable =
        || env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = named.map(Path::to_owned).or_else(variable) {
        return if path.is_file() {
            accepted(&path)
        } else {
            let path = path.display();
            Err(CommandError::failed(format_args!("{LIBRARY} was not found; looked for {path}")))
        };
    }
    #[cfg(feature = "embedded-library")]
    if let Some(library) = embedded::library() {
        return embedded::install(&library?);
    }
    let program = env::current_exe().and_then(fs::canonicalize).unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new(""));
    let places = PLACES.map(|place| folder.join(place).join(LIBRARY));
    // Anybody can put a library into a folder such as /tmp.
    let is_open = |path: &Path| fs::metadata(path).is_ok_and(|folder| folder.mode() & 0o002 != 0);
    let is_own = |path: &&PathBuf| path.is_file() && !path.parent().is_some_and(is_open);
    if let Some(found) = places.iter().find(is_own) {
        return accepted(found);
    }
    Err(CommandError::failed(format_args!(
        "{LIBRARY} is neither in this command nor beside it: in a checkout, `cargo install --path autotune/cli` builds a \
         command that has it and `cargo build -p gridguard-preload` the library alone, which --library names"
    )))
}

/// Refuses a library that the loader would skip, with a message, to run the program unwatched; and one of another version,
/// which does not understand this command.
fn accepted(path: &Path) -> Result<PathBuf, CommandError> {
    let found = fs::canonicalize(path).map_err(CommandError::io(LIBRARY))?;
    let invalid = |why: &str| Err(CommandError::invalid_file(&found, why));
    let file = File::open(&found).map_err(CommandError::io(found.display()))?;
    match stated_version(file) {
        None => return invalid("is no shared library"),
        Some(None) => return invalid("is another library, or one of an earlier gridguard"),
        Some(Some(version)) if version != VERSION => {
            return invalid(&format!(
                "is of gridguard {version}, this command is of {VERSION}: install both from one release"
            ));
        }
        Some(Some(_)) => {}
    }
    match check_path(&found) {
        Ok(()) => Ok(found),
        Err(why) => Err(CommandError::failed(format_args!(
            "{}: {why}; copy it elsewhere and name it with --library",
            found.display()
        ))),
    }
}

/// The version that a library states, if any; `None` if the file is no library.
fn stated_version(file: File) -> Option<Option<String>> {
    let data = ReadCache::new(file);
    let library = object::File::parse(&data).ok()?;
    let version = || {
        let symbol = library.dynamic_symbols().find(|it| it.name() == Ok(VERSION_SYMBOL))?;
        let section = library.section_by_index(symbol.section_index()?).ok()?;
        let bytes = section.data_range(symbol.address(), symbol.size()).ok()??;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    Some(version())
}
