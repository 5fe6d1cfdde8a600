//! Faults of a schedule or a step.

/// Steps lie below this: from here on, not every whole number is a float64.
pub const STEP_LIMIT: f64 = 9_007_199_254_740_992.0;

/// A fault of a schedule or a step, with its field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleError {
    /// The field at fault, by the name that it has in a schedule's form.
    pub field: &'static str,
    /// The value given, and the expected.
    pub message: String,
}

impl ScheduleError {
    pub(crate) fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self { field, message: message.into() }
    }
}

impl std::fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place =
            if self.message.starts_with("must ") { format!("{} ", self.field) } else { String::new() };
        write!(f, "{place}{}", self.message)
    }
}

impl std::error::Error for ScheduleError {}

/// A number as people write it: no row of zeros.
fn shown(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || !size.is_finite() || (1e-6..1e16).contains(&size) {
        format!("{value}")
    } else {
        format!("{value:e}")
    }
}

/// The value of a field, where it is as it must be.
pub(crate) fn demand(
    is_so: bool,
    field: &'static str,
    value: f64,
    expected: &str,
) -> Result<f64, ScheduleError> {
    let wrong = || ScheduleError::new(field, format!("must be {expected}, got {}", shown(value)));
    if is_so { Ok(value) } else { Err(wrong()) }
}

pub(crate) fn finite(field: &'static str, value: f64) -> Result<f64, ScheduleError> {
    demand(value.is_finite(), field, value, "a finite number")
}

pub(crate) fn positive(field: &'static str, value: f64) -> Result<f64, ScheduleError> {
    demand(value.is_finite() && value > 0.0, field, value, "a finite number above 0")
}

/// A step, where a number is one: not NaN, not negative, and below 2^53.
pub(crate) fn check_step(step: f64) -> Result<f64, ScheduleError> {
    demand((0.0..STEP_LIMIT).contains(&step), "steps", step, "numbers from 0 to below 2^53")
}
