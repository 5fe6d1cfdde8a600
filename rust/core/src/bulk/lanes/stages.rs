//! The arithmetic of usual plans: five loops over lanes, without a branch.
//!
//! Each stage computes for every lane what `plan` computes for one row, from the same numbers in the same
//! order, so that the bits are the same: the batch and its split, the learning rate, the lengths, the
//! cautions, and last whether the row has a plan at all. A stage never returns early. What it cannot decide
//! it marks in `left`, and the row goes to `plan`: a number that is illegal or near 2^51, a batch that is not
//! split yet, a row that is refused for another cause than the two that are known here. Conditions are `&`
//! and `|` of flags and choices are `if` between two values that are both there, because a branch keeps LLVM
//! from vector instructions.
//!
//! Tried (`bench/results/plan.md`): all stages as one loop stays scalar, 43 ns a row, where five
//! short ones took 21. Of some 15 ns today, 6 to 9 are twelve divisions and a root, which is about what the
//! processor needs for them. Finding a divisor is the one thing that stays a loop of its own, for lanes whose
//! first accumulation does not divide (`run.rs`).

#![allow(clippy::float_cmp, reason = "whole numbers; and exactly 1 is how a rule says that nothing moves")]

use multiversion::multiversion;

use super::arithmetic::{At, BLOCK, LIMIT, divide};
use super::block::Lanes;
use super::length::Measure;
use super::recipe::{LaneRecipe, ScalarRecipe};
use crate::batch::MAX_BATCH;
use crate::reason::{Reason, Reasons};

