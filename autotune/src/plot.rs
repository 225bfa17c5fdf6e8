//! Draws time, and the scratch of a pipeline, against chunk size as SVG.

use core::f64::consts::SQRT_2;
use std::collections::BTreeMap;

use gridguard::Strategy;
use gridguard::profile::{Named, Summary};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::element::DynElement;
use plotters::prelude::*;

use crate::candidate::Candidate;
use crate::error::{Error, ErrorKind};
use crate::outcome::{MeasuredCandidate, TuningOutcome};
use crate::report::{duration, parameters};
use crate::stats::{MIN_FOR_INTERVAL, real};

/// The texts and the limit of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chart {
    /// The problem, for example `rms_norm f16 32768x4096`.
    pub title: String,
    /// Device and policy, for example `NVIDIA H200, cold-eager, throughput`.
    pub subtitle: String,
    /// The most items of one legal launch, if fewer than the batch has.
    pub largest_legal_chunk: Option<u64>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Relative to its place.
type Mark<'a> = DynElement<'static, SVGBackend<'a>, (i32, i32)>;
type DrawingError<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

impl Chart {
    /// Draws medians and their 95 % intervals against the largest chunk, with a curve for each set of
    /// parameters. Marks show folded and shifted launches. Dashed curves on a second axis show the scratch
    /// of a pipeline.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Plot`] if nothing was measured.
    pub fn svg(&self, outcome: &TuningOutcome) -> Result<String, Error> {
        let curves = curves(outcome);
        if curves.is_empty() {
            return Err(Error::new(ErrorKind::Plot, "nothing was measured"));
        }
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        self.draw(&root, &curves, outcome).map_err(|error| {
            Error::new(ErrorKind::Plot, format!("cannot draw the chart: {error}"))
        })?;
        drop(root);
        Ok(svg)
    }

