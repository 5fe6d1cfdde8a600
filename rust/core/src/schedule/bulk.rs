//! Schedules × steps, in bulk.
use super::Schedule;
/// The steps of a bulk evaluation.
pub enum Steps<'a> {
    /// any
    Any(&'a [f64]),
}
/// Fills.
pub fn fill(schedule: &Schedule, steps: &Steps, out: &mut [f64]) {
    let Steps::Any(x) = steps;
    for (o, x) in out.iter_mut().zip(x.iter()) {
        *o = schedule.at(*x);
    }
}
