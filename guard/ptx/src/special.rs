//! Special registers and instructions that read the grid, or that cannot be split.

use crate::lexer::{Kind, Token};
use crate::refusal::Reason;

/// The block index or the grid size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    BlockIndex,
    GridSize,
}

/// A set of block indices and grid sizes, each on an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values(u8);

impl Values {
    pub(crate) const ALL: [(Quantity, usize); 6] = [
        (Quantity::BlockIndex, 0),
        (Quantity::BlockIndex, 1),
        (Quantity::BlockIndex, 2),
        (Quantity::GridSize, 0),
        (Quantity::GridSize, 1),
        (Quantity::GridSize, 2),
    ];

    pub(crate) const fn one(quantity: Quantity, axis: usize) -> Self {
        Self(Self::bit(quantity, axis))
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn has(self, quantity: Quantity, axis: usize) -> bool {
        self.0 & Self::bit(quantity, axis) != 0
    }

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The values of one quantity.
    pub(crate) fn only(self, quantity: Quantity) -> Self {
        let kept = Self::ALL.into_iter().filter(|(of, _)| *of == quantity);
        Self(self.0 & kept.fold(0, |bits, (of, axis)| bits | Self::bit(of, axis)))
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = (Quantity, usize)> {
        Self::ALL.into_iter().filter(move |(quantity, axis)| self.has(*quantity, *axis))
    }

    pub(crate) fn axes(self, quantity: Quantity) -> [bool; 3] {
        [0, 1, 2].map(|axis| self.has(quantity, axis))
    }

    const fn bit(quantity: Quantity, axis: usize) -> u8 {
        match quantity {
            Quantity::BlockIndex => 1 << axis,
            Quantity::GridSize => 8 << axis,
        }
    }
}

/// A read of a block index or a grid size: tokens `first` to `last` of its statement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) first: usize,
    pub(crate) last: usize,
    pub(crate) quantity: Quantity,
    /// The axis. `None` for all axes as a vector. The fourth element, which is zero, is axis 3.
    pub(crate) axis: Option<usize>,
}

impl Read {
    pub(crate) fn values(self) -> Values {
        let axes = match self.axis {
            Some(axis) => axis..(axis + 1).min(3),
            None => 0..3,
        };
        axes.fold(Values::default(), |all, axis| all.with(Values::one(self.quantity, axis)))
    }
}

/// The reads among the tokens of an instruction.
pub(crate) fn reads(tokens: &[Token<'_>]) -> impl Iterator<Item = Read> {
    tokens.iter().enumerate().filter_map(|(first, token)| {
        let quantity = quantity(token)?;
        let selector = tokens.get(first + 1).filter(|next| next.kind == Kind::Dotted);
        let (last, axis) = match selector.map(|selector| selector.text) {
            Some(b".x" | b".r") => (first + 1, Some(0)),
            Some(b".y" | b".g") => (first + 1, Some(1)),
            Some(b".z" | b".b") => (first + 1, Some(2)),
            Some(b".w" | b".a") => (first + 1, Some(3)),
            _ => (first, None),
        };
        Some(Read { first, last, quantity, axis })
    })
}

fn quantity(token: &Token<'_>) -> Option<Quantity> {
    match token.word()? {
        b"%ctaid" => Some(Quantity::BlockIndex),
        b"%nctaid" => Some(Quantity::GridSize),
        _ => None,
    }
}

/// Why a function that has `token` in an instruction cannot be rewritten.
pub(crate) fn refused_register(token: &Token<'_>) -> Option<Reason> {
    let word = token.word()?;
    match word {
        b"%gridid" => Some(Reason::GridId),
        b"%clusterid"
        | b"%nclusterid"
        | b"%cluster_ctaid"
        | b"%cluster_nctaid"
        | b"%cluster_ctarank"
        | b"%cluster_nctarank"
        | b"%is_explicit_cluster" => Some(Reason::Cluster),
        _ if word.starts_with(b"%envreg") => Some(Reason::GridSynchronization),
        _ => None,
    }
}

/// Whether `token` is the name of a special register. A declaration would hide the register.
pub(crate) fn is_special(token: &Token<'_>) -> bool {
    quantity(token).is_some() || refused_register(token).is_some()
}

/// Why a function with this instruction cannot be rewritten.
pub(crate) fn refused_instruction(opcode: &[u8], modifiers: &[Token<'_>]) -> Option<Reason> {
    let has = |text| modifiers.iter().any(|modifier| modifier.is_dotted(text));
    match opcode {
        b"griddepcontrol" => Some(Reason::DependentLaunch),
        b"mapa" | b"getctarank" | b"clusterlaunchcontrol" => Some(Reason::Cluster),
        b"barrier" if has(".cluster") => Some(Reason::Cluster),
        _ if has(".multicast::cluster") || has(".cta_group::2") => Some(Reason::Cluster),
        _ => None,
    }
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
    if directive.windows(b"cluster".len()).any(|part| part == b"cluster") {
        return Some(Reason::Cluster);
    }
    (!DIRECTIVES.contains(&directive)).then_some(Reason::UnknownDirective)
}

/// Functions of the driver that device code calls.
const HARMLESS: [&[u8]; 4] = [b"vprintf", b"malloc", b"free", b"__assertfail"];

/// Directives before a body that are also valid for its forms.
const DIRECTIVES: [&[u8]; 9] = [
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
