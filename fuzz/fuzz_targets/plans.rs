//! Any input is a plan that obeys arithmetic or has a reason, and rows planned together are those planned
//! alone.
#![no_main]

use isobatch_core::bulk::{ElementType, Fleet, InputColumn, InputTable, Pairs, ResultColumn, ResultSlice};
use isobatch_core::input::{Field, Input, Record, Value};
use isobatch_core::plan::{Row, plan, plan_or_not};
use isobatch_fuzz::{Given, field, hold};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

const CLUSTERS: usize = 5;

#[derive(Arbitrary, Debug)]
struct Case {
    /// The values of all rows.
    shared: Vec<(u8, Given)>,
    /// The values that differ between the rows.
    varying: Vec<(u8, [Given; CLUSTERS])>,
}

fn bits(values: &ResultSlice<'_>, row: usize) -> u64 {
    match values {
        ResultSlice::U8(values) => values[row].into(),
        ResultSlice::U64(values) => values[row],
        ResultSlice::I32(values) => i64::from(values[row]).cast_unsigned(),
        ResultSlice::I64(values) => values[row].cast_unsigned(),
        ResultSlice::F64(values) => values[row].to_bits(),
    }
}

/// Every column of a fleet's rows.
fn columns(fleet: &Fleet<'_>) -> Vec<Vec<u64>> {
    let rows = fleet.rows();
    let values = |column: ResultColumn| {
        macro_rules! planned {
            ($kind:ident $zero:expr) => {{
                let mut memory = vec![$zero; rows];
                fleet.plan(vec![(column, ResultSlice::$kind(&mut memory))]);
                (0..rows).map(|row| bits(&ResultSlice::$kind(&mut memory), row)).collect()
            }};
        }
        match column.element() {
            ElementType::U8 => planned!(U8 0),
            ElementType::U64 => planned!(U64 0),
            ElementType::I32 => planned!(I32 0),
            ElementType::I64 => planned!(I64 0),
            ElementType::F64 => planned!(F64 0.0),
        }
    };
    ResultColumn::ALL.iter().map(|column| values(*column)).collect()
}

/// The columns of some tables, of which a later one of a field takes the place of an earlier one.
fn table<'a>(case: &Case, codes: &'a [Vec<u32>; 2], of: fn(Record) -> bool) -> InputTable<'a> {
    let mut columns: Vec<(Field, InputColumn<'a>)> = Vec::new();
    let mut put = |field: Field, values: Vec<Value>| {
        if of(field.record()) {
            columns.retain(|(earlier, _)| *earlier != field);
            columns.push((field, InputColumn::Codes(&codes[usize::from(values.len() > 1)], values)));
        }
    };
    put(Field::EffectiveBatch, vec![Value::Int(256)]);
    put(Field::Lr, vec![Value::Real(0.1)]);
    for (number, given) in &case.shared {
        put(field(*number), vec![given.value(field(*number))]);
    }
    for (number, given) in &case.varying {
        put(field(*number), given.iter().map(|given| given.value(field(*number))).collect());
    }
    InputTable { rows: CLUSTERS, columns }
}

fuzz_target!(|case: Case| {
    let codes = [vec![0; CLUSTERS], (0..CLUSTERS as u32).collect()];
    let fleet = Fleet {
        shared: Input::default(),
        workloads: &[],
        jobs: table(&case, &codes, |table| table != Record::Cluster),
        clusters: table(&case, &codes, |table| table == Record::Cluster),
        pairs: Pairs::Crossed,
        stop: None,
    };
    let together = columns(&fleet);
    let (mut row, mut brief) = (Row::unknown(), Row::unknown());
    for number in 0..fleet.rows() {
        let input = fleet.input(number);
        plan(&input, &[], &mut row);
        plan_or_not(&input, &[], &mut brief);
        hold(&input, &row);
        assert_eq!(
            (row.reasons, row.micro_batch, row.total_steps),
            (brief.reasons, brief.micro_batch, brief.total_steps)
        );
        let reasons = [row.reasons.bits(), row.micro_batch.cast_unsigned(), row.lr.to_bits()];
        let at = |name: &str| ResultColumn::ALL.iter().position(|column| column.name() == name).unwrap();
        assert_eq!(
            ["reasons", "micro_batch", "lr"].map(|name| together[at(name)][number]),
            reasons,
            "{input:?}"
        );
        let lengths = [
            row.effective_batch,
            row.accumulation,
            row.warmup_steps,
            row.steps_per_epoch,
            row.total_steps,
            row.samples_per_epoch,
            row.nearest_world_size.nearest,
            row.nearest_batch.nearest,
        ];
        let names = [
            "effective_batch",
            "accumulation",
            "warmup_steps",
            "steps_per_epoch",
            "total_steps",
            "samples_per_epoch",
            "nearest_world_size",
            "nearest_batch",
        ];
        assert_eq!(
            names.map(|name| together[at(name)][number]),
            lengths.map(i64::cast_unsigned),
            "{input:?}"
        );
        let reals = [
            row.lr_scale,
            row.batch_change,
            row.moments.beta1,
            row.moments.beta2,
            row.moments.eps,
            row.weight_decay,
            row.ema_decay,
        ];
        let names = ["lr_scale", "batch_change", "beta1", "beta2", "eps", "weight_decay", "ema_decay"];
        assert_eq!(names.map(|name| together[at(name)][number]), reals.map(f64::to_bits), "{input:?}");
    }
});
