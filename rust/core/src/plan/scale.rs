//! The learning rate, and what goes with it.

use super::row::Row;
use crate::input::{Input, Policy};
use crate::optimizer::{self, Decay, Optimizer};
use crate::outlook;
use crate::reason::Reason;
use crate::scaling::{self, Rule};

/// Moves the learning rate and what goes with it; gives the optimizer steps of the tuned run that one new step is worth.
pub(super) fn scale(input: &Input, row: &mut Row, effective_batch: u64) -> Result<f64, Reason> {
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
pub(super) fn moves(lr_scale: f64) -> bool {
    lr_scale != 1.0
}
