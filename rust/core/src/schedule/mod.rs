//! Learning-rate schedules: one form that holds every peer's.
//!
//! ```text
//! Schedule = clock, tracks, combine: floor + (A(x) − floor)·B(x)·…, clip, scale
//! Track    = segments, and maybe a cycle
//! Segment  = start, origin, length, a, b, shape, tail
//! u        = (x − origin) / length        value = b + (a − b)·shape(u)
//! ```
//! A shape is 1 where the segment stands at `a` and 0 where it stands at `b`. Each has one small file, to be copied
//! when another is added.

// Exact values (0, 1, a whole number) choose a shorter way; outcomes of arithmetic are never compared.
#![allow(clippy::float_cmp)]

mod bulk;
mod clock;
mod constant;
mod cosine;
mod cycle;
mod exponential;
mod inner;
mod polynomial;
mod power;
mod reciprocal;
mod rex;
mod segment;
mod table;
mod tanh;
mod track;

pub use bulk::{Steps, Value, fill_matrix};
pub use clock::Clock;
pub use cosine::Cosine;
pub use cycle::{Cycle, Decay};
pub use exponential::Exponential;
pub use inner::Inner;
pub use power::Power;
pub use reciprocal::Reciprocal;
pub use rex::Rex;
pub use segment::{Segment, Shape, Tail};
pub use table::Table;
pub use tanh::Tanh;
pub use track::Track;

/// Steps lie below this: from here on, not every whole number is a float64.
pub const STEP_LIMIT: f64 = 9_007_199_254_740_992.0;

/// What is wrong with a schedule or a step, and in which field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleError {
    /// The field at fault, by the name that it has in a schedule's form.
    pub field: &'static str,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl ScheduleError {
    pub(crate) fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self { field, message: message.into() }
    }
}

impl std::fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for ScheduleError {}

/// A learning rate at every optimizer step.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    clock: Clock,
    tracks: Vec<Track>,
    floor: f64,
    low: f64,
    high: f64,
    scale: f64,
    last: f64,
}

impl Schedule {
    /// A schedule of one or more tracks, combined as `floor + (A − floor)·B·…`.
    ///
    /// # Errors
    /// When there is no track or `floor` is not finite.
    pub fn new(tracks: Vec<Track>, floor: f64) -> Result<Self, ScheduleError> {
        if tracks.is_empty() {
            return Err(ScheduleError::new("tracks", "a schedule needs at least one track"));
        }
        finite("floor", floor)?;
        Ok(Self {
            clock: Clock::identity(),
            tracks,
            floor,
            low: f64::NEG_INFINITY,
            high: f64::INFINITY,
            scale: 1.0,
            last: f64::INFINITY,
        })
    }

    /// The same schedule read through a clock: its value at step x is the old value at `clock.at(x)`.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The same schedule, held between two values before it is scaled.
    ///
    /// # Errors
    /// When a bound is NaN or `low` is above `high`.
    pub fn with_clip(mut self, low: f64, high: f64) -> Result<Self, ScheduleError> {
        if low.is_nan() || high.is_nan() || low > high {
            return Err(ScheduleError::new("low", format!("low ({low}) must be at most high ({high})")));
        }
        self.low = low;
        self.high = high;
        Ok(self)
    }

    /// The same schedule, every value multiplied.
    ///
    /// # Errors
    /// When the factor is not finite.
    pub fn with_scale(mut self, scale: f64) -> Result<Self, ScheduleError> {
        self.scale = finite("scale", scale)?;
        Ok(self)
    }

    /// The same schedule, undefined past step `last`.
    ///
    /// # Errors
    /// When `last` is negative or NaN.
    pub fn with_last(mut self, last: f64) -> Result<Self, ScheduleError> {
        if last.is_nan() || last < 0.0 {
            return Err(ScheduleError::new("last", format!("{last} is not a step")));
        }
        self.last = last;
        Ok(self)
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
        if !(0.0..STEP_LIMIT).contains(&step) {
            return Err(ScheduleError::new(
                "steps",
                format!("{step} is not a step: a step is a number from 0 to below 2^53"),
            ));
        }
        if step > self.last {
            return Err(ScheduleError::new(
                "steps",
                format!("step {step} is past the end: this schedule is defined up to step {}", self.last),
            ));
        }
        Ok(())
    }

    fn finish(&self, value: f64) -> f64 {
        value.max(self.low).min(self.high) * self.scale
    }

    /// Whether the value of a lone track needs nothing but a factor.
    fn is_plain(&self) -> bool {
        self.tracks.len() == 1 && self.low == f64::NEG_INFINITY && self.high == f64::INFINITY
    }
}

pub(crate) fn finite(field: &'static str, value: f64) -> Result<f64, ScheduleError> {
    if value.is_finite() {
        Ok(value)
    } else {
        Err(ScheduleError::new(field, format!("{value} is not a finite number")))
    }
}

pub(crate) fn positive(field: &'static str, value: f64) -> Result<f64, ScheduleError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(ScheduleError::new(field, format!("{value} is not above 0")))
    }
}
