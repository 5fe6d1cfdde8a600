//! One row of the result.

use crate::batch;
use crate::forecast::Outlook;
use crate::input::{Input, MAX_GPUS};
use crate::reason::Reasons;
use crate::rules::{Moments, Rule};

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
    /// Between two evaluations, checkpoints and lines of a log.
    pub eval_steps: i64,
    pub save_steps: i64,
    pub log_steps: i64,
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
    pub(super) const NONE: Nearest = Nearest { below: UNKNOWN, above: UNKNOWN, nearest: UNKNOWN };

    pub(super) fn of(value: u64, below: Option<u64>, above: Option<u64>) -> Nearest {
        let column = |n: Option<u64>| n.map_or(UNKNOWN, as_column);
        Nearest {
            below: column(below),
            above: column(above),
            nearest: column(batch::nearer(value, below, above)),
        }
    }

    /// As [`of`](Self::of) for GPU counts, of which none is above what a cluster may have.
    pub(super) fn of_gpus(value: u64, below: Option<u64>, above: Option<u64>) -> Nearest {
        Nearest::of(value, below, above.filter(|&gpus| gpus <= MAX_GPUS))
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
    pub(super) fn of(input: &Input) -> Cap {
        match (input.settings.max_micro_batch, input.recipe.micro_batch) {
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
            eval_steps: UNKNOWN,
            save_steps: UNKNOWN,
            log_steps: UNKNOWN,
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
    pub(super) fn forget(&mut self) {
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

#[allow(clippy::cast_possible_wrap, reason = "every count is at most 2^53")]
pub(super) fn as_column(n: u64) -> i64 {
    n as i64
}
