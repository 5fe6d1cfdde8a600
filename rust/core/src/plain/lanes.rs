//! Rows that are planned together: what is known of them so far, and the way of it into the columns.

use super::recipe::Recipe;
use super::stages::{caution, count, judge, scale, split};
use super::{At, BLOCK, Sites};
use crate::batch::smallest_divisor_from;
use crate::reason::Reasons;
use crate::results::{Column, Out, write_lanes};

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
        }

        impl Lanes {
            pub fn new() -> Lanes {
                Lanes {
                    $($name: [1.0; BLOCK],)*
                    reasons: [Reasons::default(); BLOCK],
                    open: [0; BLOCK],
                    left: [0; BLOCK],
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
}

impl Lanes {
    /// Takes the rows' clusters.
    pub fn set(&mut self, sites: &Sites, clusters: impl Iterator<Item = u32>) {
        self.left = [0; BLOCK];
        for (i, cluster) in clusters.enumerate().take(BLOCK) {
            (self.world_size[i], self.model_parallel[i]) = sites.0[cluster as usize];
        }
    }

    /// Plans the first `rows` rows and writes them out from `at` on. Gives the rows
    /// that are left; those that divide over no replicas are among them if the nearest values that would do are wanted.
    pub fn plan<T: At<f64>, R: At<Reasons>>(
        &mut self,
        recipe: &Recipe<T, R>,
        rows: usize,
        out: &mut [(Column, Out<'_>)],
        at: usize,
    ) -> Vec<usize> {
        let nearest = out.iter().any(|(column, _)| column.is_way_out());
        // Whole vectors: what lies behind the rows is not read.
        let lanes = rows.next_multiple_of(8).min(BLOCK);
        split(self, recipe, lanes);
        self.search(rows);
        scale(self, recipe, lanes);
        count(self, recipe, lanes);
        caution(self, recipe, lanes);
        judge(self, recipe, lanes, nearest);
        for (column, out) in out {
            write_lanes(*column, self, recipe, out, at, rows);
        }
        // Mostly none: that is seen at once.
        if self.left.iter().fold(0, |any, left| any | left) == 0 {
            return Vec::new();
        }
        (0..rows).filter(|&i| self.left[i] != 0).collect()
    }

    /// A value of a row that has a plan.
    pub fn known(&self, row: usize, value: f64) -> f64 {
        if self.lr[row].is_nan() { f64::NAN } else { value }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and below 2^41")]
    fn search(&mut self, rows: usize) {
        if self.open.iter().fold(0, |any, open| any | open) == 0 {
            return;
        }
        for i in 0..rows {
            if self.open[i] != 0 {
                let accumulation = smallest_divisor_from(self.samples[i] as u64, self.accumulation[i] as u64);
                self.accumulation[i] = accumulation as f64;
                self.micro_batch[i] = self.samples[i] / self.accumulation[i];
            }
        }
    }
}

/// A whole number of at most 2^51, either sign, as a column holds it.
#[inline(always)]
pub(crate) fn column(x: f64) -> i64 {
    // 1.5 × 2^52 has room for it in its last bits.
    const ROOM: f64 = 6_755_399_441_055_744.0;
    (x + ROOM).to_bits().wrapping_sub(ROOM.to_bits()).cast_signed()
}
