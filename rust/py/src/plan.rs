//! One plan: a recipe compiled once, planned many times.

use isobatch_core::bulk::{Cell, ResultColumn};
use isobatch_core::input::{Field, Input, Read, Record, Value};
use isobatch_core::lengths::{Epoch, Layout, Length, Stage};
use isobatch_core::plan::{Cap, Nearest, Row, UNKNOWN, plan, ramp_scale, stages};
use isobatch_core::reason::Status;
use isobatch_core::rules::Rule;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::errors::{illegal, input_error};
use crate::forecast::{Workloads, list_of};
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
            Some(field) => {
                let value = fields.get_item(field.name())?;
                Err(illegal(fields.py(), field, value.as_ref(), input.why(field)))
            }
        }
    }

    /// The stages that a ramp which ends at `batch` has behind `consumed` samples: each with its batch, the
    /// samples at which the next one takes over (None: never), and what the learning rate is of that at the
    /// end, by the rule; empty without a ramp, and where a batch on the way is not whole.
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

    /// The trainer's epoch behind its first `offset` samples: (steps, samples served, padded, dropped).
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

fn count(n: i64) -> Option<i64> {
    (n != UNKNOWN).then_some(n)
}

fn real(x: f64) -> Option<f64> {
    (!x.is_nan()).then_some(x)
}

fn both(nearest: Nearest) -> (Option<i64>, Option<i64>) {
    (count(nearest.below), count(nearest.above))
}

/// A plan's fields beside the result columns.
const BESIDE: [&str; 6] =
    ["rule", "nearest_world_sizes", "nearest_batches", "micro_batch_cap", "cap_source", "consumed"];

/// The same texts in every plan, made once.
struct Texts {
    status: [Py<PyString>; 3],
    rule: Vec<Py<PyString>>,
    cap_source: [Py<PyString>; 5],
}

impl Texts {
    fn new(py: Python<'_>) -> Texts {
        let text = |text: &str| PyString::intern(py, text).unbind();
        Texts {
            status: Status::NAMES.map(text),
            rule: Rule::ALL.iter().map(|card| text(card.name)).collect(),
            cap_source: ["fixed", "max_micro_batch", "memory", "tuned", "open"].map(text),
        }
    }

    fn cap_source(&self, cap: Cap) -> &Py<PyString> {
        &self.cap_source[match cap {
            Cap::Fixed(_) => 0,
            Cap::Setting(_) => 1,
            Cap::Memory(_) => 2,
            Cap::Tuned(_) => 3,
            Cap::Open => 4,
        }]
    }
}

/// Plans, between names that were bound once, when Python's records were made: after that, values cross in
/// the order of those names. A name that only one side has is an error there and then.
#[pyclass(frozen, module = "isobatch._core")]
pub struct Planner {
    cluster: Vec<Field>,
    /// Each with Python's default, which need not be set.
    settings: Vec<(Field, Py<PyAny>)>,
    defaults: Py<PyTuple>,
    /// The place of each value among those of the core: the result columns, and what is beside them.
    plan: Vec<usize>,
    texts: Texts,
}

#[pymethods]
impl Planner {
    /// `cluster` has the names of a cluster's fields, `settings` are the defaults, a named tuple, and `plan`
    /// the names of the values that `plan` is to give behind status and reasons.
    #[new]
    fn new(
        py: Python<'_>,
        cluster: Vec<String>,
        settings: Bound<'_, PyTuple>,
        plan: Vec<String>,
    ) -> PyResult<Planner> {
        let names: Vec<String> = settings.getattr("_fields")?.extract()?;
        let fields = fields_of(py, &names, Record::Settings)?;
        let (mut input, mut faults) = (Input::default(), Faults::default());
        for (&field, value) in fields.iter().zip(settings.iter_borrowed()) {
            faults.set(&mut input, field, &value);
        }
        faults.raise(py)?;
        if input.settings != Input::default().settings {
            return Err(input_error(py, "settings", "the defaults of the settings must be the core's"));
        }
        let values: Vec<&str> = COLUMNS.iter().map(|column| column.name()).chain(BESIDE).collect();
        Ok(Planner {
            cluster: fields_of(py, &cluster, Record::Cluster)?,
            settings: fields.into_iter().zip(settings.iter().map(Bound::unbind)).collect(),
            defaults: settings.unbind(),
            plan: bound(py, &plan, &values)?,
            texts: Texts::new(py),
        })
    }

