//! The words beside a picture.

use super::figure::{grouped, shortened};
use super::{Curve, Drawn, FAINT, Picture, RIGHT, TOP, drawing};
use crate::candidate::Candidate;
use crate::number::real;
use crate::outcome::TuningOutcome;
use crate::report::{duration, parameters};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

impl Picture<'_, '_> {
    /// Right of the picture, where nothing else is: no text ever covers a curve.
    pub(super) fn legend(
        &self,
        curves: &[Curve<'_>],
        limit: Option<u64>,
        outcome: &TuningOutcome,
    ) -> Drawn {
        let (sign, words) = (RIGHT + 32, RIGHT + 54);
        let mut y = TOP + 8;
        self.winner_mark((sign, y))?;
        self.lines(&["choice".to_owned(), described(outcome, &outcome.winner)], words, &mut y)?;
        self.default_mark((sign, y))?;
        self.lines(&["default".to_owned(), described(outcome, &outcome.default)], words, &mut y)?;
        if let Some(limit) = limit {
            self.dashes((sign - 10, y), (sign + 10, y))?;
            let words_of_limit =
                ["legal limit".to_owned(), format!("{} items a launch", grouped(limit))];
            self.lines(&words_of_limit, words, &mut y)?;
        }
        y += LINE / 2;
        for curve in curves {
            let (Some(colour), Some(point)) = (curve.colour, curve.points.first()) else {
                continue;
            };
            self.line(vec![(sign - 10, y), (sign + 10, y)], colour.stroke_width(2))?;
            self.root.draw(&Circle::new((sign, y), 3, colour.filled())).map_err(drawing)?;
            let name = parameters(&point.candidate);
            let name = if curve.parameters.is_empty() { "no parameters".to_owned() } else { name };
            self.lines(&[name], words, &mut y)?;
        }
        let others = curves.iter().filter(|curve| curve.colour.is_none()).count();
        if others > 0 {
            self.line(vec![(sign - 10, y), (sign + 10, y)], FAINT.stroke_width(1))?;
            self.lines(&[format!("{others} other sets")], words, &mut y)?;
        }
        let bands = ["band: 95 % interval of median", "hollow: fewer than 6 samples"];
        self.lines(&bands.map(str::to_owned), words, &mut y)
    }

    fn lines(&self, lines: &[String], x: i32, y: &mut i32) -> Drawn {
        for line in lines {
            self.text(&shortened(line, LEGEND_LETTERS), (x, *y), 13, HPos::Left)?;
            *y += LINE;
        }
        *y += LINE / 3;
        Ok(())
    }
}

/// `4 x 4,096 items, 102.4 us`.
fn described(outcome: &TuningOutcome, candidate: &Candidate) -> String {
    let measured = outcome.candidates.iter().find(|one| one.candidate == *candidate);
    let time = measured.map_or(0, |one| one.summary.median_ns);
    let (launches, items) = (grouped(candidate.launches), grouped(candidate.largest_chunk));
    format!("{launches} x {items}, {}", duration(real(time)))
}

/// Height of a line in pixels.
const LINE: i32 = 20;
/// What fits at 13 pixels.
const LEGEND_LETTERS: usize = 32;
