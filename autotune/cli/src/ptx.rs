//! `gridguard ptx`: which entries of a PTX file can be rewritten so that their launches can be split,
//! and the rewritten file.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use gridguard::cuda::Image;
use gridguard_files::ReadError;
use gridguard_ptx::{EntryReport, FOLDED_WORDS, Refusal, Report, SHIFTED_WORDS, rewrite_entries};
use serde::Serialize;

use crate::error::{CommandError, Exit};
use crate::files::write_file;
use crate::output::{OutputArgs, Table, count};

#[derive(Args)]
pub(crate) struct Ptx {
    /// A file of PTX, or a fatbin with PTX that is not compressed
    file: PathBuf,
    /// Writes the rewritten PTX to this file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only this entry; may be given several times
    #[arg(long, value_name = "NAME")]
    entry: Vec<String>,
    #[command(flatten)]
    format: OutputArgs,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    version: String,
    target: &'a str,
    entries: Vec<EntryJson<'a>>,
    /// Functions with a variant that takes block indices and grid sizes as parameters.
    functions: &'a [String],
    /// The rewritten file, if it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
}

#[derive(Serialize)]
struct EntryJson<'a> {
    name: &'a str,
    line: u64,
    column: u64,
    parameters: usize,
    parameter_bytes: u64,
    reads_block_index: Vec<char>,
    reads_grid_size: Vec<char>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forms: Option<FormsJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<RefusalJson<'a>>,
}

#[derive(Serialize)]
struct FormsJson<'a> {
    shifted: &'a str,
    folded: &'a str,
    /// Where the added parameter is: its index, its offset in bytes, and the 32-bit words that it has.
    parameter_index: usize,
    parameter_offset: u64,
    shifted_words: usize,
    folded_words: usize,
}

#[derive(Serialize)]
struct RefusalJson<'a> {
    reason: &'a str,
    subject: &'a str,
    function: &'a str,
    line: u64,
    column: u64,
    message: String,
}

impl Ptx {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let text = ptx_of(&self.file, read(&self.file)?)?;
        let is_wanted =
            |name: &str| self.entry.is_empty() || self.entry.iter().any(|entry| entry == name);
        let rewritten = rewrite_entries(&text, is_wanted)
            .map_err(|error| CommandError::invalid_file(&self.file, error))?;
        let report = &rewritten.report;
        if let Some(missing) = self.entry.iter().find(|name| report.entry(name).is_none()) {
            let error = format!("there is no entry {missing}");
            return Err(CommandError::invalid_file(&self.file, error));
        }
        if let Some(output) = &self.output {
            write_file(output, &rewritten.text)?;
        }
        self.format.print(&self.document(report), Summary(report, self.output.as_deref()))?;
        let refused = report.entries.iter().any(|entry| entry.forms.is_err());
        Ok(if refused { Exit::No } else { Exit::Yes })
    }

    fn document<'a>(&self, report: &'a Report) -> Document<'a> {
        let (major, minor) = report.version;
        Document {
            version: format!("{major}.{minor}"),
            target: &report.target,
            entries: report.entries.iter().map(EntryJson::from).collect(),
            functions: &report.functions,
            output: self.output.as_ref().map(|path| path.display().to_string()),
        }
    }
}

impl<'a> From<&'a EntryReport> for EntryJson<'a> {
    fn from(entry: &'a EntryReport) -> Self {
        let forms = entry.forms.as_ref().map(|forms| FormsJson {
            shifted: &forms.shifted,
            folded: &forms.folded,
            parameter_index: forms.parameter_index,
            parameter_offset: forms.parameter_offset,
            shifted_words: SHIFTED_WORDS,
            folded_words: FOLDED_WORDS,
        });
        let refusal = entry.forms.as_ref().err().map(|refusal| {
            let Refusal { reason, subject, function, at } = refusal;
            let (line, column) = (at.line, at.column);
            let message = refusal.to_string();
            RefusalJson { reason: reason.id(), subject, function, line, column, message }
        });
        Self {
            name: &entry.name,
            line: entry.at.line,
            column: entry.at.column,
            parameters: entry.parameters,
            parameter_bytes: entry.parameter_bytes,
            reads_block_index: axes(entry.reads_block_index).collect(),
            reads_grid_size: axes(entry.reads_grid_size).collect(),
            forms: forms.ok(),
            refusal,
        }
    }
}

/// The report as text, and where the rewritten file is.
struct Summary<'a>(&'a Report, Option<&'a Path>);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report, output) = self;
        let mut table =
            Table::new(["entry", ">line", "reads block index", "reads grid size", "forms"]);
        for entry in &report.entries {
            table.push([
                entry.name.clone(),
                entry.at.line.to_string(),
                axes(entry.reads_block_index).collect(),
                axes(entry.reads_grid_size).collect(),
                if entry.forms.is_ok() { "shifted, folded" } else { "none" }.to_owned(),
            ]);
        }
        if !report.entries.is_empty() {
            writeln!(f, "{table}")?;
        }
        let refusals = report.entries.iter().filter_map(|entry| entry.forms.as_ref().err());
        let mut refused = 0;
        for refusal in refusals {
            writeln!(f, "{refusal}")?;
            refused += 1;
        }
        if refused > 0 {
            writeln!(f)?;
        }
        let entries = count(report.entries.len() - refused, "entry", "entries");
        write!(f, "{entries} rewritten, {refused} refused")?;
        match output {
            Some(path) => writeln!(f, ": {}", path.display()),
            None => writeln!(f, "; --output FILE writes them"),
        }
    }
}

fn axes(reads: [bool; 3]) -> impl Iterator<Item = char> {
    "xyz".chars().zip(reads).filter(|(_, reads)| *reads).map(|(axis, _)| axis)
}

fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    match gridguard_files::read(path, MOST_BYTES) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(CommandError::missing_file(path)),
        Err(ReadError::Io(error)) => Err(CommandError::io(path.display().to_string())(error)),
        Err(error) => Err(CommandError::invalid_file(path, error)),
    }
}

/// The PTX that a file is, or that a fatbin holds.
fn ptx_of(path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>, CommandError> {
    if !BINARY.iter().any(|magic| bytes.starts_with(magic)) {
        return Ok(bytes);
    }
    let invalid = |error: &dyn fmt::Display| CommandError::invalid_file(path, error);
    let image = Image::new(bytes).map_err(|error| invalid(&error))?;
    match image.embedded_ptx().as_slice() {
        [] => {
            Err(invalid(&"it holds no PTX, only code for certain GPUs, which cannot be rewritten"))
        }
        [text] if Image::new(*text).is_ok() => Ok(text.to_vec()),
        [_] => Err(invalid(&format_args!("its PTX is compressed; {EXTRACT}"))),
        several => Err(invalid(&format_args!("it holds {} PTX texts; {EXTRACT}", several.len()))),
    }
}

/// What cubins and fatbins begin with.
const BINARY: [&[u8]; 2] = [b"\x7fELF", b"\x50\xed\x55\xba"];
const EXTRACT: &str = "extract it with `cuobjdump --extract-ptx all`, and rewrite that";
/// No compiler writes larger files.
const MOST_BYTES: u64 = 1 << 30;