    fn draw<'a>(
        &self,
        root: &Area<'a>,
        curves: &[Curve<'_>],
        outcome: &TuningOutcome,
    ) -> Result<(), DrawingError<'a>> {
        root.fill(&WHITE)?;
        let area =
            root.margin(10, 0, 0, 0).titled(&shortened(&self.title, MAX_TITLE), (FONT, 20))?;
        let area = area.titled(&shortened(&self.subtitle, MAX_SUBTITLE), (FONT, 14))?;
        let (plot, legend) = area.split_horizontally(LEGEND_X);
        let limit = self.largest_legal_chunk.map(real);
        let (smallest, largest) = ends(timed(outcome).map(|one| at(one).0).chain(limit));
        let items = (smallest / 2.0)..(largest * 2.0);
        let (least, most) = ends(timed(outcome).map(|one| at(one).1));
        // A logarithmic axis shows a plateau beside much slower candidates.
        if most > WIDE_RANGE * least {
            let times = ((least / 1.2)..(most * 1.2)).log_scale().base(SQRT_2);
            self.draw_curves(&plot, items, times, curves, outcome)?;
        } else {
            let margin = (0.06 * (most - least)).max(0.02 * most);
            let times = (least - margin)..(most + margin);
            self.draw_curves(&plot, items, times, curves, outcome)?;
        }
        self.draw_legend(&legend, curves, outcome)?;
        root.present()
    }

    fn draw_curves<'a, T>(
        &self,
        area: &Area<'a>,
        items: core::ops::Range<f64>,
        times: T,
        curves: &[Curve<'_>],
        outcome: &TuningOutcome,
    ) -> Result<(), DrawingError<'a>>
    where
        T: AsRangedCoord<Value = f64>,
        T::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let scratch = scratch_range(outcome);
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(45)
            .y_label_area_size(95)
            .right_y_label_area_size(if scratch.is_some() { 85 } else { 0 })
            .build_cartesian_2d(items.clone().log_scale().base(2.0), times)?
            .set_secondary_coord(
                items.log_scale().base(2.0),
                scratch.clone().unwrap_or(1.0..2.0).log_scale().base(2.0),
            );
        chart
            .configure_mesh()
            .x_desc("items of the largest chunk")
            .y_desc("time of the whole batch")
            .x_label_formatter(&|items| count_label(*items))
            .y_label_formatter(&|us| duration(us * 1e3))
            .x_labels(9)
            .y_labels(9)
            .label_style((FONT, 12))
            .axis_desc_style((FONT, 14))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for curve in curves.iter().rev() {
            let line = curve.points.iter().filter(|one| !is_form(&one.candidate));
            let width = if curve.is_prominent() { 2 } else { 1 };
            let style = curve.colour.stroke_width(width);
            chart.draw_series(LineSeries::new(line.map(|one| at(one)), style))?;
            let intervals = curve.points.iter().filter(|_| curve.is_prominent());
            chart.draw_series(intervals.map(|one| {
                let (items, time) = at(one);
                let [low, high] = interval(one).unwrap_or([time; 2]);
                ErrorBar::new_vertical(items, low, time, high, curve.colour.filled(), 6)
            }))?;
        }
        if let Some(limit) = self.largest_legal_chunk {
            let (bottom, top) = (chart.y_range().start, chart.y_range().end);
            let ends = [(real(limit), bottom), (real(limit), top)];
            chart.draw_series(DashedLineSeries::new(ends, 5, 5, LIMIT.stroke_width(2)))?;
        }
        for (place, one) in timed(outcome).map(|one| (at(one), &one.candidate)) {
            let form = is_form(one).then(|| form_mark(one.strategy));
            let default = (*one == outcome.default).then(default_mark);
            let winner = (*one == outcome.winner).then(winner_mark);
            for mark in [form, default, winner].into_iter().flatten() {
                chart.draw_series([EmptyElement::at(place) + mark])?;
            }
        }
        if scratch.is_none() {
            return Ok(());
        }
        chart
            .configure_secondary_axes()
            .y_desc("scratch of all chunks in flight")
            .y_label_formatter(&|bytes| bytes_label(*bytes))
            .y_labels(9)
            .label_style((FONT, 12))
            .axis_desc_style((FONT, 14))
            .draw()?;
        for curve in curves.iter().rev().filter(|curve| curve.is_prominent()) {
            let points = curve.points.iter().map(|one| (at(one).0, scratch_of(one)));
            let line = DashedLineSeries::new(points, 3, 4, curve.colour.stroke_width(1));
            chart.draw_secondary_series(line)?;
        }
        Ok(())
    }

    fn draw_legend<'a>(
        &self,
        area: &Area<'a>,
        curves: &[Curve<'_>],
        outcome: &TuningOutcome,
    ) -> Result<(), DrawingError<'a>> {
        let mut rows = vec![
            (describe("choice", &outcome.winner, outcome), Some(winner_mark())),
            (describe("default", &outcome.default, outcome), Some(default_mark())),
        ];
        let is_drawn = |form: &Strategy| timed(outcome).any(|one| one.candidate.strategy == *form);
        let forms = FORMS.into_iter().filter(is_drawn);
        rows.extend(forms.map(|form| (form.to_string(), Some(form_mark(form)))));
        rows.extend(self.largest_legal_chunk.map(|limit| {
            let limit = format!("limit: {} items per launch", count_label(real(limit)));
            (limit, Some(line_mark(LIMIT)))
        }));
        let prominent = curves.iter().filter(|curve| curve.is_prominent());
        let others = curves.len() - prominent.clone().count();
        rows.extend(prominent.map(|curve| (curve.name(), Some(line_mark(curve.colour)))));
        if others > 0 {
            rows.push((format!("{others} other sets of parameters"), Some(line_mark(GREY))));
        }
        let scratch = scratch_range(outcome).map(|_| "dashed: scratch, on the right axis");
        let notes = ["bar: 95 % interval", "no bar: fewer than 6 samples"];
        rows.extend(notes.into_iter().chain(scratch).map(|note| (note.to_owned(), None)));
        for (row, (text, mark)) in (1..).zip(rows) {
            let y = 20 * row;
            area.draw(&Text::new(shortened(&text, MAX_LABEL), (35, y - 7), (FONT, 13)))?;
            if let Some(mark) = mark {
                area.draw(&(EmptyElement::at((18, y)) + mark))?;
            }
        }
        Ok(())
    }
}

/// The points of one set of parameters, by chunk size.
struct Curve<'a> {
    points: Vec<&'a MeasuredCandidate>,
    /// [`GREY`] beyond the first few.
    colour: RGBColor,
}

impl Curve<'_> {
    fn is_prominent(&self) -> bool {
        self.colour != GREY
    }

    /// `block 256, vector 4`; `median` if there are no parameters.
    fn name(&self) -> String {
        let named = self.points.iter().find(|one| !one.candidate.parameters.is_empty());
        named.map_or_else(|| "median".to_owned(), |one| parameters(&one.candidate))
    }
}

/// A curve for each set of parameters: first the default and the winner, then by the fastest point.
fn curves(outcome: &TuningOutcome) -> Vec<Curve<'_>> {
    let mut sets: BTreeMap<&Named, Vec<&MeasuredCandidate>> = BTreeMap::new();
    for one in timed(outcome) {
        sets.entry(&one.candidate.parameters).or_default().push(one);
    }
    let marked = [&outcome.default.parameters, &outcome.winner.parameters];
    let mut sets: Vec<_> = sets.into_iter().collect();
    sets.sort_by_key(|(parameters, points)| {
        (!marked.contains(parameters), points.iter().map(|one| one.summary.median_ns).min())
    });
    let mut curves = Vec::new();
    let colours = COLOURS.into_iter().chain(core::iter::repeat(GREY));
    for ((_, mut points), colour) in sets.into_iter().zip(colours) {
        points.sort_by_key(|one| (one.candidate.largest_chunk, one.summary.median_ns));
        curves.push(Curve { points, colour });
    }
    curves
}

