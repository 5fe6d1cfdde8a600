//! The curve of one segment, block after block.

use std::f64::consts::PI;

use super::kernels::{level, line};
use super::map::Map;
use super::row::Row;
use super::steps::Steps;
use super::value::{Value, even};
use super::wave::Wave;
use crate::schedule::polynomial::{Expansion, Plan};
use crate::schedule::{Segment, Shape};

/// Blocks shorter than this are not worth a series.
const SHORTEST: usize = 3;

impl Row<'_> {
    /// The curve of one segment from a to b, block after block.
    pub(super) fn blocks<T: Value>(
        &self,
        segment: &Segment,
        map: Map,
        a: f64,
        b: f64,
        first: usize,
        out: &mut [T],
    ) {
        let end = first + out.len();
        let u = |x: f64| segment.u(map.local(x));
        let rate = map.slope / segment.length;
        match (&segment.shape, self.steps) {
            (Shape::Constant, _) => return level(out, T::of(a)),
            (Shape::Power(power), Steps::Range { step, .. }) if power.is_linear() => {
                return line(out, a + (b - a) * u(self.steps.at(first)), (b - a) * rate * step);
            }
            _ => {}
        }
        let plan = Plan::new(self.precisions, segment.shape.lone_exponent());
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
        let Some(length) = Wave::block(turn) else { return 0 };
        let before_end = ((1.0 - start) / (rate * step)) as usize;
        let count = before_end.saturating_sub(length).min(out.len()) / length * length;
        let half = 0.5 * (a - b);
        let wave = Wave { mean: b + half, amplitude: half, start: angle * start, turn };
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
            return even(out, series, (start - series.centre) / unit, rate * step / unit);
        }
        for (i, out) in out.iter_mut().enumerate() {
            *out = T::of(series.at((u(self.steps.at(j + i)) - series.centre) / unit));
        }
    }
}
