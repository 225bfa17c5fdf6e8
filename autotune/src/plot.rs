//! The curve of time against chunk size, as SVG.

mod figure;
mod legend;
mod scale;

use self::figure::{grouped, microseconds, shortened};
use gridguard::profile::{Named, Summary};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::number::{real, whole};
use crate::outcome::{MeasuredCandidate, TuningOutcome};
use crate::stats::FEWEST_FOR_INTERVAL;
use scale::Scale;

/// What a picture says beside its curves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chart {
    /// What was tuned, such as `rms_norm 32768 x 4096 f16`.
    pub title: String,
    /// Where and how, such as `NVIDIA H200, cold-eager, throughput`.
    pub subtitle: String,
    /// The most items that one launch may have, where that is fewer than there are.
    pub largest_legal_chunk: Option<u64>,
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// No candidate has a time.
    #[error("nothing was measured")]
    Nothing,
    /// The drawing library failed.
    #[error("drawing failed: {0}")]
    Drawing(String),
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), PlotError>;

impl Chart {
    /// Draws the medians of `outcome` with their 95 % intervals against the size of the largest chunk,
    /// a curve for each set of parameters.
    ///
    /// # Errors
    ///
    /// [`PlotError`] where nothing was measured.
    pub fn svg(&self, outcome: &TuningOutcome) -> Result<String, PlotError> {
        let curves = curves(outcome);
        if curves.is_empty() {
            return Err(PlotError::Nothing);
        }
        let mut text = String::new();
        {
            let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            root.fill(&WHITE).map_err(drawing)?;
            let picture = Picture::new(&root, &curves, self.largest_legal_chunk);
            picture.titles(self)?;
            picture.axes()?;
            picture.curves(&curves)?;
            picture.limit(self.largest_legal_chunk)?;
            picture.marks(outcome)?;
            picture.legend(&curves, self.largest_legal_chunk, outcome)?;
            root.present().map_err(drawing)?;
        }
        Ok(text)
    }
}

/// The points of one set of parameters, by chunk size.
struct Curve<'a> {
    parameters: &'a Named,
    points: Vec<&'a MeasuredCandidate>,
    colour: Option<RGBColor>,
}

/// A curve for each set of parameters: the default's first, then the fastest. Only the first few have
/// a colour.
fn curves(outcome: &TuningOutcome) -> Vec<Curve<'_>> {
    let mut curves: Vec<Curve<'_>> = Vec::new();
    for measured in outcome.candidates.iter().filter(|one| one.summary.samples > 0) {
        let parameters = &measured.candidate.parameters;
        match curves.iter_mut().find(|curve| curve.parameters == parameters) {
            Some(curve) => curve.points.push(measured),
            None => curves.push(Curve { parameters, points: vec![measured], colour: None }),
        }
    }
    let fastest = |curve: &Curve<'_>| {
        let own = *curve.parameters == outcome.default.parameters
            || *curve.parameters == outcome.winner.parameters;
        (!own, curve.points.iter().map(|one| one.summary.median_ns).min())
    };
    curves.sort_by_key(fastest);
    for (curve, colour) in curves.iter_mut().zip(COLOURS) {
        curve.colour = Some(colour);
    }
    for curve in &mut curves {
        curve.points.sort_by_key(|one| (one.candidate.largest_chunk, one.summary.median_ns));
    }
    curves
}

struct Picture<'r, 'a> {
    root: &'r Area<'a>,
    items: Scale,
    times: Scale,
}

