//! Cycles of a directed graph.

use std::collections::{BTreeMap, BTreeSet};

/// The strongly connected components of more than one node, each sorted.
pub(crate) fn cycles<N: Ord + Clone>(edges: &BTreeMap<N, BTreeSet<N>>) -> Vec<Vec<N>> {
    let reach: BTreeMap<&N, BTreeSet<&N>> =
        edges.keys().map(|node| (node, reachable(edges, node))).collect();
    let mut cycles = Vec::new();
    let mut seen = BTreeSet::new();
    for (node, others) in &reach {
        if !others.contains(*node) || seen.contains(*node) {
            continue;
        }
        let mutual = |other: &&&N| reach.get(**other).is_some_and(|back| back.contains(*node));
        let cycle: Vec<N> = others.iter().filter(mutual).map(|other| (*other).clone()).collect();
        seen.extend(cycle.iter().cloned());
        if cycle.len() > 1 {
            cycles.push(cycle);
        }
    }
    cycles
}

/// The nodes that can be reached from `start` by one edge or more.
fn reachable<'a, N: Ord>(edges: &'a BTreeMap<N, BTreeSet<N>>, start: &'a N) -> BTreeSet<&'a N> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(node) = open.pop() {
        for next in edges.get(node).into_iter().flatten() {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    reached
}
