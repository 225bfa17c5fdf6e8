//! Makes decision lists: the fewest choices that serve all measured shapes, and rows that divide the sizes among them.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::decision::{DecisionList, DecisionRow, MAX_ROWS, MAX_SIZE, SizeRanges};
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
        let default = entry.keeps_default().then_some(None);
        let choices = default.into_iter().chain([own]).collect();
        Self { key: entry.key.clone(), shape: entry.shape.clone(), choices }
    }
}

/// Decision lists for the keys of `shapes`, which are those of one kernel, with as few distinct choices as serve all.
///
/// Shapes within an octave of the measured sizes are decided, since nothing is known of others. The number of items, which
/// comes first, may be three octaves away: more items of the same kind take longer alike. There are no lists for
/// objectives of latency and memory, whose bounds depend on the shape. A list is left out if it would need more than 64
/// rows, or if the kernel needs more than 64 choices and the 64 most common ones do not serve all shapes of the list.
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
/// four choices, then greedy, and at most [`MAX_CHOICES`]. Sorted.
fn cover<'a>(sets: &[&'a BTreeSet<RowChoice>]) -> Vec<&'a RowChoice> {
    let smallest = |mut chosen: Vec<&'a RowChoice>| {
        let found = (0..=EXACT).find(|more| extend(sets, &mut chosen, *more));
        if found.is_none() {
            extend_greedily(sets.to_vec(), &mut chosen);
        }
        chosen.sort();
        chosen
    };
    let free = smallest(Vec::new());
    match sets.iter().find_map(|set| set.get(&None)) {
        Some(default) => {
            let with_default = smallest(vec![default]);
            if with_default.len() <= free.len() { with_default } else { free }
        }
        None => free,
    }
}

/// Adds at most `more` choices, so that each set has one; else leaves `chosen` as it was.
fn extend<'a>(
    sets: &[&'a BTreeSet<RowChoice>],
    chosen: &mut Vec<&'a RowChoice>,
    more: usize,
) -> bool {
    let open = sets.iter().filter(|set| !chosen.iter().any(|one| set.contains(*one)));
    // Every cover has a choice of this set.
    let Some(open) = open.min_by_key(|set| set.len()) else { return true };
    more > 0
        && open.iter().any(|choice| {
            chosen.push(choice);
            let is_cover = extend(sets, chosen, more - 1);
            if !is_cover {
                chosen.pop();
            }
            is_cover
        })
}

fn extend_greedily<'a>(mut open: Vec<&'a BTreeSet<RowChoice>>, chosen: &mut Vec<&'a RowChoice>) {
    open.retain(|set| !chosen.iter().any(|one| set.contains(*one)));
    while chosen.len() < MAX_CHOICES {
        let mut counts: BTreeMap<&RowChoice, usize> = BTreeMap::new();
        open.iter().copied().flatten().for_each(|choice| *counts.entry(choice).or_default() += 1);
        // Of equals, the first.
        let most = counts.into_iter().rev().max_by_key(|(_, count)| *count);
        let Some((choice, _)) = most else { return };
        open.retain(|set| !set.contains(choice));
        chosen.push(choice);
    }
}

/// The sizes of a shape, and a bit for each chosen choice that serves it.
type Point = (Vec<u64>, u64);
/// Ranges of some sizes, by their place.
type Region = Vec<(usize, (u64, u64))>;

