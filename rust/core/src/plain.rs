//! Plain plans, many rows at a time: what [`plan`](crate::plan::plan) does where nothing unusual is asked for.
//!
//! Whole numbers are held as reals here, since processors divide eight reals in the time of one integer. That is exact: for
//! whole n and d with n + d < 2^53, n/d lies further below the next whole number than its rounding can lift it, so that its
//! floor is the quotient. Rows that come near the limit, and all that are not plain, are left to `plan`; tests hold the two
//! to the same bits.

#![allow(
    clippy::inline_always,
    clippy::needless_bitwise_bool,
    reason = "a call or a branch in a loop keeps it from becoming vector instructions"
)]
#![allow(clippy::float_cmp, reason = "whole numbers; and exactly 1 is how a rule says that nothing moves")]

use multiversion::multiversion;

use crate::batch::{MAX_BATCH, smallest_divisor_from};
use crate::duration::{Convention, Length, Unit};
use crate::input::{Cluster, Input, Job, MAX_GPUS, Policy};
use crate::optimizer::{Decay, Moments, Optimizer};
use crate::plan::tuned_warmup;
use crate::reason::{Reason, Reasons};
use crate::results::{Column, Out, write_lanes};
use crate::scaling::Rule;

/// Rows that are planned together.
pub(crate) const BLOCK: usize = 64;

/// Whole numbers stay below this, and so their sums below 2^53.
const LIMIT: f64 = (1_u64 << 51) as f64;

fn whole(n: u64) -> Option<f64> {
    let n = n as f64;
    (n < LIMIT).then_some(n)
}

/// A length in optimizer steps: a fraction that is linear in what differs from row to row.
#[derive(Clone, Copy, Debug)]
struct Steps {
    /// The numerator.
    fixed: f64,
    per_epoch_step: f64,
    per_total_step: f64,
    /// The denominator.
    divisor: f64,
    per_batch: f64,
    /// 1 where it is rounded up, 0 where it is rounded down.
    up: f64,
}

impl Steps {
    const NONE: Steps =
        Steps { fixed: 0.0, per_epoch_step: 0.0, per_total_step: 0.0, divisor: 1.0, per_batch: 0.0, up: 1.0 };

    /// As `Clock::steps` in the planner.
    fn of(length: Length, job: &Job, epochs: bool, floor: bool) -> Option<Steps> {
        let (mantissa, power) = length.fraction_of_ten();
        let up = f64::from(u8::from(!floor));
        let samples = |n: u64, d: u64| {
            let (fixed, per_batch) = (whole(mantissa.checked_mul(n)?)?, whole(power.checked_mul(d)?)?);
            Some(Steps { fixed, divisor: 0.0, per_batch, up, ..Steps::NONE })
        };
        match length.unit {
            Unit::Percent => Some(Steps {
                per_total_step: whole(mantissa)?,
                divisor: whole(power.checked_mul(100)?)?,
                up: 0.0,
                ..Steps::NONE
            }),
            Unit::Epochs if epochs => Some(Steps {
                per_epoch_step: whole(mantissa)?,
                divisor: whole(power)?,
                up: 1.0,
                ..Steps::NONE
            }),
            Unit::Epochs => samples(job.dataset_size?, 1),
            Unit::Steps => samples(job.effective_batch, 1),
            Unit::Samples => samples(1, 1),
            Unit::Tokens => samples(1, job.seq_len?),
        }
    }

    /// The steps, and whether they are exact.
    #[inline(always)]
    fn at(&self, epoch_steps: f64, total: f64, batch: f64) -> (f64, bool) {
        let n = self.fixed + self.per_epoch_step * epoch_steps + self.per_total_step * total;
        let d = self.divisor + self.per_batch * batch;
        (divide(n, d, self.up), n < LIMIT && d < LIMIT)
    }
}

/// n/d rounded up where `up` is 1, down where it is 0.
#[inline(always)]
fn divide(n: f64, d: f64, up: f64) -> f64 {
    ((n + up * (d - 1.0)) / d).floor()
}

