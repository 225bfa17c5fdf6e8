//! Whether an entry's indices wrap in a launch.

use core::fmt;
use core::ops::Range;
use std::collections::{BTreeMap, HashMap};

use gridguard_ptx::Position;

use super::bound::{Bound, Bounds};
use super::checks::{Check, Checks, worst};
use super::code::{Code, lossy};
use super::poly::Poly;
use super::sizes::{Reason, Size, Sizes};
use super::trace::Trace;
use super::values::{Atom, Kind, Values};
use super::words::Words;

/// The indices of an entry.
#[non_exhaustive]
pub struct EntryIndex {
    /// Its name.
    pub name: String,
    /// The position of its name.
    pub at: Position,
    /// The names of its parameters.
    pub parameters: Vec<String>,
    /// Whether an address or a branch depends on a block index or the grid size.
    pub uses_grid: bool,
    registers: Vec<String>,
    /// By the number of the instruction.
    places: BTreeMap<usize, Place>,
    pub(super) checks: Vec<Check>,
    pub(super) values: Values,
    /// Why a part of the entry is unknown, and the place.
    doubt: Option<(Reason, usize)>,
}

/// An instruction in the text, or else the entry.
struct Place {
    at: Position,
    source: Option<SourceLine>,
    text: String,
}

/// A line of the source, if the compiler wrote line numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The file.
    pub file: String,
    /// The line.
    pub line: u64,
}

/// Whether indices wrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No index wraps.
    Safe,
    /// These wrap, in the order of the text.
    Wraps(Vec<Wrap>),
    /// An index may wrap.
    Unknown(Doubt),
}

/// Why it is unknown whether an index wraps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Doubt {
    /// The reason.
    pub reason: Reason,
    /// The first instruction that is not followed, or the entry.
    pub at: Position,
    /// The line of the source.
    pub source: Option<SourceLine>,
    /// The text of the instruction. Empty if the whole entry is not followed.
    pub instruction: String,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, at, instruction, .. } = self;
        write!(f, "{reason}")?;
        if instruction.is_empty() { Ok(()) } else { write!(f, ": {instruction} in {at}") }
    }
}

/// 32-bit arithmetic that wraps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wrap {
    /// The instruction whose result wraps.
    pub at: Position,
    /// The line of the source.
    pub source: Option<SourceLine>,
    /// The text of the instruction.
    pub instruction: String,
    /// Whether the result becomes an address. Otherwise it is only compared to decide about a branch.
    pub is_address: bool,
    /// The value in words of the source.
    pub expression: String,
    /// The largest value of the index in the launch, or the smallest if it wraps below zero.
    pub extreme: i128,
    /// The sizes for which it wraps.
    pub formula: String,
    /// The first size with which this index wraps while the others keep their values, for each size of the formula whose
    /// others are all known.
    pub first: Vec<First>,
}

/// The first size that wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// The size.
    pub size: Size,
    /// Its value.
    pub value: u64,
}

impl EntryIndex {
    pub(super) fn of(
        code: &Code<'_>,
        trace: Result<Trace<'_, '_>, Reason>,
        files: &HashMap<u64, String>,
    ) -> Self {
        let (found, values) = match trace {
            Ok(trace) => (Checks::of(&trace), trace.values),
            Err(reason) => {
                let grid = |text: &[u8]| matches!(text, b"%ctaid" | b"%nctaid");
                let uses_grid = code.tokens.iter().any(|token| grid(token.text));
                let doubt = Some((reason, usize::MAX));
                (Checks { uses_grid, doubt, ..Checks::default() }, Values::default())
            }
        };
        let used =
            found.all.iter().map(|check| check.place).chain(found.doubt.map(|doubt| doubt.1));
        Self {
            name: String::new(),
            at: NOWHERE,
            parameters: Vec::new(),
            uses_grid: found.uses_grid,
            registers: code.registers.iter().map(|name| lossy(name)).collect(),
            places: used.map(|at| (at, Place::of(code, at, files))).collect(),
            checks: found.all,
            values,
            doubt: found.doubt,
        }
    }

    /// Counts lines from `after` lines before the entry instead of `before`.
    pub(super) fn move_lines(&mut self, before: u64, after: u64) {
        for at in self.places.values_mut().map(|place| &mut place.at).chain([&mut self.at]) {
            at.line = (at.line + after).saturating_sub(before);
        }
    }

    /// Whether indices wrap in a launch with these sizes.
    pub fn verdict(&mut self, sizes: &Sizes) -> Verdict {
        self.verdict_within(sizes, &mut { MOST_WORK })
    }

