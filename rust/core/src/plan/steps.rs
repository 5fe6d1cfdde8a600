//! Lengths in optimizer steps: the run, its warmup, an epoch, at the tuned batch and at the new one.

use super::row::{Row, UNKNOWN, as_column};
use crate::input::{Input, Policy, Recipe};
use crate::lengths::{self, Convention, Epoch, Layout, Length, MAX_COUNT, Stage, Unit};
use crate::reason::Reason;

/// The stages of the recipe's ramp when it ends at `full`, those left out that end before `consumed` samples;
/// empty without one.
///
/// # Errors
/// When the ramp has no whole batches on the way to `full`.
pub fn stages(recipe: &Recipe, full: u64, consumed: u64) -> Result<Vec<Stage>, Reason> {
    recipe.ramp.as_ref().map_or(Ok(Vec::new()), |ramp| {
        ramp.stages(full, recipe.effective_batch, recipe.seq_len, consumed).ok_or(Reason::RampNotDivisible)
    })
}

/// The layout on which the recipe was tuned, as far as it is known.
fn tuned_layout(recipe: &Recipe) -> Layout {
    let effective_batch = recipe.effective_batch;
    let data_parallel = recipe.tuned_replicas().unwrap_or(1);
    let samples = effective_batch.div_ceil(data_parallel);
    let micro_batch = recipe.tuned_micro_batch().filter(|_| recipe.gpus.is_some()).unwrap_or(samples);
    let accumulation = samples.div_ceil(micro_batch);
    let ragged = micro_batch * accumulation * data_parallel != effective_batch;
    Layout { effective_batch, data_parallel, micro_batch, accumulation, ragged }
}

/// A way to turn lengths into optimizer steps: at the tuned batch or at the new one.
struct Clock<'a> {
    recipe: &'a Recipe,
    batch: u64,
    epoch: Option<Epoch>,
    stages: Vec<Stage>,
}

