//! Lengths in optimizer steps: the run, its warmup, an epoch, at the tuned batch and at the new one.

use super::row::{Row, UNKNOWN, as_column};
use crate::input::{Input, Policy, Recipe};
use crate::lengths::{self, Convention, Epoch, Layout, Length, MAX_COUNT, Stage, Unit};
use crate::reason::Reason;

/// The stages of the recipe's ramp when it ends at `full`, those left out that end before `consumed` samples; empty without one.
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
    let micro_batch = recipe.micro_batch.filter(|_| recipe.gpus.is_some()).unwrap_or(samples);
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
                Some(Epoch::of(dataset, layout, recipe.drop_last, convention, recipe.even_batches))
            }
        };
        Clock { recipe, batch: layout.effective_batch, epoch, stages }
    }

    fn tuned(recipe: &'a Recipe) -> Result<Clock<'a>, Reason> {
        Ok(Clock::new(recipe, tuned_layout(recipe), stages(recipe, recipe.effective_batch, 0)?))
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

    /// The steps between two times that something is done, at the full batch of a ramp: the nearest number, at least 1.
    fn interval(&self, every: Length) -> Result<i64, Reason> {
        let recipe = self.recipe;
        let (n, d) = match (every.unit, self.epoch) {
            (Unit::Epochs, Some(epoch)) => (epoch.steps, 1),
            (Unit::Epochs, None) => (recipe.dataset_size.unwrap_or(0), self.batch),
            (Unit::Tokens, _) => {
                (1, recipe.seq_len.unwrap_or(1).checked_mul(self.batch).ok_or(Reason::TooLarge)?)
            }
            (Unit::Samples, _) => (1, self.batch),
            (Unit::Steps | Unit::Percent, _) => (recipe.effective_batch, self.batch),
        };
        every.round_of(n, d).map(|steps| as_column(steps.max(1))).ok_or(Reason::TooLarge)
    }

    /// The steps that a length takes; `None` for a share of a run without an end.
    #[inline]
    fn steps(&self, length: Length, total: Option<u64>, floor: bool) -> Result<Option<u64>, Reason> {
        let recipe = self.recipe;
        // The length in samples is `length × n / d`.
        let (n, d) = match length.unit {
            Unit::Percent => {
                let share = |total| {
                    if floor { length.floor_of(total, 100) } else { length.share_in_floats(total) }
                };
                return total.map(|total| share(total).ok_or(Reason::TooLarge)).transpose();
            }
            Unit::Epochs => match self.epoch {
                Some(epoch) if self.stages.is_empty() => {
                    return length.ceil_of(epoch.steps, 1).ok_or(Reason::TooLarge).map(Some);
                }
                _ => (recipe.dataset_size.unwrap_or(0), 1),
            },
            Unit::Steps => (recipe.effective_batch, 1),
            Unit::Samples => (1, 1),
            Unit::Tokens => (1, recipe.seq_len.unwrap_or(1)),
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

/// The Trainer's `math.ceil(steps * warmup_ratio)`, in the floats that it takes it in: 7 % of 100 steps are 8.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive and bounded by its callers"
)]
/// The steps of the warmup at the tuned batch; `None` for a share of a run without an end.
pub(crate) fn tuned_warmup(recipe: &Recipe) -> Result<Option<u64>, Reason> {
    let clock = Clock::tuned(recipe)?;
    clock.warmup(clock.run()?)
}

/// Total, warmup and epoch in steps.
pub(super) fn steps(input: &Input, row: &mut Row, layout: Layout, gain: f64) -> Result<(), Reason> {
    let recipe = &input.recipe;
    let full = layout.effective_batch;
    // Of a run that is under way the whole is counted where it is moved. Here it is as if it had begun so; where that cannot be, as if
    // with the stages that are left.
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
    // Those that hold the loss, not the samples.
    let holds_loss = row.rule.holds_loss() || input.settings.policy == Policy::Goodput;
    // A quotient that is whole must not become one more by its rounding.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and at most 2^53")]
    let stretched = |steps: Option<u64>| {
        steps.map(|steps| (steps as f64 / gain * (1.0 - 4.0 * f64::EPSILON)).ceil() as u64)
    };

    let total = if holds_loss { stretched(Clock::tuned(recipe)?.run()?) } else { clock.run()? };
    if total == Some(0) {
        return Err(Reason::RunBelowStep);
    }
    let warmup = if recipe.warmup.is_zero() {
        Some(0)
    } else if recipe.optimizer.layer_wise() || holds_loss {
        let steps = tuned_warmup(recipe)?;
        if recipe.optimizer.layer_wise() { steps } else { stretched(steps) }
    } else {
        clock.warmup(total)?
    };
    if total.max(warmup).is_some_and(|steps| steps > MAX_COUNT) {
        return Err(Reason::TooLarge);
    }
    let interval = |every: Option<Length>| every.map_or(Ok(UNKNOWN), |every| clock.interval(every));
    row.eval_steps = interval(recipe.eval_every)?;
    row.save_steps = interval(recipe.save_every)?;
    row.log_steps = interval(recipe.log_every)?;
    row.total_steps = total.map_or(UNKNOWN, as_column);
    row.warmup_steps = warmup.map_or(UNKNOWN, as_column);
    Ok(())
}
