//! The clock: which point of a schedule an optimizer step is at.

use super::error::{ScheduleError, demand, finite};
use super::record::Record;

/// Bounds of a clock, so that a step read through it is a number too.
const FASTEST: f64 = 18_446_744_073_709_551_616.0;
const SLOWEST: f64 = 1.0 / FASTEST;

/// Piecewise linear and rising, through (step, schedule step) knots.
///
/// Before the first knot and past the last one it goes on with the slope of its first and last piece; a
/// single knot is a shift. A run that changes its batch half-way keeps its schedule by bending its clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Clock {
    pieces: Vec<Piece>,
}

/// From `step` on, the schedule is at `at + (x − step)·slope`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Piece {
    pub step: f64,
    pub at: f64,
    pub slope: f64,
}

impl Piece {
    pub fn is_identity(self) -> bool {
        self.slope == 1.0 && self.step == self.at
    }

    pub fn map(self, x: f64) -> f64 {
        self.at + (x - self.step) * self.slope
    }
}

impl Clock {
    /// The clock through the knots of a form; without any, the one that leaves every step as it is.
    pub(crate) fn read(record: &Record) -> Result<Self, ScheduleError> {
        let knots = record.pairs("clock")?;
        let Some(&(step, at)) = knots.last() else {
            return Ok(Self { pieces: vec![Piece { step: 0.0, at: 0.0, slope: 1.0 }] });
        };
        for number in knots.iter().flat_map(|&(step, at)| [step, at]) {
            finite("clock", number)?;
            demand(number.abs() <= FASTEST, "clock", number, "within ±2^64")?;
        }
        let mut pieces: Vec<Piece> = Vec::with_capacity(knots.len());
        for pair in knots.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let wrong = |message| Err(ScheduleError::new("clock", message));
            if x1 <= x0 || y1 <= y0 {
                return wrong(format!(
                    "pairs must rise in both numbers, got ({x1}, {y1}) after ({x0}, {y0})"
                ));
            }
            let slope = (y1 - y0) / (x1 - x0);
            if !(SLOWEST..=FASTEST).contains(&slope) {
                return wrong(format!(
                    "must go at 2^-64 to 2^64 schedule steps a step, got {slope:e} from ({x0}, {y0})"
                ));
            }
            pieces.push(Piece { step: x0, at: y0, slope });
        }
        let slope = pieces.last().map_or(1.0, |piece| piece.slope);
        pieces.push(Piece { step, at, slope });
        Ok(Self { pieces })
    }

    /// Where the schedule is at optimizer step `x`.
    pub fn at(&self, x: f64) -> f64 {
        self.pieces[self.index(x)].map(x)
    }

    /// The piece that holds `x`, and the step where the next one starts.
    pub(crate) fn piece(&self, x: f64) -> (Piece, f64) {
        let index = self.index(x);
        (self.pieces[index], self.pieces.get(index + 1).map_or(f64::INFINITY, |next| next.step))
    }

    fn index(&self, x: f64) -> usize {
        if self.pieces.len() == 1 {
            return 0;
        }
        self.pieces.partition_point(|piece| piece.step <= x).saturating_sub(1)
    }
}
