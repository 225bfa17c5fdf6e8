//! The problems of our kernels that evaluate the tuner.

use std::collections::HashSet;

use gridguard_problems::Problem;

use crate::program::problems;

fn distinct(problems: &[Problem]) -> HashSet<Problem> {
    let set: HashSet<Problem> = problems.iter().copied().collect();
    assert_eq!(set.len(), problems.len());
    set
}

#[test]
fn the_tuner_is_evaluated_with_five_shipped_problems_of_five_kernels() {
    let (all, some) = (distinct(&Problem::shipped()), distinct(&problems::evaluation()));
    assert!(some.len() == 25 && some.is_subset(&all));
    let kernels: HashSet<&str> = some.iter().map(Problem::kernel).collect();
    assert_eq!(kernels.len(), 5);
}

#[test]
fn problems_between_are_within_the_range_of_shipped_ones_but_not_shipped() {
    let all = Problem::shipped();
    for problem in problems::between().expect("problems") {
        assert!(!all.contains(&problem), "{problem}");
        let like = |other: &&Problem| {
            (other.kernel(), other.element()) == (problem.kernel(), problem.element())
        };
        for (place, (name, size)) in problem.shape().into_iter().enumerate() {
            let sizes = || all.iter().filter(like).map(|other| other.shape()[place].1);
            let range = sizes().min().expect("some")..=sizes().max().expect("some");
            assert!(range.contains(&size), "{problem}: {name} in {range:?}");
        }
    }
}
