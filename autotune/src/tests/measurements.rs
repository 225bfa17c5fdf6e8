use std::collections::BTreeMap;

use fastrand::Rng;
use gridguard::DeviceLimits;
use gridguard::profile::{
    DecisionRow, DeviceIdentity, Document, Environment, Key, Match, MatchKind, Named, Objective,
    Profile, Provenance,
};

use super::simulation::{Nature, Simulated, throughput};
use crate::stats::{real, whole};
use crate::{Budget, Candidate, Measurements, Portion, Samples, Space, tune};

const WARPS: [u64; 5] = [4, 1, 2, 8, 16];

fn candidate(warps: u64) -> Candidate {
    Candidate { block_threads: 32 * warps, ..Candidate::whole(vec![("warps".into(), warps)], 1) }
}

/// A kernel whose best number of warps grows with its columns: 1.5 % for the square of the distance in octaves.
fn nature([rows, columns]: [u64; 2]) -> Nature {
    let best = (real(columns) / 256.0).clamp(1.0, 16.0).log2();
    let time = |warps: u64| {
        let octaves = real(warps).log2() - best;
        (1e5 + real(rows) * real(columns) / 500.0) * (1.0 + 0.015 * octaves * octaves)
    };
    let times_ns = WARPS.map(|warps| (candidate(warps), time(warps)));
    let (noise, outliers, failing) = (0.002, 0.01, BTreeMap::new());
    Nature { noise, outliers, drift: 0.0, first: 0.2, times_ns: times_ns.into(), failing }
}

fn shape([rows, columns]: [u64; 2]) -> Named {
    vec![("rows".into(), rows), ("columns".into(), columns)]
}

fn key(dtypes: &str) -> Key {
    Key { kernel: "norm".into(), dtypes: dtypes.into(), ..Key::default() }
}

/// A profile of these shapes, settled after each search as the command does.
fn tuned(shapes: &[[u64; 2]], document: &mut Document) -> Measurements {
    let mut measured = Measurements::default();
    for (place, sizes) in (0..).zip(shapes) {
        let space = Space::listed(WARPS.map(candidate).to_vec());
        let outcome = throughput(&space, &mut Simulated::new(nature(*sizes), place));
        let dtypes = if place % 3 == 0 { "bf16" } else { "f16" };
        let entry = outcome.entry(key(dtypes), shape(*sizes), Provenance::default());
        document.insert(entry.clone()).expect("valid");
        measured.add(&entry, &outcome);
        measured.settle(document, "norm").expect("valid");
    }
    measured
}

fn device() -> DeviceIdentity {
    DeviceIdentity::new(&DeviceLimits::any_device())
}

/// The regret of what the profile chooses for the sizes.
fn regret(profile: &Profile, dtypes: &str, sizes: [u64; 2]) -> (Match, f64) {
    let found = profile.lookup(&key(dtypes), &sizes);
    let warps = found.parameter("warps").unwrap_or(WARPS[0]);
    (found.matched, nature(sizes).regret(&candidate(warps)))
}