    /// Plans a recipe for one cluster; gives the status, the bits of the reasons, and the other values.
    /// `consumed` are the samples behind a run that is under way: what of its ramp lies behind them does not
    /// count.
    #[pyo3(signature = (recipe, cluster, settings, workloads=None, consumed=0))]
    fn plan<'py>(
        &self,
        py: Python<'py>,
        recipe: &Bound<'py, Recipe>,
        cluster: &Bound<'py, PyTuple>,
        settings: &Bound<'py, PyTuple>,
        workloads: Option<&Bound<'py, Workloads>>,
        consumed: u64,
    ) -> PyResult<(&Py<PyString>, u64, Bound<'py, PyTuple>)> {
        let mut input = Input { consumed, ..recipe.get().input.clone() };
        let mut faults = Faults::default();
        for (&field, value) in self.cluster.iter().zip(cluster.iter_borrowed()) {
            if !(value.is_none() && field.nullable()) {
                faults.set(&mut input, field, &value);
            }
        }
        if !settings.is(&self.defaults) {
            for ((field, default), value) in self.settings.iter().zip(settings.iter_borrowed()) {
                if !value.is(default) {
                    faults.set(&mut input, *field, &value);
                }
            }
        }
        faults.raise(py)?;
        let mut row = Row::unknown();
        if let Some(field) = plan(&input, list_of(workloads), &mut row) {
            return Err(illegal(py, field, None, None));
        }
        let cells = row.cells();
        let value = |&place: &usize| match place.checked_sub(COLUMNS.len()) {
            None => known(py, cells[BEFORE + place]),
            Some(beside) => self.beside(py, beside, &row, consumed),
        };
        let values = PyTuple::new(py, self.plan.iter().map(value).collect::<PyResult<Vec<_>>>()?)?;
        Ok((&self.texts.status[row.reasons.status() as usize], row.reasons.bits(), values))
    }
}

impl Planner {
    /// A value of [`BESIDE`].
    fn beside<'py>(
        &self,
        py: Python<'py>,
        place: usize,
        row: &Row,
        consumed: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        match BESIDE[place] {
            "rule" => (&self.texts.rule[row.rule as usize]).into_bound_py_any(py),
            "nearest_world_sizes" => both(row.nearest_world_size).into_bound_py_any(py),
            "nearest_batches" => both(row.nearest_batch).into_bound_py_any(py),
            "micro_batch_cap" => (row.cap != Cap::Open).then(|| row.cap.samples()).into_bound_py_any(py),
            "cap_source" => self.texts.cap_source(row.cap).into_bound_py_any(py),
            _ => consumed.into_bound_py_any(py),
        }
    }
}

/// Status and reasons, which a plan has in a form of its own.
const BEFORE: usize = 2;
const COLUMNS: &[ResultColumn] = ResultColumn::ALL.split_at(BEFORE).1;

/// The place of each name among those of the core, which it must have all, and no other.
fn bound(py: Python<'_>, names: &[String], core: &[&str]) -> PyResult<Vec<usize>> {
    if let Some(name) = core.iter().find(|name| !names.iter().any(|field| field == *name)) {
        return Err(input_error(py, name, &format!("the core has {name}, Python's record has not")));
    }
    let place = |name: &String| {
        let unknown = || input_error(py, name, &format!("Python's record has {name}, the core has not"));
        core.iter().position(|field| field == name).ok_or_else(unknown)
    };
    names.iter().map(place).collect()
}

/// The fields of a record by Python's names for them.
fn fields_of(py: Python<'_>, names: &[String], record: Record) -> PyResult<Vec<Field>> {
    let fields: Vec<Field> = Field::ALL.iter().copied().filter(|field| field.record() == record).collect();
    let core: Vec<&str> = fields.iter().map(|field| field.name()).collect();
    Ok(bound(py, names, &core)?.into_iter().map(|place| fields[place]).collect())
}

/// A value of a result column; `None` where it is not known.
fn known(py: Python<'_>, cell: Cell) -> PyResult<Bound<'_, PyAny>> {
    match cell {
        Cell::U8(n) => n.into_bound_py_any(py),
        Cell::U64(n) => n.into_bound_py_any(py),
        Cell::I32(n) => count(n.into()).into_bound_py_any(py),
        Cell::I64(n) => count(n).into_bound_py_any(py),
        Cell::F64(x) => real(x).into_bound_py_any(py),
    }
}
