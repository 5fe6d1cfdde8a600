//! One row's input: a recipe, a cluster, the settings; every field with its name and its legal values.

use std::borrow::Borrow;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::batch::MAX_BATCH;
use crate::duration::{Convention, DropLast, Length, MAX_COUNT, Unit};
use crate::optimizer::{Decay, Moments, Optimizer};
use crate::outlook::Workload;
use crate::ramp::Ramp;
use crate::reason::Reason;
use crate::scaling::{Noise, Rule};

/// No cluster has more GPUs.
pub const MAX_GPUS: u64 = 1 << 31;

/// Where a field comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The recipe.
    Job,
    /// The cluster.
    Cluster,
    /// A keyword of the call, or a column of the same name in either table.
    Settings,
}

/// What the values of a field are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Whole numbers from 1 to this.
    Count(u64),
    /// Reals from the first to the second.
    Real(f64, f64),
    /// True or false.
    Flag,
    /// Names, lengths and the like.
    Other,
}

macro_rules! fields {
    ($($variant:ident $name:literal $table:ident $kind:ident $(($($limit:expr),*))? $reason:ident $legal:literal)*) => {
        /// A field of the input.
        #[allow(clippy::doc_markdown, reason = "the texts are shown to people as they stand")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Field {
            $(#[doc = $legal] $variant,)*
        }

        impl Field {
            /// Every field.
            pub const ALL: &'static [Field] = &[$(Field::$variant,)*];

            /// Its name in its table.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Field::$variant => $name,)* }
            }

            /// The field of this name in one of these tables.
            #[must_use]
            pub fn named(name: &str, tables: &[Table]) -> Option<Field> {
                Field::ALL.iter().copied().find(|field| field.name() == name && tables.contains(&field.table()))
            }

            /// Its table.
            #[must_use]
            pub fn table(self) -> Table {
                match self { $(Field::$variant => Table::$table,)* }
            }

            /// What its values are.
            #[must_use]
            pub fn kind(self) -> Kind {
                match self { $(Field::$variant => Kind::$kind $(($($limit),*))?,)* }
            }

            /// The values that it may have.
            #[must_use]
            pub fn legal(self) -> &'static str {
                match self { $(Field::$variant => $legal,)* }
            }

            /// The reason on a row where it has another.
            #[must_use]
            pub fn reason(self) -> Reason {
                match self { $(Field::$variant => Reason::$reason,)* }
            }
        }

        impl Input {
            /// Sets a field of many inputs, each to the value beside it: one loop a field, in which the field is known.
            pub fn set_each<'a>(field: Field, pairs: impl Iterator<Item = (&'a mut Input, impl Borrow<Value>)>) {
                match field {
                    $(Field::$variant => pairs.for_each(|(input, value)| input.set_known(Field::$variant, value.borrow())),)*
                }
            }
        }
    };
}

const I32: u64 = i32::MAX as u64;
/// The reals next to 0 and 1.
const LEAST: f64 = f64::from_bits(1);
const BELOW_ONE: f64 = 1.0 - f64::EPSILON / 2.0;