#[test]
fn few_choices_serve_every_measured_shape_and_shapes_between_and_beyond() {
    let mut random = Rng::with_seed(3);
    let mut draw = |octaves: f64| {
        let size = |random: &mut Rng, least: f64| whole(least * 2_f64.powf(octaves * random.f64()));
        [size(&mut random, 1000.0), size(&mut random, 64.0)]
    };
    let shapes: Vec<[u64; 2]> = (0..36).map(|_| draw(8.0)).collect();
    let mut document = Document::new(device(), Environment::default());
    let measured = tuned(&shapes, &mut document);
    let rows = || document.decisions().iter().flat_map(|list| &list.rows);
    let mut choices: Vec<&Named> = rows().map(|row| &row.parameters).collect();
    let count = choices.len();
    choices.sort();
    choices.dedup();
    document.decisions().iter().for_each(|list| println!("{list}"));
    assert!((2..=4).contains(&choices.len()) && count <= 10);
    let (profile, notices) = Profile::from_document(document, &device(), &Environment::default());
    assert_eq!(notices, []);
    for (place, sizes) in shapes.iter().enumerate() {
        let dtypes = if place % 3 == 0 { "bf16" } else { "f16" };
        let (matched, regret) = regret(&profile, dtypes, *sizes);
        assert!(
            matched.kind() == MatchKind::Exact && regret < 0.025,
            "{sizes:?} {matched} {regret}"
        );
    }
    let unseen: Vec<f64> = (0..200).map(|_| regret(&profile, "f16", draw(8.5)).1).collect();
    let unseen = Samples::new(unseen).expect("finite");
    let held_out = measured.held_out().expect("several shapes");
    println!("unseen: 95 % {}, worst {}; {held_out}", unseen.quantile(0.95), unseen.greatest());
    assert!(unseen.quantile(0.95) < 0.03);
    assert_eq!((held_out.shapes, held_out.unknown), (36, 0));
    assert!(held_out.p95 < 0.05 && held_out.worst >= held_out.p95);
}

#[test]
fn a_search_stops_at_a_candidate_within_three_percent_of_the_limit() {
    let nature = nature([8000, 4096]);
    let [default, best] =
        [WARPS[0], 16].map(|warps| nature.time_ns(&candidate(warps), Portion::Sequence));
    let search = |least_ns| {
        let mut space = Space::listed(WARPS.map(candidate).to_vec());
        let budget = Budget { least_ns, ..Budget::default() };
        let mut measurer = Simulated::new(nature.clone(), 5);
        tune(&mut measurer, &mut space, Objective::Throughput, &budget, &mut ()).expect("runs")
    };
    let whole = search(Some(best * 0.9));
    assert_eq!(whole.evaluations, search(None).evaluations, "nothing is at this limit");
    let at_best = search(Some(best * 0.995));
    assert_eq!(
        (&at_best.winner, &whole.winner),
        (&candidate(8), &candidate(8)),
        "a tie, in smaller blocks"
    );
    assert!(at_best.evaluations < whole.evaluations, "{}", at_best.evaluations);
    let at_default = search(Some(default * 0.99));
    let timed = at_default.candidates.iter().filter(|one| one.summary.samples > 0).count();
    assert_eq!((&at_default.winner, timed, at_default.complete), (&candidate(WARPS[0]), 1, true));
}

#[test]
fn a_list_reaches_as_far_as_its_shapes_whatever_the_order_of_the_searches() {
    let [one, other] = [[8000, 2048], [4000, 4096]];
    for searched in [[one, other], [other, one]] {
        let mut document = Document::new(device(), Environment::default());
        // The first is of another key.
        tuned(&[one, searched[0], searched[1]], &mut document);
        let list = document.decision(&key("f16")).expect("made");
        let within = [("rows", (500, 64_000)), ("columns", (1024, 8192))];
        assert_eq!(
            list.within,
            within.map(|(name, range)| (name.to_owned(), range)),
            "{searched:?}"
        );
    }
}

#[test]
fn rows_that_a_person_changed_stay_while_they_serve_every_shape() {
    let mut document = Document::new(device(), Environment::default());
    tuned(&[[8000, 4096], [8000, 2048], [9000, 2048], [8000, 128]], &mut document);
    let mut list = document.decision(&key("f16")).expect("made").clone();
    let everywhere =
        |row: &DecisionRow| DecisionRow { when: vec![("rows".into(), (1, 1))], ..row.clone() };
    list.rows.insert(0, everywhere(&list.rows[0]));
    document.decide(list.clone()).expect("it agrees");
    tuned(&[[8000, 4096]], &mut document);
    assert_eq!(document.decision(&key("f16")), Some(&list));
    // A shape beyond the list needs a new one.
    tuned(&[[8000, 4096], [100_000, 2048]], &mut document);
    assert_ne!(document.decision(&key("f16")), Some(&list));
}
