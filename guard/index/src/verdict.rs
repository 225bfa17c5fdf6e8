//! Whether an entry's indices wrap in a launch.

use core::fmt;
use core::ops::Range;
use std::collections::{BTreeMap, HashMap, HashSet};

use gridguard_ptx::Position;

use super::bound::{Bound, Bounds};
use super::check::Check;
use super::code::{Code, lossy};
use super::condition::Condition;
use super::poly::Poly;
use super::sizes::{Reason, Size, Sizes};
use super::trace::{Taken, Trace};
use super::values::{Atom, Kind, Origin, Values};
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
    places: Vec<Place>,
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
        let mut entry = Self {
            name: String::new(),
            at: NOWHERE,
            parameters: Vec::new(),
            uses_grid: false,
            registers: Vec::new(),
            places: vec![Place { at: NOWHERE, source: None, text: String::new() }],
            checks: Vec::new(),
            values: Values::default(),
            doubt: None,
        };
        match trace {
            Ok(trace) => entry.read(code, trace, files),
            Err(reason) => {
                entry.doubt = Some((reason, 0));
                let grid = |text: &[u8]| matches!(text, b"%ctaid" | b"%nctaid");
                entry.uses_grid = code.tokens.iter().any(|token| grid(token.text));
            }
        }
        entry
    }

    fn read(&mut self, code: &Code<'_>, trace: Trace<'_, '_>, files: &HashMap<u64, String>) {
        let on_grid = on_grid(&trace.values);
        let depends = |poly: &Poly| poly.atoms().any(|atom| on_grid.contains(&atom));
        let (mut seen, mut count) = (HashMap::new(), 0);
        let mut places = HashMap::new();
        let mut place_of = |at: usize, own: &mut Vec<Place>| {
            *places.entry(at).or_insert_with(|| {
                own.push(Place::of(code, at, files));
                own.len() - 1
            })
        };
        self.doubt = trace.doubt.map(|(reason, at)| (reason, place_of(at, &mut self.places)));
        for one in &trace.uses {
            self.uses_grid |= depends(&trace.nodes[one.node].value);
            let is_predicate = |node: usize| trace.nodes[node].condition.is_some();
            let level = usize::from(is_predicate(one.node));
            let mut open =
                vec![(one.node, one.context, one.is_address, false, level, false, one.is_address)];
            while let Some((node, context, is_address, is_doubt, level, is_compared, is_sum)) =
                open.pop()
            {
                count += 1;
                if count > MOST_VISITS {
                    self.doubt = Some((Reason::TooComplex, 0));
                    break;
                }
                // What was seen without a doubt needs no second look.
                match seen.get(&(node, context, is_sum)) {
                    Some(known) if !known | is_doubt => continue,
                    _ => seen.insert((node, context, is_sum), is_doubt),
                };
                if let (Some(reason), None) = (trace.nodes[node].doubt, self.doubt) {
                    self.doubt =
                        Some((reason, place_of(trace.nodes[node].instruction, &mut self.places)));
                }
                let is_address = is_address && trace.nodes[node].condition.is_none();
                let (is_linear, is_extension) = kind_of(&trace, node);
                for input in &trace.nodes[node].inputs {
                    let context = input.context.unwrap_or(context);
                    // A choice between values that are compared again may not matter.
                    let is_choice = is_predicate(input.node) && !is_predicate(node);
                    let level = level + usize::from(is_choice);
                    // What is computed from the chosen value may be the same.
                    let is_doubt = is_doubt
                        || input.is_doubt
                        || level > 1
                        || is_choice && is_address && !is_sum;
                    open.push((
                        input.node,
                        context,
                        is_address,
                        is_doubt,
                        level,
                        is_predicate(node),
                        is_sum && is_linear,
                    ));
                    let value = &trace.nodes[input.node].value;
                    self.uses_grid |= depends(value);
                    let Some(taken_as) = input.taken_as else { continue };
                    if is_covered(&trace, input.node, taken_as) {
                        continue;
                    }
                    let place = place_of(origin(&trace, input.node), &mut self.places);
                    let is_index = depends(value) || is_product(&trace.values, value);
                    let compare =
                        matches!(trace.nodes[node].condition, Some(Condition::Compare(_)));
                    let may_be_negative = compare || is_sum && is_extension;
                    let compare = compare.then(|| trace.test(node, 0));
                    // Whether a branch goes elsewhere is known if all numbers around the limit occur.
                    let is_dense = value.terms().any(|(product, factor)| {
                        let is_index = |atom: &u32| {
                            matches!(
                                trace.values.get(*atom).kind,
                                Kind::ThreadIndex(_) | Kind::BlockIndex(_) | Kind::Join(_)
                            )
                        };
                        factor.abs() == 1 && product.len() == 1 && product.iter().any(is_index)
                    });
                    let opcode = trace.opcode(node);
                    // A remainder takes no order.
                    let is_dense = is_dense && opcode != b"rem";
                    let is_extended = is_compared && opcode == b"cvt";
                    let is_doubt = is_doubt
                        || compare.is_some() && has_taken(&trace, input.node)
                        || !is_address && !is_dense && !is_extended && compare.is_none();
                    let value = value.clone();
                    self.checks.push(Check {
                        value,
                        taken_as,
                        context,
                        place,
                        is_address,
                        is_index,
                        may_be_negative,
                        is_doubt,
                        compare,
                    });
                }
            }
        }
        let mut known = HashSet::new();
        self.checks.retain(|check| {
            known.insert((
                check.value.clone(),
                check.taken_as,
                check.context,
                check.is_address,
                check.may_be_negative,
                check.is_doubt,
            ))
        });
        self.registers = code.registers.iter().map(|name| lossy(name)).collect();
        self.values = trace.values;
    }

    /// Counts lines from `after` lines before the entry instead of `before`.
    pub(super) fn move_lines(&mut self, before: u64, after: u64) {
        for at in self.places.iter_mut().map(|place| &mut place.at).chain([&mut self.at]) {
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
        let has_open = bounds.values.atoms.iter().any(|atom| match atom.kind {
            Kind::Size(size @ Size::Parameter { .. }, _) => sizes.get(size).is_none(),
            _ => false,
        });
        // The worst check of each place.
        let mut worst: BTreeMap<usize, (usize, Bound)> = BTreeMap::new();
        for (number, check) in checks.iter().enumerate() {
            if bounds.work() + number >= most {
                doubt = Some((Reason::TooComplex, 0));
                break;
            }
            let found = check.exceeding(&mut bounds);
            let is_open =
                |formula, values: &Values| !unknown_sizes(values, formula, sizes).is_empty();
            match found {
                Ok(None) if check.is_negative(&mut bounds) => {
                    doubt = doubt.or(Some((Reason::Instruction, check.place)));
                }
                Ok(None) => {}
                // Parameters without a value are small enough that what is computed from them alone fits.
                Ok(Some(bound)) if !check.is_index && is_open(&bound.formula, bounds.values) => {}
                Ok(Some(bound)) if check.is_certain(&mut bounds) => {
                    let rank = |number: usize, bound: &Bound| {
                        (checks[number].is_address, bound.value.abs())
                    };
                    let known = worst.get(&check.place).map(|(known, bound)| rank(*known, bound));
                    if known.is_none_or(|known| known < rank(number, &bound)) {
                        worst.insert(check.place, (number, bound));
                    }
                }
                Ok(Some(_)) => doubt = doubt.or(Some((Reason::Instruction, check.place))),
                // Values from memory are data of the program. Only the grid makes an index of them.
                Err((Reason::Loaded, _)) if !check.is_index => {}
                Err((Reason::TooComplex, _)) if !check.is_index && has_open => {}
                Err((reason, _)) => doubt = doubt.or(Some((reason, check.place))),
            }
        }
        *work = most.saturating_sub(bounds.work() + checks.len());
        let mut wraps = Vec::with_capacity(worst.len());
        for (number, bound) in worst.into_values() {
            wraps.push(self.wrap(number, bound, sizes, work));
        }
        wraps.sort_by_key(|wrap| wrap.at);
        match (wraps.is_empty(), doubt.or(self.doubt)) {
            (false, _) => Verdict::Wraps(wraps),
            (true, Some((reason, place))) => {
                let Place { at, source, text } = &self.places[place];
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
        let place = &self.places[check.place];
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

impl Check {
    /// Whether a value that exceeds its type is a wrap: it is not meant, and a thread computes it.
    fn is_certain(&self, bounds: &mut Bounds<'_>) -> bool {
        !self.is_doubt && self.has_witness(bounds)
    }

    /// Whether an unsigned instruction takes a number that may be negative, and whose sign matters.
    fn is_negative(&self, bounds: &mut Bounds<'_>) -> bool {
        !self.taken_as.is_signed
            && !self.may_be_negative
            && bounds.is_negative(&self.value, self.context)
    }

    /// The bound that exceeds the type, if one does. If that is unknown, the reason and the formula of the bound.
    pub(super) fn exceeding(
        &self,
        bounds: &mut Bounds<'_>,
    ) -> Result<Option<Bound>, (Reason, Poly)> {
        let mut bound =
            |is_certain| bounds.exceeding(&self.value, self.taken_as, self.context, is_certain);
        let Some(possible) = bound(false) else { return Ok(None) };
        let Some(reason) = possible.doubt else { return Ok(Some(possible)) };
        // A bound without a size is nothing that a launch could exceed.
        let certain = bound(true).filter(|bound| {
            bound.doubt != Some(Reason::TooComplex) && bound.formula.as_constant().is_none()
        });
        certain.map(Some).ok_or((reason, possible.formula))
    }
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

/// The instruction that computes a node, or the last value of a join.
fn origin(trace: &Trace<'_, '_>, mut node: usize) -> usize {
    for _ in 0..MOST_HOPS {
        let is_join = trace.nodes[node]
            .value
            .as_atom()
            .is_some_and(|atom| matches!(trace.values.get(atom).kind, Kind::Join(_)));
        match trace.nodes[node].inputs.iter().rev().find(|input| {
            is_join && input.node != node && trace.nodes[input.node].condition.is_none()
        }) {
            Some(input) => node = input.node,
            None => break,
        }
    }
    trace.nodes[node].instruction
}

/// Whether `node` is a sum of products of its inputs, or one of them; and whether it extends an input of 32 bits.
fn kind_of(trace: &Trace<'_, '_>, node: usize) -> (bool, bool) {
    let (opcode, node) = (trace.opcode(node), &trace.nodes[node]);
    let instruction = &trace.code.instructions[node.instruction];
    let name = &trace.code.tokens[instruction.tokens.start..instruction.operands];
    let is_high = name.iter().any(|token| token.text == b".hi");
    let join = node.value.as_atom().map(|atom| &trace.values.get(atom).kind);
    let is_wide = name.iter().rev().nth(1).is_some_and(|to| to.text.ends_with(b"64"));
    let is_linear = match opcode {
        b"add" | b"sub" | b"mul" | b"mad" | b"shl" | b"mov" | b"cvta" => true,
        _ => opcode == b"cvt" && is_wide,
    };
    (
        is_linear && !is_high || matches!(join, Some(Kind::Join(_))),
        matches!(opcode, b"cvt" | b"mul" | b"mad" | b"mov") && !is_high,
    )
}

/// Whether `node` is computed from a number that may have wrapped before.
fn has_taken(trace: &Trace<'_, '_>, node: usize) -> bool {
    let (mut seen, mut next) = (vec![node], 0);
    while let Some(at) = seen.get(next) {
        let inputs = &trace.nodes[*at].inputs;
        if inputs.iter().any(|input| input.taken_as.is_some()) || seen.len() > MOST_SOURCES {
            return true;
        }
        let values = inputs.iter().map(|input| input.node);
        let new: Vec<usize> = values
            .filter(|node| trace.nodes[*node].condition.is_none() && !seen.contains(node))
            .collect();
        seen.extend(new);
        next += 1;
    }
    false
}

/// Whether the value of `node` fits if its inputs fit. Other checks cover the inputs.
fn is_covered(trace: &Trace<'_, '_>, node: usize, taken_as: Taken) -> bool {
    let (least, most) =
        (taken_as.least().max(if taken_as.is_signed { i128::MIN } else { 0 }), taken_as.most());
    let (mut seen, mut open) = (vec![node], vec![node]);
    while let Some(at) = open.pop() {
        let node = &trace.nodes[at];
        let (low, high) = trace.values.range(&node.value);
        let is_same = taken_as.is_signed || !trace.values.may_be_negative(&node.value);
        let fits = low >= least && high <= most;
        if is_same && (fits || trace.values.is_plain(&node.value, taken_as.bits)) {
            continue;
        }
        let kind = node.value.as_atom().map(|atom| &trace.values.get(atom).kind);
        let is_smaller =
            matches!(trace.opcode(at), b"mov" | b"cvt" | b"div" | b"shr" | b"min" | b"max");
        if node.inputs.is_empty() || !is_smaller && !matches!(kind, Some(Kind::Join(_))) {
            return false;
        }
        for input in node.inputs.iter().filter(|input| input.taken_as != Some(taken_as)) {
            if !seen.contains(&input.node) {
                seen.push(input.node);
                open.push(input.node);
            }
        }
        if seen.len() > MOST_SOURCES {
            return false;
        }
    }
    true
}

/// The atoms that depend on a block index or the grid size.
fn on_grid(values: &Values) -> HashSet<u32> {
    let mut found = HashSet::new();
    loop {
        let before = found.len();
        for (id, atom) in (0_u32..).zip(&values.atoms) {
            let has = |poly: &Poly| poly.atoms().any(|atom| found.contains(&atom));
            let depends = match &atom.kind {
                Kind::Binary(..) | Kind::Join(_) => values.parts(&atom.kind).any(has),
                _ => atom.origin == Origin::Grid,
            };
            if depends {
                found.insert(id);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Whether `poly` has a product of parameters and values from memory.
fn is_product(values: &Values, poly: &Poly) -> bool {
    let is_loaded = |atom: &u32| matches!(values.get(*atom).kind, Kind::Opaque(_, Reason::Loaded));
    let is_parameter =
        |atom: &u32| matches!(values.get(*atom).kind, Kind::Size(Size::Parameter { .. }, _));
    poly.terms().any(|(product, factor)| {
        let count = product.iter().filter(|atom| is_loaded(atom) || is_parameter(atom)).count();
        count > 1 || factor.abs() > 1 && product.iter().any(is_loaded)
    })
}

pub(super) fn all_sizes(values: &Values, formula: &Poly) -> Vec<Size> {
    let (mut open, mut sizes) = (vec![formula], Vec::new());
    while let Some(poly) = open.pop() {
        for atom in poly.atoms() {
            match &values.get(atom).kind {
                Kind::Size(size, _) => sizes.push(*size),
                kind @ Kind::Binary(..) => open.extend(kind.operands()),
                _ => {}
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
const MOST_VISITS: usize = 1_000_000;
/// The most products that are examined for one verdict.
const MOST_WORK: usize = 4_000_000;
const MOST_HOPS: usize = 8;
/// The most values that a value may be chosen from.
const MOST_SOURCES: usize = 32;

/// A place in the text without a known position.
const NOWHERE: Position = Position { line: 0, column: 0 };
