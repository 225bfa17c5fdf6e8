#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod body;
mod error;
mod extract;
mod fold;
mod header;
mod lexer;
mod module;
mod names;
mod refusal;
mod report;
mod rewrite;
mod special;
mod statement;
pub mod syntax;
mod usage;
mod values;
mod variable;
mod write;

pub use error::{Position, PtxError};
pub use extract::{Extracted, Variable, extract};
pub use fold::{FOLDED_WORDS, Fold, SHIFTED_WORDS, shifted_words};
pub use refusal::{Reason, Refusal};
pub use report::{EntryReport, Form, Forms, Report, Rewritten};
pub use rewrite::{rewrite, rewrite_entries};
