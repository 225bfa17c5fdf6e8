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

/// The first thread whose accesses differ if values do not wrap, of the first and last ones, those whose index is the last
/// below a parameter, and thoroughly those where an index may pass the largest number.
pub(crate) fn differing(
    kernel: &Kernel,
    launch: &Thread,
    steps: usize,
    is_thorough: bool,
) -> Option<Thread> {
    let mut axes = Vec::new();
    for axis in 0..3 {
        if !kernel.reads(axis) {
            axes.push(vec![(0, 0)]);
            continue;
        }
        let (grid, size) = (launch.grid[axis], launch.size[axis]);
        let mut places = vec![(0, 0), (grid - 1, size - 1), (grid - 1, 0), (0, size - 1)];
        let values: BTreeSet<i128> = launch.values.values().copied().collect();
        for value in values.into_iter().filter(|value| *value < 1 << 40) {
            let at = (value - 1).max(0);
            // The thread of this index, also if threads step by the whole grid.
            let own = at % (grid * size);
            places.extend([(own / size, own % size), (at, 0), (0, at)]);
        }
        if is_thorough {
            // Where a multiple of the index passes 2^31 or 2^32.
            let threads = [0, size - 1, 1, 31, size / 2];
            places.extend(threads.into_iter().flat_map(|thread| [(0, thread), (grid - 1, thread)]));
            for factor in
                [1, 77, 1 << 15, 1 << 20].into_iter().chain(launch.values.values().copied())
            {
                let all = [1, 3, 5, 31, size - 1, size / 2].map(|times| (factor * times).max(1));
                let passes = all.map(|all| [31, 32].map(|bits| ((1 << bits) + all - 1) / all));
                let passes = passes.into_iter().flatten();
                places.extend(passes.flat_map(|block| threads.map(|thread| (block, thread))));
            }
        }
        places.retain(|(block, thread)| *block < grid && *thread < size);
        let mut seen = BTreeSet::new();
        places.retain(|place| seen.insert(*place));
        axes.push(places);
    }
    let mut taken = 0;
    for x in &axes[0] {
        for y in &axes[1] {
            for z in &axes[2] {
                if taken > MOST_STEPS.max(4 * steps) {
                    return None;
                }
                let thread =
                    Thread { block: [x.0, y.0, z.0], thread: [x.1, y.1, z.1], ..launch.clone() };
                let [exact, wrapping] = [true, false].map(|it| kernel.run(&thread, it, steps));
                taken += exact.steps + wrapping.steps;
                if !exact.agrees(&wrapping) {
                    return Some(thread);
                }
            }
        }
    }
    None
}

/// Any thread of a launch whose accesses differ if values do not wrap, of many.
pub(crate) fn any(kernel: &Kernel, launch: &Thread) -> Option<Thread> {
    let mut state = 1_u64;
    let mut below = |most: i128| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i128::from(state >> 20) % most
    };
    (0..200_000).find_map(|_| {
        let [block, thread] = [launch.grid, launch.size].map(|size| size.map(&mut below));
        let thread = Thread { block, thread, ..launch.clone() };
        let [exact, wrapping] = [true, false].map(|it| kernel.run(&thread, it, 4000));
        (!exact.agrees(&wrapping)).then_some(thread)
    })
}

/// The most steps of all threads of a launch.
const MOST_STEPS: usize = 4_000_000;
