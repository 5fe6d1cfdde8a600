//! Why a bulk evaluation ended before its end.

/// Why a bulk evaluation ended before its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Halt {
    /// The caller asked for it.
    Stopped,
    /// A value is too large to be written, or no number.
    Overflow {
        /// The index of the schedule.
        row: usize,
        /// The optimizer step.
        step: f64,
    },
}

impl Halt {
    pub(super) fn in_row(self, row: usize) -> Self {
        match self {
            Self::Stopped => Self::Stopped,
            Self::Overflow { step, .. } => Self::Overflow { row, step },
        }
    }
}
