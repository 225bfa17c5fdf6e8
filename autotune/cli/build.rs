//! Finds the commit of the build for `gridguard --version`, and with the feature `embedded-library` puts the library that
//! `gridguard run` preloads into the command.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let version = match packaged_commit().or_else(git_commit) {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    };
    println!("cargo::rustc-env=GRIDGUARD_VERSION={version}");
    #[cfg(feature = "embedded-library")]
    library::embed()?;
    Ok(())
}

#[cfg(feature = "embedded-library")]
mod library {
    use std::path::PathBuf;

    use sha2::{Digest, Sha256};

    use super::*;

    /// Compresses the library into the output folder; an empty file if this build has none.
    ///
    /// `GRIDGUARD_PRELOAD_LIBRARY` names a library that is already built; empty means none. Otherwise release builds
    /// build it, from the checkout or from crates.io. Other builds find it beside the command.
    pub(super) fn embed() -> Result<(), Box<dyn Error>> {
        println!("cargo::rerun-if-env-changed=GRIDGUARD_PRELOAD_LIBRARY");
        let out = PathBuf::from(env::var("OUT_DIR")?);
        let library = match env::var_os("GRIDGUARD_PRELOAD_LIBRARY") {
            Some(path) => Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty()),
            None if env::var("PROFILE")? == "release" => build(&out)?,
            None => None,
        };
        let contents = library.map(|path| {
            println!("cargo::rerun-if-changed={}", path.display());
            fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
        });
        let contents = contents.transpose()?.unwrap_or_default();
        let compressed = match contents.is_empty() {
            true => Vec::new(),
            false => lz4_flex::compress_prepend_size(&contents),
        };
        fs::write(out.join("preload.lz4"), compressed)?;
        let digest = Sha256::digest(&contents);
        let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        println!("cargo::rustc-env=GRIDGUARD_PRELOAD_DIGEST={digest}");
        Ok(())
    }

    /// Builds the library; `None` if the target has no shared glibc.
    fn build(out: &Path) -> Result<Option<PathBuf>, Box<dyn Error>> {
        if env::var("CARGO_CFG_TARGET_OS")? != "linux" || env::var("CARGO_CFG_TARGET_ENV")? != "gnu"
        {
            return Ok(None);
        }
        let checkout = Path::new("../../guard/preload/Cargo.toml");
        let manifest = if checkout.exists() {
            // Its sources, and the packages that it uses.
            println!("cargo::rerun-if-changed=../../guard");
            println!("cargo::rerun-if-changed=../../Cargo.lock");
            checkout.to_owned()
        } else {
            published(&out.join("package"))?
        };
        let target = env::var("TARGET")?;
        let folder = out.join("preload");
        let mut command = Command::new(env::var("CARGO")?);
        command.args(["build", "--quiet", "--release", "--package", "gridguard-preload"]);
        command.args(["--target", &target, "--manifest-path"]).arg(manifest);
        command.arg("--target-dir").arg(&folder);
        // What cargo sets for this package is wrong for the build scripts of others.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_FEATURE_") || OF_THIS_BUILD.contains(&&*text) {
                command.env_remove(&name);
            }
        }
        if command.status()?.success() {
            return Ok(Some(folder.join(target).join("release/libgridguard_preload.so")));
        }
        Err("gridguard-preload, the library of `gridguard run`, does not build: to install the command without it, set \
             GRIDGUARD_PRELOAD_LIBRARY to nothing; packagers disable the feature `embedded-library` and install the \
             library beside the command"
            .into())
    }

    /// Writes the manifest of a package that depends on the library, which is a package of its own on crates.io.
    fn published(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
        let manifest = folder.join("Cargo.toml");
        let version = env::var("CARGO_PKG_VERSION")?;
        fs::create_dir_all(folder)?;
        fs::write(folder.join("lib.rs"), "")?;
        // The same dependencies as in this command, which are downloaded already.
        fs::copy("Cargo.lock", folder.join("Cargo.lock"))?;
        let text = format!(
            "[package]\nname = \"package\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n\
             [dependencies]\ngridguard-preload = \"={version}\"\n[profile.release]\nstrip = true\n[workspace]\n"
        );
        fs::write(&manifest, text)?;
        Ok(manifest)
    }

    const OF_THIS_BUILD: [&str; 3] =
        ["CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"];
}

/// The commit that `cargo package` adds to the sources.
fn packaged_commit() -> Option<String> {
    let info = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let hash = info.split("\"sha1\": \"").nth(1)?;
    hash.get(..9).map(str::to_owned)
}

/// The commit of the working tree, if there is one.
fn git_commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=9", "HEAD"])
}
