//! Cycles: a track that starts again and again.

use super::error::{STEP_LIMIT, ScheduleError, demand, finite};
use super::record::Record;

/// A shorter period is no number of steps, and could not be counted as far as steps go.
const SHORTEST: f64 = 1.0 / (1_u64 << 30) as f64;
/// Multipliers nearer to 1 than this lose their growth in the rounding of a power.
const NEAR_ONE: f64 = 1.0 / 1024.0;

/// The decay of the values from cycle to cycle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// Nothing.
    None,
    /// Cycle i starts its segments at a·factor^i (timm).
    Peak(f64),
    /// Cycle i keeps factor^i of the distance from `about` (torch's triangular2).
    Amplitude {
        /// The factor a cycle.
        factor: f64,
        /// The value that the cycles shrink towards.
        about: f64,
    },
}

/// How a track repeats: cycle i takes `period`·`multiplier`^i steps.
///
/// Cycle starts come from whole-number counting, never from a logarithm, which misses restarts at large
/// counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Cycle {
    period: f64,
    multiplier: f64,
    decay: Decay,
    /// After so many cycles the track stays at `end`.
    limit: f64,
    end: f64,
    /// Whether the phase is found as torch's `CyclicLR` does, from 1 + x/period, which costs an ulp of the
    /// phase a cycle.
    rounded: bool,
}

/// Where a point is: cycle `index`, at `x` = `start` + `stretch`·(position within the first cycle).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Place {
    pub index: f64,
    pub start: f64,
    pub stretch: f64,
}

impl Cycle {
    #[allow(clippy::float_cmp)] // 1 is the default, not the outcome of arithmetic.
    pub(crate) fn read(record: &Record) -> Result<Self, ScheduleError> {
        let number = |field| record.number(field);
        let (peak, amplitude) = (number("peak_decay")?, number("amplitude_decay")?);
        let (decay, factor) = if peak != 1.0 {
            (Decay::Peak(peak), peak)
        } else if amplitude != 1.0 {
            (Decay::Amplitude { factor: amplitude, about: number("about")? }, amplitude)
        } else {
            (Decay::None, 1.0)
        };
        let limit = record.maybe("limit")?;
        if let Some(limit) = limit {
            let counts = (0.0..STEP_LIMIT).contains(&limit) && limit.fract() == 0.0;
            demand(counts, "limit", limit, "a number of cycles")?;
        }
        let at_least = |field, value: f64, least: f64, expected| {
            demand(value.is_finite() && value >= least, field, value, expected)
        };
        let period = number("period")?;
        let cycle = Self {
            period: at_least("period", period, SHORTEST, "a finite number of at least 2^-30 steps")?,
            end: finite("end", number("end")?)?,
            multiplier: at_least("multiplier", number("multiplier")?, 1.0, "a finite number of at least 1")?,
            decay,
            limit: limit.unwrap_or(f64::INFINITY),
            rounded: record.flag("rounded")?,
        };
        at_least("decay", factor, 0.0, "a finite number of at least 0")?;
        if let Decay::Amplitude { about, .. } = decay {
            finite("about", about)?;
        }
        Ok(cycle)
    }

    /// Whether positions can be found without the rounding of `rounded`.
    pub(crate) fn is_exact(&self) -> bool {
        !self.rounded
    }

    pub(crate) fn ended(&self, index: f64) -> Option<f64> {
        (index >= self.limit).then_some(self.end)
    }

    pub(crate) fn decay(&self) -> Decay {
        self.decay
    }

    /// The first x of cycle `index`.
    pub(crate) fn start(&self, index: f64) -> f64 {
        let growth = self.multiplier - 1.0;
        if growth == 0.0 {
            self.period * index
        } else if growth < NEAR_ONE {
            self.period * ((index * growth.ln_1p()).exp_m1() / growth)
        } else {
            self.period * ((self.multiplier.powf(index) - 1.0) / growth)
        }
    }

    /// The cycle that holds `x`, in a bounded number of operations whatever the cycle's numbers are.
    pub(crate) fn place(&self, x: f64) -> Place {
        let growth = self.multiplier - 1.0;
        let guess = if growth == 0.0 {
            x / self.period
        } else {
            let grown = x / self.period * growth;
            let log = if grown.is_finite() { grown.ln_1p() } else { (x / self.period).ln() + growth.ln() };
            log.max(0.0) / growth.ln_1p()
        };
        // Where cycles can be counted, which is below 2^53 of them, the guess is off by one: settle it on the
        // starts themselves. Further out the steps themselves are too coarse to tell one cycle from the next.
        let mut index = guess.floor().clamp(0.0, STEP_LIMIT);
        for _ in 0..4 {
            if index > 0.0 && x < self.start(index) {
                index -= 1.0;
            } else if x >= self.start(index + 1.0) {
                index += 1.0;
            } else {
                break;
            }
        }
        let stretch = if self.multiplier == 1.0 { 1.0 } else { self.multiplier.powf(index) };
        Place { index, start: self.start(index), stretch }
    }

    /// The cycle's index and the position within the first cycle of `x`.
    pub(crate) fn locate(&self, x: f64) -> (f64, f64) {
        if self.rounded {
            let turns = 1.0 + x / self.period;
            let index = turns.floor() - 1.0;
            return (index, (turns - turns.floor()) * self.period);
        }
        let place = self.place(x);
        (place.index, (x - place.start) / place.stretch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(period: f64, multiplier: f64) -> Cycle {
        Cycle { period, multiplier, decay: Decay::None, limit: f64::INFINITY, end: 0.0, rounded: false }
    }

    #[test]
    fn every_cycle_starts_on_its_own_step() {
        let (mut start, mut length) = (0.0, 3.0);
        for index in 0..40 {
            assert_eq!(cycle(3.0, 2.0).locate(start), (f64::from(index), 0.0));
            assert_eq!(cycle(3.0, 2.0).locate(start + length - 1.0).0, f64::from(index));
            (start, length) = (start + length, 2.0 * length);
        }
    }

    #[test]
    fn a_slow_growth_loses_no_cycle() {
        let cycle = cycle(10.0, 1.0 + 1e-12);
        for index in [1.0, 7.0, 1000.0, 1e6] {
            assert_eq!(cycle.locate(cycle.start(index)), (index, 0.0));
            assert_eq!(cycle.locate(cycle.start(index) + 5.0).0, index);
        }
    }

    #[test]
    fn a_step_far_out_is_in_its_cycle() {
        assert_eq!(cycle(7.0, 1.0).locate(7.0 * 1e14 + 5.0), (1e14, 5.0));
    }
}
