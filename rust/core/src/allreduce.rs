//! How long the gradients of all replicas take to become their mean: by formula, and by what was measured.

use crate::forecast::{Constant, Shape};

/// A link: what one message costs, and how fast bytes follow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Seconds a message.
    pub latency: Constant,
    /// Seconds a byte: one over the bandwidth.
    pub per_byte: Constant,
}

/// How the replicas lie on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Replicas.
    pub all: u64,
    /// Replicas that share a node.
    pub per_node: u64,
    /// Nodes, or groups of nodes where a replica spans several.
    pub groups: u64,
}

impl Layout {
    /// The layout of a shape.
    #[must_use]
    pub fn of(shape: &Shape) -> Layout {
        let all = shape.world_size / shape.model_parallel;
        let per_node = (shape.gpus_per_node / shape.model_parallel).clamp(1, all);
        Layout { all, per_node, groups: all.div_ceil(per_node) }
    }
}

/// 2(n−1) messages, 2(n−1)/n of the bytes.
#[must_use]
pub fn ring(n: u64, bytes: f64, link: Link) -> f64 {
    if n < 2 {
        return 0.0;
    }
    let n = n as f64;
    2.0 * (n - 1.0) * (link.latency.value + bytes / n * link.per_byte.value)
}

/// 2·log2(n) messages, the bytes twice.
#[must_use]
pub fn tree(n: u64, bytes: f64, link: Link) -> f64 {
    if n < 2 { 0.0 } else { 2.0 * (n as f64).log2() * link.latency.value + 2.0 * bytes * link.per_byte.value }
}

/// All-reduces of the whole gradient that were measured, each against the formula.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Replicas of a node, nodes, and the measured seconds over those of the formula; sorted.
    rows: Vec<(u64, u64, f64)>,
}

impl Table {
    /// A table of rows of replicas of a node, nodes, and measured seconds; `formula` has the seconds of a layout.
    /// Layouts without an all-reduce are left out.
    #[must_use]
    pub fn new(measured: &[(u64, u64, f64)], formula: impl Fn(Layout) -> f64) -> Table {
        let ratio = |&(per_node, groups, seconds): &(u64, u64, f64)| {
            (per_node, groups, seconds / formula(Layout { all: per_node * groups, per_node, groups }))
        };
        let mut rows: Vec<_> = measured.iter().map(ratio).filter(|(.., ratio)| ratio.is_finite()).collect();
        rows.sort_by_key(|&(per_node, groups, _)| (per_node, groups));
        Table { rows }
    }

    /// Whether nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// By what to multiply the formula at a layout: at one that was measured this gives what was measured; between two
    /// the factor is interpolated. None outside, and between layouts that differ in more than one way.
    #[must_use]
    pub fn factor(&self, layout: Layout) -> Option<f64> {
        let (mut below, mut above) = ((0, f64::NAN), (u64::MAX, f64::NAN));
        let across = layout.groups > 1;
        let place = if across { layout.groups } else { layout.per_node };
        for &(per_node, groups, factor) in &self.rows {
            let (at, same) = if across { (groups, per_node == layout.per_node) } else { (per_node, true) };
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
        let found = if below.0 == above.0 {
            below.1
        } else {
            let share = (place - below.0) as f64 / (above.0 - below.0) as f64;
            below.1 + share * (above.1 - below.1)
        };
        (!found.is_nan()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(per_node: u64, groups: u64) -> Layout {
        Layout { all: per_node * groups, per_node, groups }
    }

    #[test]
    fn a_table_holds_what_was_measured_and_what_lies_between() {
        let measured = [(8, 2, 6.0), (2, 1, 1.5), (8, 4, 4.0), (8, 1, 3.0), (1, 1, 0.0)];
        let table = Table::new(&measured, |layout| if layout.all > 1 { 2.0 } else { 0.0 });
        let factor = |per_node, groups| table.factor(layout(per_node, groups));
        assert_eq!(factor(8, 1), Some(1.5));
        assert_eq!(factor(2, 1), Some(0.75));
        assert_eq!(factor(4, 1), Some(1.0)); // a third of the way
        assert_eq!(factor(8, 3), Some(2.5));
        // Outside, other nodes, and inside against across nodes.
        for (per_node, groups) in [(16, 1), (1, 1), (8, 5), (4, 2)] {
            assert_eq!(factor(per_node, groups), None);
        }
        assert!(Table::default().is_empty() && Table::default().factor(layout(8, 1)).is_none());
    }
}