fields! {
    EffectiveBatch "effective_batch" Job Count(MAX_BATCH) InvalidBatch "a whole number from 1 to 2^40"
    Lr "lr" Job Real(LEAST, f64::MAX) InvalidLr "a finite number above 0"
    Optimizer "optimizer" Job Other InvalidOptimizer "sgd, adam, adamw, rmsprop, lars, lamb, lion, muon or adafactor"
    Momentum "momentum" Job Real(0.0, BELOW_ONE) InvalidOptimizer "a number from 0 to below 1"
    Betas "betas" Job Other InvalidOptimizer "two numbers from 0 to below 1"
    Eps "eps" Job Real(0.0, f64::MAX) InvalidOptimizer "a finite number, 0 or more"
    WeightDecay "weight_decay" Job Real(0.0, f64::MAX) InvalidOptimizer "a finite number, 0 or more"
    Decay "decay" Job Other InvalidOptimizer "lr_multiplied or independent"
    EmaDecay "ema_decay" Job Real(0.0, BELOW_ONE) InvalidOptimizer "a number from 0 to below 1"
    DatasetSize "dataset_size" Job Count(MAX_COUNT) InvalidLength "a whole number of samples from 1 to 2^53; needed where a length is in ep"
    Duration "duration" Job Other InvalidLength "a number above 0 with a unit: ep, st, sp or tok"
    Warmup "warmup" Job Other InvalidLength "a number with a unit: ep, st, sp, tok or %"
    Schedule "schedule" Job Other InvalidLength "a schedule's name, or its call with arguments"
    MinLr "min_lr" Job Real(0.0, f64::MAX) InvalidLr "a finite number from 0 to lr"
    SeqLen "seq_len" Job Count(MAX_BATCH) InvalidLength "a whole number of tokens from 1 to 2^40; needed where a length is in tok"
    DropLast "drop_last" Job Flag InvalidLength "true, false, sampler or loader; not sampler alone under transformers, whose sampler drops nothing"
    Convention "convention" Job Other InvalidLength "torch, lightning, transformers or megatron"
    Gpus "gpus" Job Count(MAX_GPUS) InvalidBatch "a whole number from 1 to 2^31 that model_parallel divides, and whose replicas divide effective_batch"
    MicroBatch "micro_batch" Job Count(I32) InvalidBatch "a whole number from 1 to 2^31-1; with gpus, a divisor of the samples per replica"
    Accumulation "accumulation" Job Count(I32) InvalidBatch "a whole number from 1 to 2^31-1; with gpus, micro_batch × accumulation × replicas is effective_batch"
    ModelParallel "model_parallel" Job Count(MAX_GPUS) InvalidBatch "a whole number from 1 to 2^31"
    Power "power" Job Real(f64::MIN, f64::MAX) InvalidLr "a finite number"
    NoiseScale "noise_scale" Job Real(LEAST, f64::MAX) InvalidNoise "a finite number of samples above 0"
    SigmaSq "sigma_sq" Job Real(LEAST, f64::MAX) InvalidNoise "a finite number above 0"
    MuSq "mu_sq" Job Real(LEAST, f64::MAX) InvalidNoise "a finite number above 0"
    Ramp "ramp" Job Other InvalidBatch "START INCREMENT SAMPLES, or TOKENS:BATCH pairs from 0 upwards that end at effective_batch"
    Parameters "parameters" Job Count(MAX_COUNT) InvalidBatch "a whole number from 1 to 2^53"
    Precision "precision" Job Other InvalidOptimizer "fp32, tf32, bf16 or fp16"
    ClipNorm "clip_norm" Job Real(LEAST, f64::MAX) InvalidOptimizer "a finite number above 0"
    BucketCapMb "bucket_cap_mb" Job Real(LEAST, f64::MAX) InvalidOptimizer "a finite number above 0"
    BatchNorm "batch_norm" Job Flag InvalidBatch "true or false"
    DeviceBatches "device_batches" Job Other InvalidBatch "one whole number above 0 for each GPU"
    Nodes "nodes" Cluster Count(MAX_GPUS) InvalidCluster "a whole number from 1; nodes × gpus_per_node at most 2^31"
    GpusPerNode "gpus_per_node" Cluster Count(MAX_GPUS) InvalidCluster "a whole number from 1; nodes × gpus_per_node at most 2^31"
    ClusterModelParallel "model_parallel" Cluster Count(MAX_GPUS) InvalidCluster "a whole number from 1 to 2^31"
    Gpu "gpu" Cluster Other InvalidCluster "a name"
    MemoryGib "memory_gib" Cluster Real(LEAST, f64::MAX) InvalidCluster "a finite number above 0"
    IntraGbS "intra_gb_s" Cluster Real(LEAST, f64::MAX) InvalidCluster "a finite number above 0"
    InterGbS "inter_gb_s" Cluster Real(LEAST, f64::MAX) InvalidCluster "a finite number above 0"
    LatencyUs "latency_us" Cluster Real(0.0, f64::MAX) InvalidCluster "a finite number, 0 or more"
    PricePerGpuHour "price_per_gpu_hour" Cluster Real(0.0, f64::MAX) InvalidCluster "a finite number, 0 or more"
    Policy "policy" Settings Other InvalidSetting "keep, grow, goodput, or the effective batch to reach (1 to 2^40)"
    Rule "rule" Settings Other InvalidSetting "none, linear, sqrt, sde, adascale, saturating, surge, power or auto"
    MaxMicroBatch "max_micro_batch" Settings Count(I32) InvalidSetting "a whole number from 1 to 2^31-1"
    MaxBatch "max_batch" Settings Count(MAX_BATCH) InvalidSetting "a whole number from 1 to 2^40"
    BatchTolerance "batch_tolerance" Settings Real(0.0, BELOW_ONE) InvalidSetting "a fraction from 0 to below 1"
    MicroBatchMultiple "micro_batch_multiple" Settings Count(I32) InvalidSetting "a whole number from 1 to 2^31-1"
    RequireMultiple "require_multiple" Settings Flag InvalidSetting "true or false"
    Ragged "ragged" Settings Flag InvalidSetting "true or false; not with uneven or require_multiple"
    Uneven "uneven" Settings Flag InvalidSetting "true or false; not with ragged"
    BetaHalfLife "beta_half_life" Settings Flag InvalidSetting "true or false"
    DeadlineHours "deadline_hours" Settings Real(LEAST, f64::MAX) InvalidSetting "a finite number above 0"
    Budget "budget" Settings Real(LEAST, f64::MAX) InvalidSetting "a finite number above 0, in the currency of price_per_gpu_hour"
}

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