/// The list of a key. The choice that serves most shapes is its last row. The rows before are for the other shapes. There
/// is no list if it would have too many choices or rows.
fn list(shapes: &[&ServedShape], chosen: &[&RowChoice]) -> Option<DecisionList> {
    let first = shapes.first()?;
    let names: Vec<&String> = first.shape.iter().map(|(name, _)| name).collect();
    let usable = |one: &&&ServedShape| {
        one.shape.iter().map(|(name, _)| name).eq(names.iter().copied())
            && one.shape.iter().all(|(_, size)| *size <= MAX_SIZE)
    };
    let point = |one: &&ServedShape| {
        let sizes = one.shape.iter().map(|(_, size)| *size).collect();
        let serves =
            |(bit, choice): (usize, &&RowChoice)| u64::from(one.choices.contains(*choice)) << bit;
        let choices = chosen.iter().enumerate().map(serves).sum();
        (choices != 0).then_some((sizes, choices))
    };
    let mut points: Vec<Point> = shapes.iter().filter(usable).map(point).collect::<Option<_>>()?;
    let served = |bit: &usize| points.iter().filter(|(_, choices)| choices >> bit & 1 == 1).count();
    // Of equals, the first.
    let usual = (0..chosen.len()).rev().max_by_key(served)?;
    let axes: Vec<Vec<(u64, u64)>> = (0..names.len()).map(|place| cells(&points, place)).collect();
    let row = |region: Region, bit: usize| {
        let named = |(place, range): (usize, _)| Some(((*names.get(place)?).clone(), range));
        let (choice, parameters) = (*chosen.get(bit)?).clone().unwrap_or_default();
        let when = region.into_iter().filter_map(named).collect();
        Some(DecisionRow { when, choice, parameters })
    };
    let mut rows = Vec::new();
    while let Some((region, bit)) = next_row(&points, &axes, usual) {
        points.retain(|(sizes, _)| !contains(&region, sizes));
        // The last row decides whatever is left, and its choice must serve a shape.
        rows.push(row(if points.is_empty() { Region::new() } else { region }, bit)?);
        if rows.len() == MAX_ROWS && !points.is_empty() {
            return None;
        }
    }
    if !points.is_empty() {
        rows.push(row(Region::new(), usual)?);
    }
    let span = |cells: &Vec<(u64, u64)>| Some((cells.first()?.0, cells.last()?.1));
    let within: Option<SizeRanges> = names
        .iter()
        .zip(&axes)
        .map(|(name, cells)| Some(((*name).clone(), span(cells)?)))
        .collect();
    Some(DecisionList { key: first.key.clone(), within: within?, rows })
}

/// The region of the next row and the bit of its choice, if a shape is left that the usual choice does not serve. The
/// region is the one with most of these shapes in which one choice serves every shape: at most two sizes have a bound,
/// next to such a shape, or else it has one shape.
fn next_row(points: &[Point], axes: &[Vec<(u64, u64)>], usual: usize) -> Option<(Region, usize)> {
    let odd: Vec<&Point> = points.iter().filter(|(_, choices)| choices >> usual & 1 == 0).collect();
    let (sizes, choices) = odd.first()?;
    let rate = |region: Region| {
        let inside = points.iter().filter(|(sizes, _)| contains(&region, sizes));
        let common = |common, (_, choices): &Point| Some(common & choices).filter(|it| *it != 0);
        let common = { inside }.try_fold(u64::MAX, common)?;
        let count = odd.iter().filter(|(sizes, _)| contains(&region, sizes)).count();
        (count > 0).then_some((count, region, common))
    };
    let cell = |(place, size): (usize, &u64)| {
        let cells = axes.get(place)?;
        Some((place, *cells.get(cells.partition_point(|(_, high)| high < size))?))
    };
    let halves = |(place, cells): (usize, &Vec<(u64, u64)>)| {
        let odd = odd.iter().filter_map(|(sizes, _)| cell((place, sizes.get(place)?)));
        let odd: BTreeSet<(usize, (u64, u64))> = odd.collect();
        let (low, high) =
            cells.first().zip(cells.last()).map_or((0, 0), |(one, other)| (one.0, other.1));
        let halves = odd.into_iter().flat_map(move |(_, cell)| [(low, cell.1), (cell.0, high)]);
        halves.filter(move |half| *half != (low, high)).map(|half| (place, half)).collect()
    };
    // The number of items, which comes first, matters least.
    let halves: Vec<Region> = axes.iter().enumerate().map(halves).rev().collect();
    let one = halves.iter().flatten().map(|half| vec![*half]);
    let two = halves.iter().enumerate().skip(1).flat_map(|(place, earlier)| {
        let later = halves.iter().take(place).rev().flatten();
        earlier.iter().flat_map(move |half| later.clone().map(|other| vec![*half, *other]))
    });
    let best = |regions: &mut dyn Iterator<Item = Region>| {
        // Of equals, the first.
        regions.take(MAX_REGIONS).filter_map(rate).min_by_key(|(count, ..)| Reverse(*count))
    };
    let found = best(&mut { one }).or_else(|| best(&mut { two }));
    let (region, choices) = match found {
        Some((_, region, common)) => (region, common),
        None => (sizes.iter().enumerate().filter_map(cell).collect(), *choices),
    };
    Some((region, usize::try_from(choices.trailing_zeros()).ok()?))
}

