//! Cycles: a track that starts again and again.

use super::error::{STEP_LIMIT, ScheduleError, finite, shown};
use super::record::Record;

/// A shorter period is no number of steps, and could not be counted as far as steps go.
const SHORTEST: f64 = 1.0 / (1_u64 << 30) as f64;
/// Multipliers nearer to 1 than this lose their growth in the rounding of a power.
const NEAR_ONE: f64 = 1.0 / 1024.0;

/// What one cycle after another does to the values.
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
/// Cycle starts come from whole-number counting, never from a logarithm, which misses restarts at large counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Cycle {
    period: f64,
    multiplier: f64,
    decay: Decay,
    limit: f64,
    end: f64,
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
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Checked to be a count.
    pub(crate) fn read(record: &Record) -> Result<Self, ScheduleError> {
        let peak = record.number("peak_decay")?;
        let amplitude = record.number("amplitude_decay")?;
        let decay = if peak != 1.0 {
            Decay::Peak(peak)
        } else if amplitude != 1.0 {
            Decay::Amplitude { factor: amplitude, about: record.number("about")? }
        } else {
            Decay::None
        };
        let limit = record.maybe("limit")?;
        if let Some(limit) = limit
            && !((0.0..STEP_LIMIT).contains(&limit) && limit.fract() == 0.0)
        {
            return Err(ScheduleError::new(
                "limit",
                format!("must be a number of cycles, got {}", shown(limit)),
            ));
        }
        let limit = limit.map(|limit| limit as u64);
        let cycle = Self::new(
            record.number("period")?,
            record.number("multiplier")?,
            decay,
            limit,
            record.number("end")?,
        )?;
        Ok(if record.flag("rounded")? { cycle.rounded() } else { cycle })
    }

    /// A cycle; after `limit` cycles (none: never) the track stays at `end`.
    ///
    /// # Errors
    /// When the period is not above 0, the multiplier is below 1, or a factor is negative.
    pub fn new(
        period: f64,
        multiplier: f64,
        decay: Decay,
        limit: Option<u64>,
        end: f64,
    ) -> Result<Self, ScheduleError> {
        if !(period.is_finite() && period >= SHORTEST) {
            return Err(ScheduleError::new(
                "period",
                format!("must be a finite number of at least 2^-30 steps, got {}", shown(period)),
            ));
        }
        finite("end", end)?;
        if !(multiplier.is_finite() && multiplier >= 1.0) {
            return Err(ScheduleError::new(
                "multiplier",
                format!("must be a finite number of at least 1, got {}", shown(multiplier)),
            ));
        }
        if let Decay::Peak(factor) | Decay::Amplitude { factor, .. } = decay
            && !(factor.is_finite() && factor >= 0.0)
        {
            return Err(ScheduleError::new(
                "decay",
                format!("must be a finite number of at least 0, got {}", shown(factor)),
            ));
        }
        if let Decay::Amplitude { about, .. } = decay {
            finite("about", about)?;
        }
        let limit = limit.map_or(f64::INFINITY, |limit| limit as f64);
        Ok(Self { period, multiplier, decay, limit, end, rounded: false })
    }

    /// Finds the phase as torch's `CyclicLR` does, from 1 + x/period, which costs an ulp of the phase a cycle.
    #[must_use]
    pub fn rounded(mut self) -> Self {
        self.rounded = true;
        self
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
        // Where cycles can be counted, which is below 2^53 of them, the guess is off by one: settle it on the starts
        // themselves. Further out the steps themselves are too coarse to tell one cycle from the next.
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

    #[test]
    fn starts_every_cycle_on_its_own_step() {
        let cycle = Cycle::new(3.0, 2.0, Decay::None, None, 0.0).unwrap();
        let mut start = 0.0;
        let mut length = 3.0;
        for index in 0..40 {
            assert_eq!(cycle.locate(start), (f64::from(index), 0.0));
            let before = cycle.locate(start + length - 1.0);
            assert_eq!(before.0, f64::from(index));
            start += length;
            length *= 2.0;
        }
    }

    #[test]
    fn ends_whatever_its_numbers_are() {
        assert!(Cycle::new(1e-300, 1.0, Decay::None, None, 0.0).is_err());
        for period in [SHORTEST, 1.0, 1e300] {
            for multiplier in [1.0, 1.0 + f64::EPSILON, 1.0 + 1e-9, 1.5, 1e308] {
                let cycle = Cycle::new(period, multiplier, Decay::None, None, 0.0).unwrap();
                for x in [0.0, 5.0, 1e6, STEP_LIMIT, 1e35] {
                    let (index, local) = cycle.locate(x);
                    assert!(index.is_finite() && local.is_finite(), "{period} {multiplier} {x}");
                }
            }
        }
    }

    #[test]
    fn a_slow_growth_loses_no_cycle() {
        let cycle = Cycle::new(10.0, 1.0 + 1e-12, Decay::None, None, 0.0).unwrap();
        for index in [1.0, 7.0, 1000.0, 1e6] {
            assert_eq!(cycle.locate(cycle.start(index)), (index, 0.0));
            assert_eq!(cycle.locate(cycle.start(index) + 5.0).0, index);
        }
    }

    #[test]
    fn counts_far_out() {
        let cycle = Cycle::new(7.0, 1.0, Decay::None, None, 0.0).unwrap();
        let x = 7.0 * 1e14 + 5.0;
        assert_eq!(cycle.locate(x), (1e14, 5.0));
    }
}
