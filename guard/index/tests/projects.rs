//! Verdicts about PTX of other projects, beside an interpreter: what is reported happens at its first size and not
//! below it. `tests/ptx.sh index` runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs};

use crate::interpreter::{Kernel, kernels};
use crate::launches::{Found, differing, launch};
use gridguard_index::{EntryIndex, Size, Sizes, Verdict, Wrap, index};

/// Counts of a project.
#[derive(Default)]
struct Counts {
    lines: usize,
    entries: usize,
    grid: usize,
    safe: usize,
    wraps: usize,
    unknown: usize,
    reasons: BTreeMap<&'static str, usize>,
    exact: usize,
    larger: usize,
    places: usize,
    seen: usize,
    launches: usize,
    missed: usize,
}

#[test]
#[ignore = "needs folders with the PTX of projects"]
fn what_is_reported_about_projects_happens() {
    let folders = env::var("INDEX_PTX").expect("INDEX_PTX names folders");
    let mut verdicts = format!(
        "{:<8}{:>9}{:>9}{:>7}{:>7}{:>7}{:>9}  reasons\n",
        "project", "lines", "entries", "grid", "safe", "wraps", "unknown"
    );
    let mut confirmed = format!(
        "{:<8}{:>9}{:>7}{:>9}{:>6}{:>9}{:>11}{:>10}{:>8}\n",
        "project",
        "reported",
        "exact",
        "larger",
        "not",
        "places",
        "confirmed",
        "launches",
        "missed"
    );
    let (mut times, mut open) = (Vec::new(), String::new());
    for folder in folders.split(':').map(Path::new) {
        let name = folder.file_name().expect("a folder").to_string_lossy().into_owned();
        let mut counts = Counts::default();
        let mut paths: Vec<_> = fs::read_dir(folder)
            .expect("a folder")
            .map(|one| one.expect("a file").path())
            .collect();
        paths.retain(|path| path.extension().is_some_and(|it| it == "ptx"));
        paths.sort();
        for path in paths {
            let text = fs::read_to_string(&path).expect("PTX");
            let own = format!("{name}/{}", path.file_stem().expect("a name").to_string_lossy());
            let lines = text.lines().count();
            counts.lines += lines;
            let time = counts.project(&own, &text, &mut open);
            times.push((time, u32::try_from(lines.max(1)).expect("small"), own));
        }
        counts.write(&name, &mut verdicts, &mut confirmed);
    }
    times.sort_by_key(|(time, lines, _)| core::cmp::Reverse(*time / *lines));
    let mut slow = String::new();
    for (time, lines, name) in times.iter().filter(|one| one.1 > 2000).take(8) {
        let [whole, each] = [*time, *time / *lines * 200_000].map(|time| time.as_secs_f64());
        writeln!(slow, "{name:<28}{lines:>9} lines{whole:>8.2} s{each:>8.2} s for 200,000 lines")
            .expect("a string");
    }
    let text = format!("{verdicts}\n{confirmed}\n{slow}\n{open}");
    fs::write(env::var("INDEX_TABLE").expect("INDEX_TABLE names a file"), text).expect("written");
}

impl Counts {
    /// Counts the entries of a file. Returns how long the analysis took.
    fn project(&mut self, file: &str, text: &str, open: &mut String) -> Duration {
        let begun = Instant::now();
        let mut entries = index(text.as_bytes()).expect("PTX");
        let verdicts: Vec<Verdict> =
            entries.iter_mut().map(|entry| entry.verdict(&Sizes::default())).collect();
        let time = begun.elapsed();
        let kernels = kernels(text);
        for (mut entry, verdict) in entries.into_iter().zip(verdicts) {
            self.entries += 1;
            // Entries without block indices have nothing that a larger grid could make wrap.
            if !entry.uses_grid {
                continue;
            }
            self.grid += 1;
            let kernel = &kernels[&entry.name];
            let mut wraps = Vec::new();
            match verdict {
                Verdict::Safe => self.safe += 1,
                Verdict::Unknown(reason) => {
                    self.unknown += 1;
                    *self.reasons.entry(reason.id()).or_default() += 1;
                    writeln!(open, "{file} {}: unknown, {}", entry.name, reason.id())
                        .expect("a string");
                }
                Verdict::Wraps(found) => wraps = found,
            }
            let outcome = Outcome::of(&mut entry, kernel, &wraps);
            self.launches += outcome.safe_launches;
            self.missed += outcome.missed.len();
            for missed in &outcome.missed {
                writeln!(open, "{file} {}: missed at {missed}", entry.name).expect("a string");
            }
            if wraps.is_empty() {
                continue;
            }
            self.wraps += 1;
            self.places += outcome.reported.len();
            self.seen += outcome.reported.intersection(&outcome.seen).count();
            let happens = !outcome.reported.is_disjoint(&outcome.seen);
            match (outcome.is_exact, happens) {
                (true, _) => self.exact += 1,
                (false, true) => self.larger += 1,
                (false, false) => {}
            }
            if !outcome.is_exact {
                let what = if happens { "larger" } else { "not confirmed" };
                writeln!(open, "{file} {}: {what}{}", entry.name, outcome.notes).expect("a string");
            }
            for wrap in wraps.iter().filter(|wrap| !outcome.seen.contains(&wrap.at.line)) {
                writeln!(
                    open,
                    "{file} {}: place {} {}: {}",
                    entry.name, wrap.at.line, wrap.instruction, wrap.formula
                )
                .expect("a string");
            }
        }
        time
    }