macro_rules! stages {
    ($(#[doc = $doc:literal] fn $name:ident($lanes:ident, $recipe:ident, $i:ident) $body:block)*) => {
        $(
            #[doc = $doc]
            #[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
            pub(super) fn $name<T: At<f64>, R: At<Reasons>>(
                $lanes: &mut Lanes,
                $recipe: &LaneRecipe<T, R>,
                rows: usize,
            ) {
                for $i in 0..rows.min(BLOCK) {
                    let $recipe = &$recipe.lane($i);
                    $body
                }
            }
        )*
    };
}

#[inline(always)]
fn known(x: f64) -> bool {
    !x.is_nan()
}

// No branch and no short cut in these, so that each becomes vector instructions.
stages! {
    /// Leaves rows whose numbers are not legal beside one another: what `Input::invalid` finds, once more.
    fn check(lanes, recipe, i) {
        let tuned_batch = recipe.tuned_batch;
        let replicas = if known(recipe.gpus) { divide(recipe.gpus, recipe.model_parallel, 0.0) } else { 1.0 };
        let samples = divide(tuned_batch, replicas, 0.0);
        let micro_batch = if known(recipe.micro_batch) { recipe.micro_batch } else { 1.0 };
        let of_step = micro_batch * recipe.accumulation;
        let whole_step = of_step == samples;
        let part_of_step = divide(samples, of_step, 0.0) * of_step == samples;
        let numbers = (tuned_batch >= 1.0) & (recipe.lr > 0.0) & (recipe.min_lr <= recipe.lr);
        let lengths = ((recipe.dataset > 0.0) | (recipe.in_epochs == 0.0))
            & ((recipe.seq_len > 0.0) | (recipe.in_tokens == 0.0));
        let gpus = (replicas * recipe.model_parallel == recipe.gpus) & (samples * replicas == tuned_batch);
        let both = known(recipe.gpus) & known(recipe.micro_batch);
        // A micro-batch that follows from GPUs and passes is worked out by `plan`.
        let split = known(recipe.micro_batch) | !known(recipe.gpus) | !known(recipe.accumulation);
        let legal = numbers
            & split
            & lengths
            & (gpus | !known(recipe.gpus))
            & (divide(samples, micro_batch, 0.0) * micro_batch == samples)
            & ((both & whole_step) | (!both & part_of_step) | !known(recipe.accumulation));
        // An average that is scaled takes a power.
        let usual = (recipe.keeps == 1.0) | !known(recipe.ema_decay);
        lanes.left[i] |= u64::from(!(legal & usual));
    }

    /// The replicas, the batch, and the split where the first accumulation that the cap allows divides it.
    fn split(lanes, recipe, i) {
        let world_size = lanes.world_size[i];
        let of_cluster = lanes.model_parallel[i];
        let model_parallel = if of_cluster == 0.0 { recipe.model_parallel } else { of_cluster };
        let replicas = divide(world_size, model_parallel, 0.0);
        let tuned_replicas = divide(recipe.gpus, recipe.model_parallel, 0.0);
        let tuned_samples = divide(recipe.tuned_batch, tuned_replicas, 0.0);
        let of_replica = if known(recipe.gpus) { tuned_samples } else { recipe.max_micro_batch };
        let batch = if recipe.keeps == 1.0 { recipe.tuned_batch } else { recipe.batch };
        let batch = if recipe.grows == 1.0 { of_replica * replicas } else { batch };
        let tuned_cap = if known(recipe.micro_batch) { recipe.micro_batch } else { MAX_BATCH as f64 };
        let cap = if known(recipe.max_micro_batch) { recipe.max_micro_batch } else { tuned_cap };
        let samples = divide(batch, replicas, 0.0);
        let accumulation = divide(samples, cap, 1.0);
        let micro_batch = divide(samples, accumulation, 0.0);
        let divides = replicas * model_parallel == world_size;
        let whole = divides & (world_size > 0.0) & (batch <= MAX_BATCH as f64);
        // Where experts are spread over GPUs, the row goes to `plan`: one division less in all others.
        let left = lanes.left[i] | u64::from(!(whole & (recipe.expert_parallel == 1.0)));
        let closed = (samples * replicas != batch) | (micro_batch * accumulation == samples);
        lanes.replicas[i] = replicas;
        lanes.batch[i] = batch;
        lanes.samples[i] = samples;
        lanes.micro_batch[i] = micro_batch;
        lanes.accumulation[i] = accumulation;
        lanes.open[i] = u64::from((left == 0) & !closed);
        lanes.left[i] = left;
    }

    /// The learning rate and what goes with it.
    fn scale(lanes, recipe, i) {
        let k = lanes.batch[i] / recipe.tuned_batch;
        let root = if recipe.root == 1.0 { k.sqrt() } else { 1.0 };
        let lr_scale = if recipe.linear == 1.0 { k } else { root };
        let by_lr = k / lr_scale;
        let decay = if recipe.decay_by_lr == 1.0 { by_lr } else { k };
        let decay = if (recipe.decay_moves == 1.0) & (k != 1.0) { decay } else { 1.0 };
        lanes.k[i] = k;
        lanes.lr_scale[i] = lr_scale;
        lanes.lr[i] = recipe.lr * lr_scale;
        lanes.weight_decay[i] = recipe.weight_decay * decay;
    }

    /// The learning rate where `saturating` takes the place of the rule that `scale` took.
    fn bend(lanes, recipe, i) {
        // Of AdamW, whose weight decay follows the learning rate, `auto` never bends.
        let (tuned, batch) = (recipe.tuned_batch, lanes.batch[i]);
        let bent = (1.0 + recipe.noise / tuned) / (1.0 + recipe.noise / batch);
        let lr_scale = if recipe.is_bent() { bent } else { lanes.lr_scale[i] };
        lanes.lr_scale[i] = lr_scale;
        lanes.lr[i] = recipe.lr * lr_scale;
    }

    /// The epoch and the lengths of the run.
    fn count(lanes, recipe, i) {
        let (replicas, batch, micro_batch) = (lanes.replicas[i], lanes.batch[i], lanes.micro_batch[i]);
        let sampled = divide(recipe.dataset, replicas, recipe.sampler_up);
        let passes = divide(sampled, micro_batch, recipe.loader_up);
        let epoch_steps = divide(passes, lanes.accumulation[i], 1.0);
        let of_passes = passes * (micro_batch * replicas);
        let served = if replicas >= recipe.whole_from { of_passes } else { sampled * replicas };
        let LaneRecipe { tuned_batch, dataset, seq_len, .. } = *recipe;
        let of = Measure { batch, tuned_batch, dataset, seq_len, epoch_steps, total: f64::NAN };
        let total = recipe.total.steps(of);
        let warmup = recipe.warmup.steps(Measure { total, ..of });
        lanes.steps_per_epoch[i] = epoch_steps;
        lanes.samples_per_epoch[i] = served;
        lanes.padded_samples[i] = (served - recipe.dataset).max(0.0);
        lanes.dropped_samples[i] = (recipe.dataset - served).max(0.0);
        // A length past the limit is not exact: NaN, and the row is left.
        lanes.total_steps[i] = if of_passes < LIMIT { total } else { f64::NAN };
        lanes.warmup_steps[i] = warmup;
    }

    /// The cautions.
    fn caution(lanes, recipe, i) {
        let (micro_batch, accumulation) = (lanes.micro_batch[i], lanes.accumulation[i]);
        let batch = lanes.batch[i];
        let (total, warmup) = (lanes.total_steps[i], lanes.warmup_steps[i]);
        let (steps, served) = (lanes.steps_per_epoch[i], lanes.samples_per_epoch[i]);
        let k = lanes.k[i];
        let moved = moves(lanes.lr_scale[i]);
        let tuned = recipe.micro_batch;
        let epochs = has_epochs(recipe);
        let past_goyal = (recipe.seq_len == 0.0) & (batch > 8192.0);
        let unsaid = recipe.decay_unsaid == 1.0;
        let by_rule = moved & !recipe.is_bent();
        let mut cautions = Reasons::default();
        cautions.insert_if(micro_batch * 2.0 <= tuned, Reason::MicroBatchShrunk);
        cautions.insert_if(known(tuned) & (micro_batch != tuned), Reason::CoupledMoved);
        let open = !known(tuned) & !known(recipe.max_micro_batch) & known(recipe.gpus);
        let (here, there) = (micro_batch * recipe.gpus, recipe.tuned_batch * recipe.model_parallel);
        cautions.insert_if(open & (here > there), Reason::MicroBatchOpen);
        lanes.left[i] |= u64::from(open & ((here >= LIMIT) | (there >= LIMIT)));
        cautions.insert_if(batch > recipe.noise, Reason::AboveCriticalBatch);
        cautions.insert_if(k > 1.0, Reason::LoraGrowth);
        cautions.insert_if((k > 8.0) & !known(recipe.noise), Reason::LargeGrowth);
        cautions.insert_if(by_rule & !(0.125..=4.0).contains(&k), Reason::SqrtScaleRange);
        cautions.insert_if(lanes.lr_scale[i] > 2.0, Reason::SgdScaleUp);
        cautions.insert_if(by_rule & (past_goyal | (batch > recipe.noise)), Reason::RuleRange);
        cautions.insert_if((warmup == 0.0) & (k > 1.0), Reason::NoWarmup);
        cautions.insert_if(warmup > total, Reason::WarmupPastEnd);
        cautions.insert_if(warmup * 5.0 > total, Reason::WarmupLong);
        cautions.insert_if((warmup > 0.0) & (warmup < recipe.second_moment_steps), Reason::WarmupShort);
        cautions.insert_if(epochs & (lanes.padded_samples[i] * 100.0 > recipe.dataset), Reason::Padded);
        cautions.insert_if(epochs & (lanes.dropped_samples[i] * 100.0 > recipe.dataset), Reason::Dropped);
        cautions.insert_if(epochs & (accumulation > 1.0) & (served != steps * batch), Reason::UnevenTail);
        cautions.insert_if((k != 1.0) & unsaid & (recipe.weight_decay > 0.0), Reason::DecayUnknown);
        let by_move = if moved { recipe.if_moved } else { Reasons::default() };
        lanes.reasons[i] = cautions.of(recipe.possible) | recipe.always | by_move;
    }

    /// Where there is no plan, nothing is known.
    fn judge(lanes, recipe, i) {
        let (micro_batch, accumulation) = (lanes.micro_batch[i], lanes.accumulation[i]);
        let batch = lanes.batch[i];
        let (lr, steps) = (lanes.lr[i], lanes.steps_per_epoch[i]);
        let (total, warmup) = (lanes.total_steps[i], lanes.warmup_steps[i]);
        let divides = lanes.samples[i] * lanes.replicas[i] == batch;
        let epochs = has_epochs(recipe);
        let above = epochs & ((steps == 0.0) | (batch > recipe.dataset));
        let done = divides & !above;

        let most = f64::from(i32::MAX);
        let finite = (lr < f64::INFINITY) & (lanes.weight_decay[i] < f64::INFINITY);
        let legal = (micro_batch <= most) & (accumulation <= most) & (lr > 0.0) & finite;
        let exact = ((total > 0.0) | ((recipe.ends == 0.0) & (total == 0.0))) & (warmup >= 0.0);
        let roomy = (recipe.ends == 0.0) | (warmup < total * recipe.most_warmup - 1.0);
        let ready = !divides | (legal & (above | (exact & roomy)));
        lanes.left[i] |= u64::from(!ready);

        let failure = if divides { Reason::BatchAboveDataset.alone() } else { Reason::NotDivisible.alone() };
        lanes.reasons[i] = if done { lanes.reasons[i] } else { failure };
        let count = |n: f64, known: bool| if done & known { n } else { -1.0 };
        let real = |x: f64| if done { x } else { f64::NAN };
        lanes.batch[i] = count(batch, true);
        lanes.micro_batch[i] = count(micro_batch, true);
        lanes.accumulation[i] = count(accumulation, true);
        lanes.batch_change[i] = real(lanes.k[i] - 1.0);
        lanes.lr[i] = real(lr);
        lanes.lr_scale[i] = real(lanes.lr_scale[i]);
        lanes.weight_decay[i] = real(lanes.weight_decay[i]);
        lanes.steps_per_epoch[i] = count(steps, epochs);
        lanes.samples_per_epoch[i] = count(lanes.samples_per_epoch[i], epochs);
        lanes.padded_samples[i] = count(lanes.padded_samples[i], epochs);
        lanes.dropped_samples[i] = count(lanes.dropped_samples[i], epochs);
        lanes.total_steps[i] = count(total, recipe.ends == 1.0);
        lanes.warmup_steps[i] = count(warmup, recipe.warms == 1.0);
    }
}

fn moves(lr_scale: f64) -> bool {
    lr_scale != 1.0
}

/// Whether there are epochs to count.
#[inline(always)]
fn has_epochs(recipe: &ScalarRecipe) -> bool {
    (recipe.epochs == 1.0) & (recipe.dataset > 0.0)
}
