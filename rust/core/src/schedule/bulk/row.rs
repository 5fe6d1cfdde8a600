//! One row: clock, tracks, cycles and segments, each cut to the steps that it holds.
//!
//! A row is evaluated from the outside in, over ranges of indices and never step by step: each level (a
//! clock's piece, a cycle, a segment) finds by bisection the first index that belongs to its next part, and
//! hands the range before it to the level below. What the levels do to a step is one line through the range
//! (`Map`), and what they do to a value another (`Affine`), so that the innermost level is a shape over
//! evenly spaced u, which `blocks` writes. A product of tracks, or a clip, is no line: such rows are computed
//! in float64 a chunk at a time. A map is measured from the first step of its range, not from 0, since far
//! out the difference of two large numbers would lose the digits of u.
//!
//! Tried: step by step through `Schedule::at` (20 to 100 times slower), and writing what follows a segment's
//! end before its curve (a row with a tail took 0.24 ns a value, in the order of addresses 0.18;
//! bench/results/schedules.md).

use std::sync::atomic::{AtomicBool, Ordering};

use super::blocks::Blocks;
use super::kernels::level;
use super::steps::{Map, Steps};
use super::value::Value;
use crate::schedule::cycle::Decay;
use crate::schedule::expansion::{F64, Precision};
use crate::schedule::form::{Content, Schedule, Segment, Tail, Track};
use crate::schedule::shapes::Shape;

/// Values that a product of tracks computes at a time.
const CHUNK: usize = 512;

/// Why a bulk evaluation ended before its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Halt {
    /// The caller stopped the evaluation.
    Stopped,
    /// A value is too large to be written, or no number.
    Overflow {
        /// The index of the schedule.
        row: usize,
        /// The optimizer step.
        step: f64,
    },
}

/// The scale and shift that a value still lacks: v·factor + shift.
#[derive(Clone, Copy)]
struct Affine {
    factor: f64,
    shift: f64,
}

impl Affine {
    const IDENTITY: Self = Self { factor: 1.0, shift: 0.0 };

    fn apply(self, value: f64) -> f64 {
        value * self.factor + self.shift
    }

    /// First v → shift + factor·v, then this.
    fn scaled(self, factor: f64, shift: f64) -> Self {
        Self { factor: factor * self.factor, shift: self.apply(shift) }
    }
}

pub(super) struct Row<'a> {
    /// The schedule's index, for an error.
    index: usize,
    steps: Steps<'a>,
    precisions: &'static [Precision; 2],
    stop: &'a AtomicBool,
    /// Whether what is written is the result: on the way to one, a value may overflow and be cut by a cap.
    last: bool,
}

impl<'a> Row<'a> {
    pub(super) fn new<T: Value>(index: usize, steps: Steps<'a>, stop: &'a AtomicBool) -> Self {
        Self { index, steps, precisions: T::precisions(), stop, last: true }
    }

    /// Writes a schedule's values at the steps from index `first` on.
    pub(super) fn write<T: Value>(
        &self,
        schedule: &Schedule,
        first: usize,
        out: &mut [T],
    ) -> Result<(), Halt> {
        if matches!(self.steps, Steps::Any(_)) {
            return self.one_by_one(|x| schedule.at(x), Map::IDENTITY, first, out);
        }
        self.schedule(schedule, Map::IDENTITY, Affine::IDENTITY, first, out)
    }

    fn go_on(&self) -> Result<(), Halt> {
        if self.stop.load(Ordering::Relaxed) { Err(Halt::Stopped) } else { Ok(()) }
    }

    /// Writes values without blocks: of steps in any order, where the clock's rounding counts, and where a
    /// height has no end, of which a block would be no number; a limit may still hold its values.
    fn one_by_one<T: Value>(
        &self,
        at: impl Fn(f64) -> f64,
        map: Map,
        first: usize,
        out: &mut [T],
    ) -> Result<(), Halt> {
        for (part, out) in out.chunks_mut(CHUNK).enumerate() {
            self.go_on()?;
            for (i, out) in out.iter_mut().enumerate() {
                *out = T::of(at(map.local(self.steps.at(first + part * CHUNK + i))));
            }
        }
        self.sound(first, out)
    }

