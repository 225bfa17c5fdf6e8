//! Makes decision lists: the fewest choices that serve all measured shapes, and rows that divide the sizes among them.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::decision::{DecisionList, DecisionRow, MAX_SIZE, SizeRanges};
use super::model::{Entry, Key, Named, Objective, StoredChoice};

/// A choice with its launch parameters; `None` is the planner's default.
pub type RowChoice = Option<(StoredChoice, Named)>;

/// A measured shape with all choices that serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedShape {
    /// The key.
    pub key: Key,
    /// The sizes.
    pub shape: Named,
    /// The choices that are fast enough, at least one.
    pub choices: BTreeSet<RowChoice>,
}

impl ServedShape {
    /// The shape of an entry, with the entry's choice, and the default unless the entry beats it.
    pub fn of(entry: &Entry) -> Self {
        let own = Some((entry.choice, entry.parameters.clone())).filter(|_| !entry.is_confirmed());
        let default = entry.gains_nothing().then_some(None);
        let choices = default.into_iter().chain([own]).collect();
        Self { key: entry.key.clone(), shape: entry.shape.clone(), choices }
    }
}

/// Decision lists for the keys of `shapes`, with as few distinct choices as serve all of them.
///
/// Shapes within an octave of the measured sizes are decided, since nothing is known of others. The number of items, which
/// comes first, may be three octaves away: more items of the same kind take longer alike. There are no lists for
/// objectives of latency and memory, whose bounds depend on the shape.
#[must_use]
pub fn decision_lists(shapes: &[ServedShape]) -> Vec<DecisionList> {
    let usable = |shape: &&ServedShape| shape.key.objective == Objective::Throughput;
    let shapes: Vec<&ServedShape> = shapes.iter().filter(usable).collect();
    let chosen = cover(&shapes.iter().map(|shape| &shape.choices).collect::<Vec<_>>());
    let mut of_key: BTreeMap<&Key, Vec<&ServedShape>> = BTreeMap::new();
    shapes.iter().for_each(|shape| of_key.entry(&shape.key).or_default().push(shape));
    of_key.into_values().filter_map(|shapes| list(&shapes, &chosen)).collect()
}

/// The fewest choices such that each set has one of them; the default is among them if that takes no more. Exact up to
/// four choices, then greedy.
fn cover(sets: &[&BTreeSet<RowChoice>]) -> BTreeSet<RowChoice> {
    let smallest = |mut chosen: Vec<RowChoice>| {
        let found = (0..=EXACT).find(|more| extend(sets, &mut chosen, *more));
        if found.is_none() {
            extend_greedily(sets, &mut chosen);
        }
        chosen
    };
    let default: RowChoice = None;
    let free = smallest(Vec::new());
    let with_default = match sets.iter().any(|set| set.contains(&default)) {
        true => smallest(vec![default]),
        false => return free.into_iter().collect(),
    };
    let fewer = if with_default.len() <= free.len() { with_default } else { free };
    fewer.into_iter().collect()
}

/// Adds at most `more` choices, so that each set has one; else leaves `chosen` as it was.
fn extend(sets: &[&BTreeSet<RowChoice>], chosen: &mut Vec<RowChoice>, more: usize) -> bool {
    let open = sets.iter().filter(|set| !chosen.iter().any(|one| set.contains(one)));
    // Every cover has a choice of this set.
    let Some(open) = open.min_by_key(|set| set.len()) else { return true };
    more > 0
        && open.iter().any(|choice| {
            chosen.push(choice.clone());
            let is_cover = extend(sets, chosen, more - 1);
            if !is_cover {
                chosen.pop();
            }
            is_cover
        })
}

fn extend_greedily(sets: &[&BTreeSet<RowChoice>], chosen: &mut Vec<RowChoice>) {
    loop {
        let open = sets.iter().filter(|set| !chosen.iter().any(|one| set.contains(one)));
        let mut counts: BTreeMap<&RowChoice, usize> = BTreeMap::new();
        open.flat_map(|set| set.iter()).for_each(|choice| *counts.entry(choice).or_default() += 1);
        match most(counts) {
            Some(choice) => chosen.push(choice.clone()),
            None => return,
        }
    }
}

/// The most frequent choice; of equals the first.
fn most(counts: BTreeMap<&RowChoice, usize>) -> Option<&RowChoice> {
    counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(choice, _)| choice)
}

/// The sizes of a shape, and the chosen ones of its choices.
type Point<'a> = (Vec<u64>, BTreeSet<&'a RowChoice>);
/// Ranges of some sizes, by their place.
type Region = Vec<(usize, (u64, u64))>;

