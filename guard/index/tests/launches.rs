//! Launches that are run with and without wraps.

use std::collections::BTreeSet;

use gridguard_index::Size;

use crate::interpreter::{Kernel, Thread};

/// A launch with these sizes. Others are 1, and pointers are far apart.
pub(crate) fn launch(kernel: &Kernel, sizes: &[(Size, i64)]) -> Thread {
    let mut launch = Thread { grid: [1; 3], size: [1; 3], loaded: 1, ..Thread::default() };
    for (place, bytes) in kernel.parameters.iter().enumerate() {
        if *bytes == 8 {
            let address = i128::try_from(place + 1).expect("small") << 44;
            launch.values.insert((place, 0), address);
        }
    }
    for (size, value) in sizes {
        let value = i128::from(*value);
        match *size {
            Size::Grid(axis) => launch.grid[axis] = value,
            Size::Block(axis) => launch.size[axis] = value,
            Size::Parameter { index, offset } => {
                launch.values.insert((index, i128::from(offset)), value);
            }
        }
    }
    launch
}

/// What the threads of a launch did that were run.
#[derive(Default)]
pub(crate) struct Found {
    /// The first thread whose accesses differ if 32-bit values do not wrap.
    pub(crate) thread: Option<Thread>,
    /// The lines of instructions whose exact result has more than 31 bits in a thread whose accesses differ.
    pub(crate) lines: BTreeSet<u64>,
    pub(crate) steps: usize,
}

/// Runs the first and last threads, and those whose index is the last below a parameter, until one differs, or several
/// of them.
pub(crate) fn differing(kernel: &Kernel, launch: &Thread, steps: usize, count: usize) -> Found {
    let mut axes = Vec::new();
    for axis in 0..3 {
        let (grid, size) = (launch.grid[axis], launch.size[axis]);
        let mut places = vec![(0, 0), (grid - 1, size - 1), (grid - 1, 0), (0, size - 1)];
        let values: BTreeSet<i128> = launch.values.values().copied().collect();
        for value in values.into_iter().filter(|value| *value < 1 << 40) {
            let at = (value - 1).max(0);
            // The thread of this index, also if threads step by the whole grid.
            let own = at % (grid * size);
            places.extend([(own / size, own % size), (at, 0), (0, at)]);
        }
        places.retain(|(block, thread)| *block < grid && *thread < size);
        let mut seen = BTreeSet::new();
        places.retain(|place| seen.insert(*place));
        axes.push(places);
    }
    let (mut found, mut differing) = (Found::default(), 0);
    for x in &axes[0] {
        for y in &axes[1] {
            for z in &axes[2] {
                if found.steps > MOST_STEPS.max(4 * steps) || differing == count {
                    return found;
                }
                let thread =
                    Thread { block: [x.0, y.0, z.0], thread: [x.1, y.1, z.1], ..launch.clone() };
                let [exact, wrapping] = [true, false].map(|it| kernel.run(&thread, it, steps));
                found.steps += exact.steps + wrapping.steps;
                if !exact.agrees(&wrapping) {
                    found.thread.get_or_insert(thread);
                    found.lines.extend(exact.wide);
                    differing += 1;
                }
            }
        }
    }
    found
}

/// The most steps of all threads of a launch.
const MOST_STEPS: usize = 4_000_000;
