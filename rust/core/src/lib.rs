//! The planner's core: pure Rust, no Python, no input or output.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod allocate;
mod batch;
pub mod bulk;
pub mod forecast;
pub mod input;
pub mod lengths;
mod numbers;
pub mod plan;
pub mod reason;
pub mod rules;
pub mod schedule;
