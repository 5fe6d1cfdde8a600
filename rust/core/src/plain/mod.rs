//! Plain plans, many rows at a time: what [`plan`](crate::plan::plan) does where nothing unusual is asked for.
//!
//! Whole numbers are held as reals here, since processors divide eight reals in the time of one integer. That is exact: for
//! whole n and d with n + d < 2^53, n/d lies further below the next whole number than its rounding can lift it, so that its
//! floor is the quotient. Rows that come near the limit, and all that are not plain, are left to `plan`; tests hold the two
//! to the same bits.

#![allow(
    clippy::inline_always,
    clippy::needless_bitwise_bool,
    reason = "a call or a branch in a loop keeps it from becoming vector instructions"
)]

mod gate;
mod lanes;
mod mixed;
mod numbers;
mod recipe;
mod sites;
mod stages;
mod steps;
#[cfg(test)]
mod tests;

pub(crate) use lanes::{Lanes, column};
pub(crate) use mixed::{Each, Kinds};
pub(crate) use recipe::{One, Recipe};
pub(crate) use sites::Sites;

use crate::reason::{Reason, Reasons};

/// Rows that are planned together.
pub(crate) const BLOCK: usize = 64;

/// Whole numbers stay below this, and so their sums below 2^53.
const LIMIT: f64 = (1_u64 << 51) as f64;

fn whole(n: u64) -> Option<f64> {
    let n = n as f64;
    (n < LIMIT).then_some(n)
}

/// A value that all lanes share, or one for each.
pub(crate) trait At<V> {
    /// That of a lane.
    fn at(&self, lane: usize) -> V;
}

impl<V: Copy> At<V> for V {
    #[inline(always)]
    fn at(&self, _: usize) -> V {
        *self
    }
}

impl<V: Copy> At<V> for [V; BLOCK] {
    #[inline(always)]
    fn at(&self, lane: usize) -> V {
        self[lane]
    }
}

/// The reasons whose condition holds.
fn set<const N: usize>(reasons: [(bool, Reason); N]) -> Reasons {
    let mut set = Reasons::default();
    for (holds, reason) in reasons {
        set.insert_if(holds, reason);
    }
    set
}

/// A condition as a lane holds it.
fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// n/d rounded up where `up` is 1, down where it is 0.
#[inline(always)]
fn divide(n: f64, d: f64, up: f64) -> f64 {
    ((n + up * (d - 1.0)) / d).floor()
}