/// What plain plans need of a job and the settings.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a lane's choice between two values")]
pub(crate) struct Recipe {
    tuned_batch: f64,
    /// The batch to reach is this and so much more for each replica.
    batch: f64,
    batch_per_replica: f64,
    model_parallel: f64,
    cap: f64,
    tuned_micro_batch: f64,
    lr: f64,
    linear: bool,
    root: bool,
    pub moments: Moments,
    pub momentum: f64,
    pub ema_decay: f64,
    weight_decay: f64,
    decay_moves: bool,
    decay_by_lr: bool,
    /// Whether there are epochs to count, and of how many samples.
    epochs: bool,
    dataset: f64,
    sampler_up: f64,
    loader_up: f64,
    /// From so many replicas on, an epoch serves whole micro-batches only.
    whole_from: f64,
    ends: bool,
    total: Steps,
    warms: bool,
    warmup: Steps,
    /// Cautions that hold in any case, those that hold if the learning rate moves, and those that may hold at all.
    always: Reasons,
    if_moved: Reasons,
    possible: Reasons,
    critical_batch: f64,
    rule_range: f64,
    second_moment_steps: f64,
}

impl Recipe {
    /// `None` where the job is not plain.
    pub fn of(input: &Input) -> Option<Recipe> {
        let Input { job, settings, workloads, .. } = input;
        let plain = workloads.is_empty()
            && job.ramp.is_none()
            && settings.max_batch.is_none()
            && settings.batch_tolerance == 0.0
            && settings.micro_batch_multiple == 1
            && !(settings.ragged || settings.uneven || settings.beta_half_life)
            && settings.deadline_hours.is_nan()
            && settings.budget.is_nan();
        if !plain || input.invalid().is_some() {
            return None;
        }
        let keep = settings.policy == Policy::Keep;
        let tuned = job.effective_batch;
        let (batch, batch_per_replica) = match settings.policy {
            Policy::Keep => (tuned, 0),
            Policy::Batch(batch) => (batch, 0),
            Policy::Goodput => return None,
            Policy::Grow => match (job.tuned_replicas(), settings.max_micro_batch) {
                (Some(replicas), _) if tuned.is_multiple_of(replicas) => (0, tuned / replicas),
                (None, Some(micro)) => (0, micro),
                _ => return None,
            },
        };
        let rule = if keep { Rule::None } else { settings.rule.resolve(job.optimizer) };
        if !matches!(rule, Rule::None | Rule::Linear | Rule::Sqrt) || !(keep || job.ema_decay.is_nan()) {
            return None;
        }

        let dataset = job.dataset_size.filter(|_| job.convention != Convention::Megatron);
        let epochs = dataset.is_some();
        let transformers = job.convention == Convention::Transformers;
        let up = |down: bool| f64::from(u8::from(!down));
        let drop = job.drop_last;
        let warmup = warmup(job, epochs)?;
        let floor = job.convention == Convention::Megatron;
        let total = job.duration.map(|duration| Steps::of(duration, job, epochs, floor));

        let moments = job.moments();
        let (linear, root) = (rule == Rule::Linear, rule == Rule::Sqrt);
        let noise = job.noise.scale;
        let impossible = [
            (!job.batch_norm || job.micro_batch.is_none(), Reason::BatchNormMoved),
            (!noise.is_nan(), Reason::LargeGrowth),
            (!root, Reason::SqrtScaleDown),
            (!linear, Reason::RuleRange),
            (keep || warmup.is_none(), Reason::NoWarmup),
            (total.is_none(), Reason::WarmupPastEnd),
            (total.is_none(), Reason::WarmupLong),
            (!epochs, Reason::Padded),
            (!epochs, Reason::Dropped),
            (!epochs, Reason::UnevenTail),
        ];
        Some(Recipe {
            tuned_batch: tuned as f64,
            batch: batch as f64,
            batch_per_replica: batch_per_replica as f64,
            model_parallel: job.model_parallel as f64,
            cap: settings.max_micro_batch.or(job.micro_batch).unwrap_or(MAX_BATCH) as f64,
            tuned_micro_batch: job.micro_batch.map_or(f64::NAN, |micro| micro as f64),
            lr: job.lr,
            linear,
            root,
            moments,
            momentum: job.momentum,
            ema_decay: job.ema_decay,
            weight_decay: job.weight_decay,
            decay_moves: job.optimizer == Optimizer::AdamW && job.weight_decay > 0.0,
            decay_by_lr: job.decay != Some(Decay::Independent),
            epochs,
            dataset: whole(dataset.unwrap_or(0))?,
            sampler_up: up(if transformers { drop.loader } else { drop.sampler }),
            loader_up: up(drop.loader),
            whole_from: match (drop.loader, transformers) {
                (true, _) => 1.0,
                // Where there is one process, Accelerate leaves the loader alone.
                (false, true) => 2.0,
                (false, false) => f64::INFINITY,
            },
            ends: total.is_some(),
            total: total.unwrap_or(Some(Steps::NONE))?,
            warms: warmup.is_some(),
            warmup: warmup.unwrap_or(Steps::NONE),
            always: set([(job.unequal_devices, Reason::UnequalDevices)]),
            if_moved: set([
                (rule.mismatches(job.optimizer), Reason::RuleMismatch),
                (root && !job.optimizer.charted(), Reason::RuleAssumed),
                (job.decay_unknown(), Reason::DecayUnknown),
            ]),
            possible: !set(impossible),
            critical_batch: noise,
            rule_range: if job.seq_len.is_none() { noise.min(8192.0) } else { noise },
            second_moment_steps: if job.optimizer.adam_like() {
                1.0 / (1.0 - moments.beta2)
            } else {
                f64::NAN
            },
        })
    }
}

