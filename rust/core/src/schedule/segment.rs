//! A segment: one shape, stretched between two values.

use super::polynomial::{Expansion, Plan};
use super::{
    Cosine, Exponential, Inner, Power, Reciprocal, Rex, ScheduleError, Table, Tanh, constant, finite,
    positive,
};

/// What a segment does past u = 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// It stays where it ended.
    Clamp,
    /// It goes on by its formula.
    Continue,
}

/// The curve of a segment, as a share of the way from `b` to `a`.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// 1 throughout.
    Constant,
    /// (1 − u^stretch)^exponent.
    Power(Power),
    /// ((1 + cos π·waves·u^stretch)/2)^exponent.
    Cosine(Cosine),
    /// rate^u.
    Exponential(Exponential),
    /// (1 + u)^−exponent.
    Reciprocal(Reciprocal),
    /// (1 − u)/(1 − u/2).
    Rex(Rex),
    /// (1 − tanh z)/2.
    Tanh(Tanh),
    /// Listed values.
    Table(Table),
    /// Another schedule.
    Inner(Inner),
}

impl Shape {
    pub(crate) fn at(&self, u: f64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Power(shape) => shape.at(u),
            Self::Cosine(shape) => shape.at(u),
            Self::Exponential(shape) => shape.at(u),
            Self::Reciprocal(shape) => shape.at(u),
            Self::Rex(_) => Rex::at(u),
            Self::Tanh(shape) => shape.at(u),
            Self::Table(shape) => shape.at(u),
            Self::Inner(shape) => shape.at(u),
        }
    }

    /// The exponent of the power that the shape is made of, if it is made of one.
    pub(crate) fn lone_exponent(&self) -> Option<f64> {
        match self {
            Self::Power(shape) => shape.lone_exponent(),
            Self::Reciprocal(shape) => Some(shape.lone_exponent()),
            Self::Rex(_) => Some(Rex::EXPONENT),
            _ => None,
        }
    }

    /// A polynomial that stands for the shape from `u` on, if there is one.
    pub(crate) fn series(&self, u: f64, plan: &Plan) -> Option<Expansion> {
        match self {
            Self::Constant => Some(constant::series()),
            Self::Power(shape) => shape.series(u, plan),
            Self::Cosine(shape) => shape.series(u, plan),
            Self::Exponential(shape) => Some(shape.series(u, plan)),
            Self::Reciprocal(_) => Some(Reciprocal::series(u, plan)),
            Self::Rex(_) => Some(Rex::series(u, plan)),
            Self::Tanh(shape) => Some(shape.series(u, plan)),
            Self::Table(shape) => Some(shape.series(u)),
            Self::Inner(_) => None,
        }
    }
}

/// Part of a track: from `start` on, b + (a − b)·shape((x − origin)/length).
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// The first point of the segment.
    pub start: f64,
    /// Whether `start` itself still belongs to the segment before (torch's `OneCycleLR`, Megatron's warmup).
    pub after: bool,
    /// The point where u = 0; apart from `start` where a peer lets the decay run under the warmup.
    pub origin: f64,
    /// The steps from u = 0 to u = 1.
    pub length: f64,
    /// The value where the shape is 1.
    pub a: f64,
    /// The value where the shape is 0.
    pub b: f64,
    /// The curve.
    pub shape: Shape,
    /// What happens past u = 1.
    pub tail: Tail,
}

impl Segment {
    pub(crate) fn check(&self) -> Result<(), ScheduleError> {
        finite("start", self.start)?;
        finite("origin", self.origin)?;
        positive("length", self.length)?;
        finite("a", self.a)?;
        finite("b", self.b)?;
        let ends = match &self.shape {
            Shape::Power(power) => !power.is_linear(),
            Shape::Rex(_) => true,
            _ => false,
        };
        if ends && self.tail == Tail::Continue {
            return Err(ScheduleError::new(
                "tail",
                "this shape has no value past its end: it must be clamped",
            ));
        }
        Ok(())
    }

    pub(crate) fn u(&self, x: f64) -> f64 {
        let mut u = (x - self.origin) / self.length;
        if let Shape::Exponential(shape) = &self.shape {
            // x/length may round up to a whole stair that x has not reached (11/1.1 is 10, yet 10·1.1 > 11).
            if shape.is_stairs() && u.floor().mul_add(self.length, -(x - self.origin)) > 0.0 {
                u = u.floor() - 0.5;
            }
        }
        u = u.max(0.0);
        if self.tail == Tail::Clamp { u.min(1.0) } else { u }
    }

    /// The value at `x` with `a` multiplied by `gain`.
    pub(crate) fn at(&self, x: f64, gain: f64) -> f64 {
        let (a, u) = (self.a * gain, self.u(x));
        if u < 0.5 && matches!(&self.shape, Shape::Power(power) if power.is_linear()) {
            // Measured from the nearer end, so that a warmup from 0 has no digit to lose.
            return a + (self.b - a) * u;
        }
        let share = self.shape.at(u);
        // At share 1 the sum below may miss `a` by an ulp.
        if share == 1.0 { a } else { self.b + (a - self.b) * share }
    }
}
