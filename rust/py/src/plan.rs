//! One plan: a recipe compiled once, planned many times.

use std::sync::LazyLock;

use isobatch_core::bulk::{Cell, ResultColumn};
use isobatch_core::input::{Field, Input, Read, Record, Value};
use isobatch_core::lengths::{Epoch, Layout, Length, Stage};
use isobatch_core::plan::{Cap, Nearest, Row, UNKNOWN, plan, ramp_scale, stages};
use isobatch_core::reason::Status;
use isobatch_core::rules::Rule;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::illegal;
use crate::outlook::{Workloads, list_of};
use crate::value::{Faults, set_all};

/// A recipe whose fields were checked.
#[pyclass(frozen, module = "isobatch._core")]
pub struct Recipe {
    input: Input,
}

#[pymethods]
impl Recipe {
    /// `fields` holds the recipe's values by name; an illegal one raises `InputError` with its name.
    #[new]
    fn new(fields: &Bound<'_, PyDict>) -> PyResult<Recipe> {
        let mut input = Input::default();
        set_all(&mut input, fields, &[Record::Recipe])?;
        match input.invalid() {
            None => Ok(Recipe { input }),
            Some(field) => Err(illegal(fields.py(), field, fields.get_item(field.name())?.as_ref())),
        }
    }

    /// Plans for one cluster, `cluster` and `settings` in the order of their fields; gives the values of a Plan. `consumed` are
    /// the samples behind a run that is under way: what of its ramp lies behind them does not count.
    #[pyo3(signature = (cluster, settings, workloads=None, consumed=0))]
    fn plan<'py>(
        &self,
        py: Python<'py>,
        cluster: &Bound<'py, PyTuple>,
        settings: &Bound<'py, PyTuple>,
        workloads: Option<&Bound<'py, Workloads>>,
        consumed: u64,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let mut input = Input { consumed, ..self.input.clone() };
        let mut faults = Faults::default();
        for (fields, values) in [(&CLUSTER, cluster), (&SETTINGS, settings)] {
            for (&field, value) in fields.iter().zip(values.iter_borrowed()) {
                if !(value.is_none() && field.nullable()) {
                    faults.set(&mut input, field, &value);
                }
            }
        }
        faults.raise(py)?;
        let mut row = Row::unknown();
        match plan(&input, list_of(workloads), &mut row) {
            None => to_python(py, &row),
            Some(field) => Err(illegal(py, field, None)),
        }
    }

    /// The stages that a ramp which ends at `batch` has behind `consumed` samples: each with its batch, the samples at which the
    /// next one takes over (None: never), and what the learning rate is of that at the end, by the rule; empty without a ramp,
    /// and where a batch on the way is not whole.
    #[pyo3(signature = (batch, consumed=0, rule="none"))]
    fn stages(&self, batch: u64, consumed: u64, rule: &str) -> Vec<(u64, Option<u64>, f64)> {
        let recipe = &self.input.recipe;
        let rule = match Field::RampRule.read(rule) {
            Value::Read(Read::RampRule(rule)) => rule.0,
            _ => Rule::None,
        };
        let stages = stages(recipe, batch, consumed).unwrap_or_default();
        let scale = |stage: &Stage| ramp_scale(recipe, rule, batch, stage.batch).unwrap_or(f64::NAN);
        stages
            .iter()
            .map(|stage| (stage.batch, (stage.until != u64::MAX).then_some(stage.until), scale(stage)))
            .collect()
    }

    /// What the trainer makes of an epoch behind its first `offset` samples: (steps, samples served, padded, dropped).
    #[pyo3(signature = (dataset, offset, effective_batch, data_parallel, micro_batch, accumulation, ragged))]
    #[allow(clippy::too_many_arguments, reason = "a call from Python, of plain numbers")]
    fn epoch(
        &self,
        dataset: u64,
        offset: u64,
        effective_batch: u64,
        data_parallel: u64,
        micro_batch: u64,
        accumulation: u64,
        ragged: bool,
    ) -> (u64, u64, u64, u64) {
        let layout = Layout { effective_batch, data_parallel, micro_batch, accumulation, ragged };
        let recipe = &self.input.recipe;
        let (drop, fills) = (recipe.drop_last, recipe.even_batches);
        let epoch = Epoch::rest(dataset, offset, layout, drop, recipe.convention, fills);
        (epoch.steps, epoch.served, epoch.padded, epoch.dropped)
    }
}

/// A length such as `90ep` as (numerator, denominator, unit), exact; `None` where it is none.
#[pyfunction]
pub fn length(text: &str) -> Option<(u64, u64, &'static str)> {
    let length = Length::parse(text)?;
    let (numerator, denominator) = length.fraction_of_ten();
    Some((numerator, denominator, length.unit.suffix()))
}

/// The fields of a record, in the order in which Python's records hold them.
fn fields_of(record: Record) -> Vec<Field> {
    Field::ALL.iter().copied().filter(|field| field.record() == record).collect()
}

static CLUSTER: LazyLock<Vec<Field>> = LazyLock::new(|| fields_of(Record::Cluster));
static SETTINGS: LazyLock<Vec<Field>> = LazyLock::new(|| fields_of(Record::Settings));

fn count(n: i64) -> Option<i64> {
    (n != UNKNOWN).then_some(n)
}

fn real(x: f64) -> Option<f64> {
    (!x.is_nan()).then_some(x)
}

fn both(nearest: Nearest) -> (Option<i64>, Option<i64>) {
    (count(nearest.below), count(nearest.above))
}

fn cap(cap: Cap) -> (Option<u64>, &'static str) {
    match cap {
        Cap::Fixed(samples) => (Some(samples), "fixed_micro_batch"),
        Cap::Asked(samples) => (Some(samples), "max_micro_batch"),
        Cap::Memory(samples) => (Some(samples), "memory"),
        Cap::Tuned(samples) => (Some(samples), "tuned"),
        Cap::Open => (None, "open"),
    }
}

/// A value of a result column; `None` where it is not known.
fn known(py: Python<'_>, cell: Cell) -> PyResult<Bound<'_, PyAny>> {
    match cell {
        Cell::U8(status) => Status::NAMES[status as usize].into_bound_py_any(py),
        Cell::U64(reasons) => reasons.into_bound_py_any(py),
        Cell::I32(n) => count(n.into()).into_bound_py_any(py),
        Cell::I64(n) => count(n).into_bound_py_any(py),
        Cell::F64(x) => real(x).into_bound_py_any(py),
    }
}

/// What a plan has beside the result columns: a name and a value of `$row` a line.
macro_rules! beside {
    ($row:ident; $($name:ident = $value:expr;)*) => {
        const BESIDE: &[&str] = &[$(stringify!($name)),*];

        fn to_python<'py>(py: Python<'py>, $row: &Row) -> PyResult<Bound<'py, PyTuple>> {
            let mut values = Vec::with_capacity(ResultColumn::ALL.len() + BESIDE.len());
            for cell in $row.cells() {
                values.push(known(py, cell)?);
            }
            $(values.push($value.into_bound_py_any(py)?);)*
            PyTuple::new(py, values)
        }
    };
}

beside! { row;
    rule = row.rule.card().name;
    nearest_world_sizes = both(row.nearest_world_size);
    nearest_batches = both(row.nearest_batch);
    micro_batch_cap = cap(row.cap).0;
    cap_source = cap(row.cap).1;
}

/// The names of the values that `Recipe.plan` gives, in their order.
#[pyfunction]
pub fn plan_fields() -> Vec<&'static str> {
    ResultColumn::ALL.iter().map(|column| column.name()).chain(BESIDE.iter().copied()).collect()
}
