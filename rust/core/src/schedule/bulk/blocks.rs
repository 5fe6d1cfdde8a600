//! The curve of one segment, block after block.
//!
//! **What.** Over a short block of steps a shape is a polynomial in s = (u − centre)/reach, |s| ≤ 1. The
//! shape's file gives its coefficients and how far they hold (`Curve::series`), `reach` finds the steps that
//! lie within, and a kernel writes them in a loop that the compiler turns into vector instructions. The next
//! block starts where that one ends.
//!
//! **Why so.** Every block is anchored on the closed form at its centre, so that the error is bounded
//! whatever the length of the run: a recurrence from step to step drifts, and vectorises badly. In float32
//! the anchor is kept in two numbers and the terms that change are small beside it, so that seven or eight
//! terms lose less than an ulp of the peak. Where a shape has a singular point (powers, tanh's poles) blocks
//! shrink towards it in proportion; where a minimum lies on the way it is made a centre, since only there
//! nothing cancels. A block is cut to whole vectors, by its index and never by its address, so that the same
//! call gives the same bits.
//!
//! **Tried** (bench/results/schedules.md; times a fill of the same memory): libm's functions 29, a rotation
//! in float64 1.4 to 4, a rotation in float32 1.1 and wrong by 13 times at a minimum of 0, non-temporal
//! stores 1.5 to 1.7. Cosines, exponentials and tanh have a way of their own (`wave`): tables that stay in
//! registers. So have roots and reciprocals (`powers`): blocks of one length, each found while the one before
//! is written.

use std::cell::LazyCell;
use std::f64::consts::PI;

use super::kernels::{Run, line, listed};
use super::powers::Powers;
use super::steps::{Map, Steps};
use super::value::{Value, even};
use super::wave::{Motion, Wave};
use crate::schedule::expansion::{Expander, Expansion, Precision};
use crate::schedule::form::Segment;
use crate::schedule::shapes::{Monomial, Shape, Table};

/// Blocks shorter than this are not worth a series.
const SHORTEST: usize = 3;

/// A segment that goes from a to b, and the steps that it is seen at.
pub(super) struct Blocks<'a> {
    pub(super) steps: Steps<'a>,
    pub(super) precisions: &'static [Precision; 2],
    pub(super) segment: &'a Segment,
    pub(super) shape: &'a Shape,
    pub(super) map: Map,
    /// How much u grows a step.
    pub(super) rate: f64,
    pub(super) a: f64,
    pub(super) b: f64,
}

