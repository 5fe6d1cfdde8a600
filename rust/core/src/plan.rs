//! One row: from a recipe, a cluster and the settings to a plan, or to the reasons why there is none.

use crate::batch::{self, Split};
use crate::duration::{Convention, Epoch, Layout, Length, MAX_COUNT, Unit};
use crate::input::{Input, Job, Policy};
use crate::optimizer::{self, Decay, Moments, Optimizer};
use crate::outlook::{self, Outlook};
use crate::ramp::{self, Stage};
use crate::reason::{Reason, Reasons};
use crate::scaling::{self, Rule};

/// A count that is not known, in a column.
pub const UNKNOWN: i64 = -1;

/// The result columns of one row; [`UNKNOWN`] or NaN where a value is not known or there is no plan.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the columns are documented once, for users, in docs/fleet.md")]
pub struct Row {
    pub reasons: Reasons,
    pub rule: Rule,
    pub world_size: i64,
    pub data_parallel: i64,
    pub micro_batch: i64,
    pub accumulation: i64,
    pub effective_batch: i64,
    pub batch_change: f64,
    pub lr: f64,
    pub lr_scale: f64,
    pub moments: Moments,
    pub weight_decay: f64,
    pub momentum: f64,
    pub ema_decay: f64,
    /// Where the warmup starts.
    pub warmup_lr: f64,
    pub min_lr: f64,
    pub warmup_steps: i64,
    pub steps_per_epoch: i64,
    pub total_steps: i64,
    pub samples_per_epoch: i64,
    pub padded_samples: i64,
    pub dropped_samples: i64,
    pub nearest_world_size: Nearest,
    pub nearest_batch: Nearest,
    pub cap: Cap,
    pub outlook: Outlook,
}

/// The values that would work, next to one that does not; [`UNKNOWN`] where there is none.
#[derive(Clone, Copy, Debug)]
pub struct Nearest {
    /// The largest below.
    pub below: i64,
    /// The smallest above.
    pub above: i64,
    /// The nearer of the two, ties to the smaller.
    pub nearest: i64,
}

impl Nearest {
    const NONE: Nearest = Nearest { below: UNKNOWN, above: UNKNOWN, nearest: UNKNOWN };

    fn of(value: u64, below: Option<u64>, above: Option<u64>) -> Nearest {
        let column = |n: Option<u64>| n.map_or(UNKNOWN, as_column);
        Nearest {
            below: column(below),
            above: column(above),
            nearest: column(batch::nearer(value, below, above)),
        }
    }
}

/// What limits the micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// `max_micro_batch`.
    Asked(u64),
    /// The GPU's memory, by the profile.
    Memory(u64),
    /// The tuned micro-batch.
    Tuned(u64),
    /// Nothing.
    Open,
}

impl Cap {
    fn of(input: &Input) -> Cap {
        match (input.settings.max_micro_batch, input.job.micro_batch) {
            (Some(cap), _) => Cap::Asked(cap),
            (None, Some(cap)) => Cap::Tuned(cap),
            (None, None) => Cap::Open,
        }
    }

    /// The largest micro-batch allowed.
    #[must_use]
    pub fn samples(self) -> u64 {
        match self {
            Cap::Asked(samples) | Cap::Memory(samples) | Cap::Tuned(samples) => samples,
            Cap::Open => u64::MAX,
        }
    }
}

#[allow(clippy::cast_possible_wrap, reason = "every count is at most 2^53")]
fn as_column(n: u64) -> i64 {
    n as i64
}

/// Plans one row into `row`. Never panics: what cannot be planned says why, and what would work instead.
pub fn plan(input: &Input, row: &mut Row) {
    attempt(input, row, neighbouring_replicas);
}

/// As [`plan`], without what would work instead: to find that takes longer than most plans.
pub fn plan_or_not(input: &Input, row: &mut Row) {
    attempt(input, row, |_, _, _, _| (None, None));
}

/// (batch, divisor, GPUs, model parallelism) → the GPU counts next to these that work.
type Seek = fn(u64, u64, u64, u64) -> (Option<u64>, Option<u64>);

