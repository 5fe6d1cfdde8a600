//! One row's input: a recipe, a cluster, the settings; every field with its name and its legal values.

mod assign;
mod fields;
mod invalid;
mod value;

pub use fields::{Field, Kind, Table};
pub use value::{Read, Value};

use std::sync::Arc;

use crate::duration::{Convention, DropLast, Length};
use crate::optimizer::{Decay, Moments, Optimizer};
use crate::outlook::Workload;
use crate::ramp::Ramp;
use crate::scaling::{Noise, Rule};

/// No cluster has more GPUs.
pub const MAX_GPUS: u64 = 1 << 31;

/// What to hold when the GPU count changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The effective batch and the learning rate.
    Keep,
    /// The samples per replica: the batch grows with the replicas.
    Grow,
    /// This effective batch.
    Batch(u64),
    /// The batch that reaches the same loss soonest.
    Goodput,
}

/// What was tuned.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "named and described in Field")]
pub struct Job {
    pub effective_batch: u64,
    pub lr: f64,
    pub optimizer: Optimizer,
    pub momentum: f64,
    pub betas: (f64, f64),
    pub eps: f64,
    pub weight_decay: f64,
    pub decay: Option<Decay>,
    pub ema_decay: f64,
    pub dataset_size: Option<u64>,
    pub duration: Option<Length>,
    pub warmup: Length,
    pub min_lr: f64,
    pub seq_len: Option<u64>,
    pub drop_last: DropLast,
    pub convention: Convention,
    pub gpus: Option<u64>,
    pub micro_batch: Option<u64>,
    pub accumulation: Option<u64>,
    pub model_parallel: u64,
    pub noise: Noise,
    pub ramp: Option<Arc<Ramp>>,
    pub parameters: Option<u64>,
    pub batch_norm: bool,
    pub unequal_devices: bool,
}

/// Where it shall run.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "named and described in Field")]
pub struct Cluster {
    pub nodes: u64,
    pub gpus_per_node: u64,
    pub model_parallel: Option<u64>,
    pub gpu: Option<Arc<str>>,
    pub memory_gib: f64,
    pub intra_gb_s: f64,
    pub inter_gb_s: f64,
    pub latency_us: f64,
    pub price_per_gpu_hour: f64,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
#[allow(
    missing_docs,
    clippy::struct_excessive_bools,
    reason = "named and described in Field; each is a user's switch"
)]
pub struct Settings {
    pub policy: Policy,
    pub rule: Rule,
    pub max_micro_batch: Option<u64>,
    pub max_batch: Option<u64>,
    pub batch_tolerance: f64,
    pub micro_batch_multiple: u64,
    pub require_multiple: bool,
    pub ragged: bool,
    pub uneven: bool,
    pub beta_half_life: bool,
    pub deadline_hours: f64,
    pub budget: f64,
}

/// One row's input. Start from the default, [`set`](Input::set) what is known, hand it to [`plan`](crate::plan::plan).
#[derive(Clone, Debug)]
pub struct Input {
    /// What was tuned.
    pub job: Job,
    /// Where it shall run.
    pub cluster: Cluster,
    /// What is asked for.
    pub settings: Settings,
    /// What was measured of the workload, by GPU type.
    pub workloads: Arc<[Workload]>,
    /// The first field that was set to an illegal value.
    pub fault: Option<Field>,
}

impl Default for Input {
    fn default() -> Input {
        const NAN: f64 = f64::NAN;
        Input {
            job: Job {
                effective_batch: 0,
                lr: NAN,
                optimizer: Optimizer::AdamW,
                momentum: NAN,
                betas: (NAN, NAN),
                eps: NAN,
                weight_decay: 0.0,
                decay: None,
                ema_decay: NAN,
                dataset_size: None,
                duration: None,
                warmup: Length::ZERO,
                min_lr: 0.0,
                seq_len: None,
                drop_last: DropLast::default(),
                convention: Convention::Torch,
                gpus: None,
                micro_batch: None,
                accumulation: None,
                model_parallel: 1,
                noise: Noise { scale: NAN, sigma_sq: NAN, mu_sq: NAN, power: NAN },
                ramp: None,
                parameters: None,
                batch_norm: false,
                unequal_devices: false,
            },
            cluster: Cluster {
                nodes: 1,
                gpus_per_node: 8,
                model_parallel: None,
                gpu: None,
                memory_gib: NAN,
                intra_gb_s: NAN,
                inter_gb_s: NAN,
                latency_us: NAN,
                price_per_gpu_hour: NAN,
            },
            settings: Settings {
                policy: Policy::Keep,
                rule: Rule::Auto,
                max_micro_batch: None,
                max_batch: None,
                batch_tolerance: 0.0,
                micro_batch_multiple: 1,
                require_multiple: false,
                ragged: false,
                uneven: false,
                beta_half_life: false,
                deadline_hours: NAN,
                budget: NAN,
            },
            workloads: Arc::default(),
            fault: None,
        }
    }
}

impl Job {
    /// The optimizer's running averages, by the recipe or by the optimizer's defaults.
    #[must_use]
    pub fn moments(&self) -> Moments {
        let defaults = self.optimizer.defaults();
        let or = |value: f64, default: f64| if value.is_nan() { default } else { value };
        Moments {
            beta1: or(self.betas.0, defaults.beta1),
            beta2: or(self.betas.1, defaults.beta2),
            eps: or(self.eps, defaults.eps),
        }
    }

    /// Whether there is weight decay of which nobody said how the optimizer multiplies it.
    #[must_use]
    pub fn decay_unknown(&self) -> bool {
        self.weight_decay > 0.0 && self.decay_unsaid()
    }

    /// As [`decay_unknown`](Job::decay_unknown), if there is weight decay.
    pub(crate) fn decay_unsaid(&self) -> bool {
        let coupled =
            matches!(self.optimizer, Optimizer::Sgd | Optimizer::Adam | Optimizer::RmsProp | Optimizer::Lars);
        self.decay.is_none() && !coupled
    }

    /// The replicas that the recipe was tuned on.
    #[must_use]
    pub fn tuned_replicas(&self) -> Option<u64> {
        self.gpus.map(|gpus| gpus / self.model_parallel)
    }
}
