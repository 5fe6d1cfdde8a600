//! Every field of the input, one line each: its record, name, type, default, legal values and reason. From
//! these come the records, and the way of a value into them. Of a type whose values have names (a rule, an
//! optimizer) the legal values are those names, and the text here is read by programmers only.

use std::borrow::Borrow;
use std::sync::Arc;

use super::choices::{
    Adapter, Beta2Rule, Coupling, DeviceBatches, DurationScale, Policy, Precision, SplitRule,
};
use super::typed;
use super::types::{Betas, Checked, FieldType};
use super::value::{FieldKind, Value};
use crate::batch::MAX_BATCH;
use crate::lengths::{Convention, Curve, DropLast, Length, MAX_COUNT, Ramp};
use crate::reason::Reason;
use crate::rules::{Decay, Optimizer, RampRule, Rule};

/// No cluster has more GPUs.
pub const MAX_GPUS: u64 = 1 << 31;

const I32: u64 = i32::MAX as u64;
const NAN: f64 = f64::NAN;
/// The reals next to 0 and 1.
const LEAST: f64 = f64::from_bits(1);
const BELOW_ONE: f64 = 1.0 - f64::EPSILON / 2.0;

macro_rules! fields {
    ($($(#[$of_record:meta])* $record:ident $part:ident {$(
        $variant:ident $name:ident: $type:ty = $default:expr, $kind:ident $(($($limit:expr),*))?,
        $reason:ident, $legal:literal;
    )*})*) => {
        $(
            $(#[$of_record])*
            #[derive(Clone, Debug)]
            #[allow(clippy::doc_markdown, reason = "the texts are shown to people as they are")]
            pub struct $record {
                $(#[doc = $legal] pub $name: $type,)*
            }

            impl Default for $record {
                fn default() -> $record {
                    $record { $($name: $default,)* }
                }
            }
        )*

        /// The records that fields belong to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "named as the records")]
        pub enum Record {
            $($record,)*
        }

        /// One row's input: a recipe, a cluster, the settings. Start from the default, [`set`](Input::set)
        /// what is known.
        #[derive(Clone, Debug, Default)]
        #[allow(missing_docs, reason = "named as the records")]
        pub struct Input {
            $(pub $part: $record,)*
            /// Samples that the run has consumed, where it is under way: stages of its ramp that end before
            /// do not count.
            pub consumed: u64,
            /// The first field, in their order, that was set to an illegal value.
            pub fault: Option<Field>,
        }

        /// A field of the input.
        #[allow(clippy::doc_markdown, reason = "the texts are shown to people as they are")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Field {
            $($(#[doc = $legal] $variant,)*)*
        }

        impl Field {
            /// Every field.
            pub const ALL: &'static [Field] = &[$($(Field::$variant,)*)*];

            /// Its name in its record.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($(Field::$variant => stringify!($name),)*)* }
            }

            /// Its record.
            #[must_use]
            pub fn record(self) -> Record {
                match self { $($(Field::$variant => Record::$record,)*)* }
            }

            /// The kind of its values.
            #[must_use]
            pub fn kind(self) -> FieldKind {
                match self { $($(Field::$variant => FieldKind::$kind $(($($limit),*))?,)*)* }
            }

            /// The legal values, in words.
            #[must_use]
            pub fn legal(self) -> &'static str {
                match self { $($(Field::$variant => <$type as FieldType>::legal($legal),)*)* }
            }

            /// The reason on a row where it is something else.
            #[must_use]
            pub fn reason(self) -> Reason {
                match self { $($(Field::$variant => Reason::$reason,)*)* }
            }

            /// Whether it may be unknown: its default then stands for that.
            #[must_use]
            pub fn nullable(self) -> bool {
                match self {
                    $($(Field::$variant => {
                        let default: $type = $default;
                        default.is_unknown()
                    })*)*
                }
            }

            /// A text as a value of it.
            #[must_use]
            pub fn read(self, text: &str) -> Value {
                let text = text.trim();
                if text.is_empty() {
                    return Value::Missing;
                }
                let Some(text) = typed::plain(self.kind(), self.name(), text) else {
                    return Value::Illegal;
                };
                let value = match self { $($(Field::$variant => <$type as FieldType>::read(&text),)*)* };
                value.unwrap_or(Value::Illegal)
            }
        }

        impl Input {
            /// Sets a field; an illegal value is kept as the row's fault.
            pub fn set(&mut self, field: Field, value: &Value) {
                match field { $($(Field::$variant => self.set_known(Field::$variant, value),)*)* }
            }

            /// Sets a field of many inputs, each to the value beside it: one loop a field, in which the field
            /// is known.
            pub fn set_each<'a>(
                field: Field,
                pairs: impl Iterator<Item = (&'a mut Input, impl Borrow<Value>)>,
            ) {
                match field {
                    $($(Field::$variant => {
                        pairs.for_each(|(input, value)| input.set_known(Field::$variant, value.borrow()));
                    })*)*
                }
            }

            #[allow(clippy::inline_always, reason = "of a known field only its own line is left")]
            #[inline(always)]
            fn set_known(&mut self, field: Field, value: &Value) {
                match field {
                    $($(Field::$variant => match <$type as FieldType>::of(value, field.kind()) {
                        Ok(value) => self.$part.$name = value.unwrap_or($default),
                        Err(_) => self.fault = Some(self.fault.map_or(field, |fault| fault.min(field))),
                    },)*)*
                }
            }
        }
    };
}

