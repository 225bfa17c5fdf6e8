//! Special registers and instructions that read the grid, or that prevent splitting.

use crate::lexer::{Token, TokenKind};
use crate::refusal::Reason;

/// A set of the values that forms replace. Each value has a number: the block index on x, y and z is 0 to 2, the grid
/// size 3 to 5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values(u8);

impl Values {
    pub(crate) const BLOCK_INDEX: Self = Self(0b000_111);
    pub(crate) const GRID_SIZE: Self = Self(0b111_000);

    pub(crate) const fn one(value: usize) -> Self {
        Self(1 << value)
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    pub(crate) const fn has(self, value: usize) -> bool {
        self.0 & Self::one(value).0 != 0
    }

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The values that `other` has too.
    pub(crate) const fn only(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..6).filter(move |value| self.has(*value))
    }
}

/// A read of a block index or a grid size: tokens `first` to `last` of its statement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) first: usize,
    pub(crate) last: usize,
    /// The number of the register's value on x.
    pub(crate) register: usize,
    /// The axis. `None` for all axes as a vector. The fourth element, which is zero, is axis 3.
    pub(crate) axis: Option<usize>,
}

impl Read {
    pub(crate) fn values(self) -> Values {
        match self.axis {
            None => Values(Values::BLOCK_INDEX.0 << self.register),
            Some(axis @ 0..3) => Values::one(self.register + axis),
            Some(_) => Values::default(),
        }
    }
}

/// The reads among the tokens of an instruction.
pub(crate) fn reads(tokens: &[Token<'_>]) -> impl Iterator<Item = Read> {
    tokens.iter().enumerate().filter_map(|(first, token)| {
        let register = register(token)?;
        let selector = tokens.get(first + 1).filter(|next| next.kind == TokenKind::Dotted);
        let axis = selector
            .and_then(|selector| SELECTORS.iter().position(|axis| axis.contains(&selector.text)));
        Some(Read { first, last: first + usize::from(axis.is_some()), register, axis })
    })
}

/// The number of the value that a special register has on x.
fn register(token: &Token<'_>) -> Option<usize> {
    match token.word()? {
        b"%ctaid" => Some(0),
        b"%nctaid" => Some(3),
        _ => None,
    }
}

/// Why a function that has `token` in an instruction cannot be rewritten.
pub(crate) fn refused_register(token: &Token<'_>) -> Option<Reason> {
    let word = token.word()?;
    match word {
        b"%gridid" => Some(Reason::GridId),
        b"%clusterid" | b"%nclusterid" => Some(Reason::Cluster),
        _ if word.starts_with(b"%envreg") => Some(Reason::GridSynchronization),
        _ => None,
    }
}

/// Whether `token` is the name of a special register. A declaration would hide the register.
pub(crate) fn is_special(token: &Token<'_>) -> bool {
    let is_of_cluster = || token.word().is_some_and(|word| OF_CLUSTER.contains(&word));
    register(token).is_some() || refused_register(token).is_some() || is_of_cluster()
}

/// Why a function with this instruction cannot be rewritten.
pub(crate) fn refused_instruction(opcode: &[u8]) -> Option<Reason> {
    (opcode == b"clusterlaunchcontrol").then_some(Reason::Cluster)
}

/// Why a function that calls the external `name` cannot be rewritten. `None` for functions that do not read the
/// grid.
pub(crate) fn refused_external(name: &[u8]) -> Option<Reason> {
    if name.starts_with(b"cudaCG") {
        return Some(Reason::GridSynchronization);
    }
    if name.starts_with(b"cuda") || name.starts_with(b"__cudaCDP") {
        return Some(Reason::DeviceLaunch);
    }
    (!HARMLESS.contains(&name)).then_some(Reason::ExternalFunction)
}

/// Why an entry with this directive before its body cannot be rewritten.
pub(crate) fn refused_directive(directive: &[u8]) -> Option<Reason> {
    if DIRECTIVES.contains(&directive) {
        return None;
    }
    let is_of_clusters = directive.windows(b"cluster".len()).any(|part| part == b"cluster");
    Some(if is_of_clusters { Reason::Cluster } else { Reason::UnknownDirective })
}

/// The selectors of each axis.
const SELECTORS: [[&[u8]; 2]; 4] = [[b".x", b".r"], [b".y", b".g"], [b".z", b".b"], [b".w", b".a"]];

/// Registers that are the same in each part of a grid that keeps its clusters whole.
const OF_CLUSTER: [&[u8]; 5] = [
    b"%cluster_ctaid",
    b"%cluster_nctaid",
    b"%cluster_ctarank",
    b"%cluster_nctarank",
    b"%is_explicit_cluster",
];

/// Functions of the driver that device code calls.
const HARMLESS: [&[u8]; 4] = [b"vprintf", b"malloc", b"free", b"__assertfail"];

/// Directives before a body that are also valid for its forms.
const DIRECTIVES: [&[u8]; 12] = [
    b".reqnctapercluster",
    b".explicitcluster",
    b".maxclusterrank",
    b".maxntid",
    b".reqntid",
    b".minnctapersm",
    b".maxnctapersm",
    b".maxnreg",
    b".pragma",
    b".noreturn",
    b".abi_preserve",
    b".abi_preserve_control",
];