/// The list of a key. The choice that serves most shapes is its last row. The rows before are for the other shapes.
fn list(shapes: &[&ServedShape], chosen: &BTreeSet<RowChoice>) -> Option<DecisionList> {
    let first = shapes.first()?;
    let names: Vec<&String> = first.shape.iter().map(|(name, _)| name).collect();
    let usable = |one: &&&ServedShape| {
        one.shape.iter().map(|(name, _)| name).eq(names.iter().copied())
            && one.shape.iter().all(|(_, size)| *size <= MAX_SIZE)
    };
    let mut points: Vec<Point<'_>> = shapes
        .iter()
        .filter(usable)
        .map(|one| {
            let sizes = one.shape.iter().map(|(_, size)| *size).collect();
            (sizes, chosen.intersection(&one.choices).collect())
        })
        .collect();
    let mut counts: BTreeMap<&RowChoice, usize> = BTreeMap::new();
    points
        .iter()
        .flat_map(|(_, choices)| choices)
        .for_each(|one| *counts.entry(one).or_default() += 1);
    let usual = most(counts)?;
    let axes: Vec<Vec<(u64, u64)>> = (0..names.len()).map(|place| cells(&points, place)).collect();
    let row = |region: Region, choice: &RowChoice| {
        let named = |(place, range): (usize, _)| Some(((*names.get(place)?).clone(), range));
        let (choice, parameters) = choice.clone().unwrap_or_default();
        DecisionRow { when: region.into_iter().filter_map(named).collect(), choice, parameters }
    };
    let mut rows = Vec::new();
    while let Some((region, choice)) = next_row(&points, &axes, usual) {
        points.retain(|(sizes, _)| !contains(&region, sizes));
        rows.push(row(region, choice));
    }
    rows.push(row(Region::new(), usual));
    let span = |cells: &Vec<(u64, u64)>| Some((cells.first()?.0, cells.last()?.1));
    let within: Option<SizeRanges> = names
        .iter()
        .zip(&axes)
        .map(|(name, cells)| Some(((*name).clone(), span(cells)?)))
        .collect();
    Some(DecisionList { key: first.key.clone(), within: within?, rows })
}

/// The region and the choice of the next row, if a shape is left that the usual choice does not serve. The region is the
/// one with most of these shapes in which one choice serves every shape: at most two sizes have a bound, or else it has
/// one shape.
fn next_row<'a>(
    points: &[Point<'a>],
    axes: &[Vec<(u64, u64)>],
    usual: &RowChoice,
) -> Option<(Region, &'a RowChoice)> {
    let is_odd = |(_, choices): &&Point<'a>| !choices.contains(usual);
    let odd: Vec<&Point<'a>> = points.iter().filter(is_odd).collect();
    let (sizes, choices) = odd.first()?;
    let rate = |region: Region| {
        let mut inside = points.iter().filter(|(sizes, _)| contains(&region, sizes));
        let mut common = inside.next()?.1.clone();
        inside.for_each(|(_, choices)| common.retain(|one| choices.contains(one)));
        let choice = common.first().copied()?;
        let count = odd.iter().filter(|(sizes, _)| contains(&region, sizes)).count();
        (count > 0).then_some((count, region, choice))
    };
    let halves = |place: usize| {
        let cells = axes.get(place).map_or(&[][..], |cells| cells);
        let ends = cells.first().zip(cells.last()).map(|(first, last)| (first.0, last.1));
        let split = move |pair: &[(u64, u64)]| {
            let (low, high) = ends?;
            let [below, above] = pair else { return None };
            Some([(low, below.1), (above.0, high)].map(|range| (place, range)))
        };
        cells.windows(2).filter_map(split).flatten()
    };
    // The number of items, which comes first, matters least.
    let one = (0..axes.len()).rev().flat_map(|place| halves(place).map(|half| vec![half]));
    let two = (0..axes.len()).rev().flat_map(|place| {
        let others = move |half| {
            (place + 1..axes.len()).flat_map(halves).map(move |other| vec![half, other])
        };
        halves(place).flat_map(others)
    });
    let best = |regions: &mut dyn Iterator<Item = Region>| {
        // Of equals, the first.
        regions.filter_map(rate).min_by_key(|(count, ..)| Reverse(*count))
    };
    let found = best(&mut { one }).or_else(|| best(&mut { two }));
    let cell = || {
        let cell = |(place, size): (usize, &u64)| {
            let cells = axes.get(place)?;
            Some((place, *cells.iter().find(|(low, high)| (low..=high).contains(&size))?))
        };
        Some((sizes.iter().enumerate().filter_map(cell).collect(), *choices.first()?))
    };
    found.map(|(_, region, choice)| (region, choice)).or_else(cell)
}

fn contains(region: &Region, sizes: &[u64]) -> bool {
    let is_in = |(place, (low, high)): &(usize, (u64, u64))| {
        sizes.get(*place).is_some_and(|size| (low..=high).contains(&size))
    };
    region.iter().all(is_in)
}

