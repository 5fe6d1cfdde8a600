//! Values of every field, and columns of them.

use crate::bulk::{InputColumn, MISSING};
use crate::input::{Field, FieldKind, Read, Value};
use crate::rules::Rule;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Values of a field, of which most are legal and many are left to the planner of single rows. A field that is read from text
/// needs its texts here; a number or a flag only where others than the usual ones tell more.
pub fn values(field: Field) -> BoxedStrategy<Value> {
    let ints = |values: &'static [i64]| select(values).prop_map(int).boxed();
    let reals = |values: &'static [f64]| select(values).prop_map(Value::Real).boxed();
    let texts = |texts: &'static [&str]| select(texts).prop_map(move |text| field.read(text)).boxed();
    match field {
        Field::EffectiveBatch => prop_oneof![
            20 => (4..10_u32, 1..40_i64).prop_map(|(power, odd)| Value::Int(odd << power)),
            4 => (1..5000_i64).prop_map(Value::Int),
            1 => ints(&[MISSING, 0, 1 << 40, (1 << 40) - 87, (1 << 40) + 1]),
        ]
        .boxed(),
        Field::Lr => prop_oneof![
            19 => (1e-5..1.0_f64).prop_map(Value::Real),
            1 => reals(&[1e-320, 1e308, f64::NAN, -1.0]),
        ]
        .boxed(),
        Field::Optimizer => {
            texts(&["sgd", "adamw", "adam", "lamb", "lars", "lion", "muon", "rmsprop", "adafactor"])
        }
        Field::Momentum => reals(&[f64::NAN, 0.9, 1.0]),
        Field::Betas => texts(&["", "(0.9, 0.95)", "0.9 0.9999", "(0.9, 1)", "0 0"]),
        Field::Eps => reals(&[f64::NAN, 1e-8, 0.0]),
        Field::WeightDecay => reals(&[f64::NAN, 0.0, 0.01, 0.3, 1e308]),
        Field::Decay => texts(&["", "lr_multiplied", "independent", "sqrt"]),
        Field::EmaDecay => reals(&[f64::NAN, f64::NAN, 0.999]),
        Field::DatasetSize => prop_oneof![
            12 => (1..3_000_000_i64).prop_map(Value::Int),
            1 => ints(&[MISSING, 1 << 53, (1 << 51) - 1, 1 << 51, (1 << 52) + 1, 1 << 45]),
        ]
        .boxed(),
        Field::Duration => {
            texts(&["90ep", "0.5ep", "1000st", "5000sp", "1e9sp", "3e9tok", "9e14sp", "89.99999999ep", "1st"])
        }
        Field::Warmup => {
            texts(&["", "5ep", "1.25ep", "100st", "10%", "28.43%", "2000sp", "1e6tok", "0st", "fast"])
        }
        Field::Schedule => texts(&["", "wsd", "wsd(2ep)", "cosine(until=50%)", "vaswani"]),
        Field::MinLr => reals(&[f64::NAN, 0.0, 1e-6, 1e-3, -1.0]),
        Field::SeqLen => ints(&[MISSING, 2048, 1, 1 << 40]),
        Field::DropLast => texts(&["false", "true", "sampler", "loader"]),
        Field::Convention => texts(&["torch", "lightning", "transformers", "megatron", "exact"]),
        Field::Gpus | Field::MicroBatch | Field::Accumulation => {
            ints(&[MISSING, MISSING, 1, 2, 4, 8, 4, 8, 6])
        }
        Field::ModelParallel | Field::ExpertParallel => ints(&[1, 1, 1, 1, 2, MISSING]),
        Field::Power => reals(&[f64::NAN, 0.4, f64::INFINITY]),
        Field::NoiseScale => reals(&[f64::NAN, f64::NAN, 500.0, 2e3, 1e5, 0.0]),
        Field::SigmaSq => reals(&[f64::NAN, 2.0, 0.0, -2.0]),
        Field::MuSq => reals(&[f64::NAN, 2.0]),
        Field::Ramp => texts(&["", "", "16 16 9765", "0:64 1M:256"]),
        Field::EvalEvery | Field::SaveEvery | Field::LogEvery => {
            texts(&["", "", "500st", "0.5ep", "1e6sp", "3e9tok", "0st", "10%"])
        }
        Field::Parameters => ints(&[MISSING, 1_000_000_000, 1 << 53, 0]),
        Field::Adapter => texts(&["", "", "lora"]),
        Field::Coupled => texts(&["", "", "batch_norm", "negatives", "experts"]),
        Field::Precision => texts(&["", "bf16", "fp31"]),
        Field::ClipNorm | Field::BucketCapMb => reals(&[f64::NAN, 1.0, 1.0, 0.0]),
        Field::DeviceBatches => texts(&["", "", "", "(3, 5)", "(1, 1, 1, 1)", "(0, 1)", "64"]),
        Field::Nodes => ints(&[1, 2, 2, 4, 8, MISSING, 1 << 31]),
        Field::GpusPerNode => prop_oneof![
            20 => (1..20_i64).prop_map(Value::Int),
            1 => ints(&[0, MISSING, 1 << 20, 1 << 31, (1 << 31) + 1]),
        ]
        .boxed(),
        Field::ClusterModelParallel | Field::ClusterExpertParallel => {
            ints(&[MISSING, MISSING, MISSING, 1, 2, 5])
        }
        Field::Gpu => texts(&["", "H100", "A100"]),
        Field::MemoryGib | Field::IntraGbS | Field::InterGbS | Field::LatencyUs => {
            reals(&[f64::NAN, 80.0, 80.0, -1.0])
        }
        Field::PricePerGpuHour => reals(&[f64::NAN, 2.5, 0.0, -1.0]),
        Field::Policy => texts(&["keep", "grow", "grow", "1024", "768", "goodput"]),
        Field::Rule => {
            let rules: Vec<_> = Rule::ALL.iter().map(|card| Value::Read(Read::Rule(card.rule))).collect();
            prop_oneof![1 => texts(&["auto"]), 4 => select(rules)].boxed()
        }
        Field::MaxMicroBatch => ints(&[MISSING, MISSING, 1, 7, 32, (1 << 31) - 1]),
        Field::EvenBatches => ints(&[MISSING, 1, 1, 1, 1, 0]),
        Field::MinMicroBatch => ints(&[MISSING, MISSING, 1, 2, 7, 32]),
        Field::MaxBatch => ints(&[MISSING, MISSING, 512, 1 << 20]),
        Field::BatchTolerance => reals(&[f64::NAN, 0.0, 0.02, 0.2]),
        Field::AccumulationMultiple => ints(&[MISSING, 1, 2, 3, 0]),
        Field::BatchMultiple => ints(&[MISSING, 1, 8, 24, 0]),
        Field::Split => texts(&["", "even", "uneven", "ragged", "smaller"]),
        Field::Beta2Rule => texts(&["", "auto", "half_life", "half_life:0.9", "auto:0.95"]),
        Field::DurationScale => texts(&["", "", "8", "8^0.3", "0"]),
        Field::RampRule => texts(&["none", "sqrt", "linear", "auto", "sde", "power"]),
        Field::MicroBatchMultiple => ints(&[MISSING, 1, 8, 3]),
        Field::DeadlineHours | Field::Budget => reals(&[f64::NAN, f64::NAN, 24.0, 0.0]),
        _ => match field.kind() {
            FieldKind::Count(_) => ints(&[MISSING, MISSING, 1, 2, 8, 100, 0, i64::MAX]),
            FieldKind::Real(..) => reals(&[f64::NAN, f64::NAN, 0.5, 2.0, 24.0, 0.0, -1.0]),
            FieldKind::Flag => ints(&[0, 1, 0, 1, 0, 1, 0, 1, MISSING, 2]),
            FieldKind::Other => unreachable!("texts of {field:?} are needed here"),
        },
    }
}

