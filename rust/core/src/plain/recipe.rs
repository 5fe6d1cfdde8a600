//! What plain plans need of a job and the settings.

use super::steps::Steps;
use super::{At, BLOCK, flag, set, whole};
use crate::duration::{Convention, Unit};
use crate::input::{Input, Job, Policy};
use crate::optimizer::{Decay, Optimizer};
use crate::plan::tuned_warmup;
use crate::reason::{Reason, Reasons};
use crate::scaling::Rule;

macro_rules! recipe {
    (numbers: $($(#[$of_number:meta])* $number:ident)*; kind: $($(#[$doc:meta])* $name:ident)*;) => {
        /// One for all lanes, or one for each. Flags are 0 or 1, a number that is not known is NaN.
        #[derive(Clone, Debug)]
        pub(crate) struct Recipe<T, R> {
            $($(#[$of_number])* pub $number: T,)*
            $($(#[$doc])* pub $name: T,)*
            pub total: Steps<T>,
            pub warmup: Steps<T>,
            /// Cautions that hold in any case, those that hold if the learning rate moves, and those that may hold at all.
            pub always: R,
            pub if_moved: R,
            pub possible: R,
        }

        impl<T: At<f64>, R: At<Reasons>> Recipe<T, R> {
            /// That of a lane; what of it is not looked at costs nothing.
            #[inline(always)]
            pub fn lane(&self, lane: usize) -> One {
                Recipe {
                    $($number: self.$number.at(lane),)*
                    $($name: self.$name.at(lane),)*
                    total: self.total.lane(lane),
                    warmup: self.warmup.lane(lane),
                    always: self.always.at(lane),
                    if_moved: self.if_moved.at(lane),
                    possible: self.possible.at(lane),
                }
            }
        }

        impl Recipe<[f64; BLOCK], [Reasons; BLOCK]> {
            pub fn new() -> Self {
                Recipe {
                    $($number: [1.0; BLOCK],)*
                    $($name: [1.0; BLOCK],)*
                    total: Steps::new(),
                    warmup: Steps::new(),
                    always: [Reasons::default(); BLOCK],
                    if_moved: [Reasons::default(); BLOCK],
                    possible: [Reasons::default(); BLOCK],
                }
            }

            /// Takes the numbers of one recipe into every lane.
            pub fn share(&mut self, one: &One) {
                $(self.$number = [one.$number; BLOCK];)*
            }

            /// Takes the rest of a lane's recipe.
            #[inline]
            pub fn set(&mut self, lane: usize, one: &One) {
                $(self.$name[lane] = one.$name;)*
                self.total.set(lane, &one.total);
                self.warmup.set(lane, &one.warmup);
                self.always[lane] = one.always;
                self.if_moved[lane] = one.if_moved;
                self.possible[lane] = one.possible;
            }
        }
    };
}

recipe! {
    numbers:
    tuned_batch lr weight_decay momentum ema_decay noise min_lr
    micro_batch accumulation gpus model_parallel max_micro_batch
    /// 0 where they are not known.
    dataset seq_len
    /// Of a number that plain plans do not depend on.
    unused;
    kind: // The same for many jobs.
    /// The batch to reach is this, and the tuned one where it is kept, or so much more for each replica.
    batch keeps grows
    linear root
    beta1 beta2
    decay_moves decay_by_lr decay_unsaid
    /// Whether the trainer counts epochs.
    epochs
    sampler_up loader_up
    /// From so many replicas on, an epoch serves whole micro-batches only.
    whole_from
    ends warms
    /// Whether a length is counted in these.
    in_epochs in_tokens
    second_moment_steps
    /// By the recipe, else by the optimizer.
    eps;
}

/// A job's.
pub(crate) type One = Recipe<f64, Reasons>;

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
        let Input { job, settings, workloads, .. } = input;
        let plain = workloads.is_empty()
            && job.ramp.is_none()
            && settings.max_batch.is_none()
            && settings.batch_tolerance == 0.0
            && settings.micro_batch_multiple == 1
            && !(settings.ragged || settings.uneven || settings.beta_half_life)
            && settings.deadline_hours.is_nan()
            && settings.budget.is_nan();
        let keep = settings.policy == Policy::Keep;
        let rule = if keep { Rule::None } else { settings.rule.resolve(job.optimizer) };
        if !plain
            || settings.policy == Policy::Goodput
            || !matches!(rule, Rule::None | Rule::Linear | Rule::Sqrt)
        {
            return None;
        }

        let known = |n: Option<u64>| n.map_or(f64::NAN, |n| n as f64);
        let epochs = job.convention != Convention::Megatron;
        let transformers = job.convention == Convention::Transformers;
        let drop = job.drop_last;
        let total = job.duration.map(|duration| Steps::of(duration, epochs, !epochs));
        let endless = job.warmup.unit == Unit::Percent && total.is_none();
        let warmup = if job.warmup.is_zero() {
            Some(Steps::NONE)
        } else if job.optimizer.layer_wise() {
            match tuned_warmup(job)? {
                Some(steps) => Some(Steps::fixed(steps)?),
                None => None,
            }
        } else if endless {
            None
        } else {
            Some(Steps::of(job.warmup, epochs, false)?)
        };
        let counted = |unit| job.duration.is_some_and(|d| d.unit == unit) || job.warmup.unit == unit;

        let moments = job.moments();
        let (linear, root) = (rule == Rule::Linear, rule == Rule::Sqrt);
        let impossible = [
            (!job.batch_norm, Reason::BatchNormMoved),
            (!root, Reason::SqrtScaleDown),
            (!linear, Reason::RuleRange),
            (keep || warmup.is_none(), Reason::NoWarmup),
            (total.is_none(), Reason::WarmupPastEnd),
            (total.is_none(), Reason::WarmupLong),
        ];
        Some(Recipe {
            tuned_batch: job.effective_batch as f64,
            lr: job.lr,
            weight_decay: job.weight_decay,
            momentum: job.momentum,
            ema_decay: job.ema_decay,
            eps: moments.eps,
            noise: job.noise.scale,
            min_lr: job.min_lr,
            micro_batch: known(job.micro_batch),
            accumulation: known(job.accumulation),
            gpus: known(job.gpus),
            model_parallel: job.model_parallel as f64,
            max_micro_batch: known(settings.max_micro_batch),
            dataset: whole(job.dataset_size.unwrap_or(0))?,
            seq_len: job.seq_len.unwrap_or(0) as f64,
            batch: if let Policy::Batch(batch) = settings.policy { batch as f64 } else { 0.0 },
            keeps: flag(keep),
            grows: flag(settings.policy == Policy::Grow),
            linear: flag(linear),
            root: flag(root),
            beta1: moments.beta1,
            beta2: moments.beta2,
            decay_moves: flag(job.optimizer == Optimizer::AdamW),
            decay_by_lr: flag(job.decay != Some(Decay::Independent)),
            decay_unsaid: flag(job.decay_unsaid()),
            epochs: flag(epochs),
            sampler_up: flag(!if transformers { drop.loader } else { drop.sampler }),
            loader_up: flag(!drop.loader),
            whole_from: match (drop.loader, transformers) {
                (true, _) => 1.0,
                // Where there is one process, Accelerate leaves the loader alone.
                (false, true) => 2.0,
                (false, false) => f64::INFINITY,
            },
            ends: flag(total.is_some()),
            warms: flag(warmup.is_some()),
            in_epochs: flag(counted(Unit::Epochs)),
            in_tokens: flag(counted(Unit::Tokens)),
            unused: 0.0,
            second_moment_steps: if job.optimizer.adam_like() {
                1.0 / (1.0 - moments.beta2)
            } else {
                f64::NAN
            },
            total: total.unwrap_or(Some(Steps::NONE))?,
            warmup: warmup.unwrap_or(Steps::NONE),
            always: set([(job.unequal_devices, Reason::UnequalDevices)]),
            if_moved: set([
                (rule.mismatches(job.optimizer), Reason::RuleMismatch),
                (root && !job.optimizer.charted(), Reason::RuleAssumed),
            ]),
            possible: !set(impossible),
        })
    }
}
