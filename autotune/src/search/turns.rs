//! Who is measured after whom.

use crate::number::{count, position};

/// Places 0 to `length` in an order of the round's own: steps of a stride that has no divisor in
/// common with the length, another one and from another start each time.
pub(crate) fn order(length: usize, round: u64) -> Vec<usize> {
    let length_count = count(length);
    let strides: Vec<u64> = (1..length_count.max(2))
        .filter(|stride| common_divisor(*stride, length_count) == 1)
        .collect();
    let pick = round.checked_rem(count(strides.len())).unwrap_or(0);
    let stride = strides.get(position(pick)).copied().unwrap_or(1);
    let turn = |turn: u64| (round + turn * stride).checked_rem(length_count).unwrap_or(0);
    (0..length_count).map(|at| position(turn(at))).collect()
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_round_has_each_candidate_once_and_orders_differ() {
        for length in 1..20 {
            for round in 1..30 {
                let places: BTreeSet<usize> = order(length, round).into_iter().collect();
                assert_eq!(places.len(), length, "round {round}");
            }
        }
        let neighbours: BTreeSet<(usize, usize)> = (1..9)
            .flat_map(|round| {
                let order = order(5, round);
                order.windows(2).map(|two| (two[0], two[1])).collect::<Vec<_>>()
            })
            .collect();
        assert!(neighbours.len() >= 16, "of 20: {neighbours:?}");
        assert!(order(0, 7).is_empty());
    }
}