fn contains(region: &Region, sizes: &[u64]) -> bool {
    let is_in = |(place, (low, high)): &(usize, (u64, u64))| {
        sizes.get(*place).is_some_and(|size| (low..=high).contains(&size))
    };
    region.iter().all(is_in)
}

/// Divides the values of a size at the geometric means of adjacent measured values, as far as a list reaches.
fn cells(points: &[Point], place: usize) -> Vec<(u64, u64)> {
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
/// The most choices of a kernel, one a bit. Lists for more help nobody, and the limit keeps the time linear.
const MAX_CHOICES: usize = 64;
/// The most regions that are tried for a row, which keeps the time linear.
const MAX_REGIONS: usize = 4096;

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

    fn row(when: SizeRanges, choice: &str) -> DecisionRow {
        let (choice, parameters) = choices(choice).pop_first().flatten().unwrap_or_default();
        DecisionRow { when, choice, parameters }
    }

    /// How many choices serve all; `d` is the default, which is preferred.
    fn covered(sets: &[&str]) -> BTreeSet<RowChoice> {
        let sets: Vec<_> = sets.iter().map(|set| choices(set)).collect();
        cover(&sets.iter().collect::<Vec<_>>()).into_iter().cloned().collect()
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
        let narrow = vec![("columns".to_owned(), (32, 256))];
        assert_eq!(list.rows, [row(narrow, "1"), row(vec![], "d")]);
        let within = |name: &str, low, high| (name.to_owned(), (low, high));
        assert_eq!(list.within, [within("rows", 125, 512_000), within("columns", 32, 8192)]);
    }

    #[test]
    fn the_usual_choice_has_no_row_if_the_other_rows_decide_its_shapes() {
        let mut other = shape(1, 1, "1");
        other.key.dtypes = "f16".into();
        let shapes = [
            shape(64, 2000, "12"),
            shape(128, 2000, "2"),
            shape(4096, 1000, "13"),
            shape(8192, 1000, "3"),
            other,
        ];
        let narrow = vec![("columns".to_owned(), (500, 1414))];
        let lists = decision_lists(&shapes);
        assert_eq!(lists[0].rows, [row(narrow, "3"), row(vec![], "2")]);
    }

    proptest! {
        #[test]
        fn every_measured_shape_gets_a_choice_that_serves_it_whatever_the_pattern(
            shapes in prop::collection::btree_map((0..2_u64, 1..9_u64, 0..9_u64), "[d123]{1,3}", 1..16),
        ) {
            let square = |((kind, rows, columns), served): (&(u64, u64, u64), &String)| {
                let mut shape = shape(rows * rows, columns * columns, served);
                shape.key.dtypes = kind.to_string();
                shape
            };
            let shapes: Vec<ServedShape> = shapes.iter().map(square).collect();
            let lists = decision_lists(&shapes);
            for list in &lists {
                list.check().expect("within the limits");
                // A profile refuses a choice that no entry of the key has.
                let mut unused: BTreeSet<usize> =
                    (0..list.rows.len()).filter(|row| !list.rows[*row].is_default()).collect();
                for one in shapes.iter().filter(|one| one.key == list.key) {
                    let place = list.row_of(&one.shape).expect("measured");
                    let row = &list.rows[place];
                    let choice = (!row.is_default()).then(|| (row.choice, row.parameters.clone()));
                    prop_assert!(one.choices.contains(&choice), "{:?} {:?}", one, list);
                    unused.remove(&place);
                }
                prop_assert!(unused.is_empty(), "{list}");
            }
            let keys: BTreeSet<&Key> = shapes.iter().map(|one| &one.key).collect();
            prop_assert!(lists.iter().map(|list| &list.key).eq(keys));
        }
    }
}
