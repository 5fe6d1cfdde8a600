//! A whole schedule: a clock, tracks, and how they combine.

use super::clock::Clock;
use super::error::{ScheduleError, check_step, finite};
use super::record::Record;
use super::segment::Nested;
use super::track::Track;

/// A learning rate at every optimizer step.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub(crate) clock: Clock,
    pub(crate) tracks: Vec<Track<Schedule>>,
    pub(crate) floor: f64,
    low: f64,
    high: f64,
    pub(crate) scale: f64,
    last: f64,
}

impl Nested for Schedule {
    fn read(record: &Record) -> Result<Self, ScheduleError> {
        let tracks = record.parts("tracks", Track::read)?;
        if tracks.is_empty() {
            return Err(ScheduleError::new("tracks", "must hold at least one track, got none"));
        }
        let knots = record.pairs("clock")?;
        let low = record.maybe("low")?.unwrap_or(f64::NEG_INFINITY);
        let high = record.maybe("high")?.unwrap_or(f64::INFINITY);
        if low.is_nan() || high.is_nan() || low > high {
            return Err(ScheduleError::new("low", format!("must be at most high ({high}), got {low}")));
        }
        let last = record.maybe("last")?.unwrap_or(f64::INFINITY);
        if last.is_nan() || last < 0.0 {
            return Err(ScheduleError::new("last", format!("must be a step, got {last}")));
        }
        Ok(Self {
            clock: if knots.is_empty() { Clock::identity() } else { Clock::new(&knots)? },
            tracks,
            floor: finite("floor", record.number("floor")?)?,
            low,
            high,
            scale: finite("scale", record.number("scale")?)?,
            last,
        })
    }

    fn at(&self, step: f64) -> f64 {
        let x = self.clock.at(step);
        let mut value = self.tracks[0].at(x);
        for track in &self.tracks[1..] {
            value = self.floor + (value - self.floor) * track.at(x);
        }
        self.finish(value)
    }
}

impl Schedule {
    /// The schedule that a form describes.
    ///
    /// # Errors
    /// When a field is missing or out of range.
    pub fn read(form: &Record) -> Result<Self, ScheduleError> {
        Nested::read(form)
    }

    /// The value at a step, which the caller has checked.
    #[must_use]
    pub fn at(&self, step: f64) -> f64 {
        Nested::at(self, step)
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
