//! The core's tables of names: Python's enumerations and documents are compared with them.

use isobatch_core::bulk::{ElementType, ResultColumn};
use isobatch_core::input::{Field, FieldKind, Precision, Record, Value};
use isobatch_core::lengths::MAX_COUNT;
use isobatch_core::reason::{Reason, Severity};
use isobatch_core::rules::{Optimizer, Rule};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

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

/// (name, record, legal values) of every field of the input.
#[pyfunction]
pub fn fields() -> Vec<(&'static str, &'static str, &'static str)> {
    let record = |f: &Field| match f.record() {
        Record::Recipe => "recipe",
        Record::Cluster => "cluster",
        Record::Settings => "settings",
    };
    Field::ALL.iter().map(|f| (f.name(), record(f), f.legal())).collect()
}

/// The field of this name in any record.
fn named(name: &str) -> Option<Field> {
    Field::named(name, &[Record::Recipe, Record::Cluster, Record::Settings])
}

/// The values that an illegal text of a field may mean; `None` where nothing is likely.
#[pyfunction]
pub fn right_form(name: &str, text: &str) -> Option<String> {
    named(name)?.right_form(text)
}

/// A text of a field as this tool writes it itself; `None` where it is as good as any.
#[pyfunction]
pub fn canonical(name: &str, text: &str) -> Option<String> {
    named(name)?.canonical(text)
}

/// A text as the number that a field of numbers reads in it; `None` of another field, and of a text that it
/// does not read.
#[pyfunction]
pub fn number<'py>(py: Python<'py>, name: &str, text: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(field) =
        named(name).filter(|field| matches!(field.kind(), FieldKind::Count(_) | FieldKind::Real(..)))
    else {
        return Ok(None);
    };
    #[allow(clippy::cast_possible_truncation, reason = "whole and at most 2^53")]
    match field.read(text) {
        Value::Int(n) => n.into_bound_py_any(py).map(Some),
        Value::Real(x)
            if matches!(field.kind(), FieldKind::Count(_))
                && x.fract() == 0.0
                && x.abs() <= MAX_COUNT as f64 =>
        {
            (x as i64).into_bound_py_any(py).map(Some)
        }
        Value::Real(x) => x.into_bound_py_any(py).map(Some),
        _ => Ok(None),
    }
}

/// (name, `NumPy` type, text, whether only a profile says it, how it adds up over the legs of a moved run,
/// role) of every result column.
#[pyfunction]
pub fn results() -> Vec<(&'static str, &'static str, &'static str, bool, &'static str, &'static str)> {
    let element = |c: &ResultColumn| match c.element() {
        ElementType::U8 => "uint8",
        ElementType::U64 => "uint64",
        ElementType::I32 => "int32",
        ElementType::I64 => "int64",
        ElementType::F64 => "float64",
    };
    let entry = |c: &ResultColumn| (c.name(), element(c), c.text(), c.needs_profile(), c.moved(), c.role());
    ResultColumn::ALL.iter().map(entry).collect()
}

/// Every optimizer, with the bytes of state that it keeps for each parameter.
#[pyfunction]
pub fn optimizers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    Optimizer::ALL.map(|(name, optimizer)| (name, optimizer.state_bytes())).into_py_dict(py)
}

/// Every precision of a training step, with the bytes of a weight in it.
#[pyfunction]
pub fn precisions(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    Precision::ALL.map(|(name, precision)| (name, precision.bytes())).into_py_dict(py)
}
