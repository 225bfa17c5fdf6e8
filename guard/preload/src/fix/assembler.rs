//! Keeps the PTX that a `ptxas` of the run assembles, for the process that loads its machine code. `ptxas` has this
//! library too, and writes the PTX to the folder of the run, below the digest of the cubin.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gridguard_files::{publish_private, read_trusted};

use crate::process::output::without_signals;
use crate::process::{self, guarded};
use crate::watch::handle_record::{Digest, Reason};

/// The call of this process, if it is a `ptxas`, and its files when it began.
static CALL: OnceLock<(Call, [Option<Identity>; 2])> = OnceLock::new();

/// Registers what a process does at its end: `ptxas` keeps the PTX that it read, and the first process of the run
/// deletes the folder.
pub(crate) fn begin() {
    let options = process::options();
    let Some(folder) = options.ptx.as_deref().filter(|_| options.fix) else { return };
    let program = process::program();
    let is_ptxas = Path::new(&program).file_name().is_some_and(is_ptxas);
    if is_ptxas && gridguard_files::check_folder(folder).is_ok() {
        let line = fs::read("/proc/self/cmdline").unwrap_or_default();
        if let Some(call) = Call::of(line.split(|byte| *byte == 0).skip(1)) {
            let files = call.files();
            let _ = CALL.set((call, files));
            // SAFETY: the function lives as long as the process, which never unloads a preloaded library.
            unsafe { on_exit(at_end_of_ptxas, ptr::null_mut()) };
        }
    } else if process::is_first() {
        process::register_end(at_end_of_run);
    }
}

unsafe extern "C" {
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), data: *mut c_void) -> c_int;
}

/// Triton has a `ptxas-blackwell`, too.
fn is_ptxas(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"ptxas")
}

/// A `ptxas` that fails, or is killed, leaves an older cubin.
extern "C" fn at_end_of_ptxas(status: c_int, _data: *mut c_void) {
    if status == 0 {
        guarded::run(|| {
            let (call, before) = CALL.get()?;
            keep(process::options().ptx.as_deref()?, call, *before)
        });
    }
}

extern "C" fn at_end_of_run() {
    guarded::run(|| {
        // A child process of the first one inherits this function, but not its number.
        let folder = process::options().ptx.as_deref().filter(|_| process::is_first())?;
        let entries = fs::read_dir(folder).ok()?.flatten();
        for entry in entries.filter(|entry| is_record(&entry.file_name())) {
            let _ = fs::remove_file(entry.path());
        }
        fs::remove_dir(folder).ok()
    });
}

/// The command line of a `ptxas`.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    input: PathBuf,
    output: PathBuf,
    /// Options that a driver does not apply when it compiles the same PTX.
    others: Vec<String>,
}

impl Call {
    /// `None` if it writes no cubin of one text.
    fn of<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut words = words.filter(|word| !word.is_empty());
        let (mut inputs, mut output, mut others) = (Vec::new(), None, Vec::new());
        while let Some(word) = words.next() {
            if !word.starts_with(b"-") {
                inputs.push(word);
                continue;
            }
            let (name, joined) = match word.iter().position(|byte| *byte == b'=') {
                Some(at) => (&word[..at], Some(&word[at + 1..])),
                None => (word, None),
            };
            if HARMLESS.split(' ').any(|harmless| harmless.as_bytes() == name) {
                continue;
            }
            let is_output = OUTPUT.contains(&name);
            if is_output || VALUED.contains(&name) {
                let value = joined.or_else(|| words.next())?;
                output = if is_output { Some(value) } else { output };
            } else {
                others.push(String::from_utf8_lossy(word).into_owned());
            }
        }
        let path = |word: &[u8]| std::path::absolute(OsStr::from_bytes(word)).ok();
        // The value of an unknown option is taken for an input.
        let input = inputs.first().filter(|_| inputs.len() == 1 || !others.is_empty())?;
        Some(Self { input: path(input)?, output: path(output?)?, others })
    }

    /// The input and the output.
    fn files(&self) -> [Option<Identity>; 2] {
        [identity(&self.input), identity(&self.output)]
    }
}

