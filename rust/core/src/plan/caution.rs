//! The cautions of a plan.

use super::row::{Cap, Row, UNKNOWN};
use super::scale::moves;
use crate::input::{Input, Policy};
use crate::lengths::Layout;
use crate::reason::Reason;
use crate::rules::{Optimizer, Rule};

/// Adds the cautions of a feasible plan.
#[inline]
pub(super) fn caution(input: &Input, row: &mut Row, layout: Layout) {
    let Input { recipe, settings, .. } = input;
    let k = layout.effective_batch as f64 / recipe.effective_batch as f64;
    let rule = row.rule;
    let grew = settings.policy != Policy::Keep && k > 1.0;
    let noise = recipe.noise_scale;
    // By the rule, and not only by the length: a product with 1 is exact.
    let moved = row.lr_scale.to_bits() != settings.lr_by_duration().to_bits();
    let tuned = recipe.moments();
    let Row { reasons, moments, warmup_steps, total_steps, .. } = row;
    let ragged = reasons.contains(Reason::Ragged);
    let mut when = |condition: bool, reason: Reason| reasons.insert_if(condition, reason);
    let wide = u128::from;

    when(recipe.device_batches.is_some(), Reason::UnequalDevices);
    if let Some(tuned) = recipe.tuned_micro_batch() {
        when(layout.micro_batch * 2 <= tuned, Reason::MicroBatchShrunk);
        when(recipe.couples() && (ragged || layout.micro_batch != tuned), Reason::CoupledMoved);
    }
    if let (Cap::Open, Some(gpus)) = (row.cap, recipe.gpus) {
        let here = wide(layout.micro_batch) * wide(gpus); // passes beside the GPUs would have been a cap
        when(here > wide(recipe.effective_batch) * wide(recipe.model_parallel), Reason::MicroBatchOpen);
    }
    when(layout.effective_batch as f64 > noise, Reason::AboveCriticalBatch);
    when(recipe.adapter.is_some() && k > 1.0, Reason::LoraGrowth);
    when(k > 8.0 && noise.is_nan(), Reason::LargeGrowth);
    if moved {
        when(rule.mismatches(recipe.optimizer), Reason::RuleMismatch);
        let assumed = matches!(rule, Rule::Sqrt | Rule::Saturating);
        when(
            assumed && !recipe.optimizer.charted() && !rule.mismatches(recipe.optimizer),
            Reason::RuleAssumed,
        );
        when(rule == Rule::Sqrt && !(0.125..=4.0).contains(&k), Reason::SqrtScaleRange);
        let stretched = matches!(rule, Rule::Linear | Rule::Saturating) && row.lr_scale > 2.0;
        when(recipe.optimizer == Optimizer::Sgd && stretched, Reason::SgdScaleUp);
        let past_goyal = recipe.seq_len.is_none() && layout.effective_batch > 8192;
        let past_noise = layout.effective_batch as f64 > noise;
        when(rule == Rule::Linear && (past_goyal || past_noise), Reason::RuleRange);
    }
    let decays = settings.policy != Policy::Keep && moves(k) || moves(settings.followed_ratio());
    when(decays && recipe.decay_unknown(), Reason::DecayUnknown);
    when(recipe.ramp.is_some() && settings.ramp_rule.0 != Rule::None, Reason::RampRule);
    when(rule.moves_averages() && moments.beta1 < 0.5 && tuned.beta1 > 0.0, Reason::Beta1Low);
    when(moments.beta2 < 0.9 && moments.beta2 < tuned.beta2, Reason::Beta2Low);
    when(moves(settings.duration_ratio()), Reason::DurationMoved);
    when(
        recipe.optimizer == Optimizer::Muon
            && moves(row.weight_decay / recipe.weight_decay)
            && recipe.weight_decay > 0.0,
        Reason::MuonDecay,
    );
    when(*warmup_steps == 0 && grew, Reason::NoWarmup);
    let ends = *total_steps != UNKNOWN;
    when(ends && *warmup_steps > *total_steps, Reason::WarmupPastEnd);
    when(ends && *warmup_steps * 5 > *total_steps, Reason::WarmupLong);
    let memory = 1.0 / (1.0 - moments.beta2);
    when(
        *warmup_steps > 0 && recipe.optimizer.adam_like() && (*warmup_steps as f64) < memory,
        Reason::WarmupShort,
    );
}
