//! Rows that are planned together: what is known of them so far.

use super::arithmetic::BLOCK;
use super::clusters::ClusterShapes;
use crate::numbers::DivisorsOf;
use crate::reason::Reasons;

macro_rules! lanes {
    ($($name:ident)*) => {
        /// Some rows, a number of each at a time.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "named as the columns")]
        pub(crate) struct Lanes {
            $(pub $name: [f64; BLOCK],)*
            pub reasons: [Reasons; BLOCK],
            /// Whether the accumulation is yet to be found.
            pub open: [u64; BLOCK],
            /// Whether the row is one for `plan`.
            pub left: [u64; BLOCK],
            /// Of the batch of the row before, mostly.
            pub divisors: DivisorsOf,
        }

        impl Lanes {
            pub fn new() -> Lanes {
                Lanes {
                    $($name: [1.0; BLOCK],)*
                    reasons: [Reasons::default(); BLOCK],
                    open: [0; BLOCK],
                    left: [0; BLOCK],
                    divisors: DivisorsOf::default(),
                }
            }
        }
    };
}

lanes! {
    world_size model_parallel replicas samples
    batch micro_batch accumulation
    k batch_change lr lr_scale weight_decay
    steps_per_epoch samples_per_epoch padded_samples dropped_samples total_steps warmup_steps
    nearest_world_size nearest_batch
}

impl Lanes {
    /// Takes the rows' clusters.
    pub fn set(&mut self, shapes: &ClusterShapes, clusters: impl Iterator<Item = u32>) {
        self.left = [0; BLOCK];
        for (i, cluster) in clusters.enumerate().take(BLOCK) {
            (self.world_size[i], self.model_parallel[i]) = shapes.0[cluster as usize];
        }
    }

    /// A value of a row that has a plan.
    pub fn known(&self, row: usize, value: f64) -> f64 {
        if self.lr[row].is_nan() { f64::NAN } else { value }
    }
}