impl<'a> Clock<'a> {
    fn new(recipe: &'a Recipe, layout: Layout, stages: Vec<Stage>) -> Clock<'a> {
        let epoch = match (recipe.dataset_size, recipe.convention) {
            (None, _) | (_, Convention::Megatron) => None,
            (Some(dataset), convention) => {
                Some(Epoch::rest(dataset, 0, layout, recipe.drop_last, convention, recipe.even_batches))
            }
        };
        Clock { recipe, batch: layout.effective_batch, epoch, stages }
    }

    fn tuned(recipe: &'a Recipe) -> Result<Clock<'a>, Reason> {
        Ok(Clock::new(recipe, tuned_layout(recipe), stages(recipe, recipe.effective_batch, 0)?))
    }

    /// A length in batches, and their fractions, at the full batch of a ramp; `None` of a share of the run.
    fn in_batches(&self, length: Length) -> Option<f64> {
        let (n, d) = self.samples_in(length.unit)?;
        let (count, power) = length.fraction_of_ten();
        Some((count as f64 * n as f64) / (power as f64 * d as f64 * self.batch as f64))
    }

    /// Samples in one of the unit, as a fraction; `None` of a share.
    fn samples_in(&self, unit: Unit) -> Option<(u64, u64)> {
        match unit {
            Unit::Epochs => Some((self.recipe.dataset_size.unwrap_or(0), 1)),
            Unit::Steps => Some((self.recipe.effective_batch, 1)),
            Unit::Samples => Some((1, 1)),
            Unit::Tokens => Some((1, self.recipe.seq_len.unwrap_or(1))),
            Unit::Percent => None,
        }
    }

    /// Whether the recipe's schedule can be had in a run of these steps; in a ramp it counts full batches of
    /// samples.
    fn has_room(&self, total: u64, warmup: u64, holds_loss: bool) -> bool {
        let recipe = self.recipe;
        let Some(curve) = recipe.schedule else { return true };
        let ramped = !self.stages.is_empty();
        let (mut total, mut warm) = (total as f64, warmup as f64);
        if ramped {
            let samples = || lengths::samples(&self.stages, warmup) as f64 / self.batch as f64;
            let of_run = recipe.duration.and_then(|duration| self.in_batches(duration));
            total = of_run.filter(|_| !holds_loss).unwrap_or(total);
            warm = self.in_batches(recipe.warmup).unwrap_or_else(samples);
        }
        let steps = |length: Length| match self.in_batches(length).filter(|_| ramped) {
            Some(batches) => (batches + 0.5).floor(),
            None => self.interval(length).map_or(f64::INFINITY, |steps| steps as f64),
        };
        curve.is_spared(total, warm)
            || recipe.knows_units() && curve.fits((total, warm, recipe.min_lr / recipe.lr), steps)
    }

    /// The steps of the whole run, where it has an end; Megatron floors it.
    fn run(&self) -> Result<Option<u64>, Reason> {
        let floor = self.recipe.convention == Convention::Megatron;
        self.recipe.duration.map_or(Ok(None), |duration| self.steps(duration, None, floor))
    }

    /// The steps of the warmup in a run of `total` steps, rounded as the convention's tool rounds them.
    fn warmup(&self, total: Option<u64>) -> Result<Option<u64>, Reason> {
        let warmup = self.recipe.warmup;
        self.steps(warmup, total, self.recipe.convention.floors_warmup(warmup.unit))
    }

    /// The steps between two times that something is done, at the full batch of a ramp: the nearest number,
    /// at least 1.
    fn interval(&self, every: Length) -> Result<i64, Reason> {
        let (n, d) = match (every.unit, self.epoch) {
            (Unit::Epochs, Some(epoch)) => (epoch.steps, 1),
            (unit, _) => {
                let (n, d) = self.samples_in(unit).unwrap_or((self.recipe.effective_batch, 1));
                (n, d.checked_mul(self.batch).ok_or(Reason::TooLarge)?)
            }
        };
        every.round_of(n, d).map(|steps| as_column(steps.max(1))).ok_or(Reason::TooLarge)
    }

    /// The steps that a length takes; `None` for a share of a run without an end.
    #[inline]
    fn steps(&self, length: Length, total: Option<u64>, floor: bool) -> Result<Option<u64>, Reason> {
        let epoch = self.epoch.filter(|_| length.unit == Unit::Epochs && self.stages.is_empty());
        if let Some(epoch) = epoch {
            return length.ceil_of(epoch.steps, 1).ok_or(Reason::TooLarge).map(Some);
        }
        let Some((n, d)) = self.samples_in(length.unit) else {
            let share =
                |total| if floor { length.floor_of(total, 100) } else { length.share_in_floats(total) };
            return total.map(|total| share(total).ok_or(Reason::TooLarge)).transpose();
        };
        let round = |d: u64| if floor { length.floor_of(n, d) } else { length.ceil_of(n, d) };
        let steps = if self.stages.is_empty() {
            d.checked_mul(self.batch).and_then(round)
        } else {
            round(d).map(|samples| lengths::steps(&self.stages, samples, floor))
        };
        steps.map(Some).ok_or(Reason::TooLarge)
    }
}

/// The steps of the warmup at the tuned batch; `None` for a share of a run without an end.
pub(crate) fn tuned_warmup(recipe: &Recipe) -> Result<Option<u64>, Reason> {
    let clock = Clock::tuned(recipe)?;
    clock.warmup(clock.run()?)
}

/// Total, warmup and epoch in steps.
pub(super) fn steps(input: &Input, row: &mut Row, layout: Layout, gain: f64) -> Result<(), Reason> {
    let recipe = &input.recipe;
    let full = layout.effective_batch;
    // Of a run that is under way the whole is counted where it is moved. Here it is as if it had begun so;
    // where that cannot be, as if with the stages that are left.
    let stages = stages(recipe, full, 0).or_else(|_| stages(recipe, full, input.consumed))?;
    let clock = Clock::new(recipe, layout, stages);
    if let (Some(epoch), Some(dataset)) = (clock.epoch, recipe.dataset_size) {
        let short = layout.effective_batch > dataset;
        if epoch.steps == 0 || (short && !input.settings.short_epochs) {
            return Err(Reason::BatchAboveDataset);
        }
        row.reasons.insert_if(short, Reason::ShortEpochs);
        row.steps_per_epoch = as_column(epoch.steps);
        row.samples_per_epoch = as_column(epoch.served);
        row.padded_samples = as_column(epoch.padded);
        row.dropped_samples = as_column(epoch.dropped);
        let reasons = &mut row.reasons;
        reasons.insert_if(epoch.padded * 100 > dataset, Reason::Padded);
        reasons.insert_if(epoch.dropped * 100 > dataset, Reason::Dropped);
        reasons.insert_if(epoch.uneven_tail, Reason::UnevenTail);
    } else {
        row.steps_per_epoch = UNKNOWN;
        row.samples_per_epoch = UNKNOWN;
        row.padded_samples = UNKNOWN;
        row.dropped_samples = UNKNOWN;
    }
    // Where the loss is held, not the samples, the tuned steps are stretched.
    let holds_loss = row.rule.holds_loss() || input.settings.policy == Policy::Goodput;
    // A quotient that is whole must not become another number by its rounding.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and at most 2^53")]
    let stretched = |steps: Option<u64>, floor: bool| {
        let close = if floor { 1.0 + 4.0 * f64::EPSILON } else { 1.0 - 4.0 * f64::EPSILON };
        let exact = |steps: u64| steps as f64 / gain * close;
        steps.map(|steps| if floor { exact(steps).floor() } else { exact(steps).ceil() } as u64)
    };

    let floors = recipe.convention == Convention::Megatron;
    let total = if holds_loss { stretched(Clock::tuned(recipe)?.run()?, floors) } else { clock.run()? };
    if total == Some(0) {
        return Err(Reason::RunBelowStep);
    }
    let warmup = if recipe.warmup.is_zero() {
        Some(0)
    } else if recipe.optimizer.layer_wise() || holds_loss {
        let steps = tuned_warmup(recipe)?;
        if recipe.optimizer.layer_wise() {
            steps
        } else {
            stretched(steps, floors && recipe.convention.floors_warmup(recipe.warmup.unit))
        }
    } else {
        clock.warmup(total)?
    };
    if total.max(warmup).is_some_and(|steps| steps > MAX_COUNT) {
        return Err(Reason::TooLarge);
    }
    // The schedule of a run under way is that of its start.
    if let (Some(total), Some(warmup), 0) = (total, warmup, input.consumed)
        && !clock.has_room(total, warmup, holds_loss)
    {
        return Err(Reason::ScheduleUnmet);
    }
    let interval = |every: Option<Length>| every.map_or(Ok(UNKNOWN), |every| clock.interval(every));
    row.eval_steps = interval(recipe.eval_every)?;
    row.save_steps = interval(recipe.save_every)?;
    row.log_steps = interval(recipe.log_every)?;
    row.total_steps = total.map_or(UNKNOWN, as_column);
    row.warmup_steps = warmup.map_or(UNKNOWN, as_column);
    Ok(())
}
