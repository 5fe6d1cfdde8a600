//! Schedules × steps, in bulk: a row is cut into blocks over which a short polynomial stands for the shape.
//!
//! float32 rows are within one float32 ulp of the schedule's peak of `Schedule::at`, float64 rows within 8 float64
//! ulp, for any length of run: every block is anchored on the closed form anew.

use std::f64::consts::PI;

use rayon::prelude::*;

use super::clock::Piece;
use super::polynomial::{
    Expansion, F32, F64, LONG_F32, Plan, Precision, SHORT_F32, WAVE_REACH, Wave, fill_f64, fill_long_f32,
    fill_short_f32, fill_wave, level_f32, level_f64, line_f32, line_f64,
};
use super::{Decay, STEP_LIMIT, Schedule, ScheduleError, Segment, Shape, Tail, Track};

/// Values that one task computes: long enough to share out, short enough to keep in a near cache.
const TILE: usize = 1 << 15;
/// Blocks shorter than this are not worth a series.
const SHORTEST: usize = 3;
/// Values that a product of tracks computes at a time.
const CHUNK: usize = 512;

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
        if let Some(step) = array.iter().find(|step| !(0.0..STEP_LIMIT).contains(*step)) {
            return Err(ScheduleError::new(
                "steps",
                format!("{step} is not a step: a step is a number from 0 to below 2^53"),
            ));
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

    fn at(&self, index: usize) -> f64 {
        match self {
            Self::Range { start, step, .. } => start + index as f64 * step,
            Self::Rising(array) | Self::Any(array) => array[index],
        }
    }

    /// The first index in lo..hi whose step a map takes to `limit` (past it where `after`), or hi.
    fn first(&self, lo: usize, hi: usize, map: Map, limit: f64, after: bool) -> usize {
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

/// float32 or float64: what a row is written in.
pub trait Value: Copy + Send + Sync + sealed::Kernels {}
impl Value for f32 {}
impl Value for f64 {}

mod sealed {
    use super::{Expansion, Precision, Wave};

    pub trait Kernels: Sized {
        /// Values in 64 bytes, what a vector store takes at most.
        const LANES: usize;
        /// Whether the values can show a rounding in the 53rd bit.
        const FULL: bool;
        fn precisions() -> &'static [Precision; 2];
        fn of(value: f64) -> Self;
        /// Writes whole blocks of a cosine, and says whether it has a way to.
        fn wave(out: &mut [Self], wave: &Wave) -> bool;
        /// Writes one value throughout.
        fn level(out: &mut [Self], value: Self);
        /// Writes the polynomial at s = offset + i·rate.
        fn even(out: &mut [Self], series: &Expansion, offset: f64, rate: f64);
    }
}
use sealed::Kernels;

impl Kernels for f32 {
    const LANES: usize = 16;
    const FULL: bool = false;

    fn precisions() -> &'static [Precision; 2] {
        &F32
    }

    #[allow(clippy::cast_possible_truncation)]
    fn of(value: f64) -> Self {
        value as Self
    }

    fn wave(out: &mut [Self], wave: &Wave) -> bool {
        fill_wave(out, wave);
        true
    }

    fn level(out: &mut [Self], value: Self) {
        level_f32(out, value);
    }

    fn even(out: &mut [Self], series: &Expansion, offset: f64, rate: f64) {
        let c = &series.coefficients;
        match series.degree {
            0 => Self::level(out, Self::of(c[0])),
            1 => line_f32(out, c[0] + c[1] * offset, c[1] * rate),
            _ => {
                let anchor = Self::of(c[0]);
                let mut small = [0.0; LONG_F32];
                small[0] = Self::of(c[0] - f64::from(anchor));
                for (small, c) in small.iter_mut().zip(c).skip(1) {
                    *small = Self::of(*c);
                }
                let (offset, rate) = (Self::of(offset), Self::of(rate));
                match small.first_chunk::<SHORT_F32>() {
                    Some(short) if series.degree < SHORT_F32 => {
                        fill_short_f32(out, anchor, short, offset, rate);
                    }
                    _ => fill_long_f32(out, anchor, &small, offset, rate),
                }
            }
        }
    }
}

impl Kernels for f64 {
    const LANES: usize = 8;
    const FULL: bool = true;

    fn precisions() -> &'static [Precision; 2] {
        &F64
    }

    fn of(value: f64) -> Self {
        value
    }

    fn wave(_: &mut [Self], _: &Wave) -> bool {
        false
    }

    fn level(out: &mut [Self], value: Self) {
        level_f64(out, value);
    }

    fn even(out: &mut [Self], series: &Expansion, offset: f64, rate: f64) {
        let c = &series.coefficients;
        match series.degree {
            0 => Self::level(out, c[0]),
            1 => line_f64(out, c[0] + c[1] * offset, c[1] * rate),
            _ => fill_f64(out, c, offset, rate),
        }
    }
}

