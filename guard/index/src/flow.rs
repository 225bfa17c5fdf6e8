//! The order of blocks and which blocks dominate others.

use super::code::Code;

/// The control flow through the reachable blocks.
pub(super) struct Flow {
    /// Blocks in reverse postorder.
    pub(super) order: Vec<usize>,
    /// The place of each block in `order`, if it can be reached.
    pub(super) place: Vec<Option<usize>>,
    /// The edges into each block.
    pub(super) edges: Vec<Vec<Edge>>,
    /// The immediate dominator of each block.
    pub(super) dominators: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) from: usize,
    /// Whether the branch at the end of `from` was taken, if it depends on a predicate.
    pub(super) taken: Option<bool>,
}

impl Flow {
    /// `None` if a loop has several entrances, or the blocks are nested too deeply.
    pub(super) fn of(code: &Code<'_>) -> Option<Self> {
        let count = code.blocks.len();
        let successors: Vec<Vec<(usize, Option<bool>)>> = (0..count)
            .map(|id| {
                let block = &code.blocks[id];
                let depends = block.guard.is_some();
                let next = (block.falls_through && id + 1 < count)
                    .then_some((id + 1, depends.then_some(false)));
                let targets = block.targets.iter().map(|to| (*to, depends.then_some(true)));
                targets.chain(next).collect()
            })
            .collect();
        let mut order = Vec::new();
        let (mut seen, mut stack) = (vec![false; count], vec![(0, 0)]);
        seen[0] = true;
        while let Some((block, next)) = stack.last_mut() {
            match successors[*block].get(*next) {
                Some((to, _)) => {
                    *next += 1;
                    if !core::mem::replace(&mut seen[*to], true) {
                        stack.push((*to, 0));
                    }
                }
                None => {
                    order.push(*block);
                    stack.pop();
                }
            }
        }
        order.reverse();
        let mut place = vec![None; count];
        order.iter().enumerate().for_each(|(at, block)| place[*block] = Some(at));
        let mut edges = vec![Vec::new(); count];
        for &from in &order {
            for &(to, taken) in &successors[from] {
                edges[to].push(Edge { from, taken });
            }
        }
        let mut flow = Self { order, place, edges, dominators: vec![0; count] };
        flow.dominate()?;
        let is_reducible = flow.order.iter().all(|to| {
            let mut back = flow.edges[*to].iter().filter(|edge| flow.is_back(edge, *to));
            back.all(|edge| flow.dominates(*to, edge.from))
        });
        is_reducible.then_some(flow)
    }

    /// Whether an edge to `to` closes a loop.
    pub(super) fn is_back(&self, edge: &Edge, to: usize) -> bool {
        self.place[edge.from] >= self.place[to]
    }

    fn dominates(&self, block: usize, mut other: usize) -> bool {
        while self.place[other] > self.place[block] {
            other = self.dominators[other];
        }
        other == block
    }

    /// The algorithm of Cooper, Harvey and Kennedy. `None` if it needs too many steps.
    fn dominate(&mut self) -> Option<()> {
        let mut known: Vec<bool> = vec![false; self.dominators.len()];
        known[0] = true;
        let mut steps = 0_usize;
        loop {
            let mut has_changed = false;
            for &block in self.order.iter().skip(1) {
                let mut dominator = None;
                for edge in self.edges[block].iter().filter(|edge| known[edge.from]) {
                    let mut one = edge.from;
                    if let Some(mut two) = dominator {
                        while one != two {
                            steps += 1;
                            if self.place[one] > self.place[two] {
                                one = self.dominators[one];
                            } else {
                                two = self.dominators[two];
                            }
                        }
                    }
                    dominator = Some(one);
                }
                let dominator = dominator?;
                has_changed |= !known[block] || self.dominators[block] != dominator;
                known[block] = true;
                self.dominators[block] = dominator;
            }
            if !has_changed {
                return Some(());
            }
            if steps > MOST_STEPS {
                return None;
            }
        }
    }
}

const MOST_STEPS: usize = 10_000_000;