impl<'r, 'a> Picture<'r, 'a> {
    fn new(root: &'r Area<'a>, curves: &[Curve<'_>], limit: Option<u64>) -> Self {
        let points = || curves.iter().flat_map(|curve| curve.points.iter());
        let chunks = points().map(|one| real(one.candidate.largest_chunk.max(1)));
        let items: Vec<f64> = chunks.chain(limit.map(|limit| real(limit.max(1)))).collect();
        // Intervals that reach further are cut.
        let times: Vec<f64> = points().map(|one| real(one.summary.median_ns.max(1))).collect();
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        let most = times.iter().copied().fold(0.0, f64::max);
        Self {
            root,
            items: Scale::around(&items, true),
            times: Scale::around(&times, most > WIDE_RANGE * least),
        }
    }

    fn x(&self, items: f64) -> i32 {
        between(LEFT, RIGHT, self.items.fraction(items))
    }

    fn y(&self, ns: f64) -> i32 {
        between(BOTTOM, TOP, self.times.fraction(ns))
    }

    fn at(&self, one: &MeasuredCandidate) -> (i32, i32) {
        (self.x(real(one.candidate.largest_chunk.max(1))), self.y(real(one.summary.median_ns)))
    }

    fn text(&self, text: &str, at: (i32, i32), size: i32, horizontal: HPos) -> Drawn {
        let style = (FONT, size).into_font().color(&INK).pos(Pos::new(horizontal, VPos::Center));
        self.root.draw(&Text::new(text.to_owned(), at, style)).map_err(drawing)
    }

    fn line(&self, points: Vec<(i32, i32)>, style: ShapeStyle) -> Drawn {
        self.root.draw(&PathElement::new(points, style)).map_err(drawing)
    }

    fn titles(&self, chart: &Chart) -> Drawn {
        self.text(&shortened(&chart.title, TITLE_LETTERS), (LEFT, 26), 20, HPos::Left)?;
        self.text(&shortened(&chart.subtitle, SUBTITLE_LETTERS), (LEFT, 50), 14, HPos::Left)
    }

    fn axes(&self) -> Drawn {
        let mut free = 0;
        for mark in self.items.marks() {
            let x = self.x(mark);
            if x < free {
                continue;
            }
            free = x + MARK_WIDTH;
            self.line(vec![(x, TOP), (x, BOTTOM)], GRID.stroke_width(1))?;
            self.text(&grouped(whole(mark)), (x, BOTTOM + 16), 12, HPos::Center)?;
        }
        for mark in self.times.marks() {
            let y = self.y(mark);
            self.line(vec![(LEFT, y), (RIGHT, y)], GRID.stroke_width(1))?;
            self.text(&microseconds(mark), (LEFT - 8, y), 12, HPos::Right)?;
        }
        let frame = [(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)];
        self.line(frame.to_vec(), INK.stroke_width(1))?;
        let middle = (LEFT + RIGHT) / 2;
        self.text(
            "items of the largest chunk (log scale)",
            (middle, BOTTOM + 42),
            14,
            HPos::Center,
        )?;
        let style = (FONT, 14).into_font().transform(FontTransform::Rotate270).color(&INK);
        let style = style.pos(Pos::new(HPos::Center, VPos::Center));
        let name = Text::new("time of the whole batch (us)", (22, (TOP + BOTTOM) / 2), style);
        self.root.draw(&name).map_err(drawing)
    }

    fn curves(&self, curves: &[Curve<'_>]) -> Drawn {
        for curve in curves.iter().rev() {
            let colour = curve.colour.unwrap_or(FAINT);
            let width = if curve.colour.is_some() { 2 } else { 1 };
            let line: Vec<(i32, i32)> = curve.points.iter().map(|one| self.at(one)).collect();
            if curve.colour.is_some() {
                self.root
                    .draw(&Polygon::new(self.band(curve), colour.mix(0.15)))
                    .map_err(drawing)?;
            }
            self.line(line.clone(), colour.stroke_width(width))?;
            if curve.colour.is_none() {
                continue;
            }
            for (point, one) in line.into_iter().zip(&curve.points) {
                self.point(point, one, colour)?;
            }
        }
        Ok(())
    }

    /// A median: with its interval, or hollow where it has none.
    fn point(&self, at: (i32, i32), one: &MeasuredCandidate, colour: RGBColor) -> Drawn {
        let Some(ends) = interval(one) else {
            self.root.draw(&Circle::new(at, 3, WHITE.filled())).map_err(drawing)?;
            return self.root.draw(&Circle::new(at, 3, colour.stroke_width(1))).map_err(drawing);
        };
        let whisker = ends.map(|ns| (at.0, self.y(real(ns))));
        self.line(whisker.to_vec(), colour.stroke_width(1))?;
        self.root.draw(&Circle::new(at, 3, colour.filled())).map_err(drawing)
    }

    /// The confidence intervals of a curve: along the lower ends, and back along the upper ones.
    fn band(&self, curve: &Curve<'_>) -> Vec<(i32, i32)> {
        let ends = curve.points.iter().map(|one| {
            let ends = interval(one).unwrap_or([one.summary.median_ns; 2]);
            (self.at(one).0, ends.map(|ns| self.y(real(ns))))
        });
        let low = ends.clone().map(|(x, [low, _])| (x, low));
        let high = ends.map(|(x, [_, high])| (x, high));
        low.chain(high.rev()).collect()
    }

    fn limit(&self, limit: Option<u64>) -> Drawn {
        let Some(limit) = limit else { return Ok(()) };
        let x = self.x(real(limit.max(1)));
        self.dashes((x, TOP), (x, BOTTOM))
    }

    /// A dashed line straight down or to the right.
    fn dashes(&self, from: (i32, i32), to: (i32, i32)) -> Drawn {
        let mut start = from;
        let along = |at: (i32, i32)| {
            if from.0 == to.0 {
                (at.0, (at.1 + DASH).min(to.1))
            } else {
                ((at.0 + DASH).min(to.0), at.1)
            }
        };
        while start != to {
            let end = along(start);
            self.line(vec![start, end], LIMIT.stroke_width(2))?;
            start = along(end);
        }
        Ok(())
    }

    fn marks(&self, outcome: &TuningOutcome) -> Drawn {
        for one in outcome.candidates.iter().filter(|one| one.summary.samples > 0) {
            if one.candidate == outcome.default {
                self.default_mark(self.at(one))?;
            }
            if one.candidate == outcome.winner {
                self.winner_mark(self.at(one))?;
            }
        }
        Ok(())
    }

    fn default_mark(&self, (x, y): (i32, i32)) -> Drawn {
        let square = Rectangle::new([(x - 9, y - 9), (x + 9, y + 9)], INK.stroke_width(2));
        self.root.draw(&square).map_err(drawing)
    }

    fn winner_mark(&self, at: (i32, i32)) -> Drawn {
        self.root.draw(&Circle::new(at, 6, CHOICE.stroke_width(3))).map_err(drawing)
    }
}

/// The ends of the 95 % interval of a median, where there are samples enough to have one.
fn interval(one: &MeasuredCandidate) -> Option<[u64; 2]> {
    let Summary { low_ns, high_ns, samples, .. } = one.summary;
    (samples >= FEWEST_FOR_INTERVAL).then_some([low_ns, high_ns])
}

fn between(from: i32, to: i32, fraction: f64) -> i32 {
    let length = real(u64::from(from.abs_diff(to)));
    let way = i32::try_from(whole(length * fraction)).unwrap_or(0);
    if to >= from { from + way } else { from - way }
}

fn drawing(error: impl core::fmt::Display) -> PlotError {
    PlotError::Drawing(error.to_string())
}

/// Width and height in pixels.
const SIZE: (u32, u32) = (1000, 560);
const LEFT: i32 = 100;
const RIGHT: i32 = 720;
const TOP: i32 = 80;
const BOTTOM: i32 = 490;
/// Room for a figure under the picture, in pixels.
const MARK_WIDTH: i32 = 60;
const DASH: i32 = 5;
const FONT: &str = "sans-serif";
/// What fits at 20 and 14 pixels.
const TITLE_LETTERS: usize = 86;
const SUBTITLE_LETTERS: usize = 120;
/// From this ratio on times have a logarithmic axis, too: else the plateau would be a line.
const WIDE_RANGE: f64 = 3.0;
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xe6, 0xe6, 0xe6);
const FAINT: RGBColor = RGBColor(0xbb, 0xbb, 0xbb);
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

#[cfg(test)]
mod tests;
