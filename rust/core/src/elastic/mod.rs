//! The effective batch under a cap that works at the most GPU counts, exactly.
//!
//! A replica count d works at a batch B when some allowed micro-batch m makes d·m a divisor of B. The gain of a
//! batch, the summed weight of the counts that work, never falls when the batch is multiplied: that gives each of the
//! three ways to search its shape. Which is taken is a matter of time alone.

mod answers;
mod config;
mod divisor_counts;
mod many;
mod problem;
mod question;
mod records;
mod search;
mod sieve;
mod solve;
mod stride;
#[cfg(test)]
mod tests;
mod threads;

pub use answers::{Answers, split};
pub use config::{Config, Counts, MAX_GPUS, MAX_PRIMITIVE};
pub use many::elastic;
pub use threads::is_light;