    fn write(&self, name: &str, verdicts: &mut String, confirmed: &mut String) {
        let reasons: Vec<String> =
            self.reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        writeln!(
            verdicts,
            "{name:<8}{:>9}{:>9}{:>7}{:>7}{:>7}{:>9}  {}",
            self.lines,
            self.entries,
            self.grid,
            self.safe,
            self.wraps,
            self.unknown,
            reasons.join(", ")
        )
        .expect("a string");
        writeln!(
            confirmed,
            "{name:<8}{:>9}{:>7}{:>9}{:>6}{:>9}{:>11}{:>10}{:>8}",
            self.wraps,
            self.exact,
            self.larger,
            self.wraps - self.exact - self.larger,
            self.places,
            self.seen,
            self.launches,
            self.missed
        )
        .expect("a string");
    }
}

/// The sizes of a launch.
type Launch = BTreeMap<Size, i64>;

/// What running an entry shows.
#[derive(Default)]
struct Outcome {
    /// Whether accesses differ at a first size and not below.
    is_exact: bool,
    reported: BTreeSet<u64>,
    /// The lines whose exact result has more than 31 bits in a thread whose accesses differ.
    seen: BTreeSet<u64>,
    safe_launches: usize,
    /// Launches that are said to be safe and are not.
    missed: Vec<String>,
    notes: String,
    steps: usize,
}

impl Outcome {
    fn of(entry: &mut EntryIndex, kernel: &Kernel, wraps: &[Wrap]) -> Self {
        let mut outcome =
            Self { reported: wraps.iter().map(|wrap| wrap.at.line).collect(), ..Self::default() };
        let known = entry.sizes();
        let is_named = |one: &&(Size, u64)| {
            let name = one.0.name(&entry.parameters);
            wraps.iter().any(|wrap| wrap.formula.contains(&name))
        };
        // The sizes of the formulas are more likely to make an index wrap.
        let named: Vec<Size> = known.iter().filter(is_named).map(|one| one.0).collect();
        let mut random = Random(SEED);
        for _ in 0..MOST_TRIED {
            let is_done = outcome.is_exact && outcome.reported.is_subset(&outcome.seen);
            let is_over = outcome.steps > if outcome.is_exact { LATER_STEPS } else { MOST_STEPS };
            if is_over || is_done && outcome.safe_launches >= SAFE_LAUNCHES {
                break;
            }
            let sizes = random.sizes(&known, kernel);
            let loaded = [0, 1, 1, 3][random.below(4)];
            match verdict(entry, &sizes) {
                judged @ (Verdict::Safe | Verdict::Unknown(_)) => {
                    if judged == Verdict::Safe {
                        outcome.safe(kernel, &sizes, loaded);
                    }
                    for _ in 0..RAISED.min(known.len()) {
                        let size = match random.below(3) {
                            at @ 0..2 if !named.is_empty() => {
                                named[(at + random.below(64)) % named.len()]
                            }
                            _ => known[random.below(known.len())].0,
                        };
                        let mut raised = sizes.clone();
                        raised.insert(size, most(size, &known));
                        if let Verdict::Wraps(wraps) = verdict(entry, &raised) {
                            outcome.first(entry, kernel, &sizes, size, loaded, &wraps);
                            outcome.places(kernel, &sizes, loaded, &wraps);
                        }
                    }
                }
                Verdict::Wraps(wraps) => outcome.places(kernel, &sizes, loaded, &wraps),
            }
        }
        for large in &known {
            let sizes = one_large(&known, kernel, *large);
            let is_over = outcome.is_exact || outcome.steps > ALL_STEPS;
            if is_over || matches!(verdict(entry, &sizes), Verdict::Wraps(_)) {
                continue;
            }
            for size in named.iter().filter(|_| !outcome.is_exact).copied().collect::<Vec<_>>() {
                let mut raised = sizes.clone();
                raised.insert(size, most(size, &known));
                if let Verdict::Wraps(wraps) = verdict(entry, &raised) {
                    outcome.first(entry, kernel, &sizes, size, 1, &wraps);
                }
            }
        }
        outcome
    }

