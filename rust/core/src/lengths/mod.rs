//! Lengths with a unit, epochs as trainers run them, and batches that grow on the way.

mod curve;
mod epoch;
mod length;
mod ramp;
mod separators;

pub use curve::Curve;
pub use epoch::{Convention, DropLast, Epoch, Layout};
pub use length::{Length, MAX_COUNT, Unit};
pub use ramp::{Ramp, Stage, samples, steps};
pub(crate) use separators::{is_grouped, readings, with_power, without_underscores};
