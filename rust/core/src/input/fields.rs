//! The fields: each with its name, its table, and its legal values.

use std::borrow::Borrow;

use super::{Input, MAX_GPUS, Value};
use crate::batch::MAX_BATCH;
use crate::duration::MAX_COUNT;
use crate::reason::Reason;

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
