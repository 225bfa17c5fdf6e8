//! Facts about values, derived from conditions.

use super::bound::Bounds;
use super::condition::{Compare, Condition, Order};
use super::poly::Poly;
use super::sizes::Sizes;
use super::trace::Trace;
use super::values::index;
use super::values::{Context, Kind, LANE, Op, Origin, Values};

impl Trace<'_, '_> {
    /// A context below `parent` in which the condition of `node` is `truth`.
    pub(super) fn assume(&mut self, parent: u32, node: usize, truth: bool) -> u32 {
        let (mut facts, mut unequal) = (Vec::new(), Vec::new());
        let mut open = vec![(node, truth)];
        let mut unfollowed = Vec::new();
        for _ in 0..MOST_CONDITIONS {
            let Some((node, truth)) = open.pop() else { break };
            let before = facts.len() + unequal.len();
            match (self.values.conditions.get(&node).cloned(), truth) {
                (Some(Condition::Compare(compare)), _) => {
                    self.compared(parent, &compare, truth, &mut facts, &mut unequal);
                    unfollowed
                        .extend((facts.len() + unequal.len() == before).then_some((node, truth)));
                }
                (Some(Condition::Not(inner)), _) => open.push((inner, !truth)),
                (Some(Condition::Both(one, two)), true)
                | (Some(Condition::AnyOf(one, two)), false) => {
                    open.extend([(two, truth), (one, truth)]);
                }
                _ => unfollowed.push((node, truth)),
            }
        }
        unfollowed.extend(open);
        let parent = Some(parent);
        self.values.context(Context { parent, facts, unequal, unfollowed, ..Context::default() })
    }

    fn compared(
        &mut self,
        context: u32,
        compare: &Compare,
        truth: bool,
        facts: &mut Vec<Poly>,
        unequal: &mut Vec<Poly>,
    ) {
        let (left, right) = (&compare.left, &compare.right);
        // `smaller + gap <= larger`
        let (smaller, larger, gap) = match (compare.order, truth) {
            (Order::Less, true) => (left, right, 1),
            (Order::Less, false) => (right, left, 0),
            (Order::LessOrEqual, true) => (left, right, 0),
            (Order::LessOrEqual, false) => (right, left, 1),
            (Order::Equal, true) => {
                return self.equal(compare, facts);
            }
            (Order::Equal, false) => {
                let Some(difference) = left.plus(right, -1) else { return };
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

    fn equal(&self, compare: &Compare, facts: &mut Vec<Poly>) {
        let Compare { left, right, node, .. } = compare;
        let Some(difference) = left.plus(right, -1) else { return };
        facts.extend(difference.scaled(-1));
        // A number whose upper bits are masked is small.
        if let ([value, mask], b"and") = (&self.nodes[*node].inputs[..], self.opcode(*node))
            && let Some(mask) = self.nodes[mask.node].value.as_constant()
            && let lowest = 1_i128 << mask.trailing_zeros().min(64)
            && (mask == -lowest || mask.saturating_add(lowest) >= MOST_ITEMS)
            && mask.saturating_add(lowest).count_ones() <= 1
            && right.len() == 0
        {
            let number = &self.nodes[value.node].value;
            let either = number.as_atom().map(|atom| &self.values.get(atom).kind);
            let small = match either {
                Some(Kind::Binary(Op::Or, one, two)) => vec![one, two],
                _ => vec![number],
            };
            let most = Poly::constant(lowest - 1);
            if mask < 0 {
                facts.extend(small.iter().filter_map(|value| value.scaled(-1)));
            }
            facts.extend(small.into_iter().filter_map(|value| value.plus(&most, -1)));
        }
        facts.push(difference);
    }

    /// Whether no value is negative at the current place, where a negative constant stands for a large number.
    pub(super) fn are_nonnegative(&mut self, values: &[Poly]) -> bool {
        values.iter().all(|value| {
            let of_loop = |atom| self.values.get(atom).is_in_loop;
            value.as_constant().is_some()
                || !value.atoms().any(of_loop) && self.is_nonnegative(value, self.context)
        })
    }

    pub(super) fn is_nonnegative(&mut self, value: &Poly, context: u32) -> bool {
        self.values.range(value).0 >= 0
            || Bounds::new(&mut self.values, &Sizes::default()).lower(value, context).value >= 0
    }
}

impl Trace<'_, '_> {
    /// Finds what values depend on through loops and memory, and the places that control may never come to: data may be
    /// anything, but a condition of the launch that is not followed may never hold.
    pub(super) fn close(&mut self) {
        for pass in 0.. {
            let mut has_changed = false;
            for node in 0..self.nodes.len() {
                let own = &self.nodes[node];
                let inputs = own.inputs.iter().map(|input| self.nodes[input.node].origin);
                let origin = inputs.max().unwrap_or_default().max(own.origin);
                let origin = if pass < MOST_PASSES { origin } else { Origin::Grid };
                if core::mem::replace(&mut self.nodes[node].origin, origin) < origin {
                    has_changed = true;
                    if let Some(atom) = self.nodes[node].value.as_atom() {
                        self.values.atoms[index(atom)].origin = origin;
                    }
                }
            }
            if !has_changed {
                break;
            }
        }
        for id in 0..self.values.contexts.len() {
            let Context { parent, facts, unfollowed, .. } = &self.values.contexts[id];
            let is_open = parent.is_some_and(|parent| self.values.is_open(parent))
                || unfollowed.iter().any(|(node, _)| self.nodes[*node].origin > Origin::Data)
                || !facts.iter().all(|fact| self.values.is_followed(fact));
            self.values.contexts[id].is_open = is_open;
        }
        for (node, condition) in &mut self.values.conditions {
            if let Condition::Unknown(is_data) = condition {
                *is_data = self.nodes[*node].origin == Origin::Data;
            }
        }
    }
}

impl Values {
    /// Whether `poly` has no values of the launch that are not followed.
    fn is_followed(&self, poly: &Poly) -> bool {
        poly.atoms().map(|atom| self.get(atom)).all(|atom| {
            let is_lane = matches!(atom.kind, Kind::UpTo(LANE, _));
            !matches!(atom.kind, Kind::UpTo(..) | Kind::Opaque(..))
                || is_lane
                || atom.origin == Origin::Data
        })
    }

    /// The values that are known not to be zero at `context` itself, the nearest first. Parents are not included.
    pub(super) fn unequal(&self, context: u32) -> &[Poly] {
        self.at(context).map(|context| &context.unequal[..]).unwrap_or_default()
    }
}

const MOST_CONDITIONS: usize = 64;
/// After more passes, every value may depend on the grid.
const MOST_PASSES: usize = 16;
/// No launch has numbers as large as this. Compilers mask off higher bits if a shift drops them.
const MOST_ITEMS: i128 = 1 << 61;
