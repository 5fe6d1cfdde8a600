//! One plan: a recipe compiled once, planned many times.

use isobatch_core::input::{Field, Input, Record};
use isobatch_core::lengths::{Epoch, Layout};
use isobatch_core::plan::{Cap, Nearest, Row, UNKNOWN, plan, stages};
use isobatch_core::reason::Status;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::illegal;
use crate::outlook::{Workloads, list_of};
use crate::value::{set_all, value_of};

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

    /// Plans for one cluster, `cluster` and `settings` in the order of their fields; gives the values of a Plan.
    #[pyo3(signature = (cluster, settings, workloads=None))]
    fn plan<'py>(
        &self,
        py: Python<'py>,
        cluster: &Bound<'py, PyTuple>,
        settings: &Bound<'py, PyTuple>,
        workloads: Option<&Bound<'py, Workloads>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let mut input = self.input.clone();
        for (fields, values) in [(CLUSTER.as_slice(), cluster), (SETTINGS.as_slice(), settings)] {
            for (&field, value) in fields.iter().zip(values.iter_borrowed()) {
                if value.is_none() && field.nullable() {
                    continue;
                }
                input.set(field, &value_of(field, &value));
                if input.fault.is_some() {
                    return Err(illegal(py, field, Some(&value)));
                }
            }
        }
        if let Some(field) = input.invalid() {
            return Err(illegal(py, field, None));
        }
        let mut row = Row::unknown();
        plan(&input, list_of(workloads), &mut row);
        to_python(py, &row)
    }

    /// The batches of the ramp that ends at `batch`, each with the samples at which the next one takes over (None: never);
    /// empty without a ramp.
    #[pyo3(signature = (batch))]
    fn stages(&self, batch: u64) -> Vec<(u64, Option<u64>)> {
        let stages = stages(&self.input.recipe, batch).unwrap_or_default();
        stages.iter().map(|s| (s.batch, (s.until != u64::MAX).then_some(s.until))).collect()
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

/// The order of `Cluster`'s fields in Python.
const CLUSTER: [Field; 9] = [
    Field::Nodes,
    Field::GpusPerNode,
    Field::ClusterModelParallel,
    Field::Gpu,
    Field::MemoryGib,
    Field::IntraGbS,
    Field::InterGbS,
    Field::LatencyUs,
    Field::PricePerGpuHour,
];

/// The order of `Settings`' fields in Python.
const SETTINGS: [Field; 12] = [
    Field::Policy,
    Field::Rule,
    Field::MaxMicroBatch,
    Field::MaxBatch,
    Field::BatchTolerance,
    Field::MicroBatchMultiple,
    Field::RequireMultiple,
    Field::Ragged,
    Field::Uneven,
    Field::BetaHalfLife,
    Field::DeadlineHours,
    Field::Budget,
];

fn count(n: i64) -> Option<i64> {
    (n != UNKNOWN).then_some(n)
}

fn real(x: f64) -> Option<f64> {
    (!x.is_nan()).then_some(x)
}

fn both(nearest: Nearest) -> (Option<i64>, Option<i64>) {
    (count(nearest.below), count(nearest.above))
}

/// The values in the order of `Plan`'s fields.
fn to_python<'py>(py: Python<'py>, row: &Row) -> PyResult<Bound<'py, PyTuple>> {
    let status = row.reasons.status();
    let (cap, cap_source) = match row.cap {
        Cap::Asked(samples) => (Some(samples), "max_micro_batch"),
        Cap::Memory(samples) => (Some(samples), "memory"),
        Cap::Tuned(samples) => (Some(samples), "tuned"),
        Cap::Open => (None, "open"),
    };
    let outlook = &row.outlook;
    let values: [Bound<'py, PyAny>; 39] = [
        Status::NAMES[status as usize].into_pyobject(py)?.into_any(),
        row.reasons.bits().into_pyobject(py)?.into_any(),
        row.rule.card().name.into_pyobject(py)?.into_any(),
        count(row.world_size).into_pyobject(py)?,
        count(row.data_parallel).into_pyobject(py)?,
        count(row.micro_batch).into_pyobject(py)?,
        count(row.accumulation).into_pyobject(py)?,
        count(row.effective_batch).into_pyobject(py)?,
        real(row.batch_change).into_pyobject(py)?,
        real(row.lr).into_pyobject(py)?,
        real(row.lr_scale).into_pyobject(py)?,
        real(row.moments.beta1).into_pyobject(py)?,
        real(row.moments.beta2).into_pyobject(py)?,
        real(row.moments.eps).into_pyobject(py)?,
        real(row.weight_decay).into_pyobject(py)?,
        real(row.momentum).into_pyobject(py)?,
        real(row.ema_decay).into_pyobject(py)?,
        count(row.warmup_steps).into_pyobject(py)?,
        count(row.steps_per_epoch).into_pyobject(py)?,
        count(row.total_steps).into_pyobject(py)?,
        count(row.samples_per_epoch).into_pyobject(py)?,
        count(row.padded_samples).into_pyobject(py)?,
        count(row.dropped_samples).into_pyobject(py)?,
        real(outlook.step_seconds).into_pyobject(py)?,
        real(outlook.step_error).into_pyobject(py)?,
        real(outlook.samples_per_second).into_pyobject(py)?,
        real(outlook.efficiency).into_pyobject(py)?,
        real(outlook.hours).into_pyobject(py)?,
        real(outlook.gpu_hours).into_pyobject(py)?,
        real(outlook.cost).into_pyobject(py)?,
        real(outlook.memory_gib).into_pyobject(py)?,
        count(row.nearest_world_size.nearest).into_pyobject(py)?,
        count(row.nearest_batch.nearest).into_pyobject(py)?,
        real(row.warmup_lr).into_pyobject(py)?,
        real(row.min_lr).into_pyobject(py)?,
        both(row.nearest_world_size).into_pyobject(py)?.into_any(),
        both(row.nearest_batch).into_pyobject(py)?.into_any(),
        cap.into_pyobject(py)?,
        cap_source.into_pyobject(py)?.into_any(),
    ];
    PyTuple::new(py, values)
}
