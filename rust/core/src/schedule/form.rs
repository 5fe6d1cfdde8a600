//! A whole schedule: a clock, tracks of segments, and how they combine.

use std::sync::Arc;

use super::clock::Clock;
use super::cycle::{Cycle, Decay};
use super::error::{ScheduleError, check_step, finite, positive};
use super::record::Record;
use super::shapes::Shape;

/// A learning rate at every optimizer step.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub(crate) clock: Clock,
    pub(crate) tracks: Vec<Track>,
    pub(crate) floor: f64,
    low: f64,
    high: f64,
    pub(crate) scale: f64,
    last: f64,
}

impl Schedule {
    /// The schedule that a form describes.
    ///
    /// # Errors
    /// When a field is missing or out of range.
    pub fn read(form: &Record) -> Result<Self, ScheduleError> {
        let tracks = form.parts("tracks", Track::read)?;
        if tracks.is_empty() {
            return Err(ScheduleError::new("tracks", "must hold at least one track, got none"));
        }
        let clock = Clock::read(form)?;
        let low = form.maybe("low")?.unwrap_or(f64::NEG_INFINITY);
        let high = form.maybe("high")?.unwrap_or(f64::INFINITY);
        if low.is_nan() || high.is_nan() || low > high {
            return Err(ScheduleError::new("low", format!("must be at most high ({high}), got {low}")));
        }
        let last = form.maybe("last")?.unwrap_or(f64::INFINITY);
        if last.is_nan() || last < 0.0 {
            return Err(ScheduleError::new("last", format!("must be a step, got {last}")));
        }
        let floor = finite("floor", form.number("floor")?)?;
        Ok(Self { clock, tracks, floor, low, high, scale: finite("scale", form.number("scale")?)?, last })
    }

    /// The value at a step, which the caller has checked.
    #[must_use]
    pub fn at(&self, step: f64) -> f64 {
        let x = self.clock.at(step);
        let mut value = self.tracks[0].at(x);
        for track in &self.tracks[1..] {
            value = self.floor + (value - self.floor) * track.at(x);
        }
        self.finish(value)
    }

    /// Whether a step is one that this schedule answers for.
    ///
    /// # Errors
    /// When the step is NaN, negative, at or past 2^53, or past the schedule's last step.
    pub fn check(&self, step: f64) -> Result<(), ScheduleError> {
        check_step(step)?;
        if step > self.last {
            return Err(ScheduleError::new(
                "steps",
                format!("must be at most {}, where the schedule ends, got {step}", self.last),
            ));
        }
        Ok(())
    }

    pub(crate) fn finish(&self, value: f64) -> f64 {
        if self.scale == 0.0 { 0.0 } else { value.max(self.low).min(self.high) * self.scale }
    }

    /// Whether the value of a lone track needs nothing but a factor.
    pub(crate) fn is_plain(&self) -> bool {
        self.tracks.len() == 1 && self.low == f64::NEG_INFINITY && self.high == f64::INFINITY
    }
}

/// Segments in the order of their starts, the first of which also holds what lies before it; and maybe a
/// cycle.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Track {
    segments: Vec<Segment>,
    pub cycle: Option<Cycle>,
}

impl Track {
    fn read(record: &Record) -> Result<Self, ScheduleError> {
        let cycle = record.part("cycle")?.map(Cycle::read).transpose()?;
        let segments = record.parts("segments", Segment::read)?;
        if segments.is_empty() {
            return Err(ScheduleError::new("segments", "must hold at least one segment, got none"));
        }
        if let Some(pair) = segments.windows(2).find(|pair| pair[1].start < pair[0].start) {
            return Err(ScheduleError::new(
                "segments",
                format!("starts must not fall, got {} after {}", pair[1].start, pair[0].start),
            ));
        }
        Ok(Self { segments, cycle })
    }

    /// The value at a point.
    pub fn at(&self, x: f64) -> f64 {
        let Some(cycle) = &self.cycle else {
            return self.segment(x).0.at(x, 1.0);
        };
        let (index, local) = cycle.locate(x);
        if let Some(end) = cycle.ended(index) {
            return end;
        }
        let (segment, _) = self.segment(local);
        match cycle.decay() {
            Decay::None => segment.at(local, 1.0),
            Decay::Peak(factor) => segment.at(local, factor.powf(index)),
            Decay::Amplitude { factor, about } => {
                let left = factor.powf(index);
                // Nothing of a curve is nothing, even of one that overflows.
                if left == 0.0 { about } else { about + (segment.at(local, 1.0) - about) * left }
            }
        }
    }

    /// The segment that holds `x`, and the one after it.
    pub fn segment(&self, x: f64) -> (&Segment, Option<&Segment>) {
        let reached = |s: &Segment| if s.after { s.start < x } else { s.start <= x };
        // A few are sooner counted than halved.
        let count = match &self.segments[..] {
            [_] => 1,
            few if few.len() <= 4 => few.iter().take_while(|s| reached(s)).count(),
            many => many.partition_point(reached),
        };
        let index = count.saturating_sub(1);
        (&self.segments[index], self.segments.get(index + 1))
    }
}

/// The course of a segment past u = 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// It stays where it ended.
    Clamp,
    /// It goes on by its formula.
    Continue,
}

/// The content of a segment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    /// A curve.
    Shape(Shape),
    /// A whole schedule, read at u, for joins and products.
    Inner(Arc<Schedule>),
}

/// Part of a track, one curve stretched between two values: from `start` on, b + (a − b)·shape((x −
/// origin)/length).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Segment {
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
    pub content: Content,
    /// The course past u = 1.
    pub tail: Tail,
}

impl Segment {
    fn read(record: &Record) -> Result<Self, ScheduleError> {
        let shape = record.needed("shape")?;
        let content = if &*shape.name == "inner" {
            Content::Inner(Arc::new(Schedule::read(shape.needed("form")?)?))
        } else {
            Content::Shape(Shape::read(shape)?)
        };
        let number = |field| finite(field, record.number(field)?);
        let segment = Self {
            start: number("start")?,
            after: record.flag("after")?,
            origin: number("origin")?,
            length: positive("length", record.number("length")?)?,
            a: number("a")?,
            b: number("b")?,
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
    pub fn at(&self, x: f64, gain: f64) -> f64 {
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

    /// The point where u = 1. That a segment is over is decided here alone, never by u, which is rounded
    /// otherwise.
    pub fn finish(&self) -> f64 {
        self.origin + self.length
    }

    pub fn u(&self, x: f64) -> f64 {
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