    /// Whether what was written are numbers.
    fn sound<T: Value>(&self, first: usize, out: &[T]) -> Result<(), Halt> {
        match out.iter().position(|value| !value.is_finite()) {
            Some(index) if self.last => {
                Err(Halt::Overflow { row: self.index, step: self.steps.at(first + index) })
            }
            _ => Ok(()),
        }
    }

    fn schedule<T: Value>(
        &self,
        schedule: &Schedule,
        map: Map,
        affine: Affine,
        first: usize,
        out: &mut [T],
    ) -> Result<(), Halt> {
        if schedule.scale == 0.0 {
            return self.level(T::of(affine.apply(0.0)), first, out); // also of a curve that overflows
        }
        let end = first + out.len();
        let mut j = first;
        while j < end {
            let (piece, next) = schedule.clock.piece(map.local(self.steps.at(j)));
            let stop = self.steps.first(j + 1, end, map, next, false);
            let map = if piece.is_identity() { map } else { map.anchored(self.steps.at(j)).through(piece) };
            let out = &mut out[j - first..stop - first];
            if schedule.is_plain() {
                let affine = Affine { factor: affine.factor * schedule.scale, ..affine };
                self.track(&schedule.tracks[0], map, affine, j, out)?;
            } else {
                self.product(schedule, map, affine, j, out)?;
            }
            j = stop;
        }
        Ok(())
    }

    /// Tracks combined, clipped and scaled, in float64 a chunk at a time.
    fn product<T: Value>(
        &self,
        schedule: &Schedule,
        map: Map,
        affine: Affine,
        first: usize,
        out: &mut [T],
    ) -> Result<(), Halt> {
        let row = Row { precisions: &F64, last: false, ..*self };
        let (mut values, mut factors) = ([0.0; CHUNK], [0.0; CHUNK]);
        for (index, out) in out.chunks_mut(CHUNK).enumerate() {
            let first = first + index * CHUNK;
            let values = &mut values[..out.len()];
            row.track(&schedule.tracks[0], map, Affine::IDENTITY, first, values)?;
            for track in &schedule.tracks[1..] {
                let factors = &mut factors[..out.len()];
                row.track(track, map, Affine::IDENTITY, first, factors)?;
                for (value, factor) in values.iter_mut().zip(factors) {
                    *value = schedule.floor + (*value - schedule.floor) * *factor;
                }
            }
            for (out, value) in out.iter_mut().zip(values) {
                *out = T::of(affine.apply(schedule.finish(*value)));
            }
            self.sound(first, out)?;
        }
        Ok(())
    }

    fn track<T: Value>(
        &self,
        track: &Track,
        map: Map,
        affine: Affine,
        first: usize,
        out: &mut [T],
    ) -> Result<(), Halt> {
        let Some(cycle) = &track.cycle else {
            return self.segments(track, map, affine, 1.0, first, out);
        };
        if T::FULL && !cycle.is_exact() {
            return self.one_by_one(|x| affine.apply(track.at(x)), map, first, out);
        }
        let end = first + out.len();
        let mut j = first;
        while j < end {
            let place = cycle.place(map.local(self.steps.at(j)));
            if let Some(value) = cycle.ended(place.index) {
                return self.level(T::of(affine.apply(value)), j, &mut out[j - first..]);
            }
            let next = cycle.start(place.index + 1.0);
            let stop = self.steps.first(j + 1, end, map, next, false);
            let (grown, gain) = match cycle.decay() {
                Decay::None => (affine, 1.0),
                Decay::Peak(factor) => (affine, factor.powf(place.index)),
                Decay::Amplitude { factor, about } => {
                    let left = factor.powf(place.index);
                    (affine.scaled(left, about * (1.0 - left)), 1.0)
                }
            };
            if !(gain.is_finite() && grown.factor.is_finite() && grown.shift.is_finite()) {
                let out = &mut out[j - first..stop - first];
                self.one_by_one(|x| affine.apply(track.at(x)), map, j, out)?;
                j = stop;
                continue;
            }
            let affine = grown;
            let map = map.anchored(self.steps.at(j)).into(place.start, place.stretch);
            self.segments(track, map, affine, gain, j, &mut out[j - first..stop - first])?;
            j = stop;
        }
        Ok(())
    }

