//! The places where an entry's indices take a value as a number of 32 bits.

use std::collections::{HashMap, HashSet};

use super::bound::{Bound, Bounds};
use super::condition::{Compare, Condition};
use super::poly::Poly;
use super::sizes::{Reason, Size};
use super::trace::{ALL_BITS, Taken, Trace};
use super::values::{Kind, Origin, Values};

/// A value that an instruction takes as a number of 32 bits, or as one of 64 bits without a sign.
pub(super) struct Check {
    pub(super) value: Poly,
    pub(super) taken_as: Taken,
    pub(super) context: u32,
    /// The number of the instruction that computes it.
    pub(super) place: usize,
    pub(super) is_address: bool,
    /// Whether it depends on the grid, or is a product of parameters and values from memory.
    pub(super) is_index: bool,
    /// Whether the result is as exact if the value is negative and the type unsigned: a comparison of both ends of a range,
    /// or an address.
    pub(super) may_be_negative: bool,
    /// Why it is unknown what follows if the value exceeds its type.
    pub(super) doubt: Option<Reason>,
    /// The comparison that takes the value.
    pub(super) compare: Option<Compare>,
}

/// The checks of an entry.
#[derive(Default)]
pub(super) struct Checks {
    pub(super) all: Vec<Check>,
    /// Whether an address or a branch depends on a block index or the grid size.
    pub(super) uses_grid: bool,
    /// Why a part of the entry is unknown, and the instruction.
    pub(super) doubt: Option<(Reason, usize)>,
}

/// A value, and the way from it to an address or a branch.
#[derive(Clone, Copy)]
struct Visit {
    node: usize,
    context: u32,
    is_address: bool,
    doubt: Option<Reason>,
    /// The predicates on the way that choose between values.
    choices: usize,
    is_compared: bool,
    /// Whether the address is a sum of products of the value.
    is_sum: bool,
    /// How many of the lower bits matter.
    bits: u32,
}

impl Checks {
    pub(super) fn of(trace: &Trace<'_, '_>) -> Self {
        let mut checks = Self { doubt: trace.doubt, ..Self::default() };
        let (mut seen, mut known, mut count) = (HashMap::new(), HashSet::new(), 0);
        let is_predicate = |node: usize| trace.nodes[node].is_predicate;
        let mut open: Vec<Visit> = trace
            .uses
            .iter()
            .rev()
            .map(|one| Visit {
                node: one.node,
                context: one.context,
                is_address: one.is_address,
                doubt: None,
                choices: usize::from(is_predicate(one.node)),
                is_compared: false,
                is_sum: one.is_address,
                bits: ALL_BITS,
            })
            .collect();
        while let Some(visit) = open.pop() {
            count += 1;
            if count > MOST_VISITS {
                checks.doubt = Some((Reason::TooComplex, usize::MAX));
                break;
            }
            let node = &trace.nodes[visit.node];
            checks.uses_grid |= node.origin == Origin::Grid;
            // What was seen with less doubt needs no second look.
            let key = (visit.node, visit.context, visit.is_sum, visit.bits);
            match seen.get(&key) {
                Some(known) if *known <= rank(visit.doubt) => continue,
                _ => seen.insert(key, rank(visit.doubt)),
            };
            if let Some(why) = node.doubt {
                let why = visit.doubt.filter(|doubt| *doubt == Reason::Loaded).unwrap_or(why);
                checks.doubt = worst(checks.doubt, Some((why, node.instruction)));
            }
            let is_address = visit.is_address && !node.is_predicate;
            let (is_linear, is_extension) = kind_of(trace, visit.node);
            for input in &node.inputs {
                // A choice between values that are compared again may not matter.
                let is_choice = is_predicate(input.node) && !is_predicate(visit.node);
                let choices = visit.choices + usize::from(is_choice);
                // What is computed from the chosen value may be the same.
                let is_doubt = choices > 1 || is_choice && is_address && !visit.is_sum;
                let doubts = [visit.doubt, input.doubt, is_doubt.then_some(Reason::Instruction)];
                let next = Visit {
                    node: input.node,
                    context: input.context.unwrap_or(visit.context),
                    is_address,
                    // Whatever comes through memory depends on what a load reads.
                    doubt: doubts
                        .into_iter()
                        .max_by_key(|doubt| (*doubt == Some(Reason::Loaded), doubt.is_some()))
                        .flatten(),
                    choices,
                    is_compared: is_predicate(visit.node),
                    is_sum: visit.is_sum && is_linear,
                    bits: input.lower.map_or(ALL_BITS, |[most, shift]| {
                        visit.bits.min(most).saturating_sub(shift)
                    }),
                };
                open.push(next);
                if let Some(taken_as) = input.taken_as.filter(|taken_as| next.bits > taken_as.bits)
                {
                    let check = Check::of(trace, visit, next, taken_as, is_extension);
                    let key = |check: &Check| {
                        (
                            check.value.clone(),
                            taken_as,
                            check.context,
                            check.is_address,
                            check.may_be_negative,
                            check.doubt,
                        )
                    };
                    checks.all.extend(check.filter(|check| known.insert(key(check))));
                }
            }
        }
        checks
    }
}

