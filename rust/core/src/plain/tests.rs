//! Rows that are planned together, against the same rows planned alone.

use crate::fleet::{Column, Columns, Data, Fleet, Kind, MISSING, Out, Pairs};
use crate::input::{Field, Input, Value};
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

/// Holds every column of a fleet against its rows planned one by one.
fn hold(fleet: &Fleet<'_>, nearest: bool) -> Result<(), TestCaseError> {
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
    Ok(())
}

/// Numbers that every job may have beside those above, of which most are legal.
const MORE: [(Field, &[f64]); 9] = [
    (Field::Accumulation, &[f64::NAN, 1.0, 2.0, 4.0, 0.5]),
    (Field::MinLr, &[f64::NAN, 0.0, 1e-6, 1e-3, -1.0]),
    (Field::Eps, &[f64::NAN, 1e-8, 0.0]),
    (Field::Momentum, &[f64::NAN, 0.9, 1.0]),
    (Field::Power, &[f64::NAN, 0.4, f64::INFINITY]),
    (Field::ClipNorm, &[f64::NAN, 1.0, 1.0, 0.0]),
    (Field::Parameters, &[f64::NAN, 1e9, 9_007_199_254_740_992.0, 0.0]),
    (Field::SigmaSq, &[f64::NAN, 2.0, 2.0, -2.0]),
    (Field::MuSq, &[f64::NAN, 2.0]),
];

/// A column of numbers, and the forms that it may come in: whole numbers where it can, reals, texts.
#[derive(Debug)]
struct Given {
    ints: Vec<i64>,
    reals: Vec<f64>,
    codes: Vec<u32>,
    form: u8,
}

impl Given {
    fn new(reals: Vec<f64>, form: u8) -> Given {
        #[allow(clippy::cast_possible_truncation, reason = "whole")]
        let ints = reals.iter().map(|x| if x.is_nan() { MISSING } else { *x as i64 }).collect();
        Given { ints, codes: (0..u32::try_from(reals.len()).unwrap()).rev().collect(), reals, form }
    }

    fn data(&self) -> Data<'_> {
        match self.form {
            0 if self.reals.iter().all(|x| x.is_nan() || x.fract() == 0.0) => Data::Ints(&self.ints),
            1 => {
                let value = |x: &f64| if *x > 1e9 { Value::Illegal } else { Value::Real(*x) };
                Data::Codes(&self.codes, self.reals.iter().map(value).collect())
            }
            _ => Data::Reals(&self.reals),
        }
    }
}

/// Columns of a field, mostly not there.
fn some_numbers(
    field: Field,
    rows: usize,
    values: BoxedStrategy<f64>,
) -> BoxedStrategy<Option<(Field, Given)>> {
    let column = (vec(values, rows), 0..4_u8).prop_map(move |(reals, form)| (field, Given::new(reals, form)));
    match field {
        Field::EffectiveBatch | Field::Lr | Field::GpusPerNode => column.prop_map(Some).boxed(),
        Field::DatasetSize => proptest::option::weighted(0.9, column).boxed(),
        _ => proptest::option::weighted(0.25, column).boxed(),
    }
}

fn all_numbers(rows: usize) -> Vec<BoxedStrategy<Option<(Field, Given)>>> {
    let real = |n: i64| if n == MISSING { f64::NAN } else { n as f64 };
    let mut all = Vec::new();
    all.extend(COUNTS.map(|field| some_numbers(field, rows, counts(field).prop_map(real).boxed())));
    all.extend(REALS.map(|field| some_numbers(field, rows, reals(field))));
    all.extend(MORE.map(|(field, values)| some_numbers(field, rows, select(values).boxed())));
    all
}

/// For each field with texts, two of them, and whether it is a column or the same in all rows.
fn all_texts(rows: usize) -> Vec<impl Strategy<Value = (bool, [usize; 2], Vec<u32>)>> {
    let of_one = |texts: usize| {
        let two = [0..texts, 0..texts];
        (proptest::bool::weighted(0.3), two, vec(0..2_u32, rows))
    };
    TEXTS.iter().map(|(_, texts)| of_one(texts.len())).collect()
}

fn cluster_numbers(rows: usize) -> Vec<BoxedStrategy<Option<(Field, Given)>>> {
    let gpus = prop_oneof![20 => select(vec![1.0, 2.0, 3.0, 4.0, 8.0, 16.0]), 1 => select(vec![0.0, f64::NAN, 7.0, 4e9])];
    let of = |field, values: &'static [f64]| some_numbers(field, rows, select(values).boxed());
    vec![
        some_numbers(Field::GpusPerNode, rows, gpus.boxed()),
        of(Field::Nodes, &[1.0, 2.0, 2.0, 4.0, 8.0, f64::NAN, 2_147_483_648.0]),
        of(Field::ClusterModelParallel, &[f64::NAN, 1.0, 2.0, 5.0]),
        of(Field::MemoryGib, &[f64::NAN, 80.0, 80.0, 80.0, 0.0]),
    ]
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
            stop: None,
        };

        hold(&fleet, nearest)?;
    }

    #[test]
    fn rows_of_many_jobs_are_those_planned_alone(
        numbers in all_numbers(160),
        texts in all_texts(160),
        gpus in cluster_numbers(160),
        gpu in vec(0..3_u32, 160),
        flags in vec(select(vec![0, 1, 0, 1, 0, 1, 0, 1, MISSING, 2]), 160),
        flagged in select(vec![None, Some(Field::BatchNorm), Some(Field::DropLast), Some(Field::Ragged)]),
        pairs in proptest::option::of(vec((0..160_u32, 0..160_u32), 150..250)),
        crossed in proptest::option::weighted(0.2, 1..4_usize),
        nearest: bool,
    ) {
        let mut shared = Input::default();
        let mut columns: Vec<_> =
            numbers.iter().flatten().map(|(field, given)| (*field, given.data())).collect();
        let mut width = 0;
        for ((field, all), (column, [first, second], codes)) in TEXTS.iter().zip(&texts) {
            let read = |text: usize| Value::read(*field, all[text]);
            if Some(*field) == flagged {
            } else if *column && width < 4 {
                width += 1;
                columns.push((*field, Data::Codes(codes, vec![read(*first), read(*second)])));
            } else {
                shared.set(*field, &read(*first));
            }
        }
        columns.extend(flagged.map(|field| (field, Data::Ints(&flags))));
        let mut sites: Vec<_> = gpus.iter().flatten().map(|(field, given)| (*field, given.data())).collect();
        let names = vec![Value::Missing, Value::read(Field::Gpu, "H100"), Value::read(Field::Gpu, "A100")];
        sites.push((Field::Gpu, Data::Codes(&gpu, names)));

        let own: (Vec<u32>, Vec<u32>) = pairs.map_or_else(
            || ((0..160).collect(), (0..160).collect()),
            |pairs| pairs.into_iter().unzip(),
        );
        let named = Pairs::Named { jobs: &own.0, clusters: &own.1 };
        // Of columns that are longer than their table the rest is not there.
        let (rows, pairs) = crossed.map_or((160, named), |clusters| (clusters, Pairs::Crossed));
        let fleet = Fleet {
            shared,
            jobs: Columns { rows: 160, columns },
            clusters: Columns { rows, columns: sites },
            pairs,
            stop: None,
        };
        hold(&fleet, nearest)?;
    }
}
