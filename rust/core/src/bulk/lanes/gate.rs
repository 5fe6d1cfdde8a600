//! The rows that the lanes plan, and the values that they need.
//!
//! Rows with a setting that is not named here, at another value than its default, are left to the planner of
//! single rows. The recipe is taken apart without `..`: a new field does not compile until somebody has
//! decided here whether the lanes know it, do not depend on it, or leave such rows. A property test draws
//! every field, and fails where that decision is wrong.

use super::arithmetic::{BLOCK, flag, set, whole};
use super::length::LaneLength;
use super::recipe::{LaneRecipe, RecipePerLane, ScalarRecipe};
use crate::input::{Field, Input, Policy, Recipe, Settings};
use crate::lengths::{Convention, Curve, DropLast, Length, Unit};
use crate::plan::tuned_warmup;
use crate::reason::Reason;
use crate::rules::{Decay, Optimizer, Rule};

impl ScalarRecipe {
    /// The recipe of an input; `None` where it is not usual.
    pub fn of(input: &Input) -> Option<ScalarRecipe> {
        let Input { recipe, settings, .. } = input;
        // A batch that unequal devices share may not divide, and an average that is scaled takes a power.
        let divides =
            recipe.tuned_replicas().is_none_or(|tuned| recipe.effective_batch.is_multiple_of(tuned));
        let usual = (settings.policy != Policy::Grow || divides)
            && (settings.policy == Policy::Keep || recipe.ema_decay.is_nan())
            && recipe.knows_units();
        // A micro-batch that follows from GPUs and passes is worked out by `plan`.
        if !usual || input.invalid().is_some() || recipe.tuned_micro_batch() != recipe.micro_batch {
            return None;
        }
        ScalarRecipe::with(input, |recipe| tuned_warmup(recipe).ok())
    }

    /// The recipe of jobs that differ in their numbers only: those of `input` may be missing.
    pub fn of_group(input: &Input) -> Option<ScalarRecipe> {
        // Beside numbers that are always legal, what is illegal is the rest.
        let mut sound = input.clone();
        let recipe = &mut sound.recipe;
        (recipe.effective_batch, recipe.lr, recipe.min_lr) = (1, 1.0, 0.0);
        (recipe.dataset_size, recipe.seq_len) = (Some(1), Some(1));
        (recipe.gpus, recipe.micro_batch, recipe.accumulation) = (None, None, None);
        if sound.recipe.device_batches.is_some() || sound.invalid().is_some() {
            return None;
        }
        ScalarRecipe::with(input, |recipe| {
            // The steps of the tuned run, which the planner counts too, are then those that the recipe says,
            // or fewer.
            let usual =
                recipe.warmup.unit == Unit::Steps && recipe.duration.is_none_or(|d| d.unit != Unit::Epochs);
            usual.then(|| Some(recipe.warmup.fraction_of_ten().0))
        })
    }

    /// `tuned_warmup` gives the steps of a warmup that keeps them.
    #[allow(clippy::option_option, reason = "what the planner's gives, or that it cannot be had")]
    fn with(input: &Input, tuned_warmup: impl Fn(&Recipe) -> Option<Option<u64>>) -> Option<ScalarRecipe> {
        let Input { recipe, settings, cluster: _, consumed: _, fault: _ } = input;
        scalar_recipe(recipe, &LaneSettings::of(settings, recipe.optimizer)?, tuned_warmup)
    }
}

/// The lanes of one number.
pub(super) type LanesOf = fn(&mut RecipePerLane) -> &mut [f64; BLOCK];

/// Where a recipe's numbers go; `None` for a field that the lanes do not know.
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
        Field::ExpertParallel => |recipes| &mut recipes.expert_parallel,
        Field::NoiseScale => |recipes| &mut recipes.noise,
        Field::MaxMicroBatch => |recipes| &mut recipes.max_micro_batch,
        // The lanes' plans do not depend on these, but they must be legal.
        Field::Power
        | Field::SigmaSq
        | Field::MuSq
        | Field::Parameters
        | Field::ClipNorm
        | Field::BucketCapMb => |recipes| &mut recipes.unused,
        _ => return None,
    })
}

/// The settings that the lanes know.
struct LaneSettings {
    policy: Policy,
    /// The rule that moves the learning rate,
    rule: Rule,
    /// or `saturating` where the noise scale is known, which may differ between jobs of a group.
    bends: bool,
    max_micro_batch: Option<u64>,
}

impl LaneSettings {
    /// `None` where the lanes do not know one of the settings.
    fn of(settings: &Settings, optimizer: Optimizer) -> Option<LaneSettings> {
        // All others are at their defaults, and the lanes know no ramp.
        let Settings { policy, rule, max_micro_batch, ramp_rule, .. } = *settings;
        let known = Settings { policy, rule, max_micro_batch, ramp_rule, ..Settings::default() };
        let usual = policy != Policy::Goodput && *settings == known;
        let resolved =
            |noise| if policy == Policy::Keep { Rule::None } else { rule.resolve(optimizer, noise) };
        let (rule, bends) = (resolved(false), resolved(false) != resolved(true));
        let usual = usual && matches!(rule, Rule::None | Rule::Linear | Rule::Sqrt);
        usual.then_some(LaneSettings { policy, rule, bends, max_micro_batch })
    }
}

/// The run and its warmup; `None` where they have no end that is known.
struct Lengths {
    total: Option<LaneLength<f64>>,
    warmup: Option<LaneLength<f64>>,
}

