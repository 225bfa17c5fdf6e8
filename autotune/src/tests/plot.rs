use gridguard::Strategy;
use gridguard::profile::Objective;

use super::simulation::{Simulated, problem};
use crate::{Budget, Candidate, Chart, MeasuredCandidate, Space, TuningOutcome, tune};

fn outcome(seed: u64, sets: u64) -> (Space, TuningOutcome) {
    let (mut space, nature) = problem(seed, sets);
    let mut measurer = Simulated::new(nature, seed);
    let outcome =
        tune(&mut measurer, &mut space, Objective::Throughput, &Budget::default(), &mut ())
            .expect("the default runs");
    (space, outcome)
}

fn draw(space: &Space, outcome: &TuningOutcome) -> String {
    let chart = Chart {
        title: "temporal attention 15,360 x 5 heads, 16 frames of 64, f16".into(),
        subtitle: "NVIDIA H200, cold-eager, throughput".into(),
        largest_legal_chunk: space.largest_legal_chunk(),
    };
    chart.svg(outcome).expect("has points")
}

fn attribute<'a>(tag: &'a str, name: &str) -> &'a str {
    let from = tag.find(&format!(" {name}=\"")).expect("an attribute") + name.len() + 3;
    tag[from..].split('"').next().expect("closed")
}

/// Left, top, right and bottom of each text, assuming wide letters.
fn boxes(svg: &str) -> Vec<([f64; 4], String)> {
    let texts = svg.split("<text").skip(1).map(|text| {
        let (tag, rest) = text.split_once('>').expect("a tag");
        let words = rest.split('<').next().expect("closed").trim().to_owned();
        let number = |name| attribute(tag, name).parse::<f64>().expect("a number");
        let (x, y, size) = (number("x"), number("y"), number("font-size") * 1.24);
        let width = 0.5 * size * words.chars().map(|_| 1.0).sum::<f64>();
        let (width, height) = if tag.contains("rotate") { (size, width) } else { (width, size) };
        let left = match attribute(tag, "text-anchor") {
            "start" => x,
            "middle" => x - width / 2.0,
            _ => x - width,
        };
        let top = match attribute(tag, "dy") {
            "0.76em" => y,
            "0.5ex" => y - height / 2.0,
            _ => y - height,
        };
        ([left, top, left + width, top + height], words)
    });
    texts.collect()
}

pub(super) fn assert_legible(svg: &str) {
    let boxes = boxes(svg);
    for (place, ([left, top, right, bottom], words)) in boxes.iter().enumerate() {
        let inside = *left >= 0.0 && *top >= 0.0 && *right <= 1000.0 && *bottom <= 560.0;
        assert!(inside, "{words:?} leaves the chart: {left} {top} {right} {bottom}");
        for ([l, t, r, b], others) in &boxes[..place] {
            let apart = right <= l || r <= left || bottom <= t || b <= top;
            assert!(apart, "{words:?} covers {others:?}");
        }
    }
}

#[test]
fn no_text_covers_another_in_ordinary_charts() {
    for (seed, sets) in [(0, 1), (1, 3), (2, 6), (3, 8), (4, 12)] {
        let (space, outcome) = outcome(seed, sets);
        assert_legible(&draw(&space, &outcome));
    }
}

fn reshape(outcome: &mut TuningOutcome, change: impl Fn(&mut MeasuredCandidate)) {
    for one in &mut outcome.candidates {
        let old = one.candidate.clone();
        change(one);
        let renew = |known: &mut Candidate| {
            if *known == old {
                known.clone_from(&one.candidate);
            }
        };
        renew(&mut outcome.winner);
        renew(&mut outcome.default);
    }
}

#[test]
fn one_point_equal_times_and_huge_ranges_are_drawn() {
    let (space, mut one) = outcome(0, 1);
    let default = one.default.clone();
    one.candidates.retain(|measured| measured.candidate == default);
    assert_legible(&draw(&space, &one));

    let (space, mut equal) = outcome(1, 2);
    reshape(&mut equal, |one| {
        let summary = &mut one.summary;
        (summary.low_ns, summary.median_ns, summary.high_ns) = (5000, 5000, 5000);
    });
    assert_legible(&draw(&space, &equal));

    let (space, mut huge) = outcome(2, 2);
    reshape(&mut huge, |one| {
        one.candidate.largest_chunk = one.candidate.largest_chunk.pow(4);
        let summary = &mut one.summary;
        for time in [&mut summary.low_ns, &mut summary.median_ns, &mut summary.high_ns] {
            *time = (*time / 1000).pow(5).max(1);
        }
    });
    assert_legible(&draw(&space, &huge));
}

#[test]
fn folded_and_shifted_launches_have_marks_and_names() {
    let (space, mut forms) = outcome(0, 1);
    let most = forms.candidates.iter().map(|one| one.candidate.largest_chunk).max();
    reshape(&mut forms, |one| {
        if Some(one.candidate.largest_chunk) == most {
            one.candidate.strategy = Strategy::Shifted;
        }
    });
    let svg = draw(&space, &forms);
    assert_legible(&svg);
    let named = |name: &str| boxes(&svg).iter().any(|(_, words)| words == name);
    assert_eq!([named("shifted"), named("folded")], [true, false]);
    reshape(&mut forms, |one| one.candidate.strategy = Strategy::Folded);
    let svg = draw(&space, &forms);
    assert_legible(&svg);
    assert!(boxes(&svg).iter().any(|(_, words)| words.starts_with("choice: folded in ")));
}

#[test]
fn an_empty_chart_is_an_error() {
    let (_, mut outcome) = outcome(0, 1);
    outcome.candidates.clear();
    let chart = Chart { title: String::new(), subtitle: String::new(), largest_legal_chunk: None };
    assert_eq!(chart.svg(&outcome).expect_err("empty").to_string(), "nothing was measured");
}
