//! The steps of a bulk evaluation, and what lies between a step and a shape.

use crate::schedule::clock::Piece;
use crate::schedule::error::{ScheduleError, check_step};

/// The optimizer steps of a bulk evaluation.
#[derive(Debug, Clone, Copy)]
pub enum Steps<'a> {
    /// start, start + step, … with a step above 0.
    Range {
        /// The first step.
        start: f64,
        /// From one to the next.
        step: f64,
        /// How many.
        len: usize,
    },
    /// In an order that never falls.
    Rising(&'a [f64]),
    /// In any order.
    Any(&'a [f64]),
}

impl<'a> Steps<'a> {
    /// The steps of an array, with its order found out.
    ///
    /// # Errors
    /// When one is NaN, negative, or at or past 2^53.
    pub fn of(array: &'a [f64]) -> Result<Self, ScheduleError> {
        for &step in array {
            check_step(step)?;
        }
        let (Some(&start), Some(&last)) = (array.first(), array.last()) else {
            return Ok(Self::Rising(array));
        };
        let step = array.get(1).map_or(1.0, |second| second - start);
        // Whole numbers only: there the products below are exact.
        let even = |(i, &x): (usize, &f64)| x.to_bits() == (start + i as f64 * step).to_bits();
        if step > 0.0 && start.fract() == 0.0 && step.fract() == 0.0 && array.iter().enumerate().all(even) {
            return Ok(Self::Range { start, step, len: array.len() });
        }
        if start <= last && array.windows(2).all(|pair| pair[0] <= pair[1]) {
            return Ok(Self::Rising(array));
        }
        Ok(Self::Any(array))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Range { len, .. } => *len,
            Self::Rising(array) | Self::Any(array) => array.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The largest, or none.
    #[must_use]
    pub fn max(&self) -> Option<f64> {
        match self {
            Self::Any(array) => array.iter().copied().reduce(f64::max),
            _ => (!self.is_empty()).then(|| self.at(self.len() - 1)),
        }
    }

    pub(super) fn at(&self, index: usize) -> f64 {
        match self {
            Self::Range { start, step, .. } => start + index as f64 * step,
            Self::Rising(array) | Self::Any(array) => array[index],
        }
    }

    /// The first index in lo..hi whose step a map takes to `limit` (past it where `after`), or hi.
    pub(super) fn first(&self, lo: usize, hi: usize, map: Map, limit: f64, after: bool) -> usize {
        let reached = |index: usize| {
            let x = map.local(self.at(index));
            if after { x > limit } else { x >= limit }
        };
        // Most limits do not come up within a row.
        if lo >= hi || !reached(hi - 1) {
            return hi.max(lo);
        }
        let (mut lo, mut hi) = (lo, hi - 1);
        if let Self::Range { start, step, .. } = self {
            // The map is a line: what rounding leaves to settle is one index or two.
            let guess = ((limit - map.at) / map.slope + map.from - start) / step;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // It saturates.
            let guess = (guess as usize).clamp(lo, hi);
            if guess + 2 < hi && reached(guess + 2) {
                hi = guess + 2;
            }
            if guess > lo + 2 && !reached(guess - 2) {
                lo = guess - 1;
            }
        }
        while lo < hi {
            let middle = lo.midpoint(hi);
            if reached(middle) {
                hi = middle;
            } else {
                lo = middle + 1;
            }
        }
        lo
    }
}

/// Where a step is in a nested schedule's own steps: at + (x − from)·slope.
#[derive(Clone, Copy)]
pub(super) struct Map {
    pub(super) from: f64,
    pub(super) at: f64,
    pub(super) slope: f64,
}

impl Map {
    pub(super) const IDENTITY: Self = Self { from: 0.0, at: 0.0, slope: 1.0 };

    pub(super) fn local(self, x: f64) -> f64 {
        self.at + (x - self.from) * self.slope
    }

    pub(super) fn through(self, piece: Piece) -> Self {
        Self { at: piece.map(self.at), slope: self.slope * piece.slope, ..self }
    }

    pub(super) fn into(self, start: f64, length: f64) -> Self {
        Self { at: (self.at - start) / length, slope: self.slope / length, ..self }
    }

    /// The same map, measured from a step nearer by.
    pub(super) fn anchored(self, x: f64) -> Self {
        Self { from: x, at: self.local(x), ..self }
    }
}