/// The first of these options of `ptxas` that the driver does not apply.
pub(super) fn other_option(options: &str) -> Option<String> {
    let words = options.split(' ').chain(["input", "-o", "output"]);
    Call::of(words.map(str::as_bytes))?.others.into_iter().next()
}

/// Device, number and size of a file, and when it was changed last.
type Identity = (u64, u64, u64, i64, i64);

fn identity(path: &Path) -> Option<Identity> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.len(), file.ctime(), file.ctime_nsec()))
}

/// Writes the PTX, or the options that a driver does not apply, for the cubin of a call.
fn keep(folder: &Path, call: &Call, before: [Option<Identity>; 2]) -> Option<()> {
    let cubin = gridguard_files::read(&call.output, MOST_BYTES).ok()??;
    let mut record = call.others.join(" ").into_bytes();
    record.push(b'\n');
    if call.others.is_empty() {
        let ptx = gridguard_files::read(&call.input, MOST_BYTES).ok()??;
        record.extend(lz4_flex::compress_prepend_size(&ptx));
    }
    let [input, output] = call.files();
    // The input is still what was read, and the output was written.
    let is_pair = input == before[0] && output != before[1];
    is_pair.then(|| input.zip(output)).flatten()?;
    // The first `ptxas` creates the folder.
    let known = fs::read_dir(folder).map_or(0, |entries| entries.take(MOST_TEXTS).count());
    let path = path_of(folder, Digest::of_cubin(&cubin));
    (known < MOST_TEXTS).then(|| without_signals(|| publish_private(&path, &record)))?.ok()
}

/// The PTX of a cubin that a `ptxas` of the run has made.
pub(super) fn find(cubin: Digest) -> Option<Result<Vec<u8>, Reason>> {
    read(process::options().ptx.as_deref()?, cubin)
}

fn read(folder: &Path, cubin: Digest) -> Option<Result<Vec<u8>, Reason>> {
    let untrusted = |error| Reason::from(format!("the PTX of ptxas is not used: {error}"));
    let record = match read_trusted(&path_of(folder, cubin), MOST_BYTES) {
        Ok(record) => record?,
        Err(error) => return Some(Err(untrusted(error))),
    };
    let end = record.iter().position(|byte| *byte == b'\n').unwrap_or(record.len());
    let (options, ptx) = (&record[..end], record.get(end + 1..).unwrap_or_default());
    if !options.is_empty() {
        let options = String::from_utf8_lossy(options);
        let reason =
            format!("ptxas made it with options that the driver does not apply: {options}");
        return Some(Err(reason.into()));
    }
    let size = ptx.first_chunk().map(|size| u64::from(u32::from_le_bytes(*size)));
    let is_sized = size.is_some_and(|size| size <= MOST_BYTES);
    let text = is_sized.then(|| lz4_flex::decompress_size_prepended(ptx).ok()).flatten();
    Some(text.ok_or("the PTX of ptxas is damaged".into()))
}

fn path_of(folder: &Path, Digest { bytes, hash }: Digest) -> PathBuf {
    folder.join(format!("{hash:016x}-{bytes}"))
}

/// Whether a file of this name is one of [`path_of`].
fn is_record(name: &OsStr) -> bool {
    let parts = name.to_str().and_then(|name| name.split_once('-'));
    parts.is_some_and(|(hash, bytes)| {
        hash.len() == 16 && u64::from_str_radix(hash, 16).is_ok() && bytes.parse::<u64>().is_ok()
    })
}

const OUTPUT: [&[u8]; 2] = [b"-o", b"--output-file"];
/// Options with a value that a driver also applies, or that does not change the machine code.
const VALUED: [&[u8]; 6] =
    [b"-arch", b"--gpu-name", b"-m", b"--machine", b"-split-compile", b"--split-compile"];