/// A value on its way into a field. A column's texts are read once each, not once a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unknown: the field's default, where it has one.
    Missing,
    /// A whole number.
    Int(i64),
    /// A real; NaN is unknown.
    Real(f64),
    /// A text that is a value of its field.
    Read(Read),
    /// Not a value of any field.
    Illegal,
}

/// What a text stands for.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "named as the types they hold")]
pub enum Read {
    Optimizer(Optimizer),
    Betas(f64, f64),
    Decay(Decay),
    Length(Length),
    DropLast(DropLast),
    Convention(Convention),
    Ramp(Arc<Ramp>),
    Policy(Policy),
    Rule(Rule),
    Flag(bool),
    Gpu(Arc<str>),
    Name,
}

fn named<T: Copy>(all: &[(&str, T)], text: &str) -> Option<T> {
    all.iter().find(|(name, _)| *name == text).map(|&(_, value)| value)
}

fn flag(text: &str) -> Option<bool> {
    named(
        &[("true", true), ("false", false), ("True", true), ("False", false), ("1", true), ("0", false)],
        text,
    )
}

fn betas(text: &str) -> Option<(f64, f64)> {
    let inner = text.trim_matches(['(', ')', '[', ']', ' ']);
    let (first, second) = inner.split_once(',').or_else(|| inner.split_once(' '))?;
    Some((first.trim().parse().ok()?, second.trim().parse().ok()?))
}

fn policy(text: &str) -> Option<Policy> {
    named(&[("keep", Policy::Keep), ("grow", Policy::Grow), ("goodput", Policy::Goodput)], text)
        .or_else(|| text.parse().ok().filter(|b| (1..=MAX_BATCH).contains(b)).map(Policy::Batch))
}

fn drop_last(text: &str) -> Option<DropLast> {
    match text {
        "sampler" => Some(DropLast { sampler: true, loader: false }),
        "loader" => Some(DropLast { sampler: false, loader: true }),
        _ => flag(text).map(|both| DropLast { sampler: both, loader: both }),
    }
}

impl Value {
    /// Reads a text as a value of `field`.
    #[must_use]
    pub fn read(field: Field, text: &str) -> Value {
        let text = text.trim();
        if text.is_empty() {
            return Value::Missing;
        }
        let read = match field {
            Field::Optimizer => named(&Optimizer::ALL, text).map(Read::Optimizer),
            Field::Betas => betas(text).map(|(first, second)| Read::Betas(first, second)),
            Field::Decay => named(&Decay::ALL, text).map(Read::Decay),
            Field::Duration | Field::Warmup => Length::parse(text).map(Read::Length),
            Field::DropLast => drop_last(text).map(Read::DropLast),
            Field::Convention => named(&Convention::ALL, text).map(Read::Convention),
            Field::Ramp => Ramp::parse(text).map(|ramp| Read::Ramp(Arc::new(ramp))),
            Field::Policy => policy(text).map(Read::Policy),
            Field::Rule => Rule::ALL.iter().find(|card| card.name == text).map(|card| Read::Rule(card.rule)),
            Field::BatchNorm
            | Field::RequireMultiple
            | Field::Ragged
            | Field::Uneven
            | Field::BetaHalfLife => flag(text).map(Read::Flag),
            Field::Precision => matches!(text, "fp32" | "tf32" | "bf16" | "fp16").then_some(Read::Name),
            Field::Gpu => Some(Read::Gpu(text.into())),
            Field::Schedule | Field::DeviceBatches => Some(Read::Name),
            _ => {
                return text
                    .parse()
                    .map(Value::Int)
                    .or_else(|_| text.parse().map(Value::Real))
                    .unwrap_or(Value::Illegal);
            }
        };
        read.map_or(Value::Illegal, Value::Read)
    }