impl Blocks<'_> {
    /// The position within the segment at an index.
    fn u(&self, index: usize) -> f64 {
        self.segment.u(self.map.local(self.steps.at(index)))
    }

    /// Writes the values from index `first` on.
    pub(super) fn write<T: Value>(&self, first: usize, out: &mut [T]) {
        let end = first + out.len();
        if let (Shape::Power(power), Steps::Range { step, .. }) = (self.shape, self.steps)
            && power.is_linear()
        {
            let fall = self.b - self.a;
            let slope = fall * self.rate * step;
            // A line that is over within a hair of a step may be too steep for a number.
            return if slope.is_finite() {
                line(out, self.a + fall * self.u(first), slope);
            } else {
                self.each(first, out);
            };
        }
        if self.wave(first, out) {
            return;
        }
        let monomial = self.shape.monomial();
        // Most rows have no need of one.
        let expander = LazyCell::new(|| Expander::new(self.precisions, monomial.map(|power| power.exponent)));
        let mut j = first;
        while j < end {
            let left = &mut out[j - first..];
            let done = match (self.shape, &monomial) {
                (Shape::Table(table), _) => self.listed(table, j, left),
                (_, Some(monomial)) => self.powers(monomial, j, left),
                _ => 0,
            };
            j += if done > 0 { done } else { self.series(&expander, j, left) };
        }
    }

    /// Writes the values from index `first` on that one series holds for. Returns how many.
    fn series<T: Value>(&self, expander: &Expander, first: usize, out: &mut [T]) -> usize {
        let (u, end) = (self.u(first), first + out.len());
        let series = self.shape.series(u, expander).map(|series| series.between(self.a, self.b));
        // A series that overflows says nothing of the values, which may be numbers all the same.
        let series = series.filter(Expansion::is_finite);
        let stop = series.as_ref().map_or(end, |series| {
            let stop = self.reach(series, first, u, end);
            // Whole vectors leave nothing to do one by one.
            let over = stop % T::LANES;
            if stop < end && stop - first > T::LANES + over && series.degree > 1 { stop - over } else { stop }
        });
        let count = stop - first;
        let block = &mut out[..count];
        match series {
            Some(series) if count >= SHORTEST || series.degree < 2 => self.block(&series, first, u, block),
            _ => self.each(first, block),
        }
        count
    }

    /// Writes the values one by one, by the formula.
    fn each<T: Value>(&self, first: usize, out: &mut [T]) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = T::of(self.b + (self.a - self.b) * self.shape.at(self.u(first + i)));
        }
    }

    /// How an argument that is `start` + `rate`·u goes along the values from index `first` on; `None` of
    /// steps that are not even.
    fn run(&self, first: usize, start: f64, rate: f64) -> Option<Run> {
        let Steps::Range { step, .. } = self.steps else { return None };
        let (low, high) = (self.a.min(self.b), self.a.max(self.b));
        let at = self.map.local(self.steps.at(first)) - self.segment.origin;
        let (step, length) = (self.map.slope * step, self.segment.length);
        Some(Run { start, rate, first: at, step, length, low, high })
    }

    /// Writes a root or a reciprocal as far as there is a shorter way than a series. Returns how many values.
    fn powers<T: Value>(&self, monomial: &Monomial, first: usize, out: &mut [T]) -> usize {
        let &Monomial { exponent, start, direction, shift, factor } = monomial;
        let Some(run) = self.run(first, start, direction) else { return 0 };
        let rise = self.a - self.b;
        T::powers(out, &Powers { exponent, base: self.b + rise * shift, rise: rise * factor, run })
    }

    /// Copies a table's values where every step is one of them. Returns how many.
    fn listed<T: Value>(&self, table: &Table, first: usize, out: &mut [T]) -> usize {
        let Steps::Range { step, .. } = self.steps else { return 0 };
        let start = self.u(first);
        let (rest, singles) = table.rest(start);
        if rest.len() < 2 || start.fract() != 0.0 || self.rate * step != 1.0 {
            return 0;
        }
        let count = rest.len().min(out.len());
        let out = &mut out[..count];
        let as_they_are = self.a == 1.0 && self.b == 0.0;
        if !(as_they_are && T::copy(out, &singles[..count])) {
            listed(out, &rest[..count], self.b, self.a - self.b);
        }
        count
    }

    /// Writes a curve that has an addition theorem, and says whether it did.
    fn wave<T: Value>(&self, first: usize, out: &mut [T]) -> bool {
        let height = self.a - self.b;
        let wave = |motion, mean, amplitude, start, rate| {
            self.run(first, start, rate).map(|run| Wave { motion, mean, amplitude, run })
        };
        let middle = self.b + 0.5 * height;
        let wave = match self.shape {
            Shape::Cosine(shape) => {
                shape.plain_angle().and_then(|rate| wave(Motion::Cosine, middle, 0.5 * height, 0.0, rate))
            }
            Shape::Exponential(shape) => {
                shape.falling_log().and_then(|rate| wave(Motion::Exponential, self.b, height, 0.0, rate))
            }
            Shape::Tanh(shape) => {
                let (lower, slope) = shape.line();
                wave(Motion::Tanh, middle, -0.5 * height, lower, slope)
            }
            _ => None,
        };
        // Waves away, the formula itself has lost bits of a cosine's angle: only the same rounding is close
        // to it.
        let near = |wave: &Wave| {
            !T::FULL || wave.motion != Motion::Cosine || wave.run.at((out.len() - 1) as f64) <= 2.0 * PI
        };
        wave.filter(near).is_some_and(|wave| T::wave(out, &wave))
    }

    /// The index up to which a series holds, from j on.
    fn reach(&self, series: &Expansion, j: usize, u: f64, end: usize) -> usize {
        if series.reach.is_infinite() {
            return end;
        }
        let limit = series.centre + series.reach;
        let Steps::Range { step, .. } = self.steps else {
            return j + 1 + (j + 1..end).take_while(|&i| self.u(i) < limit).count();
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // It saturates, and is cut to the row.
        let count = ((limit - u) / (self.rate * step)) as usize;
        let mut stop = (j + count.clamp(0, end) + 1).min(end);
        if series.degree < 2 {
            // Stairs and tables turn on their step exactly.
            while stop > j + 1 && self.u(stop - 1) >= limit {
                stop -= 1;
            }
            while stop < end && self.u(stop) < limit {
                stop += 1;
            }
        }
        stop
    }

    /// Writes a block that a series holds for.
    fn block<T: Value>(&self, series: &Expansion, first: usize, u: f64, out: &mut [T]) {
        let unit = if series.reach.is_infinite() { 1.0 } else { series.reach };
        if let Steps::Range { step, .. } = self.steps {
            return even(out, series, (u - series.centre) / unit, self.rate * step / unit);
        }
        for (i, out) in out.iter_mut().enumerate() {
            *out = T::of(series.at((self.u(first + i) - series.centre) / unit));
        }
    }
}