/// Options that change nothing but messages and lines of the source.
const HARMLESS: &str = "-m64 -O3 -v --verbose -w --disable-warnings -lineinfo --generate-line-info -suppress-debug-info \
    --suppress-debug-info -warn-double-usage --warn-on-double-precision-use -warn-lmem-usage \
    --warn-on-local-memory-usage -warn-spills --warn-on-spills -Werror --warning-as-error \
    --suppress-stack-size-warning";
/// The largest file that is read.
const MOST_BYTES: u64 = 64 << 20;
/// The most texts that a run keeps.
const MOST_TEXTS: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Option<Call> {
        Call::of(line.split(' ').map(str::as_bytes))
    }

    #[test]
    fn the_files_and_options_of_ptxas_are_read_in_each_way_to_write_them() {
        let others = |line: &str| call(line).expect("a cubin of one text").others;
        for line in [
            "a.ptx -o a.cubin -arch=sm_90a --warn-on-spills -v",
            "-lineinfo -v --gpu-name=sm_90a a.ptx --output-file=a.cubin",
            "-arch sm_90 -m64 -m 64 --split-compile 4 a.ptx -o a.cubin -O3 -w",
        ] {
            let [input, output] =
                ["a.ptx", "a.cubin"].map(|name| std::path::absolute(name).expect("a path"));
            let expected = Call { input, output, others: Vec::new() };
            assert_eq!(call(line), Some(expected), "{line}");
        }
        assert_eq!(others("a.ptx -o a.cubin -O0"), ["-O0"]);
        assert_eq!(others("--maxrregcount 32 a.ptx -o a.cubin"), ["--maxrregcount"]);
        assert_eq!(others("-c -fmad=false a.ptx -o a.cubin"), ["-c", "-fmad=false"]);
        for none in ["", "--version", "a.ptx", "a.ptx b.ptx -o a.cubin", "-o a.cubin", "a.ptx -o"] {
            assert_eq!(call(none), None, "{none}");
        }
    }

    #[test]
    fn ptx_is_kept_for_the_bytes_of_its_cubin_and_damage_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name);
        let kept = file("kept");
        fs::write(file("a.ptx"), b".version 8.0\n").expect("a file");
        fs::write(file("a.cubin"), b"code").expect("a file");
        let line = |more: &str| {
            let [input, output] = ["a.ptx", "a.cubin"].map(|name| file(name).display().to_string());
            call(&format!("{input} -o {output}{more}")).expect("a call")
        };
        let keep = |call: &Call| keep(&kept, call, [identity(&call.input), None]);
        let found = |cubin: &[u8]| read(&kept, Digest::of_cubin(cubin));
        keep(&line("")).expect("kept");
        assert_eq!(found(b"code"), Some(Ok(b".version 8.0\n".to_vec())));
        assert_eq!((found(b"cod"), found(b"node")), (None, None));
        let path = path_of(&kept, Digest::of_cubin(b"code"));
        assert!(is_record(path.file_name().expect("a name")) && !is_record(OsStr::new("a-b.txt")));
        for damaged in [&b""[..], b"\n", b"\nabc", b"\n\xff\xff\xff\xff", b"\n\x05\0\0\0\xff"] {
            fs::write(&path, damaged).expect("written");
            let told = found(b"code").expect("found").expect_err("damaged");
            assert_eq!(told, "the PTX of ptxas is damaged", "{damaged:?}");
        }
        keep(&line(" -O0 -fmad=false")).expect("kept");
        let told = found(b"code").expect("found").expect_err("other options");
        assert!(told.ends_with("that the driver does not apply: -O0 -fmad=false"), "{told}");
        fs::remove_file(file("a.cubin")).expect("removed");
        assert_eq!(keep(&line("")), None);
    }
}
