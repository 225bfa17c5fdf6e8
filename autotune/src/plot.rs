//! Draws time, and the scratch of a pipeline, against chunk size as SVG.

use core::f64::consts::SQRT_2;
use std::collections::BTreeMap;

use gridguard::Strategy;
use gridguard::profile::{Named, Summary};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::element::DynElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::candidate::Candidate;
use crate::error::{Error, ErrorKind};
use crate::outcome::{MeasuredCandidate, TuningOutcome};
use crate::report::{duration, parameters};
use crate::stats::{MIN_FOR_INTERVAL, real, whole};

/// The texts of a chart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chart {
    /// The problem, for example `rms_norm f16 32768x4096`.
    pub title: String,
    /// Device and policy, for example `NVIDIA H200, cold-eager, throughput`.
    pub subtitle: String,
    /// How it was made, for example the date, the version and the command line; may be empty.
    pub origin: String,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Relative to its place.
type Mark<'a> = DynElement<'static, SVGBackend<'a>, (i32, i32)>;
type DrawingError<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

impl Chart {
    /// Draws medians and their 95 % intervals against the largest chunk, with a curve for each set of
    /// parameters, or as bars if there is only one chunk. Marks show folded and shifted launches. Dashed curves on a
    /// second axis show the scratch of a pipeline. A table below has the times.
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
        let legend = legend(&curves, outcome);
        let origin: Vec<char> = self.origin.chars().collect();
        let lines = legend.len() + origin.len().div_ceil(MAX_NOTE);
        let pixels = |each: u32, count: usize| each * u32::try_from(count).unwrap_or(0);
        let (least, most) = ends(timed(outcome).map(|one| at(one).0));
        let bars = if least < most { Vec::new() } else { bars(&curves, outcome) };
        let plotted = if bars.is_empty() { PLOT_HEIGHT } else { pixels(BAR, bars.len()) };
        let height = TITLES + plotted + pixels(ROW, lines) + MARGIN;
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let draw = || {
            root.fill(&WHITE)?;
            let area = root.margin(MARGIN, 0, 0, 0);
            let area = area.titled(&shortened(&self.title, MAX_TITLE), (FONT, 26))?;
            let area = area.titled(&shortened(&self.subtitle, MAX_NOTE), TEXT)?;
            let (plot, below) = area.split_vertically(plotted);
            match bars.as_slice() {
                [] => draw_chunks(&plot, &curves, outcome)?,
                bars => draw_bars(&plot, bars, outcome)?,
            }
            let rows = (0..).map(|row| ROW_PIXELS * row + ROW_PIXELS / 2);
            let origin =
                origin.chunks(MAX_NOTE).map(|line| Row::note(line.iter().collect::<String>()));
            for (row, y) in legend.into_iter().chain(origin).zip(rows) {
                row.draw(&below, y)?;
            }
            root.present()
        };
        draw().map_err(|error: DrawingError<'_>| {
            Error::new(ErrorKind::Plot, format!("cannot draw the chart: {error}"))
        })?;
        drop(root);
        Ok(svg)
    }
}

/// Draws times against chunk sizes.
fn draw_chunks<'a>(
    area: &Area<'a>,
    curves: &[Curve<'_>],
    outcome: &TuningOutcome,
) -> Result<(), DrawingError<'a>> {
    let limit = outcome.largest_legal_chunk.map(real);
    let (smallest, largest) = ends(timed(outcome).map(|one| at(one).0).chain(limit));
    let items = (smallest / 2.0)..(largest * 2.0);
    let (least, most) = ends(timed(outcome).map(|one| at(one).1));
    // Longer intervals are cut, so that the medians remain distinct.
    let intervals =
        prominent(curves).flat_map(|curve| &curve.points).filter_map(|one| interval(one));
    let (low, high) = ends(intervals.flatten());
    let (low, high) = (low.clamp(least / MOST_CUT, least), high.clamp(most, most * MOST_CUT));
    // A logarithmic axis shows a plateau beside much slower candidates.
    if most > WIDE_RANGE * least {
        let times = ((low / 1.2)..(high * 1.2)).log_scale().base(SQRT_2);
        draw_curves(area, items, times, curves, outcome)
    } else {
        let margin = (0.06 * (high - low)).max(0.02 * high);
        let times = (low - margin)..(high + margin);
        draw_curves(area, items, times, curves, outcome)
    }
}

