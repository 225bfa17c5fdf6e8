//! Validation of any request agrees with a second implementation of the rules.

use gridguard_test_support::invariants::validation::{
    agrees_with_a_second_writing, every_violation_names_a_limit_that_is_passed,
    occupancy_decides_its_own_rules_alone, questions,
};
use proptest::prelude::*;

use super::cases;

proptest! {
    #![proptest_config(cases(5000))]

    #[test]
    fn validation_agrees_with_a_naive_second_writing(question in questions()) {
        agrees_with_a_second_writing(&question);
    }

    #[test]
    fn the_occupancy_of_the_driver_decides_its_own_rules_and_changes_no_others(question in questions()) {
        occupancy_decides_its_own_rules_alone(&question);
    }

    #[test]
    fn each_violation_says_what_was_asked_for_and_a_limit_below_it(question in questions()) {
        every_violation_names_a_limit_that_is_passed(&question);
    }
}