    fn segments<T: Value>(
        &self,
        track: &Track,
        map: Map,
        affine: Affine,
        gain: f64,
        first: usize,
        out: &mut [T],
    ) -> Result<(), Halt> {
        let end = first + out.len();
        let mut j = first;
        while j < end {
            let (segment, next) = track.segment(map.local(self.steps.at(j)));
            let stop = next.map_or(end, |next| self.steps.first(j + 1, end, map, next.start, next.after));
            self.segment(segment, map, affine, gain, j, &mut out[j - first..stop - first])?;
            j = stop;
        }
        Ok(())
    }

    fn segment<T: Value>(
        &self,
        segment: &Segment,
        map: Map,
        affine: Affine,
        gain: f64,
        first: usize,
        out: &mut [T],
    ) -> Result<(), Halt> {
        self.go_on()?;
        let end = first + out.len();
        // Before the origin, and past the end of a clamped tail, the value does not change.
        let begin = if map.local(self.steps.at(first)) >= segment.origin {
            first
        } else {
            self.steps.first(first, end, map, segment.origin, false)
        };
        let stop = match segment.tail {
            Tail::Clamp => self.steps.first(begin, end, map, segment.finish(), false),
            Tail::Continue => end,
        };
        let constant = |x: f64| T::of(affine.apply(segment.at(x, gain)));
        if begin > first {
            self.level(constant(segment.origin), first, &mut out[..begin - first])?;
        }
        let (curve, tail) = out[begin - first..].split_at_mut(stop - begin);
        if !curve.is_empty() {
            self.curve(segment, map, affine, gain, begin, curve)?;
        }
        // Last: memory is written faster in the order of its addresses.
        if tail.is_empty() { Ok(()) } else { self.level(constant(segment.finish()), stop, tail) }
    }

    fn curve<T: Value>(
        &self,
        segment: &Segment,
        map: Map,
        affine: Affine,
        gain: f64,
        first: usize,
        out: &mut [T],
    ) -> Result<(), Halt> {
        let (a, b) = (segment.a * gain, segment.b);
        let shape = match &segment.content {
            Content::Shape(shape) => shape,
            Content::Inner(inner) => {
                let map = map.anchored(self.steps.at(first)).into(segment.origin, segment.length);
                return self.schedule(inner, map, affine.scaled(a - b, b), first, out);
            }
        };
        let level = a == b || affine.factor == 0.0 || matches!(shape, Shape::Constant(_));
        let height = (a - b) * affine.factor;
        let (a, b) = (affine.apply(a), affine.apply(b));
        if level {
            return self.level(T::of(a), first, out);
        }
        let end = segment.u(map.local(self.steps.at(first + out.len() - 1)));
        let largest = shape.largest(end);
        // A block takes the height from both ends, which may be too near each other for a curve that outgrows
        // them.
        let lost = largest > 1.0 && a.abs() + b.abs() > 4.0 * height.abs();
        if lost || !(height.is_finite() && largest.is_finite()) {
            return self.one_by_one(|x| affine.apply(segment.at(x, gain)), map, first, out);
        }
        let rate = map.slope / segment.length;
        let blocks =
            Blocks { steps: self.steps, precisions: self.precisions, segment, shape, map, rate, a, b };
        blocks.write(first, out);
        // Only what may have overflowed is looked at again.
        let largest = b.abs() + height.abs() * largest;
        if T::of(largest).is_finite() { Ok(()) } else { self.sound(first, out) }
    }

    fn level<T: Value>(&self, value: T, first: usize, out: &mut [T]) -> Result<(), Halt> {
        level(out, value);
        if value.is_finite() || !self.last {
            return Ok(());
        }
        Err(Halt::Overflow { row: self.index, step: self.steps.at(first) })
    }
}