fields! {
    /// The tuned run.
    Recipe recipe {
        EffectiveBatch effective_batch: u64 = 0, Count(MAX_BATCH), InvalidBatch,
            "a whole number from 1 to 2^40";
        Lr lr: f64 = 0.0, Real(LEAST, f64::MAX), InvalidLr, "a finite number above 0";
        Optimizer optimizer: Optimizer = Optimizer::AdamW, Other, InvalidOptimizer, "an optimizer's name";
        Momentum momentum: f64 = NAN, Real(0.0, BELOW_ONE), InvalidOptimizer, "a number from 0 to below 1";
        Betas betas: Betas = Betas(NAN, NAN), Other, InvalidOptimizer, "two numbers from 0 to below 1";
        Eps eps: f64 = NAN, Real(0.0, f64::MAX), InvalidOptimizer, "a finite number, 0 or more";
        WeightDecay weight_decay: f64 = 0.0, Real(0.0, f64::MAX), InvalidOptimizer,
            "a finite number, 0 or more";
        Decay decay: Option<Decay> = None, Other, InvalidOptimizer, "a name; sqrt with optimizer muon alone";
        EmaDecay ema_decay: f64 = NAN, Real(0.0, BELOW_ONE), InvalidOptimizer, "a number from 0 to below 1";
        DatasetSize dataset_size: Option<u64> = None, Count(MAX_COUNT), InvalidLength,
            "a whole number of samples from 1 to 2^53; needed where a length is in ep";
        Duration duration: Option<Length> = None, Other, InvalidLength,
            "a number above 0 with a unit: ep, st, sp or tok";
        Warmup warmup: Length = Length::ZERO, Other, InvalidLength,
            "a number with a unit: ep, st, sp, tok or %";
        Schedule schedule: Option<Curve> = None, Other, InvalidLength,
            "a schedule's name, or its call with arguments";
        MinLr min_lr: f64 = 0.0, Real(0.0, f64::MAX), InvalidLr, "a finite number from 0 to lr";
        SeqLen seq_len: Option<u64> = None, Count(MAX_BATCH), InvalidLength,
            "a whole number of tokens from 1 to 2^40; needed where a length is in tok";
        DropLast drop_last: DropLast = DropLast::NONE, Flag, InvalidLength,
            "true, false, sampler or loader; not sampler alone under transformers, whose sampler drops \
            nothing";
        EvenBatches even_batches: bool = true, Flag, InvalidLength,
            "true or false; false under convention transformers alone";
        Convention convention: Convention = Convention::Torch, Other, InvalidLength, "a convention's name";
        Gpus gpus: Option<u64> = None, Count(MAX_GPUS), InvalidBatch,
            "a whole number from 1 to 2^31 that model_parallel and expert_parallel divide, and whose \
            replicas divide effective_batch";
        MicroBatch micro_batch: Option<u64> = None, Count(I32), InvalidBatch,
            "a whole number from 1 to 2^31-1; with gpus, a divisor of the samples per replica";
        Accumulation accumulation: Option<u64> = None, Count(I32), InvalidBatch,
            "a whole number from 1 to 2^31-1; with gpus, micro_batch × accumulation × replicas is \
            effective_batch";
        ModelParallel model_parallel: u64 = 1, Count(MAX_GPUS), InvalidBatch, "a whole number from 1 to 2^31";
        ExpertParallel expert_parallel: u64 = 1, Count(MAX_GPUS), InvalidBatch,
            "a whole number from 1 to 2^31";
        Power power: f64 = NAN, Real(f64::MIN, f64::MAX), InvalidLr, "a finite number";
        NoiseScale noise_scale: f64 = NAN, Real(0.0, f64::MAX), InvalidLr,
            "a finite number of samples, 0 or more";
        SigmaSq sigma_sq: f64 = NAN, Real(0.0, f64::MAX), InvalidLr, "a finite number, 0 or more";
        MuSq mu_sq: f64 = NAN, Real(0.0, f64::MAX), InvalidLr, "a finite number, 0 or more";
        Ramp ramp: Option<Arc<Ramp>> = None, Other, InvalidBatch,
            "START INCREMENT SAMPLES, or TOKENS:BATCH pairs from 0 upwards, that end at effective_batch in \
            whole increments, at most 2^14 of them";
        EvalEvery eval_every: Option<Length> = None, Other, InvalidLength,
            "a number above 0 with a unit: ep, st, sp or tok";
        SaveEvery save_every: Option<Length> = None, Other, InvalidLength,
            "a number above 0 with a unit: ep, st, sp or tok";
        LogEvery log_every: Option<Length> = None, Other, InvalidLength,
            "a number above 0 with a unit: ep, st, sp or tok";
        Parameters parameters: Option<u64> = None, Count(MAX_COUNT), InvalidBatch,
            "a whole number from 1 to 2^53";
        Precision precision: Checked<Precision> = Checked::NEW, Other, InvalidOptimizer,
            "a number format's name";
        ClipNorm clip_norm: Checked<f64> = Checked::NEW, Real(LEAST, f64::MAX), InvalidOptimizer,
            "a finite number above 0";
        BucketCapMb bucket_cap_mb: Checked<f64> = Checked::NEW, Real(LEAST, f64::MAX), InvalidOptimizer,
            "a finite number above 0";
        BatchNorm batch_norm: bool = false, Flag, InvalidBatch, "true or false";
        Coupled coupled: Option<Coupling> = None, Other, InvalidBatch,
            "a name; nothing where each sample's loss is its own";
        Adapter adapter: Option<Adapter> = None, Other, InvalidOptimizer,
            "lora, or nothing where all weights are trained";
        DeviceBatches device_batches: Option<DeviceBatches> = None, Other, InvalidBatch,
            "one whole number above 0 for each replica; their sum × accumulation is effective_batch";
    }
    /// Where it is to run.
    Cluster cluster {
        Nodes nodes: u64 = 1, Count(MAX_GPUS), InvalidCluster,
            "a whole number from 1; nodes × gpus_per_node at most 2^31";
        GpusPerNode gpus_per_node: u64 = 8, Count(MAX_GPUS), InvalidCluster,
            "a whole number from 1; nodes × gpus_per_node at most 2^31";
        ClusterModelParallel model_parallel: Option<u64> = None, Count(MAX_GPUS), InvalidCluster,
            "a whole number from 1 to 2^31";
        ClusterExpertParallel expert_parallel: Option<u64> = None, Count(MAX_GPUS), InvalidCluster,
            "a whole number from 1 to 2^31";
        Gpu gpu: Option<Arc<str>> = None, Other, InvalidCluster, "a name";
        MemoryGib memory_gib: f64 = NAN, Real(LEAST, f64::MAX), InvalidCluster, "a finite number above 0";
        IntraGbS intra_gb_s: f64 = NAN, Real(LEAST, f64::MAX), InvalidCluster, "a finite number above 0";
        InterGbS inter_gb_s: f64 = NAN, Real(LEAST, f64::MAX), InvalidCluster, "a finite number above 0";
        LatencyUs latency_us: f64 = NAN, Real(0.0, f64::MAX), InvalidCluster, "a finite number, 0 or more";
        PricePerGpuHour price_per_gpu_hour: f64 = NAN, Real(0.0, f64::MAX), InvalidCluster,
            "a finite number, 0 or more";
    }
    /// The settings of a plan.
    #[derive(PartialEq)]
    Settings settings {
        Policy policy: Policy = Policy::Keep, Other, InvalidSetting,
            "keep, grow, goodput, or the effective batch to reach (1 to 2^40)";
        Rule rule: Rule = Rule::Auto, Other, InvalidSetting, "a scaling rule's name";
        MaxMicroBatch max_micro_batch: Option<u64> = None, Count(I32), InvalidSetting,
            "a whole number from 1 to 2^31-1";
        MinMicroBatch min_micro_batch: u64 = 1, Count(I32), InvalidSetting,
            "a whole number from 1 to 2^31-1, at most max_micro_batch; above 1 not with split ragged, and \
            with policy goodput only where it is max_micro_batch";
        MaxBatch max_batch: Option<u64> = None, Count(MAX_BATCH), InvalidSetting,
            "a whole number from 1 to 2^40";
        BatchTolerance batch_tolerance: f64 = 0.0, Real(0.0, BELOW_ONE), InvalidSetting,
            "a fraction from 0 to below 1";
        Split split: SplitRule = SplitRule::Even, Other, InvalidSetting,
            "a name; smaller not with batch_tolerance or policy goodput";
        MicroBatchMultiple micro_batch_multiple: u64 = 1, Count(I32), InvalidSetting,
            "a whole number from 1 to 2^31-1; above 1 not with split ragged, and a divisor of a micro-batch \
            that is fixed";
        AccumulationMultiple accumulation_multiple: u64 = 1, Count(I32), InvalidSetting,
            "a whole number from 1 to 2^31-1; above 1 not with split uneven or ragged, or policy goodput";
        BatchMultiple batch_multiple: u64 = 1, Count(MAX_BATCH), InvalidSetting,
            "a whole number from 1 to 2^40; above 1 not with policy goodput";
        ShortEpochs short_epochs: bool = false, Flag, InvalidSetting, "true or false";
        RampRule ramp_rule: RampRule = RampRule(Rule::None), Other, InvalidSetting,
            "the name of a scaling rule that moves the learning rate only";
        Beta2Rule beta2_rule: Beta2Rule = Beta2Rule::AUTO, Other, InvalidSetting,
            "auto or half_life, and behind a colon a floor from 0 to below 1, such as half_life:0.9";
        DurationScale duration_scale: Option<DurationScale> = None, Real(LEAST, f64::MAX), InvalidSetting,
            "RATIO or RATIO^POWER, such as 8^0.3: finite numbers, the ratio above 0";
        DeadlineHours deadline_hours: Option<f64> = None, Real(LEAST, f64::MAX), InvalidSetting,
            "a finite number above 0";
        Budget budget: Option<f64> = None, Real(LEAST, f64::MAX), InvalidSetting,
            "a finite number above 0, in the currency of price_per_gpu_hour";
    }
}

