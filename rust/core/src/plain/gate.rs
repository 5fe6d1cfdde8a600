//! Which rows the lanes plan, and what they need of them.
//!
//! The settings, the recipe and the measured noise are taken apart without `..`: a new field does not compile until somebody
//! has decided here whether the lanes know it, do not depend on it, or leave such rows to the planner of single rows. A
//! property test draws every field, and fails where that decision is wrong.

use super::recipe::{One, Recipe, Recipes};
use super::steps::Steps;
use super::{BLOCK, flag, set, whole};
use crate::duration::{Convention, DropLast, Length, Unit};
use crate::input::{Field, Input, Job, Policy, Settings};
use crate::optimizer::{Decay, Optimizer};
use crate::plan::tuned_warmup;
use crate::reason::Reason;
use crate::scaling::{Noise, Rule};

impl One {
    /// That of a job; `None` where it is not plain.
    pub fn of(input: &Input) -> Option<One> {
        let Input { job, settings, .. } = input;
        // A batch that unequal devices share may not divide, and an average that is scaled takes a power.
        let divides = job.tuned_replicas().is_none_or(|tuned| job.effective_batch.is_multiple_of(tuned));
        let plain = (settings.policy != Policy::Grow || divides)
            && (settings.policy == Policy::Keep || job.ema_decay.is_nan());
        if !plain || input.invalid().is_some() {
            return None;
        }
        One::with(input, |job| tuned_warmup(job).ok())
    }

    /// What jobs have in common that differ in their numbers only: those of `input` may be missing.
    pub fn kind(input: &Input) -> Option<One> {
        // Beside numbers that are always legal, what is illegal is the rest.
        let mut sound = input.clone();
        let job = &mut sound.job;
        (job.effective_batch, job.lr, job.min_lr) = (1, 1.0, 0.0);
        (job.dataset_size, job.seq_len) = (Some(1), Some(1));
        (job.gpus, job.micro_batch, job.accumulation) = (None, None, None);
        if sound.job.unequal_devices || sound.invalid().is_some() {
            return None;
        }
        One::with(input, |job| {
            // The steps of the tuned run, which the planner counts too, are then those that the recipe says, or fewer.
            let plain = job.warmup.unit == Unit::Steps && job.duration.is_none_or(|d| d.unit != Unit::Epochs);
            plain.then(|| Some(job.warmup.fraction_of_ten().0))
        })
    }

    /// `tuned_warmup` gives the steps of a warmup that keeps them.
    #[allow(clippy::option_option, reason = "what the planner's gives, or that it cannot be had")]
    fn with(input: &Input, tuned_warmup: impl Fn(&Job) -> Option<Option<u64>>) -> Option<One> {
        let Input { job, settings, workloads, cluster: _, fault: _ } = input;
        if !workloads.is_empty() {
            return None;
        }
        one(job, &Asked::of(settings, job.optimizer)?, tuned_warmup)
    }
}

/// The lanes of one number.
pub(super) type LanesOf = fn(&mut Recipes) -> &mut [f64; BLOCK];

/// Where a job's numbers go; `None` for a field that the lanes do not know.
pub(super) fn lanes_of(field: Field) -> Option<LanesOf> {
    Some(match field {
        Field::EffectiveBatch => |recipes| &mut recipes.tuned_batch,
        Field::Lr => |recipes| &mut recipes.lr,
        Field::Momentum => |recipes| &mut recipes.momentum,
        Field::Eps => |recipes| &mut recipes.eps,
        Field::WeightDecay => |recipes| &mut recipes.weight_decay,
        Field::EmaDecay => |recipes| &mut recipes.ema_decay,
        Field::DatasetSize => |recipes| &mut recipes.dataset,
        Field::MinLr => |recipes| &mut recipes.min_lr,
        Field::SeqLen => |recipes| &mut recipes.seq_len,
        Field::Gpus => |recipes| &mut recipes.gpus,
        Field::MicroBatch => |recipes| &mut recipes.micro_batch,
        Field::Accumulation => |recipes| &mut recipes.accumulation,
        Field::ModelParallel => |recipes| &mut recipes.model_parallel,
        Field::NoiseScale => |recipes| &mut recipes.noise,
        Field::MaxMicroBatch => |recipes| &mut recipes.max_micro_batch,
        // What the lanes plan does not depend on these, but they must be legal.
        Field::Power
        | Field::SigmaSq
        | Field::MuSq
        | Field::Parameters
        | Field::ClipNorm
        | Field::BucketCapMb => |recipes| &mut recipes.unused,
        _ => return None,
    })
}

/// What the settings ask for.
struct Asked {
    policy: Policy,
    /// The rule that moves the learning rate.
    rule: Rule,
    max_micro_batch: Option<u64>,
}

impl Asked {
    /// `None` where the lanes do not know something that is asked for.
    fn of(settings: &Settings, optimizer: Optimizer) -> Option<Asked> {
        let Settings {
            policy,
            rule,
            max_micro_batch,
            max_batch,
            batch_tolerance,
            micro_batch_multiple,
            require_multiple: _, // Every micro-batch is a multiple of 1.
            ragged,
            uneven,
            beta_half_life,
            deadline_hours,
            budget,
        } = *settings;
        let plain = policy != Policy::Goodput
            && max_batch.is_none()
            && batch_tolerance == 0.0
            && micro_batch_multiple == 1
            && !(ragged || uneven || beta_half_life)
            && deadline_hours.is_nan()
            && budget.is_nan();
        let rule = if policy == Policy::Keep { Rule::None } else { rule.resolve(optimizer) };
        let plain = plain && matches!(rule, Rule::None | Rule::Linear | Rule::Sqrt);
        plain.then_some(Asked { policy, rule, max_micro_batch })
    }
}

