#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod arithmetic;
mod atoms;
mod bound;
mod checks;
mod code;
mod condition;
mod depends;
mod effects;
mod entries;
mod facts;
mod flow;
mod limits;
mod opcodes;
mod operand;
mod poly;
mod sizes;
mod step;
mod trace;
mod values;
mod variables;
mod verdict;
mod witness;
mod words;

pub use entries::{EntryPlaces, index};
pub use gridguard_ptx::{Position, PtxError};
pub use limits::{MOST_LIMITS, SizeLimit, SizeTerm};
pub use sizes::{Reason, Size, Sizes};
pub use verdict::{Doubt, EntryIndex, First, SourceLine, Verdict, Wrap};
