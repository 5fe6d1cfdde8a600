//! Usual plans, many rows at a time: what [`plan`](crate::plan::plan) does where nothing else is asked for.
//!
//! Whole numbers are held as reals here, since processors divide eight reals in the time of one integer. That
//! is exact: for whole n and d with n + d < 2^53, n/d lies further below the next whole number than its
//! rounding can lift it, so that its floor is the quotient. Rows that come near the limit, and all that are
//! not usual, are left to `plan`; tests hold the two to the same bits.

#![allow(
    clippy::inline_always,
    clippy::needless_bitwise_bool,
    reason = "a call or a branch in a loop keeps it from becoming vector instructions"
)]

mod arithmetic;
mod block;
mod clusters;
mod gate;
mod groups;
mod length;
mod numbers;
mod planner;
mod recipe;
mod run;
mod stages;
#[cfg(test)]
mod tests;
mod write;

pub(super) use planner::{LanePlanner, Prepared};
