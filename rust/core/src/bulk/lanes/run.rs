//! The stages in their order, and the way into the columns.

use super::arithmetic::{At, BLOCK};
use super::block::Lanes;
use super::recipe::LaneRecipe;
use super::stages::{caution, count, judge, scale, split};
use super::write::write_lanes;
use crate::bulk::results::{ResultColumn, ResultSlice};
use crate::numbers::smallest_divisor_from;
use crate::reason::Reasons;

impl Lanes {
    /// Plans the first `rows` rows and writes them out from `at` on. Gives the rows
    /// that are left; those that divide over no replicas are among them if the nearest values that would do are wanted.
    pub fn plan<T: At<f64>, R: At<Reasons>>(
        &mut self,
        recipe: &LaneRecipe<T, R>,
        rows: usize,
        out: &mut [(ResultColumn, ResultSlice<'_>)],
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