fn timed(outcome: &TuningOutcome) -> impl Iterator<Item = &MeasuredCandidate> {
    outcome.candidates.iter().filter(|one| one.summary.samples > 0)
}

/// Items and microseconds of a point.
fn at(one: &MeasuredCandidate) -> (f64, f64) {
    (real(one.candidate.largest_chunk.max(1)), us(one.summary.median_ns))
}

/// Bytes of a point, at least one, as the axis is logarithmic.
fn scratch_of(one: &MeasuredCandidate) -> f64 {
    real(one.candidate.scratch_bytes.max(1))
}

/// The axis of the scratch, if any candidate has some.
fn scratch_range(outcome: &TuningOutcome) -> Option<core::ops::Range<f64>> {
    let some = timed(outcome).any(|one| one.candidate.scratch_bytes > 0);
    let (least, most) = ends(timed(outcome).map(scratch_of));
    some.then(|| (least / 1.2)..(most * 1.2))
}

fn us(ns: u64) -> f64 {
    real(ns.max(1)) / 1e3
}

/// The ends of the 95 % interval of a median in microseconds, if there are enough samples.
fn interval(one: &MeasuredCandidate) -> Option<[f64; 2]> {
    let Summary { low_ns, high_ns, samples, .. } = one.summary;
    (samples >= MIN_FOR_INTERVAL).then(|| [low_ns, high_ns].map(us))
}

/// The least and the largest of positive values.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(low, high), value| (value.min(low), value.max(high)))
}

/// `choice: 4 x 4096 items, 102.4 us`, `choice: shifted in 2, 102.4 us`.
fn describe(name: &str, candidate: &Candidate, outcome: &TuningOutcome) -> String {
    let measured = outcome.candidates.iter().find(|one| one.candidate == *candidate);
    let time = duration(measured.map_or(0.0, |one| real(one.summary.median_ns)));
    let [launches, items] =
        [candidate.launches, candidate.largest_chunk].map(|count| count_label(real(count)));
    let what = match candidate.strategy {
        form if is_form(candidate) => format!("{form} in {launches}"),
        _ => format!("{launches} x {items} items"),
    };
    format!("{name}: {what}, {time}")
}

/// `15360`; from ten million on `1.2e7`.
fn count_label(count: f64) -> String {
    if count >= 1e7 { format!("{count:.1e}") } else { format!("{count:.0}") }
}

/// `256 MiB`.
fn bytes_label(bytes: f64) -> String {
    let units = [(4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB"), (0, "B")];
    let sizes = units.map(|(power, unit)| (1024_f64.powi(power), unit));
    let fits = |(size, _): &&(f64, &str)| bytes >= *size;
    let (size, unit) = sizes.iter().find(fits).unwrap_or(&(1.0, "B"));
    let value = bytes / size;
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

fn shortened(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    text.chars().take(letters.saturating_sub(1)).chain(['…']).collect()
}

/// Whether its launches run a rewritten form of the kernel.
fn is_form(candidate: &Candidate) -> bool {
    FORMS.contains(&candidate.strategy)
}

/// A diamond for folded launches, a triangle for shifted ones.
fn form_mark<'a>(form: Strategy) -> Mark<'a> {
    let corners: &[(i32, i32)] = match form {
        Strategy::Folded => &[(0, -5), (5, 0), (0, 5), (-5, 0)],
        _ => &[(0, -5), (5, 4), (-5, 4)],
    };
    Polygon::new(corners, BLACK.filled()).into_dyn()
}

fn default_mark<'a>() -> Mark<'a> {
    Rectangle::new([(-8, -8), (8, 8)], BLACK.stroke_width(2)).into_dyn()
}

fn winner_mark<'a>() -> Mark<'a> {
    Circle::new((0, 0), 6, CHOICE.stroke_width(3)).into_dyn()
}

fn line_mark<'a>(colour: RGBColor) -> Mark<'a> {
    PathElement::new([(-10, 0), (10, 0)], colour.stroke_width(2)).into_dyn()
}

/// Strategies with their own marks.
const FORMS: [Strategy; 2] = [Strategy::Folded, Strategy::Shifted];
const SIZE: (u32, u32) = (1000, 560);
const LEGEND_X: i32 = 700;
const FONT: &str = "sans-serif";
/// Letters per line.
const MAX_TITLE: usize = 86;
const MAX_SUBTITLE: usize = 120;
const MAX_LABEL: usize = 36;
/// Times have a logarithmic axis if the slowest takes this many times as long as the fastest.
const WIDE_RANGE: f64 = 3.0;
const GREY: RGBColor = RGBColor(0xbb, 0xbb, 0xbb);
const LIMIT: RGBColor = RGBColor(0xb0, 0x20, 0x20);
const CHOICE: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
/// Distinct for all kinds of colour vision (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x80, 0x60, 0x30),
];