    /// As [`Self::verdict`], with a budget of `work` units, from which the units spent are subtracted. A unit takes a
    /// microsecond or less. Without budget, indices are [`Reason::TooComplex`], and [`Wrap::first`] is left out.
    pub fn verdict_within(&mut self, sizes: &Sizes, work: &mut usize) -> Verdict {
        let Self { checks, values, .. } = self;
        let mut bounds = Bounds::new(values, sizes);
        let (mut doubt, most) = (None, *work);
        // The worst check of each place.
        let mut wraps: BTreeMap<usize, (usize, Bound)> = BTreeMap::new();
        for (number, check) in checks.iter().enumerate() {
            if bounds.work() + number >= most {
                doubt = worst(doubt, Some((Reason::TooComplex, usize::MAX)));
                break;
            }
            let found = check.exceeding(&mut bounds);
            let is_open =
                |formula: &Poly, values: &Values| !unknown_sizes(values, formula, sizes).is_empty();
            let has_open = |values: &Values| {
                let used = values.sizes_of([(&check.value, check.context)]);
                let is_parameter = |size| matches!(size, Size::Parameter { .. });
                used.into_iter().any(|(size, _)| is_parameter(size) && sizes.get(size).is_none())
            };
            let by_memory = check.doubt.filter(|why| *why == Reason::Loaded);
            let unknown = match found {
                Ok(None) => check.negative(&mut bounds),
                // Parameters without a value are small enough that what is computed from them alone fits.
                Ok(Some(bound)) if !check.is_index && is_open(&bound.formula, bounds.values) => {
                    None
                }
                Ok(Some(bound)) if check.is_certain(&mut bounds) => {
                    let rank = |number: usize, bound: &Bound| {
                        (checks[number].is_address, bound.value.abs())
                    };
                    let known = wraps.get(&check.place).map(|(known, bound)| rank(*known, bound));
                    if known.is_none_or(|known| known < rank(number, &bound)) {
                        wraps.insert(check.place, (number, bound));
                    }
                    None
                }
                Ok(Some(_)) => Some(Reason::Instruction),
                // What is computed from memory and goes to memory is data of the program. Only the grid makes an index of it.
                Err((Reason::Loaded, _)) if !check.is_index && by_memory.is_some() => None,
                Err((Reason::TooComplex, _)) if !check.is_index && has_open(bounds.values) => None,
                Err((reason, _)) => Some(reason),
            };
            let unknown = unknown.map(|why| (by_memory.unwrap_or(why), check.place));
            doubt = worst(doubt, unknown);
        }
        *work = most.saturating_sub(bounds.work() + checks.len());
        let wraps =
            wraps.into_values().map(|(number, bound)| self.wrap(number, bound, sizes, work));
        let mut wraps: Vec<Wrap> = wraps.collect();
        wraps.sort_by_key(|wrap| wrap.at);
        match (wraps.is_empty(), worst(doubt, self.doubt)) {
            (false, _) => Verdict::Wraps(wraps),
            (true, Some((reason, place))) => {
                let nowhere = Place { at: NOWHERE, source: None, text: String::new() };
                let Place { at, source, text } = self.places.get(&place).unwrap_or(&nowhere);
                let at = if text.is_empty() { self.at } else { *at };
                Verdict::Unknown(Doubt {
                    reason,
                    at,
                    source: source.clone(),
                    instruction: text.clone(),
                })
            }
            (true, None) => Verdict::Safe,
        }
    }

    fn wrap(&mut self, number: usize, bound: Bound, sizes: &Sizes, work: &mut usize) -> Wrap {
        let Check { taken_as, place, .. } = self.checks[number];
        let most = taken_as.most();
        let (formula, most) = match (bound.value < 0, bound.formula.scaled(-1)) {
            (true, Some(negated)) => (negated, most + 1),
            _ => (bound.formula, most),
        };
        let unknown = unknown_sizes(&self.values, &formula, sizes);
        let mut first = Vec::new();
        for size in all_sizes(&self.values, &formula) {
            if unknown.iter().all(|other| *other == size) {
                let exceeds = |bounds: &mut Bounds<'_>| bounds.upper(&formula, 0).value > most;
                let value = self.first(size, sizes, place, work, exceeds);
                first.extend(value.map(|value| First { size, value }));
            }
        }
        let check = &self.checks[number];
        let words = Words {
            values: &self.values,
            parameters: &self.parameters,
            registers: &self.registers,
        };
        let place = &self.places[&check.place];
        Wrap {
            at: place.at,
            source: place.source.clone(),
            instruction: place.text.clone(),
            is_address: check.is_address,
            expression: words.value(&check.value),
            extreme: bound.value,
            formula: words.exceeds(&formula, most),
            first,
        }
    }

