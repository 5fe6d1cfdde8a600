//! The learning rate, and what goes with it.

use super::row::Row;
use crate::forecast::ClusterProfile;
use crate::input::{Input, Policy, Recipe};
use crate::reason::Reason;
use crate::rules::{self, Decay, Optimizer, Rule};

/// Moves the learning rate and what goes with it; gives the optimizer steps of the tuned run that one new
/// step is worth.
pub(super) fn scale(
    input: &Input,
    profile: Option<&ClusterProfile<'_>>,
    row: &mut Row,
    effective_batch: u64,
) -> Result<f64, Reason> {
    let Input { recipe, settings, .. } = input;
    if recipe.ramp.is_some() {
        // Any batch but the full one shows whether the rule has what it needs.
        ramp_scale(recipe, settings.ramp_rule.0, effective_batch, effective_batch + 1)?;
    }
    let keep = settings.policy == Policy::Keep;
    let (from, to) = (recipe.effective_batch as f64, effective_batch as f64);
    let k = if keep { 1.0 } else { to / from };
    let rule = if keep { Rule::None } else { settings.rule.resolve(recipe.optimizer, recipe.knows_noise()) };
    row.rule = rule;

    // At the tuned batch nothing moves, whatever has been measured.
    let lr_scale = if effective_batch == recipe.effective_batch || keep {
        1.0
    } else {
        rules::lr_scale(rule, from, to, recipe.noise())
    };
    if lr_scale.is_nan() {
        return Err(if rule == Rule::Power { Reason::NeedsPower } else { Reason::NeedsNoise });
    }
    let by_length = settings.lr_by_duration();
    let lr_scale = lr_scale * by_length;
    row.lr_scale = lr_scale;
    row.lr = recipe.lr * lr_scale;
    if !row.lr.is_finite() || row.lr <= 0.0 {
        return Err(Reason::TooLarge);
    }
    row.min_lr = recipe.min_lr * lr_scale;
    // Goyal's start is the rate of a run tuned without a warmup. Below k = 2 it falls to the 0 of the tuned
    // run, so that a little larger batch does not end a recipe's own warmup.
    let start = recipe.lr * by_length * (k - 1.0).min(1.0);
    row.warmup_lr = if rule == Rule::Linear && k > 1.0 { start } else { 0.0 };

    let tuned = recipe.moments();
    let moments = match rule {
        Rule::Sde => tuned.sde(k),
        Rule::SdeSmooth => tuned.sde_smooth(k),
        _ if settings.beta2_rule.half_life && !keep => tuned.half_life(k),
        _ => tuned,
    };
    // 10 × (1 − 0.9) is below 1 in floats. A floor does not make the rule hold where it has none.
    let gone = |new: f64, old: f64| new < 1e-12 && old > 0.0;
    if rule == Rule::Sde && (gone(moments.beta1, tuned.beta1) || gone(moments.beta2, tuned.beta2)) {
        return Err(Reason::BetaNotPositive);
    }
    row.moments = moments.floored(tuned, settings.beta2_rule.floor);
    let gain = match settings.policy {
        Policy::Goodput => profile.ok_or(Reason::NeedsProfile)?.gain(to)?,
        _ if rule.holds_loss() && moves(k) => rules::lr_scale(Rule::Adascale, from, to, recipe.noise()),
        _ => k,
    };
    row.weight_decay = weight_decay(input, k, lr_scale, k / gain);
    if !row.weight_decay.is_finite() || row.moments.beta1 >= 1.0 || row.moments.beta2 >= 1.0 {
        return Err(Reason::TooLarge);
    }
    row.momentum = recipe.momentum;
    row.ema_decay =
        if keep || recipe.ema_decay.is_nan() { recipe.ema_decay } else { recipe.ema_decay.powf(k) };
    Ok(gain)
}

/// The decay beside a batch that moved by `k`, a learning rate by `lr_scale`, and samples to the same loss by
/// `stretch`.
fn weight_decay(input: &Input, k: f64, lr_scale: f64, stretch: f64) -> f64 {
    let Input { recipe, settings, .. } = input;
    let ratio = settings.followed_ratio();
    let decay = recipe.weight_decay;
    // Also where the learning rate stays: more samples a step stretch the timescale.
    if decay == 0.0 || !(moves(k) || moves(ratio)) {
        return decay;
    }
    let stretch = stretch * ratio;
    match (recipe.optimizer, recipe.decay.unwrap_or(Decay::LrMultiplied)) {
        (Optimizer::AdamW, semantics) => rules::decay(decay, semantics, k, lr_scale, stretch),
        // Its root has the learning rate of the batch in it, but not that of the length.
        (Optimizer::Muon, Decay::Sqrt) => {
            rules::decay(decay, Decay::Sqrt, k, lr_scale, stretch * settings.lr_by_duration())
        }
        _ => decay,
    }
}

/// The learning rate of a step of `batch` samples in the ramp, over that at `full`, the batch at its end.
///
/// # Errors
/// When the rule needs something that was not measured.
pub fn ramp_scale(recipe: &Recipe, rule: Rule, full: u64, batch: u64) -> Result<f64, Reason> {
    let rule = rule.resolve(recipe.optimizer, recipe.knows_noise());
    if rule == Rule::None || batch == full {
        return Ok(1.0);
    }
    let scale = rules::lr_scale(rule, full as f64, batch as f64, recipe.noise());
    let unknown = if rule == Rule::Power { Reason::NeedsPower } else { Reason::NeedsNoise };
    if scale.is_nan() { Err(unknown) } else { Ok(scale) }
}

#[allow(clippy::float_cmp, reason = "exactly 1 where nothing moves")]
pub(super) fn moves(ratio: f64) -> bool {
    ratio != 1.0
}