/// Fills `out`, row after row, with one schedule's values each, by rayon's current pool.
///
/// The caller has checked the steps (`Steps::of`) and the schedules' ends (`Schedule::check` of `Steps::max`).
///
/// # Panics
/// When `out` does not have schedules × steps values.
pub fn fill_matrix<T: Value>(schedules: &[&Schedule], steps: Steps<'_>, out: &mut [T]) {
    assert_eq!(out.len(), schedules.len() * steps.len(), "out must hold schedules × steps");
    if out.is_empty() {
        return;
    }
    let tiles = out.chunks_mut(steps.len()).zip(schedules).flat_map(|(row, schedule)| {
        row.chunks_mut(TILE).enumerate().map(move |(tile, out)| (*schedule, tile * TILE, out))
    });
    if schedules.len() * steps.len() < TILE {
        tiles.for_each(|(schedule, first, out)| fill(schedule, steps, first, out));
    } else {
        tiles
            .collect::<Vec<_>>()
            .into_par_iter()
            .for_each(|(schedule, first, out)| fill(schedule, steps, first, out));
    }
}

/// Fills `out` with a schedule's values at the steps from index `first` on.
pub(crate) fn fill<T: Value>(schedule: &Schedule, steps: Steps<'_>, first: usize, out: &mut [T]) {
    if let Steps::Any(array) = steps {
        for (out, &x) in out.iter_mut().zip(&array[first..]) {
            *out = T::of(schedule.at(x));
        }
        return;
    }
    Row { steps, precisions: T::precisions() }.schedule(schedule, Map::IDENTITY, Line::IDENTITY, first, out);
}

/// Where a step stands in a nested schedule's own steps: at + (x − from)·slope.
#[derive(Clone, Copy)]
struct Map {
    from: f64,
    at: f64,
    slope: f64,
}

impl Map {
    const IDENTITY: Self = Self { from: 0.0, at: 0.0, slope: 1.0 };

    fn local(self, x: f64) -> f64 {
        self.at + (x - self.from) * self.slope
    }

    fn through(self, piece: Piece) -> Self {
        Self { at: piece.map(self.at), slope: self.slope * piece.slope, ..self }
    }

    fn into(self, start: f64, length: f64) -> Self {
        Self { at: (self.at - start) / length, slope: self.slope / length, ..self }
    }

    /// The same map, measured from a step nearer by.
    fn anchored(self, x: f64) -> Self {
        Self { from: x, at: self.local(x), ..self }
    }
}

/// What is still to be done to a value: v·factor + shift.
#[derive(Clone, Copy)]
struct Line {
    factor: f64,
    shift: f64,
}

impl Line {
    const IDENTITY: Self = Self { factor: 1.0, shift: 0.0 };

    fn apply(self, value: f64) -> f64 {
        value * self.factor + self.shift
    }

    /// First v → b + (a − b)·v, then this.
    fn after(self, a: f64, b: f64) -> Self {
        Self { factor: (a - b) * self.factor, shift: self.apply(b) }
    }
}

struct Row<'a> {
    steps: Steps<'a>,
    precisions: &'static [Precision; 2],
}

