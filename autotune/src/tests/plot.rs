use gridguard::Strategy;

use super::simulation::{Simulated, problem, throughput};
use crate::{Candidate, Chart, MeasuredCandidate, TuningOutcome};

fn outcome(seed: u64, sets: u64) -> TuningOutcome {
    let (space, nature) = problem(seed, sets);
    throughput(&space, &mut Simulated::new(nature, seed))
}

fn draw(outcome: &TuningOutcome) -> String {
    let chart = Chart {
        title: "temporal attention 15,360 x 5 heads, 16 frames of 64, f16".into(),
        subtitle: "NVIDIA H200, cold-eager, throughput".into(),
        origin: format!("2026-11-20, gridguard 0.1.0: gridguard tune {}", "--shape 8x8 ".repeat(9)),
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
    let height: f64 = attribute(svg, "height").parse().expect("a number");
    for (place, ([left, top, right, bottom], words)) in boxes.iter().enumerate() {
        let inside = *left >= 0.0 && *top >= 0.0 && *right <= 720.0 && *bottom <= height;
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
        let outcome = outcome(seed, sets);
        assert_legible(&draw(&outcome));
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
    let mut one = outcome(0, 1);
    let default = one.default.clone();
    one.candidates.retain(|measured| measured.candidate == default);
    assert_legible(&draw(&one));

    let mut equal = outcome(1, 2);
    reshape(&mut equal, |one| {
        let summary = &mut one.summary;
        (summary.low_ns, summary.median_ns, summary.high_ns) = (5000, 5000, 5000);
    });
    assert_legible(&draw(&equal));

    let mut huge = outcome(2, 2);
    reshape(&mut huge, |one| {
        one.candidate.largest_chunk = one.candidate.largest_chunk.pow(4);
        let summary = &mut one.summary;
        for time in [&mut summary.low_ns, &mut summary.median_ns, &mut summary.high_ns] {
            *time = (*time / 1000).pow(4).max(1);
        }
    });
    assert_legible(&draw(&huge));
}

#[test]
fn folded_and_shifted_launches_have_marks_and_names() {
    let mut forms = outcome(0, 1);
    let most = forms.candidates.iter().map(|one| one.candidate.largest_chunk).max();
    reshape(&mut forms, |one| {
        if Some(one.candidate.largest_chunk) == most {
            one.candidate.strategy = Strategy::Shifted;
        }
    });
    let svg = draw(&forms);
    assert_legible(&svg);
    let named = |name: &str| boxes(&svg).iter().any(|(_, words)| words == name);
    assert_eq!([named("shifted"), named("folded")], [true, false]);
    reshape(&mut forms, |one| one.candidate.strategy = Strategy::Folded);
    let svg = draw(&forms);
    assert_legible(&svg);
    assert!(boxes(&svg).iter().any(|(_, words)| words == "folded"));
}

#[test]
fn one_chunk_is_drawn_as_bars_and_long_intervals_are_cut() {
    let mut one = outcome(2, 8);
    let chunk = one.default.largest_chunk;
    reshape(&mut one, |one| one.candidate.largest_chunk = chunk);
    let svg = draw(&one);
    assert_legible(&svg);
    let bars = svg.matches("<rect").count();
    assert!(!svg.contains("items of the largest chunk") && bars > 12, "{bars} bars");

    let mut wide = outcome(1, 3);
    let arrows = |outcome: &TuningOutcome| draw(outcome).matches("<polygon").count();
    let before = arrows(&wide);
    reshape(&mut wide, |one| one.summary.high_ns *= 50);
    let timed = wide.candidates.iter().filter(|one| one.summary.samples >= 6).count();
    assert_eq!(arrows(&wide), before + timed);
}

#[test]
fn an_empty_chart_is_an_error() {
    let mut outcome = outcome(0, 1);
    outcome.candidates.clear();
    let chart = Chart::default();
    assert_eq!(chart.svg(&outcome).expect_err("empty").to_string(), "nothing was measured");
}
