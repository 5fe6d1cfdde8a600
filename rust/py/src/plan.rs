//! One plan: a recipe compiled once, planned many times.

use std::sync::LazyLock;

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
pub struct Job {
    input: Input,
}

#[pymethods]
impl Job {
    /// `fields` holds the recipe's values by name; an illegal one raises `InputError` with its name.
    #[new]
    fn new(fields: &Bound<'_, PyDict>) -> PyResult<Job> {
        let mut input = Input::default();
        set_all(&mut input, fields, &[Record::Recipe])?;
        match input.invalid() {
            None => Ok(Job { input }),
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
            Value::Read(Read::Rule(rule)) => rule,
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
        let epoch = Epoch::rest(dataset, offset, layout, recipe.drop_last, recipe.convention);
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
        Cap::Asked(samples) => (Some(samples), "max_micro_batch"),
        Cap::Memory(samples) => (Some(samples), "memory"),
        Cap::Tuned(samples) => (Some(samples), "tuned"),
        Cap::Open => (None, "open"),
    }
}

macro_rules! values {
    ($row:ident; $($name:ident = $value:expr;)*) => {
        /// The names of the values that `Job.plan` gives, in their order.
        #[pyfunction]
        pub fn plan_fields() -> Vec<&'static str> {
            vec![$(stringify!($name)),*]
        }

        fn to_python<'py>(py: Python<'py>, $row: &Row) -> PyResult<Bound<'py, PyTuple>> {
            PyTuple::new(py, [$($value.into_bound_py_any(py)?),*])
        }
    };
}

values! { row;
    status = Status::NAMES[row.reasons.status() as usize];
    reasons = row.reasons.bits();
    rule = row.rule.card().name;
    world_size = count(row.world_size);
    data_parallel = count(row.data_parallel);
    micro_batch = count(row.micro_batch);
    accumulation = count(row.accumulation);
    effective_batch = count(row.effective_batch);
    batch_change = real(row.batch_change);
    lr = real(row.lr);
    lr_scale = real(row.lr_scale);
    beta1 = real(row.moments.beta1);
    beta2 = real(row.moments.beta2);
    eps = real(row.moments.eps);
    weight_decay = real(row.weight_decay);
    momentum = real(row.momentum);
    ema_decay = real(row.ema_decay);
    warmup_steps = count(row.warmup_steps);
    steps_per_epoch = count(row.steps_per_epoch);
    total_steps = count(row.total_steps);
    samples_per_epoch = count(row.samples_per_epoch);
    padded_samples = count(row.padded_samples);
    dropped_samples = count(row.dropped_samples);
    step_seconds = real(row.outlook.step_seconds);
    step_error = real(row.outlook.step_error);
    samples_per_second = real(row.outlook.samples_per_second);
    efficiency = real(row.outlook.efficiency);
    hours = real(row.outlook.hours);
    gpu_hours = real(row.outlook.gpu_hours);
    cost = real(row.outlook.cost);
    memory_gib = real(row.outlook.memory_gib);
    nearest_world_size = count(row.nearest_world_size.nearest);
    nearest_batch = count(row.nearest_batch.nearest);
    warmup_lr = real(row.warmup_lr);
    min_lr = real(row.min_lr);
    nearest_world_sizes = both(row.nearest_world_size);
    nearest_batches = both(row.nearest_batch);
    micro_batch_cap = cap(row.cap).0;
    cap_source = cap(row.cap).1;
    eval_steps = count(row.eval_steps);
    save_steps = count(row.save_steps);
    log_steps = count(row.log_steps);
}