fn draw_curves<'a, T>(
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
        .margin_right(24)
        .x_label_area_size(60)
        .y_label_area_size(140)
        .right_y_label_area_size(if scratch.is_some() { 120 } else { 0 })
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
        .x_labels(6)
        .y_labels(9)
        .label_style((FONT, 18))
        .axis_desc_style(TEXT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    let (bottom, top) = (chart.y_range().start, chart.y_range().end);
    for curve in curves.iter().rev() {
        let line = curve.points.iter().filter(|one| !is_form(&one.candidate));
        let width = if curve.is_prominent() { 2 } else { 1 };
        let style = curve.colour.stroke_width(width);
        chart.draw_series(LineSeries::new(line.map(|one| at(one)), style))?;
        for one in curve.points.iter().filter(|_| curve.is_prominent()) {
            let (items, time) = at(one);
            let [low, high] = interval(one).unwrap_or([time; 2]);
            let (style, ends) = (curve.colour.filled(), [low.max(bottom), high.min(top)]);
            chart.draw_series([ErrorBar::new_vertical(items, ends[0], time, ends[1], style, 6)])?;
            for (is_cut, end, tip) in [(low < bottom, bottom, 8), (high > top, top, -8)] {
                let arrow = Polygon::new([(-5, -tip), (5, -tip), (0, 0)], style).into_dyn();
                chart.draw_series(is_cut.then(|| EmptyElement::at((items, end)) + arrow))?;
            }
        }
    }
    if let Some(limit) = outcome.largest_legal_chunk {
        let ends = [(real(limit), bottom), (real(limit), top)];
        chart.draw_series(DashedLineSeries::new(ends, 5, 5, LIMIT.stroke_width(2)))?;
    }
    for (place, one) in timed(outcome).map(|one| (at(one), &one.candidate)) {
        for mark in marks(one, outcome) {
            chart.draw_series([EmptyElement::at(place) + mark])?;
        }
    }
    if scratch.is_none() {
        return Ok(());
    }
    chart
        .configure_secondary_axes()
        .y_desc("scratch of chunks in flight")
        .y_label_formatter(&|bytes| bytes_label(*bytes))
        .y_labels(9)
        .label_style((FONT, 18))
        .axis_desc_style(TEXT)
        .draw()?;
    for curve in curves.iter().rev().filter(|curve| curve.is_prominent()) {
        let points = curve.points.iter().map(|one| (at(one).0, scratch_of(one)));
        let line = DashedLineSeries::new(points, 3, 4, curve.colour.stroke_width(1));
        chart.draw_secondary_series(line)?;
    }
    Ok(())
}

/// The choice, the default and the fastest of the others, by time.
fn bars<'o>(
    curves: &[Curve<'o>],
    outcome: &TuningOutcome,
) -> Vec<(&'o MeasuredCandidate, RGBColor)> {
    let all = curves.iter().flat_map(|curve| curve.points.iter().map(|one| (*one, curve.colour)));
    let mut bars: Vec<(&MeasuredCandidate, RGBColor)> = all.collect();
    let is_marked =
        |one: &MeasuredCandidate| [&outcome.winner, &outcome.default].contains(&&one.candidate);
    bars.sort_by_key(|(one, _)| (!is_marked(one), one.summary.median_ns));
    bars.truncate(MAX_BARS);
    bars.sort_by_key(|(one, _)| one.summary.median_ns);
    bars
}

