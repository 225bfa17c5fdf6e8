//! The entries of a text, each analysed separately.

use core::ops::Range;
use std::collections::HashMap;

use gridguard_ptx::PtxError;
use gridguard_ptx::syntax::{Entry, Lexer, TokenKind, entries, number};

use crate::code::{Code, lossy};
use crate::trace::Trace;
use crate::verdict::EntryIndex;

/// Finds the 32-bit arithmetic of each entry of `ptx` whose result may leave its type and becomes an address, or is
/// compared to decide about a branch.
///
/// A negative number in an unsigned instruction is a large one in a check of both ends of a range, and where it only
/// becomes an address. Elsewhere the result is unknown. A parameter of twelve bytes whose words multiply and shift is
/// taken for a divisor with its reciprocal.
///
/// # Errors
///
/// [`PtxError`] if the text is not PTX.
///
/// # Examples
///
/// ```
/// use gridguard_index::{Size, Sizes, Verdict, index};
///
/// let ptx = ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 out) {\n\
///     ld.param.u64 %rd1, [out];\nmov.u32 %r1, %ctaid.y;\nshl.b32 %r2, %r1, 16;\n\
///     mul.wide.s32 %rd2, %r2, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\nret;\n}\n";
/// let mut entry = index(ptx.as_bytes())?.remove(0);
/// let mut sizes = Sizes::default();
/// sizes.set(Size::Grid(1), 32_768);
/// assert_eq!(entry.verdict(&sizes), Verdict::Safe);
///
/// sizes.set(Size::Grid(1), 32_769);
/// let Verdict::Wraps(wraps) = entry.verdict(&sizes) else { panic!("it wraps") };
/// assert_eq!(wraps[0].expression, "blockIdx.y * 65536");
/// assert_eq!(wraps[0].formula, "gridDim.y * 65536 > 2147549183");
/// # Ok::<(), gridguard_index::PtxError>(())
/// ```
pub fn index(ptx: &[u8]) -> Result<Vec<EntryIndex>, PtxError> {
    let files = files(ptx);
    entries(ptx)?.iter().map(|entry| analyze(ptx, entry, &files)).collect()
}

/// The places of the entries in a text. With them, an entry is analysed without the others. Nothing of the functions that
/// it calls is needed, since calls are not followed.
#[derive(Clone, Debug, Default)]
pub struct EntryPlaces {
    /// The bytes of each entry, and the lines before them.
    entries: HashMap<String, (Range<usize>, u64)>,
    files: HashMap<u64, String>,
}

impl EntryPlaces {
    /// Finds the entries of `ptx`.
    ///
    /// # Errors
    ///
    /// [`PtxError`] if the text is not PTX.
    pub fn read(ptx: &[u8]) -> Result<Self, PtxError> {
        let (mut lines, mut counted) = (0, 0);
        let mut place = |Entry { name, range, .. }: Entry<'_>| {
            let between = ptx.get(counted..range.start).unwrap_or_default();
            lines += between.iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>();
            counted = range.start;
            (lossy(name.text), (range, lines))
        };
        let entries = entries(ptx)?.into_iter().map(&mut place).collect();
        Ok(Self { entries, files: files(ptx) })
    }

    /// The indices of the entry `name` of `ptx`, the text that [`Self`] was made from. `None` if there is no such entry.
    ///
    /// # Errors
    ///
    /// As [`index`].
    pub fn index(&self, ptx: &[u8], name: &str) -> Result<Option<EntryIndex>, PtxError> {
        let Some((range, lines)) = self.entries.get(name) else { return Ok(None) };
        let Some(own) = ptx.get(range.clone()) else { return Ok(None) };
        // No index depends on the text's target.
        let text = [HEADER, own].concat();
        let Some(entry) = entries(&text)?.pop() else { return Ok(None) };
        let mut entry = analyze(&text, &entry, &self.files)?;
        entry.move_lines(HEADER_LINES, *lines);
        Ok(Some(entry))
    }
}

/// Makes an entry a text.
const HEADER: &[u8] = b".version 8.0\n.target sm_80\n";
const HEADER_LINES: u64 = 2;

fn analyze(
    text: &[u8],
    Entry { name, parameters: list, open, .. }: &Entry<'_>,
    files: &HashMap<u64, String>,
) -> Result<EntryIndex, PtxError> {
    let code = Code::read(text, open)?;
    let names = parameters(text, list.start, list.end)?;
    let known = names.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    let block = block(text, list.end, open.start)?;
    let mut entry = EntryIndex::of(&code, Trace::of(&code, &known, block), files);
    entry.name = lossy(name.text);
    entry.at = name.at;
    entry.parameters = names.iter().map(|name| lossy(name)).collect();
    Ok(entry)
}

/// The names of the parameters that are declared from `begin` to `end`.
fn parameters(text: &[u8], begin: usize, end: usize) -> Result<Vec<&[u8]>, PtxError> {
    let mut lexer = Lexer::new(text.get(begin..end).unwrap_or_default());
    let (mut names, mut last) = (Vec::new(), None);
    while let Some(token) = lexer.next_token()? {
        if token.is(b',') {
            names.extend(last.take());
        }
        last = token.word().or(last);
    }
    names.extend(last);
    Ok(names)
}

/// The range of the block size that the directives from `begin` to `end` state.
fn block(text: &[u8], begin: usize, end: usize) -> Result<[Option<(i128, i128)>; 3], PtxError> {
    let mut lexer = Lexer::new(text.get(begin..end).unwrap_or_default());
    let (mut block, mut exact, mut axis) = ([None; 3], None, 0);
    while let Some(token) = lexer.next_token()? {
        match token.kind {
            TokenKind::Dotted => {
                exact = match token.text {
                    b".reqntid" => Some(true),
                    b".maxntid" => Some(false),
                    _ => None,
                };
                axis = 0;
                if exact.is_some() {
                    block = [Some((1, 1)); 3];
                }
            }
            TokenKind::Number => {
                let size = number(token.text).map(i128::from);
                if let (Some(exact), Some(size), Some(slot)) = (exact, size, block.get_mut(axis)) {
                    *slot = Some(if exact { (size, size) } else { (1, size.max(1)) });
                }
                axis += 1;
            }
            _ => {}
        }
    }
    Ok(block)
}

/// The names of source files by their numbers.
fn files(text: &[u8]) -> HashMap<u64, String> {
    let mut files = HashMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(rest) = line.trim_ascii_start().strip_prefix(b".file") else { continue };
        let mut parts = rest.splitn(3, |byte| *byte == b'"');
        let number = parts.next().and_then(|number| lossy(number).trim().parse().ok());
        if let (Some(number), Some(name)) = (number, parts.next()) {
            files.insert(number, lossy(name));
        }
    }
    files
}
