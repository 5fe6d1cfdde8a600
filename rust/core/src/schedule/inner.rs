//! Inner: a whole schedule as one segment of another, for joins and products.

use std::sync::Arc;

use super::Schedule;

/// The schedule that a segment plays, read at (x − origin)/length.
#[derive(Debug, Clone, PartialEq)]
pub struct Inner {
    pub(crate) schedule: Arc<Schedule>,
}

impl Inner {
    /// The segment that plays this schedule.
    #[must_use]
    pub fn new(schedule: Arc<Schedule>) -> Self {
        Self { schedule }
    }

    pub(super) fn at(&self, u: f64) -> f64 {
        self.schedule.at(u)
    }
}
