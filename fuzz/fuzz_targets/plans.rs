//! Any input is a plan that obeys arithmetic or has a reason, and rows that are planned together are those planned alone.
#![no_main]

use isobatch_core::fleet::{Column, Columns, Data, Fleet, Kind, Out, Pairs};
use isobatch_core::input::{Input, Table, Value};
use isobatch_core::plan::{Row, plan, plan_or_not};
use isobatch_fuzz::{Given, field, hold};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

const CLUSTERS: usize = 5;

#[derive(Arbitrary, Debug)]
struct Case {
    /// Of all rows.
    shared: Vec<(u8, Given)>,
    /// Those that differ between the rows.
    varying: Vec<(u8, [Given; CLUSTERS])>,
}

fn bits(values: &Out<'_>, row: usize) -> u64 {
    match values {
        Out::U8(values) => values[row].into(),
        Out::U64(values) => values[row],
        Out::I32(values) => i64::from(values[row]).cast_unsigned(),
        Out::I64(values) => values[row].cast_unsigned(),
        Out::F64(values) => values[row].to_bits(),
    }
}

/// Every column of a fleet's rows.
fn columns(fleet: &Fleet<'_>) -> Vec<Vec<u64>> {
    let rows = fleet.rows();
    let one = |column: Column| {
        macro_rules! planned {
            ($kind:ident $zero:expr) => {{
                let mut memory = vec![$zero; rows];
                fleet.plan(vec![(column, Out::$kind(&mut memory))]);
                (0..rows).map(|row| bits(&Out::$kind(&mut memory), row)).collect()
            }};
        }
        match column.kind() {
            Kind::U8 => planned!(U8 0),
            Kind::U64 => planned!(U64 0),
            Kind::I32 => planned!(I32 0),
            Kind::I64 => planned!(I64 0),
            Kind::F64 => planned!(F64 0.0),
        }
    };
    Column::ALL.iter().map(|column| one(*column)).collect()
}

fn alone(input: Input) -> Vec<Vec<u64>> {
    let none = || Columns { rows: 1, columns: vec![] };
    columns(&Fleet { shared: input, jobs: none(), clusters: none(), pairs: Pairs::Crossed })
}

fuzz_target!(|case: Case| {
    let codes: Vec<u32> = (0..CLUSTERS as u32).collect();
    let of = |table: fn(Table) -> bool| {
        let mine = case.varying.iter().filter(|(number, _)| table(field(*number).table()));
        let each = mine.map(|(number, values)| {
            let values: Vec<Value> = values.iter().map(|given| given.value(field(*number))).collect();
            (field(*number), Data::Codes(&codes, values))
        });
        Columns { rows: CLUSTERS, columns: each.collect() }
    };
    let fleet = Fleet {
        shared: isobatch_fuzz::input(&case.shared),
        jobs: of(|table| table != Table::Cluster),
        clusters: of(|table| table == Table::Cluster),
        pairs: Pairs::Crossed,
    };
    let together = columns(&fleet);
    let (mut row, mut brief) = (Row::unknown(), Row::unknown());
    for number in 0..fleet.rows() {
        let input = fleet.input(number);
        plan(&input, &mut row);
        plan_or_not(&input, &mut brief);
        hold(&input, &row);
        assert_eq!(
            (row.reasons, row.micro_batch, row.total_steps),
            (brief.reasons, brief.micro_batch, brief.total_steps)
        );
        let reasons = [row.reasons.bits(), row.micro_batch.cast_unsigned(), row.lr.to_bits()];
        let at = |name: &str| Column::ALL.iter().position(|column| column.name() == name).unwrap();
        assert_eq!(
            ["reasons", "micro_batch", "lr"].map(|name| together[at(name)][number]),
            reasons,
            "{input:?}"
        );
        for ((column, values), expected) in Column::ALL.iter().zip(&together).zip(alone(input.clone())) {
            assert_eq!(values[number], expected[0], "{column:?} of {input:?}");
        }
    }
});