/// Draws the times of candidates that all have the same chunk.
fn draw_bars<'a>(
    area: &Area<'a>,
    bars: &[(&MeasuredCandidate, RGBColor)],
    outcome: &TuningOutcome,
) -> Result<(), DrawingError<'a>> {
    let ends = |one: &MeasuredCandidate| interval(one).unwrap_or([at(one).1; 2]);
    let most = bars.iter().map(|(one, _)| ends(one)[1].max(at(one).1)).fold(0.0, f64::max);
    let right = i32::try_from(WIDTH).unwrap_or(i32::MAX) - BAR_MARGIN;
    let x = |us: f64| {
        let pixels = f64::from(right - BAR_MARGIN) * us / most;
        BAR_MARGIN + i32::try_from(whole(pixels)).unwrap_or(right)
    };
    for ((one, colour), y) in bars.iter().zip((0..).map(|bar| BAR_PIXELS * bar)) {
        let name = match (is_form(&one.candidate), one.candidate.parameters.is_empty()) {
            (false, false) => parameters(&one.candidate),
            (true, false) => format!("{}, {}", one.candidate.strategy, parameters(&one.candidate)),
            (_, true) => one.candidate.strategy.to_string(),
        };
        area.draw(&Text::new(shortened(&name, MAX_BAR), (BAR_MARGIN, y), TEXT))?;
        let time = duration(real(one.summary.median_ns));
        let style = TEXT.into_font().into_text_style(area).pos(Pos::new(HPos::Right, VPos::Top));
        area.draw(&Text::new(time, (right, y), style))?;
        let (end, middle) = (x(at(one).1), y + 30);
        let corners = [(BAR_MARGIN, middle - 7), (end, middle + 7)];
        area.draw(&Rectangle::new(corners, colour.filled()))?;
        let interval = ends(one).map(|end| (x(end), middle));
        area.draw(&PathElement::new(interval, BLACK.stroke_width(2)))?;
        for mark in marks(&one.candidate, outcome) {
            area.draw(&(EmptyElement::at((end, middle)) + mark))?;
        }
    }
    Ok(())
}

/// A row of the table below the chart: a mark, a name, launches and items, the median, and its change.
struct Row<'a> {
    mark: Option<Mark<'a>>,
    name: String,
    cells: [String; 3],
}

impl<'a> Row<'a> {
    fn note(text: impl Into<String>) -> Self {
        Self { mark: None, name: text.into(), cells: Default::default() }
    }

    fn of(name: impl Into<String>, candidate: &Candidate, outcome: &TuningOutcome) -> Self {
        let measured = outcome.candidates.iter().find(|one| one.candidate == *candidate);
        let time = duration(measured.map_or(0.0, |one| real(one.summary.median_ns)));
        let ratio = measured.and_then(|one| one.against_default);
        let [launches, items] =
            [candidate.launches, candidate.largest_chunk].map(|count| count_label(real(count)));
        let change =
            ratio.map_or_else(String::new, |ratio| format!("{:+.1} %", (ratio - 1.0) * 100.0));
        Self {
            mark: None,
            name: name.into(),
            cells: [format!("{launches} x {items}"), time, change],
        }
    }

    fn marked(self, mark: Mark<'a>) -> Self {
        Self { mark: Some(mark), ..self }
    }