    /// A whole number from 1 to `max`; `None` where it is unknown.
    fn count(&self, max: u64) -> Result<Option<u64>, Illegal> {
        let n = match *self {
            Value::Missing => return Ok(None),
            Value::Int(n) => n,
            Value::Real(x) if x.is_nan() => return Ok(None),
            #[allow(clippy::cast_possible_truncation, reason = "whole and at most 2^53")]
            Value::Real(x) if x.fract() == 0.0 && x.abs() <= MAX_COUNT as f64 => x as i64,
            _ => return Err(Illegal),
        };
        u64::try_from(n).ok().filter(|n| (1..=max).contains(n)).map(Some).ok_or(Illegal)
    }

    /// A real in the range; NaN where it is unknown.
    fn real(&self, range: &RangeInclusive<f64>) -> Result<f64, Illegal> {
        let x = match *self {
            Value::Missing => return Ok(f64::NAN),
            Value::Int(n) => n as f64,
            Value::Real(x) if x.is_nan() => return Ok(x),
            Value::Real(x) => x,
            _ => return Err(Illegal),
        };
        if range.contains(&x) { Ok(x) } else { Err(Illegal) }
    }

    fn flag(&self) -> Result<bool, Illegal> {
        match *self {
            Value::Missing | Value::Int(0) => Ok(false),
            Value::Int(1) => Ok(true),
            Value::Read(Read::Flag(value)) => Ok(value),
            _ => Err(Illegal),
        }
    }
}

/// A value that its field cannot have.
struct Illegal;

impl Input {
    /// Sets a field; an illegal value is kept as the row's fault.
    pub fn set(&mut self, field: Field, value: &Value) {
        self.set_known(field, value);
    }

    #[allow(clippy::inline_always, reason = "of a known field only its own line is left")]
    #[inline(always)]
    fn set_known(&mut self, field: Field, value: &Value) {
        if self.assign(field, value).is_err() && self.fault.is_none() {
            self.fault = Some(field);
        }
    }

