//! The options of `gridguard run` that capture a launch.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use gridguard_files::{check_output, delete_leftovers};

use crate::error::CommandError;
use crate::measure::args;

#[derive(Args)]
pub(super) struct CaptureArgs {
    /// Keep a launch of this kernel with its memory in a file, for `gridguard tune --replay`: the first, or the N-th
    ///
    /// KERNEL is the name in the source, with or without parameters, or the mangled one. Keeps the arguments, the
    /// configuration, the module, its variables, and each allocation that arguments, variables or kept memory point to.
    /// Launches in graphs do not count. Device memory may hold secrets, for example weights, prompts and keys: only you
    /// can read the file
    #[arg(long, value_name = "KERNEL[:N]", value_parser = wanted)]
    capture: Option<Wanted>,
    /// File or folder of the capture; replaces nothing [default: KERNEL-N.capture.tar in the working directory]
    #[arg(long, hide_short_help = true, value_name = "FILE|FOLDER", requires = "capture")]
    capture_to: Option<PathBuf>,
    /// The most memory that a capture keeps; its file takes up to twice as much
    #[arg(
        long, hide_short_help = true, value_name = "BYTES", default_value = "1GiB",
        value_parser = args::bytes, requires = "capture"
    )]
    capture_limit: u64,
}

/// A kernel, and the number of its launch from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    kernel: String,
    number: u64,
}

impl CaptureArgs {
    /// The variables for the library, each with its value unless nothing is captured. Checks that the file can probably be
    /// written.
    pub(super) fn variables(&self) -> Result<[(&'static str, Option<OsString>); 4], CommandError> {
        let Some(Wanted { kernel, number }) = &self.capture else {
            return Ok(NAMES.map(|name| (name, None)));
        };
        let to = self.capture_to.as_deref().unwrap_or(Path::new("."));
        let file = if to.is_dir() { to.join(file_name(kernel, *number)) } else { to.to_owned() };
        let file = std::path::absolute(file).map_err(CommandError::io("naming the capture"))?;
        if file.symlink_metadata().is_ok() {
            return Err(CommandError::invalid_file(
                &file,
                "exists, and a capture replaces nothing: name another file with --capture-to",
            ));
        }
        let folder = file.parent().unwrap_or(&file);
        if !folder.is_dir() {
            return Err(CommandError::invalid_file(folder, "no such folder"));
        }
        check_output(&file).map_err(CommandError::publish(&file))?;
        let name = file.file_name().unwrap_or_default().as_encoded_bytes();
        delete_leftovers(folder, |file| file == name, LEFTOVER_AGE);
        let values: [OsString; 4] = [
            kernel.into(),
            number.to_string().into(),
            file.into(),
            self.capture_limit.to_string().into(),
        ];
        let mut values = values.into_iter();
        Ok(NAMES.map(|name| (name, values.next())))
    }
}

/// `gridguard_invert-2.capture.tar`: other characters than letters, digits and `_` become dashes.
fn file_name(kernel: &str, number: u64) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let name: String = kernel.chars().take(MOST_LETTERS).map(kept).collect();
    format!("{name}-{number}.capture.tar")
}

/// `KERNEL` or `KERNEL:N`. Names of C++ have two colons in a row.
fn wanted(text: &str) -> Result<Wanted, String> {
    let number = text.rsplit_once(':').filter(|(kernel, _)| !kernel.ends_with(':'));
    let (kernel, number) = match number {
        Some((kernel, number)) => (kernel, number.parse().ok().filter(|number| *number > 0)),
        None => (text, Some(1)),
    };
    match number.filter(|_| !kernel.is_empty() && !text.ends_with(':')) {
        Some(number) => Ok(Wanted { kernel: kernel.to_owned(), number }),
        None => {
            Err("expected a kernel, or a kernel and a number from 1, such as touch:3".to_owned())
        }
    }
}

const NAMES: [&str; 4] = ["CAPTURE", "CAPTURE_NUMBER", "CAPTURE_FILE", "CAPTURE_LIMIT"];
const MOST_LETTERS: usize = 100;
/// Temporary files of killed programs are older.
const LEFTOVER_AGE: Duration = Duration::from_secs(60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_may_have_a_number() {
        for (text, kernel, number) in [
            ("touch", "touch", 1),
            ("touch:3", "touch", 3),
            ("at::native::copy", "at::native::copy", 1),
            ("at::native::copy<float, (int)2>:12", "at::native::copy<float, (int)2>", 12),
        ] {
            assert_eq!(wanted(text), Ok(Wanted { kernel: kernel.to_owned(), number }), "{text}");
        }
        for text in ["", ":3", "touch:", "touch:0", "touch:x", "touch::", "touch:-1"] {
            assert!(wanted(text).is_err(), "{text}");
        }
        assert_eq!(file_name("at::k<float>", 2), "at--k-float--2.capture.tar");
    }
}
