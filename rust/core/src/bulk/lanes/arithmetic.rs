//! Whole numbers as reals, a value in each lane.

use crate::reason::{Reason, Reasons};

/// Rows that are planned together.
pub(super) const BLOCK: usize = 64;

/// Whole numbers stay below this, and so their sums below 2^53.
pub(super) const LIMIT: f64 = (1_u64 << 51) as f64;

pub(super) fn whole(n: u64) -> Option<f64> {
    let n = n as f64;
    (n < LIMIT).then_some(n)
}

/// A value that all lanes share, or one for each.
pub(super) trait At<V> {
    /// The value of a lane.
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
pub(super) fn set<const N: usize>(reasons: [(bool, Reason); N]) -> Reasons {
    let mut set = Reasons::default();
    for (holds, reason) in reasons {
        set.insert_if(holds, reason);
    }
    set
}

/// A condition as a lane holds it.
pub(super) fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// n/d rounded up where `up` is 1, down where it is 0.
#[inline(always)]
pub(super) fn divide(n: f64, d: f64, up: f64) -> f64 {
    ((n + up * (d - 1.0)) / d).floor()
}

/// A whole number of at most 2^51, either sign, as a column holds it.
#[inline(always)]
pub(super) fn column(x: f64) -> i64 {
    // 1.5 × 2^52 has room for it in its last bits.
    const ROOM: f64 = 6_755_399_441_055_744.0;
    (x + ROOM).to_bits().wrapping_sub(ROOM.to_bits()).cast_signed()
}