    #[allow(clippy::too_many_lines, clippy::inline_always, reason = "one line a field")]
    #[inline(always)]
    fn assign(&mut self, field: Field, value: &Value) -> Result<(), Illegal> {
        let Input { job, cluster, settings, .. } = self;
        let most = if let Kind::Count(most) = field.kind() { most } else { 0 };
        let range = if let Kind::Real(least, most) = field.kind() { least..=most } else { 0.0..=0.0 };
        let known = |x: f64| (!x.is_nan()).then_some(x);
        match field {
            Field::EffectiveBatch => job.effective_batch = value.count(most)?.ok_or(Illegal)?,
            Field::Lr => job.lr = known(value.real(&range)?).ok_or(Illegal)?,
            Field::Optimizer => match *value {
                Value::Read(Read::Optimizer(optimizer)) => job.optimizer = optimizer,
                Value::Missing => job.optimizer = Optimizer::AdamW,
                _ => return Err(Illegal),
            },
            Field::Momentum => job.momentum = value.real(&range)?,
            Field::Betas => match *value {
                Value::Read(Read::Betas(first, second))
                    if (0.0..1.0).contains(&first) && (0.0..1.0).contains(&second) =>
                {
                    job.betas = (first, second);
                }
                Value::Missing => job.betas = (f64::NAN, f64::NAN),
                _ => return Err(Illegal),
            },
            Field::Eps => job.eps = value.real(&range)?,
            Field::WeightDecay => job.weight_decay = known(value.real(&range)?).unwrap_or(0.0),
            Field::Decay => match *value {
                Value::Read(Read::Decay(decay)) => job.decay = Some(decay),
                Value::Missing => job.decay = None,
                _ => return Err(Illegal),
            },
            Field::EmaDecay => job.ema_decay = value.real(&range)?,
            Field::DatasetSize => job.dataset_size = value.count(most)?,
            Field::Duration => match *value {
                Value::Read(Read::Length(length)) if !length.is_zero() && length.unit != Unit::Percent => {
                    job.duration = Some(length);
                }
                Value::Missing => job.duration = None,
                _ => return Err(Illegal),
            },
            Field::Warmup => match *value {
                Value::Read(Read::Length(length)) => job.warmup = length,
                Value::Missing => job.warmup = Length::ZERO,
                _ => return Err(Illegal),
            },
            Field::MinLr => job.min_lr = known(value.real(&range)?).unwrap_or(0.0),
            Field::SeqLen => job.seq_len = value.count(most)?,
            Field::DropLast => {
                job.drop_last = if let Value::Read(Read::DropLast(drop)) = *value {
                    drop
                } else {
                    let both = value.flag()?;
                    DropLast { sampler: both, loader: both }
                }
            }
            Field::Convention => match *value {
                Value::Read(Read::Convention(convention)) => job.convention = convention,
                Value::Missing => job.convention = Convention::Torch,
                _ => return Err(Illegal),
            },
            Field::Gpus => job.gpus = value.count(most)?,
            Field::MicroBatch => job.micro_batch = value.count(most)?,
            Field::Accumulation => job.accumulation = value.count(most)?,
            Field::ModelParallel => job.model_parallel = value.count(most)?.unwrap_or(1),
            Field::Power => job.noise.power = value.real(&range)?,
            Field::NoiseScale => job.noise.scale = value.real(&range)?,
            Field::SigmaSq => job.noise.sigma_sq = value.real(&range)?,
            Field::MuSq => job.noise.mu_sq = value.real(&range)?,
            Field::Ramp => match value {
                Value::Read(Read::Ramp(ramp)) => job.ramp = Some(Arc::clone(ramp)),
                Value::Missing => job.ramp = None,
                _ => return Err(Illegal),
            },
            Field::Parameters => job.parameters = value.count(most)?,
            Field::ClipNorm | Field::BucketCapMb => drop(value.real(&range)?),
            Field::BatchNorm => job.batch_norm = value.flag()?,
            Field::Gpu => match value {
                Value::Read(Read::Gpu(name)) => cluster.gpu = Some(Arc::clone(name)),
                Value::Missing => cluster.gpu = None,
                _ => return Err(Illegal),
            },
            Field::Schedule | Field::Precision => match value {
                Value::Missing | Value::Read(Read::Name) => (),
                _ => return Err(Illegal),
            },
            Field::DeviceBatches => job.unequal_devices = *value != Value::Missing,
            Field::Nodes => cluster.nodes = value.count(most)?.unwrap_or(1),
            Field::GpusPerNode => cluster.gpus_per_node = value.count(most)?.unwrap_or(8),
            Field::ClusterModelParallel => cluster.model_parallel = value.count(most)?,
            Field::MemoryGib => cluster.memory_gib = value.real(&range)?,
            Field::IntraGbS => cluster.intra_gb_s = value.real(&range)?,
            Field::InterGbS => cluster.inter_gb_s = value.real(&range)?,
            Field::LatencyUs => cluster.latency_us = value.real(&range)?,
            Field::PricePerGpuHour => cluster.price_per_gpu_hour = value.real(&range)?,
            Field::Policy => match value {
                Value::Read(Read::Policy(policy)) => settings.policy = *policy,
                Value::Missing => settings.policy = Policy::Keep,
                _ => settings.policy = Policy::Batch(value.count(MAX_BATCH)?.ok_or(Illegal)?),
            },
            Field::Rule => match *value {
                Value::Read(Read::Rule(rule)) => settings.rule = rule,
                Value::Missing => settings.rule = Rule::Auto,
                _ => return Err(Illegal),
            },
            Field::MaxMicroBatch => settings.max_micro_batch = value.count(most)?,
            Field::MaxBatch => settings.max_batch = value.count(most)?,
            Field::BatchTolerance => settings.batch_tolerance = known(value.real(&range)?).unwrap_or(0.0),
            Field::MicroBatchMultiple => settings.micro_batch_multiple = value.count(most)?.unwrap_or(1),
            Field::RequireMultiple => settings.require_multiple = value.flag()?,
            Field::Ragged => settings.ragged = value.flag()?,
            Field::Uneven => settings.uneven = value.flag()?,
            Field::BetaHalfLife => settings.beta_half_life = value.flag()?,
            Field::DeadlineHours => settings.deadline_hours = value.real(&range)?,
            Field::Budget => settings.budget = value.real(&range)?,
        }
        Ok(())
    }

