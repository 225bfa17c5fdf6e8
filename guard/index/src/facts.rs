//! Facts about values, derived from conditions.

use super::bound::Bounds;
use super::condition::{Compare, Condition, Order};
use super::poly::Poly;
use super::sizes::Sizes;
use super::trace::Trace;
use super::values::{Context, Kind, Values};

impl Trace<'_, '_> {
    /// A context below `parent` in which the condition of `node` is `truth`.
    pub(super) fn assume(&mut self, parent: u32, node: usize, truth: bool) -> u32 {
        let (mut facts, mut unequal) = (Vec::new(), Vec::new());
        let mut open = vec![(node, truth)];
        for _ in 0..MOST_CONDITIONS {
            let Some((node, truth)) = open.pop() else { break };
            match (self.nodes[node].condition, truth) {
                (Some(Condition::Compare(compare)), _) => {
                    self.compared(parent, compare, truth, &mut facts, &mut unequal);
                }
                (Some(Condition::Not(inner)), _) => open.push((inner, !truth)),
                (Some(Condition::Both(one, two)), true)
                | (Some(Condition::AnyOf(one, two)), false) => {
                    open.extend([(two, truth), (one, truth)]);
                }
                _ => {}
            }
        }
        if facts.is_empty() && unequal.is_empty() {
            return parent;
        }
        self.values.context(Context { parent: Some(parent), facts, unequal })
    }

    fn compared(
        &mut self,
        context: u32,
        compare: Compare,
        truth: bool,
        facts: &mut Vec<Poly>,
        unequal: &mut Vec<Poly>,
    ) {
        let left = self.nodes[compare.left].value.clone();
        let right = self.nodes[compare.right].value.clone();
        // `smaller + gap <= larger`
        let (smaller, larger, gap) = match (compare.order, truth) {
            (Order::Less, true) => (&left, &right, 1),
            (Order::Less, false) => (&right, &left, 0),
            (Order::LessOrEqual, true) => (&left, &right, 0),
            (Order::LessOrEqual, false) => (&right, &left, 1),
            (Order::Equal, true) => {
                self.equal(compare, &left, &right, facts);
                return;
            }
            (Order::Equal, false) => {
                let Some(difference) = left.plus(&right, -1) else { return };
                if self.is_nonnegative(&difference, context) {
                    facts.extend(Poly::constant(1).plus(&difference, -1));
                }
                unequal.push(difference);
                return;
            }
        };
        // Without its sign, a negative number is large.
        if !compare.is_signed && !self.is_nonnegative(larger, context) {
            return;
        }
        let fact = smaller.plus(larger, -1).and_then(|fact| fact.plus(&Poly::constant(gap), 1));
        facts.extend(fact);
        if !compare.is_signed && self.values.range(smaller).0 < 0 {
            facts.extend(smaller.scaled(-1));
        }
    }

    fn equal(&self, compare: Compare, left: &Poly, right: &Poly, facts: &mut Vec<Poly>) {
        let Some(difference) = left.plus(right, -1) else { return };
        facts.extend(difference.scaled(-1));
        // A number whose upper bits are masked is small.
        let node = &self.nodes[compare.left];
        let opcode = self.code.instructions[node.instruction].tokens.start;
        if let ([value, mask], b"and") = (&node.inputs[..], self.code.tokens[opcode].text)
            && let Some(mask) = self.nodes[mask.node].value.as_constant()
            && let lowest = 1_i128 << mask.trailing_zeros().min(64)
            && (mask == -lowest || mask.saturating_add(lowest) >= MOST_ITEMS)
            && mask.saturating_add(lowest).count_ones() <= 1
            && right.len() == 0
        {
            let number = &self.nodes[value.node].value;
            let either = number.as_atom().map(|atom| &self.values.get(atom).kind);
            let small = match either {
                Some(Kind::Either(one, two)) => vec![one, two],
                _ => vec![number],
            };
            let most = Poly::constant(lowest - 1);
            facts.extend(small.into_iter().filter_map(|value| value.plus(&most, -1)));
        }
        facts.push(difference);
    }

    pub(super) fn is_nonnegative(&mut self, value: &Poly, context: u32) -> bool {
        self.values.range(value).0 >= 0
            || Bounds::new(&mut self.values, &Sizes::default()).lower(value, context).value >= 0
    }
}

impl Values {
    /// The values that are known not to be zero at `context` itself, the nearest first. Parents are not included.
    pub(super) fn unequal(&self, context: u32) -> &[Poly] {
        let context = usize::try_from(context).ok().and_then(|id| self.contexts.get(id));
        context.map(|context| &context.unequal[..]).unwrap_or_default()
    }
}

const MOST_CONDITIONS: usize = 64;
/// No launch has numbers as large as this. Compilers mask off higher bits if a shift drops them.
const MOST_ITEMS: i128 = 1 << 61;