/// The reasons whose condition holds.
fn set<const N: usize>(reasons: [(bool, Reason); N]) -> Reasons {
    let mut set = Reasons::default();
    for (holds, reason) in reasons {
        set.insert_if(holds, reason);
    }
    set
}

/// The warmup: `None` where it is not plain, and within where it is a share of a run without an end.
#[allow(clippy::option_option, reason = "said above")]
fn warmup(job: &Job, epochs: bool) -> Option<Option<Steps>> {
    if job.warmup.is_zero() {
        return Some(Some(Steps::NONE));
    }
    if job.optimizer.layer_wise() {
        let steps = tuned_warmup(job).ok()?;
        return Some(match steps {
            Some(steps) => Some(Steps { fixed: whole(steps)?, ..Steps::NONE }),
            None => None,
        });
    }
    let endless = job.warmup.unit == Unit::Percent && job.duration.is_none();
    Some(if endless { None } else { Some(Steps::of(job.warmup, job, epochs, false)?) })
}

/// What plain plans need of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    /// 0 where the cluster is not legal.
    world_size: f64,
    /// 0 where the recipe's stands.
    model_parallel: f64,
}

impl Site {
    /// Of a cluster that is legal by itself, or not.
    pub fn of(cluster: &Cluster, legal: bool) -> Site {
        let world_size = cluster.nodes.saturating_mul(cluster.gpus_per_node);
        Site {
            world_size: if legal && world_size <= MAX_GPUS { world_size as f64 } else { 0.0 },
            model_parallel: cluster.model_parallel.unwrap_or(0) as f64,
        }
    }
}

macro_rules! lanes {
    ($($name:ident)*) => {
        /// Some rows, a number of each at a time.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "named as the columns")]
        pub(crate) struct Lanes {
            $(pub $name: [f64; BLOCK],)*
            pub reasons: [Reasons; BLOCK],
            /// Whether the accumulation is yet to be found.
            open: [u64; BLOCK],
            /// Whether the row is one for `plan`.
            left: [u64; BLOCK],
        }

        impl Lanes {
            pub fn new() -> Lanes {
                Lanes {
                    $($name: [1.0; BLOCK],)*
                    reasons: [Reasons::default(); BLOCK],
                    open: [0; BLOCK],
                    left: [0; BLOCK],
                }
            }
        }
    };
}

lanes! {
    world_size model_parallel replicas samples
    batch micro_batch accumulation
    k batch_change lr lr_scale weight_decay
    steps_per_epoch samples_per_epoch padded_samples dropped_samples total_steps warmup_steps
}

