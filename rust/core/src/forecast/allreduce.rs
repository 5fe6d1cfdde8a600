//! How long the gradients of all replicas take to become their mean: by the links' formula, and by what was
//! measured.

use super::Placement;

/// A measured constant and half the width of its 95 % interval (0 where it is exact, or not known).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Constant {
    /// The value.
    pub value: f64,
    /// Half the width of the interval, in the same unit.
    pub error: f64,
}

/// A link: what one message costs, and how fast bytes follow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Seconds a message.
    pub latency: Constant,
    /// Seconds a byte: one over the bandwidth.
    pub per_byte: Constant,
}

/// 2(n−1) messages, 2(n−1)/n of the bytes.
pub(crate) fn ring(n: u64, bytes: f64, link: Link) -> f64 {
    if n < 2 {
        return 0.0;
    }
    let n = n as f64;
    2.0 * (n - 1.0) * (link.latency.value + bytes / n * link.per_byte.value)
}

/// 2·log2(n) messages, the bytes twice.
pub(crate) fn tree(n: u64, bytes: f64, link: Link) -> f64 {
    if n < 2 { 0.0 } else { 2.0 * (n as f64).log2() * link.latency.value + 2.0 * bytes * link.per_byte.value }
}

/// All-reduces of the whole gradient that were measured, each against the formula.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllReduceTable {
    /// Replicas of a node, nodes, and the measured seconds over those of the formula; sorted.
    rows: Vec<(u64, u64, f64)>,
}

impl AllReduceTable {
    /// A table of rows of replicas of a node, nodes, and measured seconds; `formula` has the seconds of a
    /// placement. Placements without an all-reduce are left out.
    #[must_use]
    pub fn new(measured: &[(u64, u64, f64)], formula: impl Fn(Placement) -> f64) -> AllReduceTable {
        let ratio = |&(per_node, groups, seconds): &(u64, u64, f64)| {
            (per_node, groups, seconds / formula(Placement { all: per_node * groups, per_node, groups }))
        };
        let mut rows: Vec<_> = measured.iter().map(ratio).filter(|(.., ratio)| ratio.is_finite()).collect();
        rows.sort_by_key(|&(per_node, groups, _)| (per_node, groups));
        AllReduceTable { rows }
    }

    /// Whether nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// By what to multiply the formula at a placement: at one that was measured this gives what was measured;
    /// between two the factor is interpolated. None outside, and between placements that differ in more than
    /// one way.
    pub(crate) fn factor(&self, placement: Placement) -> Option<f64> {
        let (mut below, mut above) = ((0, f64::NAN), (u64::MAX, f64::NAN));
        let across = placement.groups > 1;
        let place = if across { placement.groups } else { placement.per_node };
        for &(per_node, groups, factor) in &self.rows {
            let (at, same) = if across { (groups, per_node == placement.per_node) } else { (per_node, true) };
            if !same || across != (groups > 1) {
                continue;
            }
            if at <= place && at > below.0 {
                below = (at, factor);
            }
            if at >= place && at < above.0 {
                above = (at, factor);
            }
        }
        let factor = if below.0 == above.0 {
            below.1
        } else {
            let share = (place - below.0) as f64 / (above.0 - below.0) as f64;
            below.1 + share * (above.1 - below.1)
        };
        (!factor.is_nan()).then_some(factor)
    }
}
