//! Only the planner makes a `Plan`: a field that cannot be set cannot stand in a literal either.

use gridguard::{Plan, ValidLaunch};

fn change(plan: &mut Plan, launch: ValidLaunch) {
    plan.launch = launch;
}

fn main() {
    let _ = change;
}
