//! What is wrong with a schedule or a step.

/// Steps lie below this: from here on, not every whole number is a float64.
pub const STEP_LIMIT: f64 = 9_007_199_254_740_992.0;

/// What is wrong with a schedule or a step, and in which field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleError {
    /// The field at fault, by the name that it has in a schedule's form.
    pub field: &'static str,
    /// What was got, and what was expected.
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
pub(crate) fn shown(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || !size.is_finite() || (1e-6..1e16).contains(&size) {
        format!("{value}")
    } else {
        format!("{value:e}")
    }
}

pub(crate) fn finite(field: &'static str, value: f64) -> Result<f64, ScheduleError> {
    if value.is_finite() {
        Ok(value)
    } else {
        Err(ScheduleError::new(field, format!("must be a finite number, got {}", shown(value))))
    }
}

pub(crate) fn positive(field: &'static str, value: f64) -> Result<f64, ScheduleError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(ScheduleError::new(field, format!("must be a finite number above 0, got {}", shown(value))))
    }
}

/// Whether a number is a step.
///
/// # Errors
/// When it is NaN, negative, or at or past 2^53.
pub fn check_step(step: f64) -> Result<f64, ScheduleError> {
    if (0.0..STEP_LIMIT).contains(&step) {
        Ok(step)
    } else {
        Err(ScheduleError::new("steps", format!("must be numbers from 0 to below 2^53, got {}", shown(step))))
    }
}