fn attempt(input: &Input, row: &mut Row, seek: Seek) {
    row.reasons = Reasons::default();
    row.rule = input.settings.rule;
    row.nearest_world_size = Nearest::NONE;
    row.nearest_batch = Nearest::NONE;
    row.cap = Cap::of(input);
    let found = match input.invalid() {
        Some(field) => {
            (row.world_size, row.data_parallel) = (UNKNOWN, UNKNOWN);
            Err(field.reason())
        }
        None => fill(input, row, seek),
    };
    if let Err(reason) = found {
        row.reasons.insert(reason);
        row.forget();
    }
}

impl Row {
    /// A row that holds nothing yet.
    #[must_use]
    pub fn unknown() -> Row {
        const NAN: f64 = f64::NAN;
        Row {
            reasons: Reasons::default(),
            rule: Rule::None,
            world_size: UNKNOWN,
            data_parallel: UNKNOWN,
            micro_batch: UNKNOWN,
            accumulation: UNKNOWN,
            effective_batch: UNKNOWN,
            batch_change: NAN,
            lr: NAN,
            lr_scale: NAN,
            moments: Moments { beta1: NAN, beta2: NAN, eps: NAN },
            weight_decay: NAN,
            momentum: NAN,
            ema_decay: NAN,
            warmup_lr: NAN,
            min_lr: NAN,
            warmup_steps: UNKNOWN,
            steps_per_epoch: UNKNOWN,
            total_steps: UNKNOWN,
            samples_per_epoch: UNKNOWN,
            padded_samples: UNKNOWN,
            dropped_samples: UNKNOWN,
            nearest_world_size: Nearest::NONE,
            nearest_batch: Nearest::NONE,
            cap: Cap::Open,
            outlook: Outlook::UNKNOWN,
        }
    }

    /// Half a plan is no plan: of an infeasible row only the cluster's shape and the ways out are kept.
    fn forget(&mut self) {
        let Row { reasons, rule, world_size, data_parallel, nearest_world_size, nearest_batch, cap, .. } =
            *self;
        *self = Row {
            reasons,
            rule,
            world_size,
            data_parallel,
            nearest_world_size,
            nearest_batch,
            cap,
            ..Row::unknown()
        };
    }
}

fn fill(input: &Input, row: &mut Row, seek: Seek) -> Result<(), Reason> {
    let Input { job, cluster, settings, .. } = input;
    let world_size = cluster.nodes * cluster.gpus_per_node;
    let model_parallel = cluster.model_parallel.unwrap_or(job.model_parallel);
    row.world_size = as_column(world_size);
    row.data_parallel = UNKNOWN;
    let divisor = if settings.require_multiple { settings.micro_batch_multiple } else { 1 };
    if !world_size.is_multiple_of(model_parallel) {
        let (below, above) = match settings.policy {
            Policy::Batch(batch) => seek(batch, divisor, world_size, model_parallel),
            Policy::Grow => {
                let (below, above) = batch::neighbours(world_size, model_parallel);
                (below, Some(above))
            }
            _ => seek(job.effective_batch, divisor, world_size, model_parallel),
        };
        row.nearest_world_size = Nearest::of(world_size, below, above);
        return Err(Reason::ModelParallel);
    }
    let replicas = world_size / model_parallel;
    row.data_parallel = as_column(replicas);
    let foreseen = !input.workloads.is_empty();
    if foreseen
        && settings.max_micro_batch.is_none()
        && let Some(cap) = outlook::memory_cap(input)?
    {
        row.cap = Cap::Memory(cap);
    }

    let target = target(input, row, replicas, model_parallel, divisor)?;
    let chosen = choose(input, row, target, replicas, model_parallel, divisor, seek)?;
    let Layout { effective_batch, micro_batch, accumulation, .. } = chosen;
    if micro_batch.max(accumulation) > i32::MAX as u64 {
        return Err(Reason::TooLarge);
    }
    row.effective_batch = as_column(effective_batch);
    row.micro_batch = as_column(micro_batch);
    row.accumulation = as_column(accumulation);
    row.batch_change = effective_batch as f64 / job.effective_batch as f64 - 1.0;

    let gain = scale(input, row, effective_batch)?;
    lengths(input, row, chosen, gain)?;
    caution(input, row, chosen);
    if foreseen {
        outlook::foresee(input, row);
    }
    outlook::within_limits(input, row)
}

