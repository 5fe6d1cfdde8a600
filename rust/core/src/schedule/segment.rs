//! A segment: one curve, stretched between two values.

use std::sync::Arc;

use super::error::{ScheduleError, finite, positive};
use super::record::Record;
use super::shapes::Shape;

/// A schedule that a segment of another may play.
pub trait Nested: Sized {
    /// The schedule that a form describes.
    ///
    /// # Errors
    /// When a field is missing or out of range.
    fn read(record: &Record) -> Result<Self, ScheduleError>;

    /// The value at a step.
    fn at(&self, step: f64) -> f64;
}

/// What a segment does past u = 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// It stays where it ended.
    Clamp,
    /// It goes on by its formula.
    Continue,
}

/// What a segment plays.
#[derive(Debug, Clone, PartialEq)]
pub enum Content<N> {
    /// A curve.
    Shape(Shape),
    /// A whole schedule, read at u, for joins and products.
    Inner(Arc<N>),
}

/// Part of a track: from `start` on, b + (a − b)·shape((x − origin)/length).
#[derive(Debug, Clone, PartialEq)]
pub struct Segment<N> {
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
    pub content: Content<N>,
    /// What happens past u = 1.
    pub tail: Tail,
}

impl<N: Nested> Segment<N> {
    pub(crate) fn read(record: &Record) -> Result<Self, ScheduleError> {
        let shape = record.needed("shape")?;
        let content = if &*shape.name == "inner" {
            Content::Inner(Arc::new(N::read(shape.needed("form")?)?))
        } else {
            Content::Shape(Shape::read(shape)?)
        };
        let segment = Self {
            start: finite("start", record.number("start")?)?,
            after: record.flag("after")?,
            origin: finite("origin", record.number("origin")?)?,
            length: positive("length", record.number("length")?)?,
            a: finite("a", record.number("a")?)?,
            b: finite("b", record.number("b")?)?,
            content,
            tail: if record.flag("beyond")? { Tail::Continue } else { Tail::Clamp },
        };
        if segment.tail == Tail::Continue
            && let Content::Shape(shape) = &segment.content
            && shape.stops()
        {
            return Err(ScheduleError::new(
                "beyond",
                "must be false for a shape that has no value past its end",
            ));
        }
        Ok(segment)
    }

    /// The value at `x` with `a` multiplied by `gain`.
    pub(crate) fn at(&self, x: f64, gain: f64) -> f64 {
        let (a, u) = (self.a * gain, self.u(x));
        let share = match &self.content {
            Content::Inner(inner) => inner.at(u),
            // Measured from the nearer end, so that a warmup from 0 has no digit to lose.
            Content::Shape(Shape::Power(power)) if u < 0.5 && power.is_linear() => {
                return a + (self.b - a) * u;
            }
            Content::Shape(shape) => shape.at(u),
        };
        // At share 1 the sum below may miss `a` by an ulp; a level has no share to take of an infinite one.
        if share == 1.0 || a == self.b { a } else { self.b + (a - self.b) * share }
    }
}

impl<N> Segment<N> {
    /// The point where u = 1. That a segment is over is decided here alone, never by u, which is rounded otherwise.
    pub(crate) fn finish(&self) -> f64 {
        self.origin + self.length
    }

    pub(crate) fn u(&self, x: f64) -> f64 {
        if self.tail == Tail::Clamp && x >= self.finish() {
            return 1.0;
        }
        let mut u = (x - self.origin) / self.length;
        if let Content::Shape(Shape::Exponential(shape)) = &self.content {
            // x/length may round up to a whole stair that x has not reached (11/1.1 is 10, yet 10·1.1 > 11).
            if shape.is_stairs() && u.floor().mul_add(self.length, -(x - self.origin)) > 0.0 {
                u = u.floor() - 0.5;
            }
        }
        u = u.max(0.0);
        if self.tail == Tail::Clamp { u.min(1.0) } else { u }
    }
}