impl Field {
    /// The field of this name in one of these records.
    #[must_use]
    pub fn named(name: &str, records: &[Record]) -> Option<Field> {
        Field::ALL.iter().copied().find(|field| field.name() == name && records.contains(&field.record()))
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
            assert_eq!(input.fault, Some(field));
            for value in &values {
                Input::default().set(field, value);
            }
        }
    }

    #[test]
    fn the_legal_values_list_every_name() {
        let listed = |field: Field, names: &[&str]| {
            assert!(!names.is_empty());
            for name in names {
                assert!(field.legal().contains(name), "{name} is not in what {} must be", field.name());
                assert!(matches!(field.read(name), Value::Read(_)), "{name}");
            }
        };
        listed(Field::Optimizer, &Optimizer::ALL.map(|(name, _)| name));
        listed(Field::Decay, &Decay::ALL.map(|(name, _)| name));
        listed(Field::Convention, &Convention::ALL.map(|(name, _)| name));
        listed(Field::Adapter, &Adapter::ALL.map(|(name, _)| name));
        listed(Field::Coupled, &Coupling::ALL.map(|(name, _)| name));
        listed(Field::Precision, &Precision::ALL.map(|(name, _)| name));
        listed(Field::Split, &SplitRule::ALL.map(|(name, _)| name));
        listed(Field::Policy, &Policy::NAMED.map(|(name, _)| name));
        listed(Field::Rule, &Rule::ALL.iter().map(|card| card.name).collect::<Vec<_>>());
    }

    #[test]
    #[allow(clippy::eq_op, reason = "NaN is not")]
    fn settings_at_their_defaults_are_equal() {
        let settings = Settings::default();
        assert!(settings == settings, "a setting that may be unknown is an Option, for the lanes compare it");
    }

    #[test]
    fn of_several_faults_the_first_field_is_named() {
        let mut input = Input::default();
        for field in [Field::Warmup, Field::Lr, Field::Budget] {
            input.set(field, &Value::Illegal);
        }
        assert_eq!(input.fault, Some(Field::Lr));
    }
}