impl Lanes {
    /// Takes the rows' clusters.
    pub fn set<'a>(&mut self, sites: impl Iterator<Item = &'a Site>) {
        let lanes = self.world_size.iter_mut().zip(&mut self.model_parallel);
        for ((world_size, model_parallel), site) in lanes.zip(sites) {
            (*world_size, *model_parallel) = (site.world_size, site.model_parallel);
        }
    }

    /// Plans the first `rows` rows and writes them out from `at` on. Gives the rows
    /// that are left; those that divide over no replicas are among them if the nearest values that would do are wanted.
    pub fn plan(
        &mut self,
        recipe: &Recipe,
        rows: usize,
        out: &mut [(Column, Out<'_>)],
        at: usize,
    ) -> Vec<usize> {
        let nearest = out.iter().any(|(column, _)| column.is_way_out());
        // Whole vectors: what lies behind the rows is not read.
        let lanes = rows.next_multiple_of(8).min(BLOCK);
        split(self, recipe, lanes);
        self.search(rows);
        scale(self, recipe, lanes);
        count(self, recipe, lanes);
        caution(self, recipe, lanes);
        judge(self, recipe, lanes, nearest);
        for (column, out) in out {
            write_lanes(*column, self, recipe, out, at, rows);
        }
        // Mostly none: that is seen at once.
        if self.left.iter().fold(0, |any, left| any | left) == 0 {
            return Vec::new();
        }
        (0..rows).filter(|&i| self.left[i] != 0).collect()
    }

    /// A value of a row that has a plan.
    pub fn known(&self, row: usize, value: f64) -> f64 {
        if self.lr[row].is_nan() { f64::NAN } else { value }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and below 2^41")]
    fn search(&mut self, rows: usize) {
        if self.open.iter().fold(0, |any, open| any | open) == 0 {
            return;
        }
        for i in 0..rows {
            if self.open[i] != 0 {
                let accumulation = smallest_divisor_from(self.samples[i] as u64, self.accumulation[i] as u64);
                self.accumulation[i] = accumulation as f64;
                self.micro_batch[i] = self.samples[i] / self.accumulation[i];
            }
        }
    }
}

/// A whole number of at most 2^51, either sign, as a column holds it.
#[inline(always)]
pub(crate) fn column(x: f64) -> i64 {
    // 1.5 × 2^52 has room for it in its last bits.
    const ROOM: f64 = 6_755_399_441_055_744.0;
    (x + ROOM).to_bits().wrapping_sub(ROOM.to_bits()).cast_signed()
}

macro_rules! stages {
    ($(#[doc = $doc:literal] fn $name:ident($lanes:ident, $recipe:ident, $i:ident $(, $more:ident: $type:ty)?) $body:block)*) => {
        $(
            #[doc = $doc]
            #[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
            fn $name($lanes: &mut Lanes, $recipe: &Recipe, rows: usize $(, $more: $type)?) {
                for $i in 0..rows.min(BLOCK) {
                    $body
                }
            }
        )*
    };
}

// No branch and no short cut in these, so that each becomes vector instructions.
stages! {
    /// The replicas, the batch, and the split where the first accumulation that the cap allows divides it.
    fn split(lanes, recipe, i) {
        let world_size = lanes.world_size[i];
        let asked = lanes.model_parallel[i];
        let model_parallel = if asked == 0.0 { recipe.model_parallel } else { asked };
        let replicas = divide(world_size, model_parallel, 0.0);
        let batch = recipe.batch + recipe.batch_per_replica * replicas;
        let samples = divide(batch, replicas, 0.0);
        let accumulation = divide(samples, recipe.cap, 1.0);
        let micro_batch = divide(samples, accumulation, 0.0);
        let whole = (replicas * model_parallel == world_size) & (world_size > 0.0) & (batch <= MAX_BATCH as f64);
        lanes.replicas[i] = replicas;
        lanes.batch[i] = batch;
        lanes.samples[i] = samples;
        lanes.micro_batch[i] = micro_batch;
        lanes.accumulation[i] = accumulation;
        lanes.open[i] = u64::from(whole & (samples * replicas == batch) & (micro_batch * accumulation != samples));
        lanes.left[i] = u64::from(!whole);
    }

    /// The learning rate and what goes with it.
    fn scale(lanes, recipe, i) {
        let k = lanes.batch[i] / recipe.tuned_batch;
        let root = k.sqrt();
        let lr_scale = if recipe.linear { k } else if recipe.root { root } else { 1.0 };
        let by_lr = k / lr_scale;
        let decay = if recipe.decay_by_lr { by_lr } else { k };
        let decay = if recipe.decay_moves & moves(lr_scale) { decay } else { 1.0 };
        lanes.k[i] = k;
        lanes.lr_scale[i] = lr_scale;
        lanes.lr[i] = recipe.lr * lr_scale;
        lanes.weight_decay[i] = recipe.weight_decay * decay;
    }

    /// The epoch and the lengths of the run.
    fn count(lanes, recipe, i) {
        let (replicas, batch, micro_batch) = (lanes.replicas[i], lanes.batch[i], lanes.micro_batch[i]);
        let sampled = divide(recipe.dataset, replicas, recipe.sampler_up);
        let passes = divide(sampled, micro_batch, recipe.loader_up);
        let steps = divide(passes, lanes.accumulation[i], 1.0);
        let of_passes = passes * (micro_batch * replicas);
        let served = if replicas >= recipe.whole_from { of_passes } else { sampled * replicas };
        let (total, total_exact) = recipe.total.at(steps, 0.0, batch);
        let (warmup, warmup_exact) = recipe.warmup.at(steps, total, batch);
        lanes.steps_per_epoch[i] = steps;
        lanes.samples_per_epoch[i] = served;
        lanes.padded_samples[i] = (served - recipe.dataset).max(0.0);
        lanes.dropped_samples[i] = (recipe.dataset - served).max(0.0);
        // A length past the limit is not exact: NaN, and the row is left.
        lanes.total_steps[i] = if total_exact & (of_passes < LIMIT) { total } else { f64::NAN };
        lanes.warmup_steps[i] = if warmup_exact { warmup } else { f64::NAN };
    }

    /// The cautions.
    fn caution(lanes, recipe, i) {
        let (batch, micro_batch, accumulation) = (lanes.batch[i], lanes.micro_batch[i], lanes.accumulation[i]);
        let (total, warmup) = (lanes.total_steps[i], lanes.warmup_steps[i]);
        let (steps, served) = (lanes.steps_per_epoch[i], lanes.samples_per_epoch[i]);
        let k = lanes.k[i];
        let moved = moves(lanes.lr_scale[i]);
        let mut found = Reasons::default();
        found.insert_if(micro_batch * 2.0 <= recipe.tuned_micro_batch, Reason::MicroBatchShrunk);
        found.insert_if(micro_batch != recipe.tuned_micro_batch, Reason::BatchNormMoved);
        found.insert_if(batch > recipe.critical_batch, Reason::AboveCriticalBatch);
        found.insert_if(k > 8.0, Reason::LargeGrowth);
        found.insert_if(moved & (k < 0.125), Reason::SqrtScaleDown);
        found.insert_if(moved & (batch > recipe.rule_range), Reason::RuleRange);
        found.insert_if((warmup == 0.0) & (k > 1.0), Reason::NoWarmup);
        found.insert_if(warmup > total, Reason::WarmupPastEnd);
        found.insert_if(warmup * 5.0 > total, Reason::WarmupLong);
        found.insert_if((warmup > 0.0) & (warmup < recipe.second_moment_steps), Reason::WarmupShort);
        found.insert_if(lanes.padded_samples[i] * 100.0 > recipe.dataset, Reason::Padded);
        found.insert_if(lanes.dropped_samples[i] * 100.0 > recipe.dataset, Reason::Dropped);
        found.insert_if((accumulation > 1.0) & (served != steps * batch), Reason::UnevenTail);
        let by_move = if moved { recipe.if_moved } else { Reasons::default() };
        lanes.reasons[i] = found.of(recipe.possible) | recipe.always | by_move;
    }

    /// Where there is no plan, nothing is known.
    fn judge(lanes, recipe, i, nearest: bool) {
        let (batch, micro_batch, accumulation) = (lanes.batch[i], lanes.micro_batch[i], lanes.accumulation[i]);
        let (lr, steps) = (lanes.lr[i], lanes.steps_per_epoch[i]);
        let (total, warmup) = (lanes.total_steps[i], lanes.warmup_steps[i]);
        let divides = lanes.samples[i] * lanes.replicas[i] == batch;
        let above = recipe.epochs & ((steps == 0.0) | (batch > recipe.dataset));
        let done = divides & !above;

        let most = f64::from(i32::MAX);
        let legal = (micro_batch <= most) & (accumulation <= most) & (lr > 0.0) & (lr < f64::INFINITY);
        let exact = ((total > 0.0) | (!recipe.ends & (total == 0.0))) & (warmup >= 0.0);
        let ready = (divides & legal & (above | exact)) | !(divides | nearest);
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
        lanes.steps_per_epoch[i] = count(steps, recipe.epochs);
        lanes.samples_per_epoch[i] = count(lanes.samples_per_epoch[i], recipe.epochs);
        lanes.padded_samples[i] = count(lanes.padded_samples[i], recipe.epochs);
        lanes.dropped_samples[i] = count(lanes.dropped_samples[i], recipe.epochs);
        lanes.total_steps[i] = count(total, recipe.ends);
        lanes.warmup_steps[i] = count(warmup, recipe.warms);
    }
}

#[inline(always)]
fn moves(lr_scale: f64) -> bool {
    lr_scale != 1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Column, Columns, Data, Fleet, Kind, MISSING, Out, Pairs};
    use crate::input::{Field, Value};
    use crate::plan::{Row, plan};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    /// A column's memory, whatever its type.
    enum Memory {
        U8(Vec<u8>),
        U64(Vec<u64>),
        I32(Vec<i32>),
        I64(Vec<i64>),
        F64(Vec<f64>),
    }

    macro_rules! each {
        ($memory:expr, |$values:ident| $do:expr) => {
            match $memory {
                Memory::U8($values) => $do,
                Memory::U64($values) => $do,
                Memory::I32($values) => $do,
                Memory::I64($values) => $do,
                Memory::F64($values) => $do,
            }
        };
    }

    impl Memory {
        fn new(kind: Kind, rows: usize) -> Memory {
            match kind {
                Kind::U8 => Memory::U8(vec![77; rows]),
                Kind::U64 => Memory::U64(vec![77; rows]),
                Kind::I32 => Memory::I32(vec![77; rows]),
                Kind::I64 => Memory::I64(vec![77; rows]),
                Kind::F64 => Memory::F64(vec![77.0; rows]),
            }
        }

        fn out(&mut self) -> Out<'_> {
            match self {
                Memory::U8(v) => Out::U8(v),
                Memory::U64(v) => Out::U64(v),
                Memory::I32(v) => Out::I32(v),
                Memory::I64(v) => Out::I64(v),
                Memory::F64(v) => Out::F64(v),
            }
        }

        /// What the column holds, to the bit but for NaN, which is one value.
        fn text(&self, row: usize) -> String {
            each!(self, |values| format!("{:?}", values[row]))
        }
    }

    const COUNTS: [Field; 7] = [
        Field::EffectiveBatch,
        Field::DatasetSize,
        Field::Gpus,
        Field::MicroBatch,
        Field::ModelParallel,
        Field::SeqLen,
        Field::MaxMicroBatch,
    ];
    const REALS: [Field; 4] = [Field::Lr, Field::WeightDecay, Field::NoiseScale, Field::EmaDecay];
    const TEXTS: [(Field, &[&str]); 9] = [
        (Field::Policy, &["keep", "grow", "grow", "1024", "768"]),
        (Field::Rule, &["auto", "auto", "none", "linear", "sqrt", "sde", "saturating"]),
        (Field::Optimizer, &["sgd", "adamw", "adam", "lamb", "lars", "lion", "muon"]),
        (
            Field::Duration,
            &["90ep", "0.5ep", "1000st", "5000sp", "1e9sp", "3e9tok", "9e14sp", "89.99999999ep", "1st"],
        ),
        (Field::Warmup, &["", "5ep", "1.25ep", "100st", "10%", "28.43%", "2000sp", "1e6tok", "0st"]),
        (Field::DropLast, &["false", "true", "sampler", "loader"]),
        (Field::Convention, &["torch", "lightning", "transformers", "megatron"]),
        (Field::Decay, &["", "lr_multiplied", "independent"]),
        (Field::BatchNorm, &["true", "false"]),
    ];

    fn counts(field: Field) -> BoxedStrategy<i64> {
        match field {
            Field::EffectiveBatch => prop_oneof![
                20 => (4..10_u32, 1..40_i64).prop_map(|(power, odd)| odd << power),
                4 => 1..5000_i64,
                1 => select(vec![MISSING, 0, 1 << 40, (1 << 40) - 87, (1 << 40) + 1]),
            ]
            .boxed(),
            Field::DatasetSize => prop_oneof![
                12 => 1..3_000_000_i64,
                1 => Just(MISSING),
                1 => select(vec![1 << 53, (1 << 51) - 1, 1 << 51, (1 << 52) + 1, 1 << 45]),
            ]
            .boxed(),
            Field::ModelParallel => select(vec![1, 1, 1, 1, 2, MISSING]).boxed(),
            Field::SeqLen => select(vec![MISSING, 2048, 1, 1 << 40]).boxed(),
            Field::MaxMicroBatch => select(vec![MISSING, MISSING, 1, 7, 32, (1 << 31) - 1]).boxed(),
            _ => select(vec![MISSING, MISSING, 1, 2, 4, 8, 4, 8, 6]).boxed(),
        }
    }

    fn reals(field: Field) -> BoxedStrategy<f64> {
        match field {
            Field::Lr => {
                prop_oneof![19 => 1e-5..1.0_f64, 1 => select(vec![1e-320, 1e308, f64::NAN, -1.0])].boxed()
            }
            Field::EmaDecay => select(vec![f64::NAN, f64::NAN, 0.999]).boxed(),
            Field::NoiseScale => select(vec![f64::NAN, f64::NAN, 500.0, 2e3, 1e5]).boxed(),
            _ => select(vec![f64::NAN, 0.0, 0.01, 0.3]).boxed(),
        }
    }

    /// The counts, reals and codes of some jobs, column by column.
    type Jobs = (Vec<Vec<i64>>, Vec<Vec<f64>>, Vec<Vec<u32>>);

    fn jobs(rows: usize) -> impl Strategy<Value = Jobs> {
        (
            COUNTS.map(|field| vec(counts(field), rows)).to_vec(),
            REALS.map(|field| vec(reals(field), rows)).to_vec(),
            TEXTS.map(|(_, texts)| vec(0..u32::try_from(texts.len()).unwrap(), rows)).to_vec(),
        )
    }

    /// World sizes and model parallelism.
    fn clusters() -> impl Strategy<Value = Vec<(i64, i64)>> {
        let gpus = prop_oneof![20 => 1..70_i64, 1 => select(vec![0, 1 << 20, 1 << 31, (1 << 31) + 1])];
        vec((gpus, select(vec![MISSING, MISSING, MISSING, 1, 2, 5])), 1..80)
    }

    proptest! {
        #[test]
        fn rows_planned_together_are_those_planned_alone(
            (counts, reals, codes) in jobs(12),
            clusters in clusters(),
            pairs in proptest::option::of(vec((0..12_u32, any::<prop::sample::Index>()), 0..150)),
            sorted: bool,
            nearest: bool,
        ) {
            let mut columns = Vec::new();
            columns.extend(COUNTS.iter().zip(&counts).map(|(field, values)| (*field, Data::Ints(values))));
            columns.extend(REALS.iter().zip(&reals).map(|(field, values)| (*field, Data::Reals(values))));
            for ((field, texts), codes) in TEXTS.iter().zip(&codes) {
                let values = texts.iter().map(|text| Value::read(*field, text)).collect();
                columns.push((*field, Data::Codes(codes, values)));
            }
            let (gpus, parallel): (Vec<_>, Vec<_>) = clusters.into_iter().unzip();
            let sites = vec![
                (Field::GpusPerNode, Data::Ints(&gpus)),
                (Field::ClusterModelParallel, Data::Ints(&parallel)),
            ];
            let named: Option<(Vec<u32>, Vec<u32>)> = pairs.map(|mut pairs| {
                if sorted {
                    pairs.sort_by_key(|(job, _)| *job);
                }
                let row = |index: prop::sample::Index| u32::try_from(index.index(gpus.len())).unwrap();
                pairs.into_iter().map(|(job, index)| (job, row(index))).unzip()
            });
            let fleet = Fleet {
                shared: Input::default(),
                jobs: Columns { rows: 12, columns },
                clusters: Columns { rows: gpus.len(), columns: sites },
                pairs: named.as_ref().map_or(Pairs::Crossed, |(jobs, clusters)| Pairs::Named { jobs, clusters }),
            };

            let ways_out = [Column::NearestWorldSize, Column::NearestBatch];
            let columns = Column::ALL.iter().filter(|column| nearest || !ways_out.contains(column));
            let mut together: Vec<_> =
                columns.map(|&column| (column, Memory::new(column.kind(), fleet.rows()))).collect();
            fleet.plan(together.iter_mut().map(|(column, memory)| (*column, memory.out())).collect());
            let mut alone = [Row::unknown()];
            for row in 0..fleet.rows() {
                let input = fleet.input(row);
                plan(&input, &mut alone[0]);
                for (column, memory) in &together {
                    let mut expected = Memory::new(column.kind(), 1);
                    column.write(&alone, 0..1, &mut expected.out());
                    prop_assert_eq!(memory.text(row), expected.text(0), "{:?} of {:?}", column, input);
                }
            }
        }
    }
}
