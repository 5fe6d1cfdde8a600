//! The stages in their order, and the way into the columns.

use super::arithmetic::{At, BLOCK};
use super::block::Lanes;
use super::recipe::LaneRecipe;
use super::stages::{bend, caution, count, judge, scale, split};
use super::write::write_lanes;
use crate::batch::{self, MAX_BATCH};
use crate::bulk::results::{ResultColumn, ResultSlice};
use crate::input::MAX_GPUS;
use crate::numbers::smallest_divisor_from;
use crate::reason::{Reason, Reasons};

impl Lanes {
    /// Plans the first `rows` rows and writes them out from `at` on. Gives the rows that are left.
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
        if (0..rows).fold(false, |any, i| any | (recipe.bends.at(i) > 0.0)) {
            bend(self, recipe, lanes); // Two more divisions: only where one of the rows may need them.
        }
        count(self, recipe, lanes);
        caution(self, recipe, lanes);
        judge(self, recipe, lanes);
        if nearest {
            self.ways_out(recipe, rows);
        }
        for (column, out) in out {
            write_lanes(*column, self, recipe, out, at, rows);
        }
        // Mostly none: that is seen at once.
        if self.left.iter().fold(0, |any, left| any | left) == 0 {
            return Vec::new();
        }
        (0..rows).filter(|&i| self.left[i] != 0).collect()
    }

    /// The nearest GPU count and batch that divide, in rows whose batch does not: as the planner of single
    /// rows has them where all settings but the lanes' are at their defaults.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::float_cmp,
        reason = "whole, below 2^53"
    )]
    fn ways_out<T: At<f64>, R: At<Reasons>>(&mut self, recipe: &LaneRecipe<T, R>, rows: usize) {
        for i in 0..rows {
            (self.nearest_world_size[i], self.nearest_batch[i]) = (-1.0, -1.0);
            if self.left[i] != 0 || self.reasons[i] != Reason::NotDivisible.alone() {
                continue;
            }
            // Under grow every count divides.
            let recipe = recipe.lane(i);
            let target = if recipe.keeps == 1.0 { recipe.tuned_batch } else { recipe.batch } as u64;
            let count = self.replicas[i] as u64;
            let model_parallel = self.world_size[i] as u64 / count;
            let (below, above) = batch::neighbours(target, count);
            let above = Some(above).filter(|&batch| batch <= MAX_BATCH);
            self.nearest_batch[i] = batch::nearer(target, below, above).map_or(-1.0, |batch| batch as f64);
            let (below, above) = self.divisors.next_to(target, count);
            let gpus = |count: u64| count * model_parallel;
            let above = above.map(gpus).filter(|&gpus| gpus <= MAX_GPUS);
            let nearest = batch::nearer(gpus(count), Some(gpus(below)), above);
            self.nearest_world_size[i] = nearest.map_or(-1.0, |gpus| gpus as f64);
        }
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