    /// Runs a launch that is said to be safe.
    fn safe(&mut self, kernel: &Kernel, sizes: &Launch, loaded: i128) {
        if self.safe_launches < SAFE_LAUNCHES {
            self.safe_launches += 1;
            if let Some(thread) = self.run(kernel, sizes, loaded).thread {
                self.missed.push(format!("{thread:?}"));
            }
        }
    }

    /// Runs the launch with the first value of `size` that wraps, and the one below.
    fn first(
        &mut self,
        entry: &mut EntryIndex,
        kernel: &Kernel,
        sizes: &Launch,
        size: Size,
        loaded: i128,
        wraps: &[Wrap],
    ) {
        let firsts = wraps.iter().flat_map(|wrap| &wrap.first);
        let firsts = firsts.filter(|first| first.size == size).map(|first| first.value);
        let Some(value) = firsts.min().filter(|_| !self.is_exact) else { return };
        let with = |value: u64| {
            let (mut sizes, value) = (sizes.clone(), i64::try_from(value).expect("small"));
            match size {
                Size::Parameter { index, offset: 8 } if kernel.parameters[index] == 12 => {
                    divide_by(&mut sizes, index, value);
                }
                _ => drop(sizes.insert(size, value)),
            }
            sizes
        };
        let (at, below) = (with(value), with(value - 1));
        let judged = verdict(entry, &below);
        if !is_legal(&at, kernel) || matches!(judged, Verdict::Wraps(_)) {
            return;
        }
        if self.run(kernel, &at, loaded).thread.is_some() {
            let earlier = self.run(kernel, &below, loaded).thread;
            self.is_exact = earlier.is_none();
            let earlier = earlier.filter(|_| judged == Verdict::Safe);
            self.missed.extend(earlier.map(|thread| format!("{thread:?}")));
        } else {
            let name = size.name(&entry.parameters);
            self.notes = format!(", {name} = {value} with {sizes:?}");
        }
    }

    /// Runs launches that make a place wrap, for each place that has not wrapped yet.
    fn places(&mut self, kernel: &Kernel, sizes: &Launch, loaded: i128, wraps: &[Wrap]) {
        for wrap in wraps {
            if self.reported.contains(&wrap.at.line) && !self.seen.contains(&wrap.at.line) {
                let with = wrap.first.iter().map(|first| {
                    let mut sizes = sizes.clone();
                    sizes.insert(first.size, i64::try_from(first.value).expect("small"));
                    sizes
                });
                for sizes in with.chain([sizes.clone()]) {
                    if is_legal(&sizes, kernel) {
                        self.run(kernel, &sizes, loaded);
                    }
                }
            }
        }
    }

    fn run(&mut self, kernel: &Kernel, sizes: &Launch, loaded: i128) -> Found {
        let sizes: Vec<(Size, i64)> = sizes.iter().map(|(size, value)| (*size, *value)).collect();
        let mut launch = launch(kernel, &sizes);
        launch.loaded = loaded;
        let found = differing(kernel, &launch, THREAD_STEPS, DIFFERING);
        self.steps += found.steps;
        self.seen.extend(&found.lines);
        found
    }
}

fn verdict(entry: &mut EntryIndex, sizes: &Launch) -> Verdict {
    let mut known = Sizes::default();
    sizes.iter().for_each(|(size, value)| known.set(*size, *value));
    entry.verdict(&known)
}

/// Whether a launch with these sizes is legal.
fn is_legal(sizes: &Launch, kernel: &Kernel) -> bool {
    let of = |size: Size| sizes.get(&size).copied().unwrap_or(1);
    let threads: i64 = (0..3).map(|axis| of(Size::Block(axis))).product();
    let required = kernel.required.is_none_or(|required| {
        (0..3).all(|axis| i128::from(of(Size::Block(axis))) == required[axis])
    });
    let is_positive = (0..3).all(|axis| of(Size::Grid(axis)) > 0 && of(Size::Block(axis)) > 0);
    required && is_positive && i128::from(threads) <= kernel.most_threads
}

/// The largest value of a size that is tried.
fn most(size: Size, known: &[(Size, u64)]) -> i64 {
    match size {
        Size::Grid(0) => i64::from(i32::MAX),
        Size::Grid(_) => 65_535,
        Size::Block(_) => 1024,
        Size::Parameter { .. } => match known.iter().find(|one| one.0 == size) {
            Some((_, 8)) => 1 << 40,
            Some((_, 4)) => i64::from(i32::MAX),
            _ => 127,
        },
    }
}