impl Lengths {
    #[allow(clippy::option_option, reason = "as in `with`")]
    fn of(recipe: &Recipe, tuned_warmup: impl Fn(&Recipe) -> Option<Option<u64>>) -> Option<Lengths> {
        let epochs = recipe.convention != Convention::Megatron;
        if recipe.convention == Convention::Transformers && recipe.warmup.unit == Unit::Percent {
            return None; // The Trainer rounds it in floats.
        }
        let of = |length: Length, floor| LaneLength::of(length, epochs, floor);
        let total = match recipe.duration {
            Some(duration) => Some(of(duration, !epochs)?),
            None => None,
        };
        let warmup = if recipe.warmup.is_zero() {
            Some(LaneLength::NONE)
        } else if recipe.optimizer.layer_wise() {
            match tuned_warmup(recipe)? {
                Some(steps) => Some(LaneLength::fixed(steps)?),
                None => None,
            }
        } else if recipe.warmup.unit == Unit::Percent && total.is_none() {
            None
        } else {
            Some(of(recipe.warmup, recipe.convention.floors_warmup(recipe.warmup.unit))?)
        };
        Some(Lengths { total, warmup })
    }
}

/// A recipe as the lanes plan it; `None` where they do not know something of it.
#[allow(clippy::too_many_lines, clippy::option_option, reason = "one line a field; and as in `with`")]
fn scalar_recipe(
    recipe: &Recipe,
    settings: &LaneSettings,
    tuned_warmup: impl Fn(&Recipe) -> Option<Option<u64>>,
) -> Option<ScalarRecipe> {
    let &Recipe {
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
        even_batches,
        convention,
        gpus,
        micro_batch,
        accumulation,
        model_parallel,
        expert_parallel,
        power: _, // For rules that the lanes do not know,
        noise_scale,
        sigma_sq: _, // as this
        mu_sq: _,    // and this.
        ref ramp,
        eval_every,
        save_every,
        log_every,
        parameters: _, // No plan depends on it, nor on what is only checked.
        schedule,
        precision: _,
        clip_norm: _,
        bucket_cap_mb: _,
        batch_norm: _, // In `couples`,
        coupled: _,    // as this.
        adapter,
        device_batches,
    } = recipe;
    let intervals = eval_every.or(save_every).or(log_every);
    let unusual = convention == Convention::Exact || !even_batches || decay == Some(Decay::Sqrt);
    if ramp.is_some() || intervals.is_some() || unusual {
        return None;
    }
    let Lengths { total, warmup: warmup_steps } = Lengths::of(recipe, tuned_warmup)?;
    let moments = recipe.moments();
    let keep = settings.policy == Policy::Keep;
    let (linear, root) = (settings.rule == Rule::Linear, settings.rule == Rule::Sqrt);
    let epochs = convention != Convention::Megatron;
    let transformers = convention == Convention::Transformers;
    let curve = schedule.unwrap_or(Curve::ANY);
    let most_warmup = curve.most_warmup()?;
    let counted = |unit| duration.is_some_and(|d| d.unit == unit) || warmup.unit == unit;
    let known = |n: Option<u64>| n.map_or(f64::NAN, |n| n as f64);
    let impossible = [
        (!recipe.couples(), Reason::CoupledMoved),
        (adapter.is_none(), Reason::LoraGrowth),
        (!root, Reason::SqrtScaleRange),
        (!linear, Reason::RuleRange),
        (!(linear && optimizer == Optimizer::Sgd), Reason::SgdScaleUp),
        (keep || warmup_steps.is_none(), Reason::NoWarmup),
        (total.is_none(), Reason::WarmupPastEnd),
        (total.is_none(), Reason::WarmupLong),
    ];
    Some(LaneRecipe {
        tuned_batch: effective_batch as f64,
        lr,
        weight_decay,
        momentum,
        ema_decay,
        eps: moments.eps,
        noise: noise_scale,
        min_lr,
        micro_batch: known(micro_batch),
        accumulation: known(accumulation),
        gpus: known(gpus),
        model_parallel: model_parallel as f64,
        expert_parallel: expert_parallel as f64,
        max_micro_batch: known(settings.max_micro_batch),
        dataset: whole(dataset_size.unwrap_or(0))?,
        seq_len: seq_len.unwrap_or(0) as f64,
        batch: if let Policy::Batch(batch) = settings.policy { batch as f64 } else { 0.0 },
        keeps: flag(keep),
        grows: flag(settings.policy == Policy::Grow),
        linear: flag(linear),
        root: flag(root),
        bends: flag(settings.bends),
        beta1: moments.beta1,
        beta2: moments.beta2,
        decay_moves: flag(optimizer == Optimizer::AdamW),
        decay_by_lr: flag(decay != Some(Decay::Independent)),
        decay_unsaid: flag(recipe.decay_unsaid()),
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
        in_epochs: flag(counted(Unit::Epochs) || curve.epochs),
        most_warmup,
        in_tokens: flag(counted(Unit::Tokens) || curve.tokens),
        unused: 0.0,
        second_moment_steps: if optimizer.adam_like() { 1.0 / (1.0 - moments.beta2) } else { f64::NAN },
        total: total.unwrap_or(LaneLength::NONE),
        warmup: warmup_steps.unwrap_or(LaneLength::NONE),
        always: set([(device_batches.is_some(), Reason::UnequalDevices)]),
        if_moved: set([
            (settings.rule.mismatches(optimizer), Reason::RuleMismatch),
            (root && !optimizer.charted(), Reason::RuleAssumed),
        ]),
        possible: !set(impossible),
    })
}
