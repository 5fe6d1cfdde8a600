//! The divisors of a run's batch: replicas, micro-batches, passes and groups, in every stage of its ramp.

use super::replicas::Replicas;
use crate::batch::{self, MAX_BATCH, Split};
use crate::input::{Input, Settings};
use crate::lengths::Stage;
use crate::numbers::gcd;
use crate::reason::Reason;

/// Multiples of the unit that are looked at in each direction for a micro-batch that is not too small.
pub(super) const LOOKS: u64 = 256;

/// No batch is a multiple of more.
const NEVER: u64 = 1 << 62;

/// The divisors of a run's batches. A stage of a ramp is a fixed share of the full batch, so that one
/// number, the [`unit`](Grid::unit), says of the full batch whether every stage divides.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    replicas: u64,
    /// The divisors of each micro-batch, of the passes of a step, and of the batch.
    divisor: u64,
    passes: u64,
    groups: u64,
    /// No micro-batch is smaller; a multiple of the divisor.
    min_micro: u64,
    /// Whether the divisor is a micro-batch that was fixed.
    fixed: bool,
    /// The tuned batch; what divides each of its stages that are to come; and the smallest of them.
    tuned: u64,
    common: u64,
    smallest: u64,
    /// A full batch that can be laid out is a multiple of this, and not below the least.
    pub unit: u64,
    pub least: u64,
}

impl Grid {
    /// The grid of a run whose ramp has these stages left at the tuned batch.
    pub fn of(input: &Input, replicas: Replicas, stages: &[Stage]) -> Grid {
        let Settings { accumulation_multiple: passes, batch_multiple: groups, min_micro_batch, .. } =
            input.settings;
        let Replicas { count, divisor, .. } = replicas;
        let tuned = input.recipe.effective_batch;
        let common = stages.iter().fold(tuned, |common, stage| gcd(common, stage.batch));
        let smallest = stages.iter().fold(tuned, |least, stage| least.min(stage.batch));
        let mut grid = Grid {
            replicas: count,
            divisor,
            passes,
            groups,
            min_micro: min_micro_batch.next_multiple_of(divisor),
            fixed: input.settings.fixed_micro_batch().is_some(),
            tuned,
            common,
            smallest,
            unit: count * divisor,
            least: 0,
        };
        if passes > 1 || groups > 1 || common != tuned {
            grid.unit = bounded(grid.step(passes) * u128::from(tuned / common));
        }
        grid.least = grid.unit;
        if grid.min_micro > divisor {
            grid.least = grid.least_with(grid.min_micro);
        }
        grid
    }

    /// The smallest full batch whose every stage holds a pass of such a micro-batch.
    fn least_with(&self, micro_batch: u64) -> u64 {
        let samples = u128::from(self.replicas) * u128::from(micro_batch);
        let least = samples.saturating_mul(u128::from(self.tuned)).div_ceil(u128::from(self.smallest));
        bounded(least.next_multiple_of(u128::from(self.unit))).max(self.unit)
    }

    /// The divisor of each step's samples, where its passes are a multiple of `passes`.
    fn step(&self, passes: u64) -> u128 {
        let samples = u128::from(self.replicas) * u128::from(self.divisor) * u128::from(passes);
        let groups = u128::from(self.groups);
        samples / gcd_wide(samples, groups) * groups
    }

    /// Whether the batch can be laid out in micro-batches up to the cap.
    pub fn fits(&self, batch: u64, cap: u64) -> bool {
        batch >= self.least && batch.is_multiple_of(self.unit) && self.is_coarse(batch, cap)
    }

    /// Whether the largest micro-batch up to the cap is not too small.
    fn is_coarse(&self, batch: u64, cap: u64) -> bool {
        self.min_micro == self.divisor
            || self.split(batch, cap, self.divisor).is_some_and(|split| split.micro_batch >= self.min_micro)
    }

    /// The unit of the batches that surely fit, from the least on: in it a replica has whole smallest
    /// micro-batches.
    fn coarse_unit(&self) -> u64 {
        bounded(u128::from(self.unit) * u128::from(self.min_micro / self.divisor))
    }

    /// The largest batch below this one, or it, that fits; where the looks do not reach, one that fits. Those
    /// that are left stay.
    pub fn below(&self, batch: u64, cap: u64, looks: &mut u64) -> Option<u64> {
        let last = batch / self.unit;
        let near = (0..last.min(*looks)).map(|n| (last - n) * self.unit).inspect(|_| *looks -= 1);
        let near = near.take_while(|&batch| batch >= self.least).find(|&batch| self.is_coarse(batch, cap));
        near.or_else(|| batch::neighbours(batch, self.coarse_unit()).0.filter(|&batch| self.fits(batch, cap)))
    }