impl Row<'_> {
    fn schedule<T: Value>(&self, schedule: &Schedule, map: Map, line: Line, first: usize, out: &mut [T]) {
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
        let row = Row { steps: self.steps, precisions: f64::precisions() };
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
                T::level(&mut out[j - first..], T::of(line.apply(value)));
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
            T::level(&mut out[..begin - first], T::of(line.apply(segment.at(segment.origin, gain))));
        }
        if stop < end {
            T::level(&mut out[stop - first..], T::of(line.apply(segment.at(finish, gain))));
        }
        let out = &mut out[begin - first..stop - first];
        if out.is_empty() {
            return;
        }
        if let Shape::Inner(inner) = &segment.shape {
            let map = map.anchored(self.steps.at(begin)).into(segment.origin, segment.length);
            self.schedule(&inner.schedule, map, line.after(a, b), begin, out);
        } else {
            self.blocks(segment, map, line.apply(a), line.apply(b), begin, out);
        }
    }

    /// The curve of one segment from a to b, block after block.
    fn blocks<T: Value>(&self, segment: &Segment, map: Map, a: f64, b: f64, first: usize, out: &mut [T]) {
        let end = first + out.len();
        let u = |x: f64| segment.u(map.local(x));
        let plan = Plan::new(self.precisions, segment.shape.lone_exponent());
        let rate = map.slope / segment.length;
        let mut j = first + self.waves(segment, u(self.steps.at(first)), rate, a, b, out);
        while j < end {
            let start = u(self.steps.at(j));
            if let (Shape::Table(table), Steps::Range { step, .. }) = (&segment.shape, self.steps) {
                let rest = table.rest(start);
                if rest.len() > 1 && start.fract() == 0.0 && rate * step == 1.0 {
                    for (out, value) in out[j - first..].iter_mut().zip(rest) {
                        *out = T::of(b + (a - b) * value);
                    }
                    j = end.min(j + rest.len());
                    continue;
                }
            }
            let series = segment.shape.series(start, &plan);
            let stop = series.as_ref().map_or(end, |series| {
                let stop = self.reach(series, &u, rate, j, end);
                // Whole vectors leave nothing to do one by one. (Memory addresses must not decide: the same call
                // would have other roundings the next time.)
                let over = stop % T::LANES;
                if stop < end && stop - j > T::LANES + over && series.degree > 1 { stop - over } else { stop }
            });
            let block = &mut out[j - first..stop - first];
            match series {
                Some(series) if stop - j >= SHORTEST || series.degree < 2 => {
                    self.block(&series.between(a, b), &u, start, rate, j, block);
                }
                _ => {
                    for (i, out) in block.iter_mut().enumerate() {
                        let share = segment.shape.at(u(self.steps.at(j + i)));
                        *out = T::of(b + (a - b) * share);
                    }
                }
            }
            j = stop;
        }
    }

    /// Even blocks of a plain cosine, as many as there are before the end of its wave. Returns the values written.
    ///
    /// What is left is short, and anchored on the end itself.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // They saturate, and are cut to the row.
    fn waves<T: Value>(
        &self,
        segment: &Segment,
        start: f64,
        rate: f64,
        a: f64,
        b: f64,
        out: &mut [T],
    ) -> usize {
        let (Shape::Cosine(shape), Steps::Range { step, .. }) = (&segment.shape, self.steps) else {
            return 0;
        };
        // With more waves there are minima on the way, which must be centres.
        let Some(angle) = shape.plain_angle().filter(|&angle| angle <= PI) else { return 0 };
        let turn = angle * rate * step;
        let length = (2.0 * WAVE_REACH / turn) as usize / T::LANES * T::LANES;
        let before_end = ((1.0 - start) / (rate * step)) as usize;
        if length < 2 * T::LANES || before_end < 2 * length {
            return 0;
        }
        let count = ((before_end - length) / length * length).min(out.len() / length * length);
        let half = 0.5 * (a - b);
        let wave = Wave {
            mean: b + half,
            amplitude: half,
            length,
            start: angle * start + 0.5 * turn * length as f64,
            turn: turn * length as f64,
        };
        if T::wave(&mut out[..count], &wave) { count } else { 0 }
    }

    /// The index up to which a series holds, from j on, where u grows by `rate` a step.
    fn reach(&self, series: &Expansion, u: &impl Fn(f64) -> f64, rate: f64, j: usize, end: usize) -> usize {
        if series.reach.is_infinite() {
            return end;
        }
        let limit = series.centre + series.reach;
        let Steps::Range { step, .. } = self.steps else {
            return j + 1 + (j + 1..end).take_while(|&i| u(self.steps.at(i)) < limit).count();
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // It saturates, and is cut to the row.
        let count = ((limit - u(self.steps.at(j))) / (rate * step)).ceil() as usize;
        let mut stop = (j + count.clamp(1, end)).min(end);
        if series.degree < 2 {
            // Stairs and tables turn on their step exactly.
            while stop > j + 1 && u(self.steps.at(stop - 1)) >= limit {
                stop -= 1;
            }
            while stop < end && u(self.steps.at(stop)) < limit {
                stop += 1;
            }
        }
        stop
    }

    fn block<T: Value>(
        &self,
        series: &Expansion,
        u: &impl Fn(f64) -> f64,
        start: f64,
        rate: f64,
        j: usize,
        out: &mut [T],
    ) {
        let unit = if series.reach.is_infinite() { 1.0 } else { series.reach };
        if let Steps::Range { step, .. } = self.steps {
            return T::even(out, series, (start - series.centre) / unit, rate * step / unit);
        }
        for (i, out) in out.iter_mut().enumerate() {
            *out = T::of(series.at((u(self.steps.at(j + i)) - series.centre) / unit));
        }
    }
}
