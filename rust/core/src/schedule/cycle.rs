//! Cycles: a track that starts again and again.

use super::{ScheduleError, finite, positive};

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

/// Where a point stands: cycle `index`, at `x` = `start` + `stretch`·(position within the first cycle).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Place {
    pub index: f64,
    pub start: f64,
    pub stretch: f64,
}

impl Cycle {
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
        positive("period", period)?;
        finite("end", end)?;
        if !(multiplier.is_finite() && multiplier >= 1.0) {
            return Err(ScheduleError::new("multiplier", format!("{multiplier} is not at least 1")));
        }
        if let Decay::Peak(factor) | Decay::Amplitude { factor, .. } = decay
            && !(factor.is_finite() && factor >= 0.0)
        {
            return Err(ScheduleError::new("decay", format!("{factor} is not a factor of at least 0")));
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
        if self.multiplier == 1.0 {
            self.period * index
        } else {
            self.period * ((self.multiplier.powf(index) - 1.0) / (self.multiplier - 1.0))
        }
    }

    pub(crate) fn place(&self, x: f64) -> Place {
        let guess = if self.multiplier == 1.0 {
            (x / self.period).floor()
        } else {
            (x / self.period * (self.multiplier - 1.0)).ln_1p().max(0.0) / self.multiplier.ln()
        };
        // The guess is off by one at most: settle it on the starts themselves.
        let mut index = guess.floor().max(0.0);
        while index > 0.0 && x < self.start(index) {
            index -= 1.0;
        }
        while x >= self.start(index + 1.0) {
            index += 1.0;
        }
        let stretch = if self.multiplier == 1.0 { 1.0 } else { self.multiplier.powf(index) };
        Place { index, start: self.start(index), stretch }
    }

    /// The cycle's index and the position within the first cycle that `x` stands for.
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
    fn counts_far_out() {
        let cycle = Cycle::new(7.0, 1.0, Decay::None, None, 0.0).unwrap();
        let x = 7.0 * 1e14 + 5.0;
        assert_eq!(cycle.locate(x), (1e14, 5.0));
    }
}
