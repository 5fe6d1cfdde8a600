//! One row: clock, tracks, cycles and segments, each cut to the steps that it holds.

use super::kernels::level;
use super::map::{Line, Map};
use super::steps::Steps;
use super::value::Value;
use crate::schedule::polynomial::{F64, Precision};
use crate::schedule::{Decay, Schedule, Segment, Shape, Tail, Track};

/// Values that a product of tracks computes at a time.
const CHUNK: usize = 512;

pub(super) struct Row<'a> {
    pub(super) steps: Steps<'a>,
    pub(super) precisions: &'static [Precision; 2],
}

impl Row<'_> {
    pub(super) fn schedule<T: Value>(
        &self,
        schedule: &Schedule,
        map: Map,
        line: Line,
        first: usize,
        out: &mut [T],
    ) {
        let end = first + out.len();
        let mut j = first;
        while j < end {
            let (piece, next) = schedule.clock.piece(map.local(self.steps.at(j)));
            let stop = self.steps.first(j + 1, end, map, next, false);
            let map = if piece.is_identity() { map } else { map.anchored(self.steps.at(j)).through(piece) };
            let out = &mut out[j - first..stop - first];
            if schedule.is_plain() {
                let line = Line { factor: line.factor * schedule.scale, ..line };
                self.track(&schedule.tracks[0], map, line, j, out);
            } else {
                self.product(schedule, map, line, j, out);
            }
            j = stop;
        }
    }

    /// Tracks combined, clipped and scaled, in float64 a chunk at a time.
    fn product<T: Value>(&self, schedule: &Schedule, map: Map, line: Line, first: usize, out: &mut [T]) {
        let row = Row { steps: self.steps, precisions: &F64 };
        let (mut values, mut factors) = ([0.0; CHUNK], [0.0; CHUNK]);
        for (index, out) in out.chunks_mut(CHUNK).enumerate() {
            let first = first + index * CHUNK;
            let values = &mut values[..out.len()];
            row.track(&schedule.tracks[0], map, Line::IDENTITY, first, values);
            for track in &schedule.tracks[1..] {
                let factors = &mut factors[..out.len()];
                row.track(track, map, Line::IDENTITY, first, factors);
                for (value, factor) in values.iter_mut().zip(factors) {
                    *value = schedule.floor + (*value - schedule.floor) * *factor;
                }
            }
            for (out, value) in out.iter_mut().zip(values) {
                *out = T::of(line.apply(schedule.finish(*value)));
            }
        }
    }

    fn track<T: Value>(&self, track: &Track, map: Map, line: Line, first: usize, out: &mut [T]) {
        let Some(cycle) = track.cycle() else {
            return self.segments(track, map, line, 1.0, first, out);
        };
        if T::FULL && !cycle.is_exact() {
            for (i, out) in out.iter_mut().enumerate() {
                *out = T::of(line.apply(track.at(map.local(self.steps.at(first + i)))));
            }
            return;
        }
        let end = first + out.len();
        let mut j = first;
        while j < end {
            let place = cycle.place(map.local(self.steps.at(j)));
            if let Some(value) = cycle.ended(place.index) {
                level(&mut out[j - first..], T::of(line.apply(value)));
                return;
            }
            let next = cycle.start(place.index + 1.0);
            let stop = self.steps.first(j + 1, end, map, next, false);
            let (line, gain) = match cycle.decay() {
                Decay::None => (line, 1.0),
                Decay::Peak(factor) => (line, factor.powf(place.index)),
                Decay::Amplitude { factor, about } => {
                    let left = factor.powf(place.index);
                    let shift = about * (1.0 - left);
                    (line.after(left + shift, shift), 1.0)
                }
            };
            let map = map.anchored(self.steps.at(j)).into(place.start, place.stretch);
            self.segments(track, map, line, gain, j, &mut out[j - first..stop - first]);
            j = stop;
        }
    }

    fn segments<T: Value>(
        &self,
        track: &Track,
        map: Map,
        line: Line,
        gain: f64,
        first: usize,
        out: &mut [T],
    ) {
        let end = first + out.len();
        let mut j = first;
        while j < end {
            let (segment, next) = track.segment(map.local(self.steps.at(j)));
            let stop = next.map_or(end, |next| self.steps.first(j + 1, end, map, next.start, next.after));
            self.segment(segment, map, line, gain, j, &mut out[j - first..stop - first]);
            j = stop;
        }
    }

    fn segment<T: Value>(
        &self,
        segment: &Segment,
        map: Map,
        line: Line,
        gain: f64,
        first: usize,
        out: &mut [T],
    ) {
        let end = first + out.len();
        let (a, b) = (segment.a * gain, segment.b);
        // Before the origin, and past the end of a clamped tail, the value stands still.
        let begin = if map.local(self.steps.at(first)) >= segment.origin {
            first
        } else {
            self.steps.first(first, end, map, segment.origin, false)
        };
        let finish = segment.origin + segment.length;
        let stop = match segment.tail {
            Tail::Clamp => self.steps.first(begin, end, map, finish, false),
            Tail::Continue => end,
        };
        if begin > first {
            level(&mut out[..begin - first], T::of(line.apply(segment.at(segment.origin, gain))));
        }
        let (curve, tail) = out[begin - first..].split_at_mut(stop - begin);
        match &segment.shape {
            _ if curve.is_empty() => {}
            Shape::Inner(inner) => {
                let map = map.anchored(self.steps.at(begin)).into(segment.origin, segment.length);
                self.schedule(&inner.schedule, map, line.after(a, b), begin, curve);
            }
            _ => self.blocks(segment, map, line.apply(a), line.apply(b), begin, curve),
        }
        // Last: memory is written faster in the order of its addresses.
        if !tail.is_empty() {
            level(tail, T::of(line.apply(segment.at(finish, gain))));
        }
    }
}
