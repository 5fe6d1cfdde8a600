//! Learning-rate schedules: one form that holds every peer's.
//!
//! ```text
//! Schedule = clock, tracks, combine: floor + (A(x) − floor)·B(x)·…, clip, scale
//! Track    = segments, and maybe a cycle
//! Segment  = start, origin, length, a, b, shape, tail
//! u        = (x − origin) / length        value = b + (a − b)·shape(u)
//! ```
//! A shape is 1 where the segment is at `a` and 0 where it is at `b`. Its file in `shapes` may be copied when
//! another is added, which has one line in the list there.

// Exact values (0, 1, a whole number) choose a shorter way; outcomes of arithmetic are never compared.
#![allow(clippy::float_cmp)]

mod bulk;
mod clock;
mod cycle;
mod error;
mod expansion;
mod form;
mod record;
mod shapes;

pub use bulk::{Halt, Steps, Value, fill_matrix};
pub use error::{STEP_LIMIT, ScheduleError};
pub use form::Schedule;
pub use record::{Entry, Record};
pub use shapes::Shape;