/// Small sizes beside a large one.
fn one_large(known: &[(Size, u64)], kernel: &Kernel, large: (Size, u64)) -> Launch {
    let mut sizes = Launch::new();
    let threads = i64::try_from(kernel.most_threads.min(256)).expect("small");
    for axis in 0..3 {
        let own =
            kernel.required.map_or([threads, 1, 1].map(i128::from), |required| required)[axis];
        sizes.insert(Size::Block(axis), i64::try_from(own).expect("small"));
        sizes.insert(Size::Grid(axis), 1);
    }
    for (size, _) in known.iter().filter(|one| matches!(one.0, Size::Parameter { .. })) {
        sizes.insert(*size, 4);
    }
    let value = match large {
        (Size::Block(_), _) => sizes[&large.0],
        (Size::Parameter { .. }, 8) => 1 << 33,
        (size, _) => most(size, known) / 2,
    };
    sizes.insert(large.0, value);
    for (index, _) in kernel.parameters.iter().enumerate().filter(|one| *one.1 == 12) {
        divide_by(
            &mut sizes,
            index,
            if large.0 == (Size::Parameter { index, offset: 8 }) { 1 << 20 } else { 4 },
        );
    }
    sizes
}

/// Twelve bytes are a divisor with its reciprocal, as ggml passes it.
fn divide_by(sizes: &mut Launch, index: usize, divisor: i64) {
    let power = u64::try_from(divisor).expect("positive").next_power_of_two();
    let power = i128::from(power);
    let divided = i128::from(divisor);
    let reciprocal = i64::try_from(((power - divided) << 32) / divided + 1).expect("32 bits");
    for (offset, value) in [(0, reciprocal), (4, i64::from(power.ilog2())), (8, divisor)] {
        sizes.insert(Size::Parameter { index, offset }, value);
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).expect("small")).expect("small")
    }

    /// Any magnitude below these bits.
    fn magnitude(&mut self, bits: usize) -> i64 {
        let at = self.below(bits);
        let power = 1_i64 << at;
        let any = power + i64::try_from(self.next() >> 1).expect("63 bits") % power;
        // Sizes are often powers of two.
        [any, power][self.below(2)]
    }

    /// Sizes of a legal launch.
    fn sizes(&mut self, known: &[(Size, u64)], kernel: &Kernel) -> Launch {
        let mut sizes = Launch::new();
        let mut threads = kernel.most_threads;
        let [scale, blocks] = [(); 2].map(|()| [4, 8, 16, 24, 35][self.below(5)]);
        for axis in 0..3 {
            let most = if axis == 2 { threads.min(64) } else { threads };
            let power = usize::try_from(most.ilog2()).expect("small");
            let size =
                if axis == 0 { 1 << self.below(power + 1) } else { [1, 1, 2, 4, 8][self.below(5)] };
            let size = i128::from(size).min(most);
            let size = kernel.required.map_or(size, |required| required[axis]);
            threads /= size;
            sizes.insert(Size::Block(axis), i64::try_from(size).expect("small"));
            let bits = if axis == 0 { 31 } else { 16 };
            let most = if axis == 0 { i64::from(i32::MAX) } else { 65_535 };
            let size =
                if self.below(3) == 0 { 1 } else { self.magnitude(bits.min(blocks)).min(most) };
            sizes.insert(Size::Grid(axis), size);
        }
        for (size, bytes) in known.iter().filter(|one| matches!(one.0, Size::Parameter { .. })) {
            let bits = match bytes {
                1 => 7,
                2 => 15,
                4 => 31,
                _ => 35,
            };
            let bits = [scale, scale, bits, 6][self.below(4)].min(bits);
            sizes.insert(*size, self.magnitude(bits));
        }
        // Kernels of candle work in place if they are given no input.
        let nothing = self.below(kernel.parameters.len().max(1) * 3);
        if kernel.parameters.get(nothing) == Some(&8) {
            sizes.entry(Size::Parameter { index: nothing, offset: 0 }).or_insert(0);
        }
        for (index, _) in kernel.parameters.iter().enumerate().filter(|one| *one.1 == 12) {
            let divisor = self.magnitude(scale.min(20));
            divide_by(&mut sizes, index, divisor);
        }
        sizes
    }
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const MOST_TRIED: usize = 60;
/// Enough for several iterations of most loops.
const THREAD_STEPS: usize = 6_000;
const ALL_STEPS: usize = 30_000_000;
/// No more threads are run once this number of them differ.
const DIFFERING: usize = 8;
/// The most steps of an entry.
const MOST_STEPS: usize = 10_000_000;
/// The same for an entry whose first size is confirmed.
const LATER_STEPS: usize = 2_000_000;
const SAFE_LAUNCHES: usize = 6;
/// The sizes of a safe launch that are raised, one at a time.
const RAISED: usize = 3;