    /// The smallest value of `size` that makes the index of `place` wrap. `None` if every value does, or no work is
    /// left.
    fn first(
        &mut self,
        size: Size,
        sizes: &Sizes,
        place: usize,
        work: &mut usize,
        exceeds: impl Fn(&mut Bounds<'_>) -> bool,
    ) -> Option<u64> {
        let Self { checks, values, .. } = self;
        let of_size = |atom: &&Atom| matches!(atom.kind, Kind::Size(own, _) if own == size);
        let most = values.atoms.iter().find(of_size)?.high.min(MOST_SIZE);
        // With its own value, the index wraps.
        let most = sizes.get(size).map_or(most, |own| own.clamp(1, most));
        let (mut sizes, are_sizes_given) = (sizes.clone(), !sizes.0.is_empty());
        let mut holds = |value: i128, of: &dyn Fn(&mut Bounds<'_>) -> bool| {
            if *work == 0 {
                return false;
            }
            sizes.0.insert(size, value);
            let mut bounds = Bounds::new(values, &sizes);
            let holds = of(&mut bounds);
            *work = work.saturating_sub(1 + bounds.work());
            holds
        };
        let wraps = |bounds: &mut Bounds<'_>| {
            let mut own = checks.iter().filter(|check| check.place == place);
            own.any(|check| {
                check.exceeding(bounds).is_ok_and(|it| it.is_some()) && check.is_certain(bounds)
            })
        };
        // The formula is simpler than the checks, and usually right.
        let near = search(1, most, |value| holds(value, &exceeds));
        let first = match (holds(near, &wraps), holds(near - 1, &wraps)) {
            (true, false) => near,
            _ if !are_sizes_given || holds(1, &wraps) || !holds(most, &wraps) => return None,
            (true, true) => search(1, near, |value| holds(value, &wraps)),
            (false, _) => search(near, most, |value| holds(value, &wraps)),
        };
        u64::try_from(first).ok().filter(|_| *work > 0)
    }
}

/// The first value above `fits` for which `fails` holds. It holds for `wraps`.
fn search(mut fits: i128, mut wraps: i128, mut fails: impl FnMut(i128) -> bool) -> i128 {
    while fits + 1 < wraps {
        let middle = fits + (wraps - fits) / 2;
        if fails(middle) { wraps = middle } else { fits = middle }
    }
    wraps
}

impl Place {
    fn of(code: &Code<'_>, at: usize, files: &HashMap<u64, String>) -> Self {
        let Some(instruction) = code.instructions.get(at) else {
            return Self { at: NOWHERE, source: None, text: String::new() };
        };
        let Range { start, end } = instruction.tokens;
        let mut text = String::new();
        for (before, token) in (start..end.saturating_sub(1)).zip(&code.tokens[start..end]) {
            let is_apart = before == instruction.operands
                || before > start && code.tokens[before - 1].is(b',');
            text.push_str(if is_apart { " " } else { "" });
            text.push_str(&lossy(token.text));
        }
        let source = instruction
            .location
            .and_then(|(file, line)| Some(SourceLine { file: files.get(&file)?.clone(), line }));
        Self { at: code.tokens[start].at, source, text }
    }
}

pub(super) fn all_sizes(values: &Values, formula: &Poly) -> Vec<Size> {
    let (mut open, mut sizes) = (vec![formula], Vec::new());
    while let Some(poly) = open.pop() {
        for atom in poly.atoms() {
            match &values.get(atom).kind {
                Kind::Size(size, _) => sizes.push(*size),
                kind => open.extend(kind.operands()),
            }
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn unknown_sizes(values: &Values, formula: &Poly, sizes: &Sizes) -> Vec<Size> {
    let is_unknown = |size: &Size| match size {
        Size::Block(axis) => {
            let stated = values.block.get(*axis).copied().flatten();
            sizes.get(*size).is_none() && stated.is_none_or(|(low, high)| low != high)
        }
        _ => sizes.get(*size).is_none(),
    };
    all_sizes(values, formula).into_iter().filter(is_unknown).collect()
}

/// Larger parameters are not sizes.
const MOST_SIZE: i128 = 1 << 40;
/// The most products that are examined for one verdict.
const MOST_WORK: usize = 4_000_000;

/// A place in the text without a known position.
const NOWHERE: Position = Position { line: 0, column: 0 };