    /// The first field that is illegal by itself or beside the others.
    #[must_use]
    pub fn invalid(&self) -> Option<Field> {
        let Input { job, cluster, settings, fault, .. } = self;
        if fault.is_some() {
            return *fault;
        }
        let in_unit = |unit| job.duration.is_some_and(|d| d.unit == unit) || job.warmup.unit == unit;
        let replicas = job.tuned_replicas();
        let samples = job.effective_batch / replicas.unwrap_or(1).max(1);
        let micro_batch = job.micro_batch.unwrap_or(1);
        let checks = [
            (Field::EffectiveBatch, job.effective_batch > 0),
            (Field::Lr, !job.lr.is_nan()),
            (Field::MinLr, job.min_lr <= job.lr),
            (
                Field::DropLast,
                job.convention != Convention::Transformers || job.drop_last.loader || !job.drop_last.sampler,
            ),
            (Field::DatasetSize, job.dataset_size.is_some() || !in_unit(Unit::Epochs)),
            (Field::SeqLen, job.seq_len.is_some() || !in_unit(Unit::Tokens)),
            (Field::SeqLen, job.seq_len.is_some() || !matches!(job.ramp.as_deref(), Some(Ramp::Steps(_)))),
            (
                Field::Gpus,
                job.gpus.is_none_or(|gpus| {
                    gpus.is_multiple_of(job.model_parallel)
                        && (job.unequal_devices
                            || job.effective_batch.is_multiple_of(gpus / job.model_parallel))
                }),
            ),
            (Field::MicroBatch, job.unequal_devices || samples.is_multiple_of(micro_batch)),
            (
                Field::Accumulation,
                job.unequal_devices
                    || job.accumulation.is_none_or(|accumulation| match (replicas, job.micro_batch) {
                        (Some(_), Some(_)) => micro_batch * accumulation == samples,
                        _ => samples.is_multiple_of(micro_batch * accumulation),
                    }),
            ),
            (Field::Nodes, cluster.nodes.saturating_mul(cluster.gpus_per_node) <= MAX_GPUS),
            (Field::Ragged, !(settings.ragged && (settings.uneven || settings.require_multiple))),
        ];
        checks.into_iter().find_map(|(field, legal)| (!legal).then_some(field))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_takes_or_refuses_each_kind_of_value() {
        let values = [
            Value::Missing,
            Value::Int(-1),
            Value::Int(i64::MAX),
            Value::Real(f64::INFINITY),
            Value::Real(-0.5),
            Value::Illegal,
        ];
        for &field in Field::ALL {
            let mut input = Input::default();
            input.set(field, &Value::Illegal);
            if field != Field::DeviceBatches {
                assert_eq!(input.fault, Some(field));
            }
            for value in &values {
                Input::default().set(field, value);
            }
        }
    }

    #[test]
    fn texts_are_read_by_field() {
        assert_eq!(Value::read(Field::EffectiveBatch, " 256 "), Value::Int(256));
        assert_eq!(Value::read(Field::Lr, "3e-4"), Value::Real(3e-4));
        assert_eq!(Value::read(Field::Lr, "fast"), Value::Illegal);
        assert_eq!(Value::read(Field::Policy, "512"), Value::Read(Read::Policy(Policy::Batch(512))));
        assert_eq!(Value::read(Field::Betas, "(0.9, 0.95)"), Value::Read(Read::Betas(0.9, 0.95)));
        assert_eq!(Value::read(Field::Rule, "lineer"), Value::Illegal);
        assert_eq!(Value::read(Field::Warmup, ""), Value::Missing);
    }
}