/// The run and its warmup; `None` where they have no end that is known.
struct Lengths {
    total: Option<Steps<f64>>,
    warmup: Option<Steps<f64>>,
}

impl Lengths {
    #[allow(clippy::option_option, reason = "as in `with`")]
    fn of(job: &Job, tuned_warmup: impl Fn(&Job) -> Option<Option<u64>>) -> Option<Lengths> {
        let epochs = job.convention != Convention::Megatron;
        let of = |length: Length, floor| Steps::of(length, epochs, floor);
        let total = match job.duration {
            Some(duration) => Some(of(duration, !epochs)?),
            None => None,
        };
        let warmup = if job.warmup.is_zero() {
            Some(Steps::NONE)
        } else if job.optimizer.layer_wise() {
            match tuned_warmup(job)? {
                Some(steps) => Some(Steps::fixed(steps)?),
                None => None,
            }
        } else if job.warmup.unit == Unit::Percent && total.is_none() {
            None
        } else {
            Some(of(job.warmup, false)?)
        };
        Some(Lengths { total, warmup })
    }
}

/// What the lanes need of a job; `None` where they do not know something of it.
#[allow(clippy::too_many_lines, clippy::option_option, reason = "one line a field; and as in `with`")]
fn one(job: &Job, asked: &Asked, tuned_warmup: impl Fn(&Job) -> Option<Option<u64>>) -> Option<One> {
    let &Job {
        effective_batch,
        lr,
        optimizer,
        momentum,
        betas: _, // In `moments`,
        eps: _,   // as this.
        weight_decay,
        decay,
        ema_decay,
        dataset_size,
        duration,
        warmup,
        min_lr,
        seq_len,
        drop_last: DropLast { sampler, loader },
        convention,
        gpus,
        micro_batch,
        accumulation,
        model_parallel,
        // The rest is for rules that the lanes do not know.
        noise: Noise { scale, sigma_sq: _, mu_sq: _, power: _ },
        ref ramp,
        parameters: _, // Without a profile no plan depends on it.
        batch_norm,
        unequal_devices,
    } = job;
    if ramp.is_some() {
        return None;
    }
    let Lengths { total, warmup: warmup_steps } = Lengths::of(job, tuned_warmup)?;
    let moments = job.moments();
    let keep = asked.policy == Policy::Keep;
    let (linear, root) = (asked.rule == Rule::Linear, asked.rule == Rule::Sqrt);
    let epochs = convention != Convention::Megatron;
    let transformers = convention == Convention::Transformers;
    let counted = |unit| duration.is_some_and(|d| d.unit == unit) || warmup.unit == unit;
    let known = |n: Option<u64>| n.map_or(f64::NAN, |n| n as f64);
    let impossible = [
        (!batch_norm, Reason::BatchNormMoved),
        (!root, Reason::SqrtScaleDown),
        (!linear, Reason::RuleRange),
        (keep || warmup_steps.is_none(), Reason::NoWarmup),
        (total.is_none(), Reason::WarmupPastEnd),
        (total.is_none(), Reason::WarmupLong),
    ];
    Some(Recipe {
        tuned_batch: effective_batch as f64,
        lr,
        weight_decay,
        momentum,
        ema_decay,
        eps: moments.eps,
        noise: scale,
        min_lr,
        micro_batch: known(micro_batch),
        accumulation: known(accumulation),
        gpus: known(gpus),
        model_parallel: model_parallel as f64,
        max_micro_batch: known(asked.max_micro_batch),
        dataset: whole(dataset_size.unwrap_or(0))?,
        seq_len: seq_len.unwrap_or(0) as f64,
        batch: if let Policy::Batch(batch) = asked.policy { batch as f64 } else { 0.0 },
        keeps: flag(keep),
        grows: flag(asked.policy == Policy::Grow),
        linear: flag(linear),
        root: flag(root),
        beta1: moments.beta1,
        beta2: moments.beta2,
        decay_moves: flag(optimizer == Optimizer::AdamW),
        decay_by_lr: flag(decay != Some(Decay::Independent)),
        decay_unsaid: flag(job.decay_unsaid()),
        epochs: flag(epochs),
        sampler_up: flag(!if transformers { loader } else { sampler }),
        loader_up: flag(!loader),
        whole_from: match (loader, transformers) {
            (true, _) => 1.0,
            // Where there is one process, Accelerate leaves the loader alone.
            (false, true) => 2.0,
            (false, false) => f64::INFINITY,
        },
        ends: flag(total.is_some()),
        warms: flag(warmup_steps.is_some()),
        in_epochs: flag(counted(Unit::Epochs)),
        in_tokens: flag(counted(Unit::Tokens)),
        unused: 0.0,
        second_moment_steps: if optimizer.adam_like() { 1.0 / (1.0 - moments.beta2) } else { f64::NAN },
        total: total.unwrap_or(Steps::NONE),
        warmup: warmup_steps.unwrap_or(Steps::NONE),
        always: set([(unequal_devices, Reason::UnequalDevices)]),
        if_moved: set([
            (asked.rule.mismatches(optimizer), Reason::RuleMismatch),
            (root && !optimizer.charted(), Reason::RuleAssumed),
        ]),
        possible: !set(impossible),
    })
}