    fn draw(self, area: &Area<'a>, y: i32) -> Result<(), DrawingError<'a>> {
        let is_note = self.cells.iter().all(String::is_empty);
        let name = shortened(&self.name, if is_note { MAX_NOTE } else { MAX_NAME });
        let x = if self.mark.is_some() || !is_note { 42 } else { 12 };
        let style = |at| TEXT.into_font().into_text_style(area).pos(at);
        let left = (name, (x, HPos::Left));
        let cells = self.cells.into_iter().zip(CELLS.map(|x| (x, HPos::Right)));
        for (text, (x, side)) in [left].into_iter().chain(cells) {
            if !text.is_empty() {
                area.draw(&Text::new(text, (x, y), style(Pos::new(side, VPos::Center))))?;
            }
        }
        self.mark.map_or(Ok(()), |mark| area.draw(&(EmptyElement::at((22, y)) + mark)))
    }
}

fn legend<'a>(curves: &[Curve<'_>], outcome: &TuningOutcome) -> Vec<Row<'a>> {
    let titles = ["launches x items", "median", "vs default"].map(str::to_owned);
    let mut rows = vec![
        Row { cells: titles, ..Row::note("") },
        Row::of("choice", &outcome.winner, outcome).marked(winner_mark()),
        Row::of("default", &outcome.default, outcome).marked(default_mark()),
    ];
    let is_drawn = |form: &Strategy| timed(outcome).any(|one| one.candidate.strategy == *form);
    let forms = FORMS.into_iter().filter(is_drawn);
    rows.extend(forms.map(|form| Row::note(form.to_string()).marked(form_mark(form))));
    rows.extend(outcome.largest_legal_chunk.map(|limit| {
        let limit = format!("limit: {} items per launch", count_label(real(limit)));
        Row::note(limit).marked(line_mark(LIMIT))
    }));
    rows.extend(prominent(curves).filter_map(|curve| {
        let best = curve.points.iter().min_by_key(|one| one.summary.median_ns)?;
        Some(Row::of(curve.name(), &best.candidate, outcome).marked(line_mark(curve.colour)))
    }));
    let others = curves.len() - prominent(curves).count();
    if others > 0 {
        let others = format!("{others} other sets of parameters");
        rows.push(Row::note(others).marked(line_mark(GREY)));
    }
    let scratch = scratch_range(outcome).map(|_| "dashed: scratch, on the right axis");
    let notes = ["thin line: 95 % interval, from 6 samples on; an arrow: it is cut"];
    rows.extend(notes.into_iter().chain(scratch).map(Row::note));
    rows
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

    /// `block 256, vector 4`; `fastest` if there are no parameters.
    fn name(&self) -> String {
        let named = self.points.iter().find(|one| !one.candidate.parameters.is_empty());
        named.map_or_else(|| "fastest".to_owned(), |one| parameters(&one.candidate))
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

/// The marks of a candidate: its form, and whether it is the default or the choice.
fn marks<'a>(one: &Candidate, outcome: &TuningOutcome) -> impl Iterator<Item = Mark<'a>> {
    let form = is_form(one).then(|| form_mark(one.strategy));
    let default = (*one == outcome.default).then(default_mark);
    let winner = (*one == outcome.winner).then(winner_mark);
    [form, default, winner].into_iter().flatten()
}

fn prominent<'c, 'o>(curves: &'c [Curve<'o>]) -> impl Iterator<Item = &'c Curve<'o>> {
    curves.iter().filter(|curve| curve.is_prominent())
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
/// Pixels. A phone shows the width in half as many.
const WIDTH: u32 = 720;
const PLOT_HEIGHT: u32 = 500;
const TITLES: u32 = 76;
const MARGIN: u32 = 12;
/// A row of the table.
const ROW: u32 = 26;
const ROW_PIXELS: i32 = 26;
/// The right ends of the last columns of the table.
const CELLS: [i32; 3] = [505, 600, 712];
/// A bar with its name above it.
const BAR: u32 = 44;
const BAR_PIXELS: i32 = 44;
const BAR_MARGIN: i32 = 16;
const MAX_BARS: usize = 12;
const FONT: &str = "sans-serif";
/// 16 pixels in the SVG.
const TEXT: (&str, i32) = (FONT, 20);
/// Letters per line.
const MAX_TITLE: usize = 54;
const MAX_NAME: usize = 34;
const MAX_NOTE: usize = 66;
const MAX_BAR: usize = 58;
/// An interval is cut at this factor beyond the medians.
const MOST_CUT: f64 = 1.5;
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