    /// The smallest batch above this one that fits, as [`below`](Self::below).
    pub fn above(&self, batch: u64, cap: u64) -> u64 {
        let first = batch::neighbours(batch, self.unit).1.max(self.least);
        let near =
            (0..LOOKS).map(|n| first.saturating_add(n * self.unit)).take_while(|&batch| batch <= MAX_BATCH);
        near.clone().find(|&batch| self.is_coarse(batch, cap)).unwrap_or_else(|| {
            let coarse = self.coarse_unit();
            first.checked_next_multiple_of(coarse).map_or(NEVER, |batch| batch.min(NEVER))
        })
    }

    /// Whether the batch as asked for needs nothing but other sizes or numbers of micro-batches.
    pub fn in_groups(&self, batch: u64) -> bool {
        self.share(batch, self.common).is_some_and(|common| common.is_multiple_of(self.groups))
    }

    /// The common divisor and the smallest of the stages of the run with this full batch; `None` where one is
    /// not whole.
    pub fn of_stages(&self, batch: u64) -> Option<(u64, u64)> {
        Some((self.share(batch, self.common)?, self.share(batch, self.smallest)?))
    }

    fn share(&self, batch: u64, of_tuned: u64) -> Option<u64> {
        if of_tuned == self.tuned {
            return Some(batch);
        }
        let wide = u128::from(batch) * u128::from(of_tuned);
        let tuned = u128::from(self.tuned);
        wide.is_multiple_of(tuned).then(|| u64::try_from(wide / tuned).ok())?
    }

    /// The split with the largest micro-batch up to the cap that is a multiple of `multiple`; the same in
    /// every stage.
    pub fn split(&self, batch: u64, cap: u64, multiple: u64) -> Option<Split> {
        let (common, smallest) = self.of_stages(batch)?;
        let cap = cap.min(smallest / self.replicas);
        let split = batch::split(common / self.replicas / self.passes, cap, multiple)?;
        Some(Split { accumulation: batch / self.replicas / split.micro_batch, ..split })
    }

    /// The counts of replicas next to these, in whole groups, over which the batch divides; this is the grid
    /// of one.
    pub fn counts(&self, batch: u64, down: u64, up: u64, group: u64) -> (Option<u64>, Option<u64>) {
        let Some((common, smallest)) = self.of_stages(batch) else { return (None, None) };
        let each = (self.divisor * self.passes).saturating_mul(group);
        if !common.is_multiple_of(self.groups) || !common.is_multiple_of(each) {
            return (None, None);
        }
        let most = self.most_in(smallest);
        let (down, up) = (down.min(most) / group, up.div_ceil(group));
        let below = (down > 0).then(|| batch::nearest_divisors(common / each, down).0);
        let above = batch::nearest_divisors(common / each, up).1;
        (
            below.map(|groups| groups * group),
            above.map(|groups| groups * group).filter(|&count| count <= most),
        )
    }

    /// The most replicas that a full batch of no more samples can go on: more, and one of them has too few in
    /// the smallest stage.
    pub fn most_replicas(&self, batch: u64) -> u64 {
        self.most_in(bounded(u128::from(batch) * u128::from(self.smallest) / u128::from(self.tuned)))
    }

    fn most_in(&self, smallest: u64) -> u64 {
        smallest / self.min_micro / self.passes
    }

    /// Whether the micro-batches of neighbouring batches are those of neighbouring numbers.
    pub fn is_plain(&self) -> bool {
        let samples = u128::from(self.replicas) * u128::from(self.divisor) * u128::from(self.passes);
        self.step(self.passes) == samples
    }

    /// Why a batch does not lie on it.
    pub fn refuses(&self, batch: u64) -> Reason {
        let (count, groups) = (u128::from(self.replicas), u128::from(self.groups));
        let divides = |by: u128| u128::from(batch).is_multiple_of(by);
        let samples = count * u128::from(self.divisor);
        if !divides(count) || !divides(groups) {
            Reason::NotDivisible
        } else if !divides(samples) {
            if self.fixed { Reason::MicroBatchUnmet } else { Reason::MultipleUnmet }
        } else if !divides(samples * u128::from(self.passes)) {
            Reason::AccumulationUnmet
        } else if batch >= self.unit && batch.is_multiple_of(self.unit) {
            Reason::MicroBatchUnmet
        } else {
            Reason::RampNotDivisible
        }
    }
}

fn bounded(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(NEVER).min(NEVER)
}

fn gcd_wide(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd_wide(b, a % b) }
}

const _: () = assert!(NEVER > 2 * MAX_BATCH);