fn int(n: i64) -> Value {
    if n == MISSING { Value::Missing } else { Value::Int(n) }
}

/// A column of a field, in one of the forms that it may come in: whole numbers or reals where it can, codes.
#[derive(Clone, Debug)]
pub struct Given {
    pub field: Field,
    ints: Option<Vec<i64>>,
    reals: Option<Vec<f64>>,
    codes: Vec<u32>,
    values: Vec<Value>,
    form: u8,
}

impl Given {
    fn new(field: Field, values: Vec<Value>, codes: Vec<u32>, form: u8) -> Given {
        let of_rows = || codes.iter().map(|code| &values[*code as usize]);
        let ints = of_rows().map(|value| match *value {
            Value::Missing => Some(MISSING),
            Value::Int(n) => Some(n),
            _ => None,
        });
        let reals = of_rows().map(|value| match *value {
            Value::Missing => Some(f64::NAN),
            Value::Int(n) => Some(n as f64),
            Value::Real(x) => Some(x),
            _ => None,
        });
        Given { field, ints: ints.collect(), reals: reals.collect(), codes, values, form }
    }

    /// A value for each row.
    pub fn many(field: Field, rows: usize) -> BoxedStrategy<Given> {
        let codes: Vec<u32> = (0..u32::try_from(rows).unwrap()).rev().collect();
        let column = move |(values, form)| Given::new(field, values, codes.clone(), form);
        (vec(values(field), rows), 0..4_u8).prop_map(column).boxed()
    }

    /// Two values for all rows, so that there are few groups of them.
    pub fn two(field: Field, rows: usize) -> BoxedStrategy<Given> {
        let codes = vec(0..2_u32, rows);
        let column = move |(values, codes, form)| Given::new(field, values, codes, form);
        (vec(values(field), 2), codes, 0..4_u8).prop_map(column).boxed()
    }

    /// As lanes take them best: numbers row by row, all else by groups.
    pub fn usual(field: Field, rows: usize) -> BoxedStrategy<Given> {
        match field.kind() {
            FieldKind::Count(_) | FieldKind::Real(..) => Given::many(field, rows),
            FieldKind::Flag | FieldKind::Other => Given::two(field, rows),
        }
    }

    pub fn first(&self) -> &Value {
        &self.values[0]
    }

    pub fn data(&self) -> InputColumn<'_> {
        match (self.form, &self.ints, &self.reals) {
            (0 | 1, Some(ints), _) => InputColumn::Ints(ints),
            (0..=2, _, Some(reals)) => InputColumn::Reals(reals),
            _ => InputColumn::Codes(&self.codes, self.values.clone()),
        }
    }
}