impl Check {
    /// The check of the value `next` that the node of `visit` takes. `None` if other checks cover it.
    fn of(
        trace: &Trace<'_, '_>,
        visit: Visit,
        next: Visit,
        taken_as: Taken,
        is_extension: bool,
    ) -> Option<Self> {
        let compare = match trace.values.conditions.get(&visit.node) {
            Some(Condition::Compare(compare)) => Some(compare.clone()),
            _ => None,
        };
        let may_be_negative = compare.is_some() || visit.is_sum && is_extension;
        let is_idle = taken_as.bits > 32 && may_be_negative;
        if is_idle || is_covered(trace, next.node, taken_as) {
            return None;
        }
        let node = &trace.nodes[next.node];
        let value = &node.value;
        let opcode = trace.opcode(visit.node);
        // Whether a branch goes elsewhere is known if all numbers around the limit occur. A remainder takes no order.
        let is_dense = opcode != b"rem"
            && value.terms().any(|(product, factor)| {
                let kind = |atom: &u32| &trace.values.get(*atom).kind;
                let is_index = |atom| {
                    matches!(kind(atom), Kind::ThreadIndex(_) | Kind::BlockIndex(_) | Kind::Join(_))
                };
                factor.abs() == 1 && product.len() == 1 && product.iter().any(is_index)
            });
        let is_extended = visit.is_compared && opcode == b"cvt";
        let is_doubt = match &compare {
            Some(_) => has_taken(trace, next.node),
            None => !next.is_address && !is_dense && !is_extended,
        };
        Some(Self {
            value: value.clone(),
            taken_as,
            context: next.context,
            place: origin(trace, next.node),
            is_address: next.is_address,
            is_index: node.origin == Origin::Grid || is_product(&trace.values, value),
            may_be_negative,
            doubt: next.doubt.or(is_doubt.then_some(Reason::Instruction)),
            compare,
        })
    }

    /// Whether a value that exceeds its type is a wrap: it is not meant, and a thread computes it.
    pub(super) fn is_certain(&self, bounds: &mut Bounds<'_>) -> bool {
        self.doubt.is_none() && self.has_witness(bounds)
    }

    /// Why an unsigned instruction may take a negative number, if it may and the sign matters.
    pub(super) fn negative(&self, bounds: &mut Bounds<'_>) -> Option<Reason> {
        let has_sign = !self.taken_as.is_signed && !self.may_be_negative;
        has_sign.then(|| bounds.negative(&self.value, self.context)).flatten()
    }

    /// The bound that exceeds the type, if one does. If that is unknown, the reason and the formula of the bound.
    pub(super) fn exceeding(
        &self,
        bounds: &mut Bounds<'_>,
    ) -> Result<Option<Bound>, (Reason, Poly)> {
        if self.taken_as.bits > 32 {
            return Ok(None);
        }
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

/// The instruction that computes a node, or the last value of a join.
fn origin(trace: &Trace<'_, '_>, mut node: usize) -> usize {
    for _ in 0..MOST_HOPS {
        let is_join = trace.nodes[node]
            .value
            .as_atom()
            .is_some_and(|atom| matches!(trace.values.get(atom).kind, Kind::Join(_)));
        match trace.nodes[node]
            .inputs
            .iter()
            .rev()
            .find(|input| is_join && input.node != node && !trace.nodes[input.node].is_predicate)
        {
            Some(input) => node = input.node,
            None => break,
        }
    }
    trace.nodes[node].instruction
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
            .filter(|node| !trace.nodes[*node].is_predicate && !seen.contains(node))
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

/// The doubt that is reported of two. Whatever is known about memory, another one remains.
pub(super) fn worst(
    one: Option<(Reason, usize)>,
    two: Option<(Reason, usize)>,
) -> Option<(Reason, usize)> {
    let remains = |doubt: &(Reason, usize)| doubt.0 != Reason::Loaded;
    one.filter(remains).or(two.filter(remains)).or(one).or(two)
}

/// No doubt, one that remains, or one about memory.
fn rank(doubt: Option<Reason>) -> u8 {
    doubt.map_or(0, |why| if why == Reason::Loaded { 2 } else { 1 })
}

const MOST_VISITS: usize = 1_000_000;
const MOST_HOPS: usize = 8;
/// The most values that a value may be chosen from.
const MOST_SOURCES: usize = 32;
