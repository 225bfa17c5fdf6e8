//! `gridguard ptx`: rewrites the entries of a PTX file so that their launches can be split.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use gridguard::count;
use gridguard::image::ImageFile;
use gridguard_files::ReadError;
use gridguard_ptx::{EntryReport, FOLDED_WORDS, Report, SHIFTED_WORDS, rewrite_entries};
use serde_json::{Value, json};

use crate::error::{CommandError, Exit};
use crate::files::write_file;
use crate::output::{OutputArgs, Table};
use index::IndexArgs;

pub(crate) mod index;

#[derive(Args)]
pub(crate) struct Ptx {
    /// PTX file, or a fatbin with uncompressed PTX
    file: PathBuf,
    /// File for the rewritten PTX
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only this entry; repeat for several [default: all]
    #[arg(long, value_name = "NAME")]
    entry: Vec<String>,
    #[command(flatten)]
    index: IndexArgs,
    #[command(flatten)]
    format: OutputArgs,
}

impl Ptx {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let text = text_of(&self.file)?;
        if self.index.index {
            return self.index.run(&self.file, &text, &self.entry, self.format);
        }
        let is_wanted =
            |name: &str| self.entry.is_empty() || self.entry.iter().any(|entry| entry == name);
        let rewritten =
            rewrite_entries(&text, is_wanted).map_err(CommandError::in_file(&self.file))?;
        let report = &rewritten.report;
        if let Some(missing) = self.entry.iter().find(|name| report.entry(name).is_none()) {
            let error = format!("there is no entry {missing}");
            return Err(CommandError::invalid_file(&self.file, error));
        }
        if let Some(file) = &self.output {
            write_file(file, &rewritten.text)?;
        }
        let summary = Summary(report, self.output.as_deref());
        self.format.print(&self.document(report), summary)?;
        let refused = report.entries.iter().any(|entry| entry.forms.is_err());
        Ok(if refused { Exit::No } else { Exit::Yes })
    }

    fn document(&self, report: &Report) -> Value {
        let (major, minor) = report.version;
        let mut document = json!({
            "version": format!("{major}.{minor}"),
            "target": report.target,
            "entries": report.entries.iter().map(entry_json).collect::<Vec<_>>(),
            // Functions with a variant that takes block indices and grid sizes as parameters.
            "functions": report.functions,
        });
        if let Some(path) = &self.output {
            document["output"] = path.display().to_string().into();
        }
        document
    }
}

fn entry_json(entry: &EntryReport) -> Value {
    let mut document = json!({
        "name": entry.name,
        "line": entry.at.line,
        "column": entry.at.column,
        "parameters": entry.parameters,
        "parameter_bytes": entry.parameter_bytes,
        "reads_block_index": axes(entry.reads_block_index).collect::<Vec<_>>(),
        "reads_grid_size": axes(entry.reads_grid_size).collect::<Vec<_>>(),
    });
    match &entry.forms {
        Ok(forms) => {
            document["forms"] = json!({
                "shifted": forms.shifted,
                "folded": forms.folded,
                // The added parameter: its index, its offset in bytes, and its 32-bit words.
                "parameter_index": forms.parameter_index,
                "parameter_offset": forms.parameter_offset,
                "shifted_words": SHIFTED_WORDS,
                "folded_words": FOLDED_WORDS,
            });
        }
        Err(refusal) => {
            document["refusal"] = json!({
                "reason": refusal.reason.id(),
                "subject": refusal.subject,
                "function": refusal.function,
                "line": refusal.at.line,
                "column": refusal.at.column,
                "message": refusal.to_string(),
            });
        }
    }
    document
}

/// The report as text, and the path of the rewritten file.
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
        let refused = refusals.clone().count();
        for refusal in refusals {
            writeln!(f, "{refusal}")?;
        }
        if refused > 0 {
            writeln!(f)?;
        }
        let entries = count(report.entries.len() - refused, "entry");
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

/// The PTX of a PTX file, a fatbin, or a program with fatbins.
fn text_of(path: &Path) -> Result<Vec<u8>, CommandError> {
    let bytes = match gridguard_files::read(path, MOST_BYTES) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(CommandError::missing_file(path)),
        Err(ReadError::Io(error)) => return Err(CommandError::io(path.display())(error)),
        Err(error) => return Err(CommandError::invalid_file(path, error)),
    };
    if !BINARY.iter().any(|magic| bytes.starts_with(magic)) {
        return Ok(bytes);
    }
    let invalid = |error: &dyn fmt::Display| CommandError::invalid_file(path, error);
    let file = ImageFile::parse(&bytes).map_err(|error| invalid(&error))?;
    let texts: Vec<_> = file.images().filter(|image| image.is_ptx()).collect();
    match texts[..] {
        [] => {
            Err(invalid(&"it holds no PTX, only code for certain GPUs, which cannot be rewritten"))
        }
        [text] => Ok(text.ptx().map_err(|error| invalid(&error))?.into_owned()),
        _ => Err(invalid(&format_args!("it holds {} PTX texts; {EXTRACT}", texts.len()))),
    }
}

/// The magic numbers of cubins, programs and fatbins.
const BINARY: [&[u8]; 2] = [b"\x7fELF", b"\x50\xed\x55\xba"];
const EXTRACT: &str = "extract it with `cuobjdump --extract-ptx all`, and rewrite that";
/// No compiler writes larger files.
const MOST_BYTES: u64 = 1 << 30;
