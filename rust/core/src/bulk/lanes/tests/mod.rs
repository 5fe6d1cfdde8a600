//! Rows that are planned together, against the same rows planned alone, over every field there is.

mod memory;
mod values;

use crate::bulk::{Fleet, InputColumn, InputTable, Pairs, ResultColumn};
use crate::input::{Field, Input, Record};
use crate::plan::{Row, UNKNOWN, plan};
use memory::Memory;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use values::Given;

/// Holds every column of a fleet against its rows planned one by one.
fn hold(fleet: &Fleet<'_>, nearest: bool) -> Result<(), TestCaseError> {
    let ways_out = [ResultColumn::NearestWorldSize, ResultColumn::NearestBatch];
    let columns = ResultColumn::ALL.iter().filter(|column| nearest || !ways_out.contains(column));
    let mut together: Vec<_> =
        columns.map(|&column| (column, Memory::new(column.element(), fleet.rows()))).collect();
    fleet.plan(together.iter_mut().map(|(column, memory)| (*column, memory.out())).collect());
    let mut alone = [Row::unknown()];
    for row in 0..fleet.rows() {
        let input = fleet.input(row);
        if plan(&input, &[], &mut alone[0]).is_some() {
            alone[0].world_size = fleet.gpus_of(fleet.pair(row).1).unwrap_or(UNKNOWN);
        }
        for (column, memory) in &together {
            let mut expected = Memory::new(column.element(), 1);
            column.write(&alone, 0..1, &mut expected.out());
            prop_assert_eq!(memory.text(row), expected.text(0), "{:?} of {:?}", column, input);
        }
    }
    Ok(())
}

/// How often a field is given: those that nearly every row has more often than those that leave it to the
/// single rows' planner.
fn likely(field: Field) -> f64 {
    match field {
        Field::EffectiveBatch | Field::Lr | Field::GpusPerNode => 0.99,
        Field::DatasetSize | Field::Duration | Field::Policy => 0.9,
        Field::Optimizer
        | Field::Rule
        | Field::Warmup
        | Field::WeightDecay
        | Field::DropLast
        | Field::Convention
        | Field::Gpus
        | Field::MicroBatch
        | Field::SeqLen
        | Field::MaxMicroBatch
        | Field::NoiseScale
        | Field::Decay
        | Field::BatchNorm
        | Field::Coupled
        | Field::ClusterModelParallel => 0.5,
        _ => 0.06,
    }
}

/// A way to draw a column.
type Drawn = fn(Field, usize) -> BoxedStrategy<Given>;

/// Columns of the fields of some records, each given or not.
fn some(records: &[Record], rows: usize, of: Drawn) -> Vec<impl Strategy<Value = Option<Given>> + use<>> {
    let fields = Field::ALL.iter().filter(|field| records.contains(&field.record()));
    fields.map(|&field| proptest::option::weighted(likely(field), of(field, rows))).collect()
}

fn columns<'a>(rows: usize, given: impl IntoIterator<Item = &'a Given>) -> InputTable<'a> {
    InputTable { rows, columns: given.into_iter().map(|given| (given.field, given.data())).collect() }
}

proptest! {
    #[test]
    fn rows_planned_together_are_those_planned_alone(
        jobs in some(&[Record::Recipe, Record::Settings], 12, Given::many),
        clusters in some(&[Record::Cluster], 40, Given::many),
        pairs in proptest::option::of(vec((0..12_u32, 0..40_u32), 0..150)),
        sorted: bool,
        nearest: bool,
    ) {
        let named: Option<(Vec<u32>, Vec<u32>)> = pairs.map(|mut pairs| {
            if sorted {
                pairs.sort_by_key(|(job, _)| *job);
            }
            pairs.into_iter().unzip()
        });
        let fleet = Fleet {
            shared: Input::default(),
            workloads: &[],
            jobs: columns(12, jobs.iter().flatten()),
            clusters: columns(40, clusters.iter().flatten()),
            pairs: named.as_ref().map_or(Pairs::Crossed, |(jobs, clusters)| Pairs::Named { jobs, clusters }),
            stop: None,
        };
        hold(&fleet, nearest)?;
    }

    #[test]
    fn rows_of_many_jobs_are_those_planned_alone(
        jobs in some(&[Record::Recipe, Record::Settings], 160, Given::usual),
        clusters in some(&[Record::Cluster], 160, Given::usual),
        pairs in proptest::option::of(vec((0..160_u32, 0..160_u32), 150..250)),
        crossed in proptest::option::weighted(0.2, 1..4_usize),
        nearest: bool,
    ) {
        // Of what makes groups four columns at most; the others are the same in all rows.
        let mut shared = Input::default();
        let mut groups = 0;
        let mut varying = Vec::new();
        for given in jobs.iter().flatten() {
            groups += usize::from(matches!(given.data(), InputColumn::Codes(..)));
            if groups <= 4 && given.field.record() == Record::Recipe {
                varying.push(given);
            } else {
                shared.set(given.field, given.first());
            }
        }
        let own: (Vec<u32>, Vec<u32>) = pairs.map_or_else(
            || ((0..160).collect(), (0..160).collect()),
            |pairs| pairs.into_iter().unzip(),
        );
        let named = Pairs::Named { jobs: &own.0, clusters: &own.1 };
        // Of columns that are longer than their table the rest is not there.
        let (rows, pairs) = crossed.map_or((160, named), |clusters| (clusters, Pairs::Crossed));
        let fleet = Fleet {
            shared,
            workloads: &[],
            jobs: columns(160, varying),
            clusters: columns(rows, clusters.iter().flatten()),
            pairs,
            stop: None,
        };
        hold(&fleet, nearest)?;
    }
}

/// Jobs that the lanes plan, and every field beside them.
const USUAL: [Field; 4] = [Field::EffectiveBatch, Field::Lr, Field::Gpus, Field::DatasetSize];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn each_field_moves_lanes_and_single_rows_alike(
        usual in USUAL.map(|field| Given::many(field, 40)),
        every in Field::ALL.iter().map(|field| Given::usual(*field, 40)).collect::<Vec<_>>(),
        gpus in Given::many(Field::GpusPerNode, 40),
        policy in select(vec!["keep", "grow", "768"]),
        many_jobs: bool,
    ) {
        for given in &every {
            let mut shared = Input::default();
            for (field, text) in
                [
                    (Field::Policy, policy),
                    (Field::Duration, "1000st"),
                    (Field::Warmup, "100st"),
                    (Field::WeightDecay, "0.1"),
                ]
            {
                shared.set(field, &field.read(text));
            }
            let ours = given.field.record() == Record::Cluster;
            let given_to = |cluster| (ours == cluster).then_some(given);
            let beside = |usual: &&Given| usual.field != given.field;
            let rows = if many_jobs { 40 } else { 12 };
            let own: Vec<u32> = (0..40).collect();
            let fleet = Fleet {
                shared,
                workloads: &[],
                jobs: columns(rows, usual.iter().filter(beside).chain(given_to(false))),
                clusters: columns(40, [&gpus].into_iter().filter(beside).chain(given_to(true))),
                pairs: if many_jobs { Pairs::Named { jobs: &own, clusters: &own } } else { Pairs::Crossed },
                stop: None,
            };
            hold(&fleet, true)?;
        }
    }
}
