//! The planner's core: pure Rust, no Python, no input or output.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod elastic;
pub mod forecast;
pub mod goodput;
