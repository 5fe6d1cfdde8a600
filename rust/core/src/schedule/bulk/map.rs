//! What lies between a step and a shape, and between a share and a value.

use crate::schedule::clock::Piece;

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

/// What is still to be done to a value: v·factor + shift.
#[derive(Clone, Copy)]
pub(super) struct Affine {
    pub(super) factor: f64,
    pub(super) shift: f64,
}

impl Affine {
    pub(super) const IDENTITY: Self = Self { factor: 1.0, shift: 0.0 };

    pub(super) fn apply(self, value: f64) -> f64 {
        value * self.factor + self.shift
    }

    /// First v → b + (a − b)·v, then this.
    pub(super) fn after(self, a: f64, b: f64) -> Self {
        self.scaled(a - b, b)
    }

    /// First v → shift + factor·v, then this.
    pub(super) fn scaled(self, factor: f64, shift: f64) -> Self {
        Self { factor: factor * self.factor, shift: self.apply(shift) }
    }
}
