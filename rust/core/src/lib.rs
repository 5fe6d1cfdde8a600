//! The planner's core: pure Rust, no Python, no input or output.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod allreduce;
pub mod batch;
pub mod duration;
pub mod elastic;
pub mod fleet;
pub mod forecast;
pub mod goodput;
pub mod input;
pub mod optimizer;
pub mod outlook;
mod plain;
pub mod plan;
pub mod ramp;
pub mod reason;
mod results;
pub mod scaling;
pub mod schedule;