/// Divides the values of a size at the geometric means of adjacent measured values, as far as a list reaches.
fn cells(points: &[Point<'_>], place: usize) -> Vec<(u64, u64)> {
    let values: BTreeSet<u64> =
        points.iter().filter_map(|(sizes, _)| sizes.get(place).copied()).collect();
    let values: Vec<u64> = values.into_iter().collect();
    let Some((least, most)) = values.first().zip(values.last()) else { return Vec::new() };
    let mean = |pair: &[u64]| {
        let [one, other] = pair.try_into().unwrap_or_default();
        u64::try_from((u128::from(one) * u128::from(other)).isqrt()).unwrap_or(one)
    };
    let reach = if place == 0 { ITEMS_REACH } else { REACH };
    let highest = most.saturating_mul(reach).min(MAX_SIZE);
    let ends: Vec<u64> = values.windows(2).map(mean).chain([highest]).collect();
    let starts = core::iter::once(least.div_ceil(reach)).chain(ends.iter().map(|end| end + 1));
    starts.zip(ends.iter().copied()).collect()
}

/// How far a list reaches beyond the measured sizes, as a factor.
const REACH: u64 = 2;
const ITEMS_REACH: u64 = 8;
/// Choices that are found by an exact search, besides the default.
const EXACT: usize = 3;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn choices(text: &str) -> BTreeSet<RowChoice> {
        let named = |value: u64| Some((StoredChoice::Whole, vec![("warps".to_owned(), value)]));
        let one = |c: char| c.to_digit(10).and_then(|digit| named(digit.into()));
        text.chars().map(one).collect()
    }

    fn shape(rows: u64, columns: u64, served: &str) -> ServedShape {
        let shape = vec![("rows".to_owned(), rows), ("columns".to_owned(), columns)];
        let key = Key { kernel: "copy".into(), ..Key::default() };
        ServedShape { key, shape, choices: choices(served) }
    }

    /// How many choices serve all; `d` is the default, which is preferred.
    fn covered(sets: &[&str]) -> BTreeSet<RowChoice> {
        let sets: Vec<_> = sets.iter().map(|set| choices(set)).collect();
        cover(&sets.iter().collect::<Vec<_>>())
    }

    #[test]
    fn the_fewest_choices_serve_every_shape_and_the_default_is_preferred() {
        assert_eq!(covered(&["d1", "d2", "d12"]), choices("d"));
        assert_eq!(covered(&["d1", "12", "2d"]), choices("d1"));
        // Greedy would take 1 first, and then need two more.
        assert_eq!(covered(&["12", "12", "13", "13", "2", "3"]), choices("23"));
        assert_eq!(covered(&["1", "2", "3", "4", "5", "56"]), choices("12345"));
        assert_eq!(covered(&[]), choices(""));
    }

    #[test]
    fn rows_divide_the_sizes_where_the_choice_changes() {
        let shapes = [
            shape(1000, 64, "1"),
            shape(4000, 64, "1d"),
            shape(1000, 1024, "d"),
            shape(4000, 4096, "d2"),
            shape(64_000, 4096, "d2"),
        ];
        let lists = decision_lists(&shapes);
        let [list] = &lists[..] else { panic!("one key: {lists:?}") };
        let row = |when, choice: &str| {
            let (choice, parameters) = choices(choice).pop_first().flatten().unwrap_or_default();
            DecisionRow { when, choice, parameters }
        };
        let narrow = vec![("columns".to_owned(), (32, 256))];
        assert_eq!(list.rows, [row(narrow, "1"), row(vec![], "d")]);
        let within = |name: &str, low, high| (name.to_owned(), (low, high));
        assert_eq!(list.within, [within("rows", 125, 512_000), within("columns", 32, 8192)]);
    }

    proptest! {
        #[test]
        fn every_measured_shape_gets_a_choice_that_serves_it_whatever_the_pattern(
            shapes in prop::collection::btree_map((1..9_u64, 0..9_u64), "[d123]{1,3}", 1..12),
        ) {
            let square = |((rows, columns), served): (&(u64, u64), &String)| {
                shape(rows * rows, columns * columns, served)
            };
            let shapes: Vec<ServedShape> = shapes.iter().map(square).collect();
            let list = decision_lists(&shapes).pop().expect("a list");
            list.check().expect("within the limits");
            for one in &shapes {
                let sizes: Vec<u64> = one.shape.iter().map(|(_, size)| *size).collect();
                let row = &list.rows[list.row(&sizes).expect("measured")];
                let choice = (!row.is_default()).then(|| (row.choice, row.parameters.clone()));
                prop_assert!(one.choices.contains(&choice), "{:?} {:?}", one, list);
            }
        }
    }
}
