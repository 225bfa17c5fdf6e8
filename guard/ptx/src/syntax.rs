//! PTX as tokens, statements and entries, for other analyses of the same text.

use core::ops::Range;

use crate::error::PtxError;
pub use crate::header::number;
pub use crate::lexer::{Lexer, Token, TokenKind};
use crate::module::{Item, Module};
pub use crate::statement::{Instruction, Statement, StatementKind, Statements};

/// A kernel that a text defines.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// Its name.
    pub name: Token<'a>,
    /// The bytes of its parameters, between the parentheses; empty without any.
    pub parameters: Range<usize>,
    /// The brace that opens its body.
    pub open: Token<'a>,
    /// All its bytes, from its linkage to the end of its body.
    pub range: Range<usize>,
}

/// The kernels that `text` defines, in order. Zeros at its end are not part of it.
///
/// # Errors
///
/// [`PtxError`] if the text is not PTX.
pub fn entries(text: &[u8]) -> Result<Vec<Entry<'_>>, PtxError> {
    let end = text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let module = Module::read(text.get(..end).unwrap_or_default())?;
    let items = module.items.into_iter().filter(|item| item.is_entry);
    Ok(items.filter_map(definition).collect())
}

fn definition<'a>(Item { header, start, end, .. }: Item<'a>) -> Option<Entry<'a>> {
    let open = header.open?;
    let parameters = header.parameters.list.unwrap_or(open.start..open.start);
    Some(Entry { name: header.name, parameters, open, range: start..end })
}