/// GPU counts next to `world_size` over whose replicas `batch` divides in multiples of `divisor`.
fn neighbouring_replicas(
    batch: u64,
    divisor: u64,
    world_size: u64,
    model_parallel: u64,
) -> (Option<u64>, Option<u64>) {
    if !batch.is_multiple_of(divisor) {
        return (None, None);
    }
    let batch = batch / divisor;
    let below = (world_size >= model_parallel)
        .then(|| batch::nearest_divisors(batch, world_size / model_parallel).0 * model_parallel);
    let above =
        batch::nearest_divisors(batch, world_size.div_ceil(model_parallel)).1.map(|d| d * model_parallel);
    (below, above)
}

/// The effective batch that the policy asks for.
fn target(
    input: &Input,
    row: &mut Row,
    replicas: u64,
    model_parallel: u64,
    divisor: u64,
) -> Result<u64, Reason> {
    let Input { job, settings, .. } = input;
    match settings.policy {
        Policy::Keep => Ok(job.effective_batch),
        Policy::Batch(batch) => Ok(batch),
        Policy::Goodput => outlook::best_batch(input, replicas, row.cap.samples(), divisor),
        Policy::Grow => match (job.tuned_replicas(), settings.max_micro_batch) {
            (Some(tuned), _) => {
                let samples = u128::from(job.effective_batch) * u128::from(replicas);
                if !samples.is_multiple_of(tuned.into()) {
                    // Only with unequal devices: the batch per replica is then a fraction.
                    let unit = tuned / gcd(tuned, job.effective_batch);
                    let (below, above) = batch::neighbours(replicas, unit);
                    let gpus = |r: u64| r * model_parallel;
                    row.nearest_world_size = Nearest::of(gpus(replicas), below.map(gpus), Some(gpus(above)));
                    return Err(Reason::NotDivisible);
                }
                u64::try_from(samples / u128::from(tuned))
                    .ok()
                    .filter(|&b| b <= batch::MAX_BATCH)
                    .ok_or(Reason::TooLarge)
            }
            (None, Some(micro)) => {
                micro.checked_mul(replicas).filter(|&b| b <= batch::MAX_BATCH).ok_or(Reason::TooLarge)
            }
            (None, None) => Err(Reason::NeedsTunedGpus),
        },
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The batch nearest to the target that can be laid out here, and how.
fn choose(
    input: &Input,
    row: &mut Row,
    target: u64,
    replicas: u64,
    model_parallel: u64,
    divisor: u64,
    seek: Seek,
) -> Result<Layout, Reason> {
    let settings = &input.settings;
    let max_batch = settings.max_batch.unwrap_or(u64::MAX);
    let cap = row.cap.samples();
    let unit = replicas * divisor;
    let layout = |effective_batch, Split { micro_batch, accumulation }, ragged| Layout {
        effective_batch,
        data_parallel: replicas,
        micro_batch,
        accumulation,
        ragged,
    };
    if cap < divisor {
        return Err(Reason::MultipleUnmet);
    }
    if target > max_batch && settings.batch_tolerance == 0.0 {
        return Err(Reason::AboveMaxBatch);
    }

    let flexible = target >= replicas && target <= max_batch && input.job.ramp.is_none();
    if settings.ragged && flexible {
        let largest = target.div_ceil(replicas);
        let ragged = batch::ragged(largest, cap);
        let exact = target.is_multiple_of(replicas) && largest.is_multiple_of(ragged.accumulation);
        row.reasons.insert_if(!exact, Reason::Ragged);
        let missed = !ragged.micro_batch.is_multiple_of(settings.micro_batch_multiple);
        row.reasons.insert_if(missed, Reason::MultipleMissed);
        return Ok(layout(target, ragged, !exact));
    }
    if settings.uneven && flexible && !target.is_multiple_of(replicas) {
        // As many micro-batches as replicas at least, so that every replica has one.
        if let Some(split) = batch::split(target, cap.min(target / replicas), divisor) {
            row.reasons.insert(Reason::Uneven);
            let accumulation = split.accumulation.div_ceil(replicas);
            return Ok(layout(target, Split { accumulation, ..split }, true));
        }
    }

    let below = batch::neighbours(target.min(max_batch), unit).0;
    let effective_batch = if below == Some(target) {
        target
    } else {
        let above = Some(batch::neighbours(target, unit).1).filter(|&b| b <= max_batch.min(batch::MAX_BATCH));
        let nearest = batch::nearer(target, below, above);
        let moved = |b: u64| b.abs_diff(target) as f64 / target as f64;
        match nearest {
            Some(b) if moved(b) <= settings.batch_tolerance => b,
            _ if target > max_batch => return Err(Reason::AboveMaxBatch),
            _ => {
                row.nearest_batch = Nearest::of(target, below, above);
                let gpus = replicas * model_parallel;
                // Under grow the batch moves with the GPUs: another count of them is no way out.
                let (below, above) = match settings.policy {
                    Policy::Grow => (None, None),
                    _ => seek(target, divisor, gpus, model_parallel),
                };
                row.nearest_world_size = Nearest::of(gpus, below, above);
                let divides = target.is_multiple_of(replicas);
                return Err(if divides { Reason::MultipleUnmet } else { Reason::NotDivisible });
            }
        }
    };
    row.reasons.insert_if(effective_batch != target, Reason::BatchMoved);
    // With a ramp, the micro-batch must divide every batch on the way.
    let common =
        stages(&input.job, effective_batch)?.iter().fold(effective_batch, |common, s| gcd(common, s.batch));
    if common != effective_batch && !common.is_multiple_of(unit) {
        return Err(Reason::RampNotDivisible);
    }
    let preferred = batch::split(common / replicas, cap, settings.micro_batch_multiple);
    let split = match preferred {
        Some(split) => split,
        None if settings.require_multiple => return Err(Reason::MultipleUnmet),
        None => {
            row.reasons.insert(Reason::MultipleMissed);
            batch::split(common / replicas, cap, 1).ok_or(Reason::MultipleUnmet)?
        }
    };
    let longer = effective_batch / common;
    Ok(layout(effective_batch, Split { accumulation: split.accumulation * longer, ..split }, false))
}

/// The stages of the recipe's ramp when it ends at `full`; empty without one.
///
/// # Errors
/// When the ramp has no whole batches on the way to `full`.
pub fn stages(job: &Job, full: u64) -> Result<Vec<Stage>, Reason> {
    job.ramp.as_ref().map_or(Ok(Vec::new()), |ramp| {
        ramp.stages(full, job.effective_batch, job.seq_len).ok_or(Reason::RampNotDivisible)
    })
}

/// Moves the learning rate and what goes with it; gives the optimizer steps of the tuned run that one new step is worth.
fn scale(input: &Input, row: &mut Row, effective_batch: u64) -> Result<f64, Reason> {
    let Input { job, settings, .. } = input;
    let keep = settings.policy == Policy::Keep;
    let (from, to) = (job.effective_batch as f64, effective_batch as f64);
    let k = if keep { 1.0 } else { to / from };
    let rule = if keep { Rule::None } else { settings.rule.resolve(job.optimizer) };
    row.rule = rule;

    // At the tuned batch nothing moves, whatever has been measured.
    let lr_scale = if effective_batch == job.effective_batch || keep {
        1.0
    } else {
        scaling::lr_scale(rule, from, to, job.noise)
    };
    if lr_scale.is_nan() {
        return Err(if rule == Rule::Power { Reason::NeedsPower } else { Reason::NeedsNoise });
    }
    row.lr_scale = lr_scale;
    row.lr = job.lr * lr_scale;
    if !row.lr.is_finite() || row.lr <= 0.0 {
        return Err(Reason::TooLarge);
    }
    row.min_lr = job.min_lr * lr_scale;
    row.warmup_lr = if rule == Rule::Linear && k > 1.0 { job.lr } else { 0.0 };

    let tuned = job.moments();
    row.moments = match rule {
        Rule::Sde => tuned.sde(k),
        _ if settings.beta_half_life && !keep => tuned.half_life(k),
        _ => tuned,
    };
    // 10 × (1 − 0.9) is below 1 in floats.
    let gone = |new: f64, old: f64| new < 1e-12 && old > 0.0;
    let sde = row.moments;
    if rule == Rule::Sde && (gone(sde.beta1, tuned.beta1) || gone(sde.beta2, tuned.beta2)) {
        return Err(Reason::BetaNotPositive);
    }
    let gain = match settings.policy {
        Policy::Goodput => outlook::gain(input, to)?,
        _ if rule == Rule::Adascale => lr_scale,
        _ => k,
    };
    row.weight_decay = if job.optimizer == Optimizer::AdamW && moves(lr_scale) && job.weight_decay > 0.0 {
        optimizer::decay(job.weight_decay, job.decay.unwrap_or(Decay::LrMultiplied), k, lr_scale, k / gain)
    } else {
        job.weight_decay
    };
    row.momentum = job.momentum;
    row.ema_decay = if keep || job.ema_decay.is_nan() { job.ema_decay } else { job.ema_decay.powf(k) };
    Ok(gain)
}

#[allow(clippy::float_cmp, reason = "exactly 1 is how a rule says that nothing moves")]
fn moves(lr_scale: f64) -> bool {
    lr_scale != 1.0
}

/// The layout on which the recipe was tuned, as far as it is known.
fn tuned_layout(job: &Job) -> Layout {
    let effective_batch = job.effective_batch;
    let data_parallel = job.tuned_replicas().unwrap_or(1);
    let samples = effective_batch.div_ceil(data_parallel);
    let micro_batch = job.micro_batch.filter(|_| job.gpus.is_some()).unwrap_or(samples);
    let accumulation = samples.div_ceil(micro_batch);
    let ragged = micro_batch * accumulation * data_parallel != effective_batch;
    Layout { effective_batch, data_parallel, micro_batch, accumulation, ragged }
}

/// A way to turn lengths into optimizer steps: at the tuned batch or at the new one.
struct Clock<'a> {
    job: &'a Job,
    batch: u64,
    epoch: Option<Epoch>,
    stages: Vec<Stage>,
}

impl<'a> Clock<'a> {
    fn new(job: &'a Job, layout: Layout, stages: Vec<Stage>) -> Clock<'a> {
        let epoch = match (job.dataset_size, job.convention) {
            (None, _) | (_, Convention::Megatron) => None,
            (Some(dataset), convention) => Some(Epoch::of(dataset, layout, job.drop_last, convention)),
        };
        Clock { job, batch: layout.effective_batch, epoch, stages }
    }

    fn tuned(job: &'a Job) -> Result<Clock<'a>, Reason> {
        Ok(Clock::new(job, tuned_layout(job), stages(job, job.effective_batch)?))
    }

    /// The steps of the whole run, where it has an end; Megatron floors it.
    fn run(&self) -> Result<Option<u64>, Reason> {
        let floor = self.job.convention == Convention::Megatron;
        self.job.duration.map_or(Ok(None), |duration| self.steps(duration, None, floor))
    }

    /// The steps of the warmup in a run of `total` steps.
    fn warmup(&self, total: Option<u64>) -> Result<Option<u64>, Reason> {
        self.steps(self.job.warmup, total, false)
    }

    /// The steps that a length takes; `None` for a share of a run without an end.
    #[inline]
    fn steps(&self, length: Length, total: Option<u64>, floor: bool) -> Result<Option<u64>, Reason> {
        let job = self.job;
        // The length in samples is `length × n / d`.
        let (n, d) = match length.unit {
            Unit::Percent => {
                return total.map(|total| length.floor_of(total, 100).ok_or(Reason::TooLarge)).transpose();
            }
            Unit::Epochs => match self.epoch {
                Some(epoch) if self.stages.is_empty() => {
                    return length.ceil_of(epoch.steps, 1).ok_or(Reason::TooLarge).map(Some);
                }
                _ => (job.dataset_size.unwrap_or(0), 1),
            },
            Unit::Steps => (job.effective_batch, 1),
            Unit::Samples => (1, 1),
            Unit::Tokens => (1, job.seq_len.unwrap_or(1)),
        };
        let round = |d: u64| if floor { length.floor_of(n, d) } else { length.ceil_of(n, d) };
        let steps = if self.stages.is_empty() {
            d.checked_mul(self.batch).and_then(round)
        } else {
            round(d).map(|samples| ramp::steps(&self.stages, samples, floor))
        };
        steps.map(Some).ok_or(Reason::TooLarge)
    }
}

/// The steps of the warmup at the tuned batch; `None` for a share of a run without an end.
pub(crate) fn tuned_warmup(job: &Job) -> Result<Option<u64>, Reason> {
    let clock = Clock::tuned(job)?;
    clock.warmup(clock.run()?)
}

/// Total, warmup and epoch in steps.
fn lengths(input: &Input, row: &mut Row, layout: Layout, gain: f64) -> Result<(), Reason> {
    let job = &input.job;
    let clock = Clock::new(job, layout, stages(job, layout.effective_batch)?);
    if let (Some(epoch), Some(dataset)) = (clock.epoch, job.dataset_size) {
        if epoch.steps == 0 || layout.effective_batch > dataset {
            return Err(Reason::BatchAboveDataset);
        }
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
    let holds_loss = row.rule == Rule::Adascale || input.settings.policy == Policy::Goodput;
    // A quotient that is whole must not become one more by its rounding.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and at most 2^53")]
    let stretched = |steps: Option<u64>| {
        steps.map(|steps| (steps as f64 / gain * (1.0 - 4.0 * f64::EPSILON)).ceil() as u64)
    };

    let total = if holds_loss { stretched(Clock::tuned(job)?.run()?) } else { clock.run()? };
    if total == Some(0) {
        return Err(Reason::RunBelowStep);
    }
    let warmup = if job.warmup.is_zero() {
        Some(0)
    } else if job.optimizer.layer_wise() || holds_loss {
        let steps = tuned_warmup(job)?;
        if job.optimizer.layer_wise() { steps } else { stretched(steps) }
    } else {
        clock.warmup(total)?
    };
    if total.max(warmup).is_some_and(|steps| steps > MAX_COUNT) {
        return Err(Reason::TooLarge);
    }
    row.total_steps = total.map_or(UNKNOWN, as_column);
    row.warmup_steps = warmup.map_or(UNKNOWN, as_column);
    Ok(())
}

/// What to be wary of in a plan that stands.
#[inline]
fn caution(input: &Input, row: &mut Row, layout: Layout) {
    let Input { job, settings, .. } = input;
    let k = layout.effective_batch as f64 / job.effective_batch as f64;
    let rule = row.rule;
    let grew = settings.policy != Policy::Keep && k > 1.0;
    let noise = job.noise.scale;
    let moved = moves(row.lr_scale);
    let Row { reasons, moments, warmup_steps, total_steps, .. } = row;
    let mut when = |condition: bool, reason: Reason| reasons.insert_if(condition, reason);

    when(job.unequal_devices, Reason::UnequalDevices);
    if let Some(tuned) = job.micro_batch {
        when(layout.micro_batch * 2 <= tuned, Reason::MicroBatchShrunk);
        when(job.batch_norm && layout.micro_batch != tuned, Reason::BatchNormMoved);
    }
    when(layout.effective_batch as f64 > noise, Reason::AboveCriticalBatch);
    when(k > 8.0 && noise.is_nan(), Reason::LargeGrowth);
    if moved {
        when(rule.mismatches(job.optimizer), Reason::RuleMismatch);
        when(!job.optimizer.charted() && rule == Rule::Sqrt, Reason::RuleAssumed);
        when(rule == Rule::Sqrt && k < 0.125, Reason::SqrtScaleDown);
        let past_goyal = job.seq_len.is_none() && layout.effective_batch > 8192;
        let past_noise = layout.effective_batch as f64 > noise;
        when(rule == Rule::Linear && (past_goyal || past_noise), Reason::RuleRange);
        when(job.decay_unknown(), Reason::DecayUnknown);
    }
    when(rule == Rule::Sde && moments.beta1 < 0.5, Reason::Beta1Low);
    when(*warmup_steps == 0 && grew, Reason::NoWarmup);
    let ends = *total_steps != UNKNOWN;
    when(ends && *warmup_steps > *total_steps, Reason::WarmupPastEnd);
    when(ends && *warmup_steps * 5 > *total_steps, Reason::WarmupLong);
    let memory = 1.0 / (1.0 - moments.beta2);
    when(
        *warmup_steps > 0 && job.optimizer.adam_like() && (*warmup_steps as f64) < memory,
        Reason::WarmupShort,
    );
}
