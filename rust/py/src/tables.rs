//! What the core knows by name: Python's enumerations and documents are held against it.

use isobatch_core::fleet::{Column, Kind};
use isobatch_core::input::{Field, Table};
use isobatch_core::reason::{Reason, Severity};
use isobatch_core::scaling::Rule;
use pyo3::prelude::*;

/// (name, severity, text, source) of every reason, in the order of their bits.
#[pyfunction]
pub fn reasons() -> Vec<(&'static str, &'static str, &'static str, &'static str)> {
    let severity = |r: &Reason| match r.severity() {
        Severity::Caution => "caution",
        Severity::Infeasible => "infeasible",
    };
    Reason::ALL.iter().map(|r| (r.name(), severity(r), r.text(), r.source())).collect()
}

/// (name, formula, range, source) of every scaling rule.
#[pyfunction]
pub fn rules() -> Vec<(&'static str, &'static str, &'static str, &'static str)> {
    Rule::ALL.iter().map(|card| (card.name, card.formula, card.holds, card.source)).collect()
}

/// (name, table, legal values) of every field of the input.
#[pyfunction]
pub fn fields() -> Vec<(&'static str, &'static str, &'static str)> {
    let table = |f: &Field| match f.table() {
        Table::Job => "job",
        Table::Cluster => "cluster",
        Table::Settings => "settings",
    };
    Field::ALL.iter().map(|f| (f.name(), table(f), f.legal())).collect()
}

/// (name, `NumPy` type) of every result column.
#[pyfunction]
pub fn results() -> Vec<(&'static str, &'static str)> {
    let kind = |c: &Column| match c.kind() {
        Kind::U8 => "uint8",
        Kind::U64 => "uint64",
        Kind::I32 => "int32",
        Kind::I64 => "int64",
        Kind::F64 => "float64",
    };
    Column::ALL.iter().map(|c| (c.name(), kind(c))).collect()
}
