//! Elastic batches in bulk. Values are checked on the Python side, which knows their names.
use std::sync::atomic::{AtomicBool, Ordering};

use isobatch_core::elastic::{Config, Counts, MAX_CAP, MAX_GPUS, elastic, is_light, split};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::pool;

type Column<'py> = Bound<'py, PyArray1<u64>>;
type Columns<'py> = (Bound<'py, PyArray1<f64>>, Column<'py>, Column<'py>, Column<'py>);
/// Values of all groups, where each begins and the last one ends, and each row's group.
type Groups<'py> = (PyReadonlyArray1<'py, u64>, PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, i64>);

/// Splits that take less time than a look for Ctrl-C.
const SERIAL: usize = 1 << 15;

/// The largest GPU count that `elastic_rows` accepts.
pub const LARGEST: u64 = MAX_GPUS;

/// The largest cap that `elastic_rows` accepts.
pub const LARGEST_CAP: u64 = MAX_CAP;

/// Answers many elastic questions. Micro-batches and listed GPU counts are groups cut out of one array by
/// offsets; a row names its groups. A row whose counts group is −1 asks for every count from `first` to `last`.
/// Returns weight, batch (0 where none), where each row begins and the last one ends among the counts that work, and these.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Columns of one table.
pub fn elastic_rows<'py>(
    py: Python<'py>,
    max_batch: PyReadonlyArray1<'py, u64>,
    model_parallel: PyReadonlyArray1<'py, u64>,
    gpus_per_node: PyReadonlyArray1<'py, u64>,
    micros: Groups<'py>,
    counts: Groups<'py>,
    weights: Option<PyReadonlyArray1<'py, f64>>,
    ranges: (PyReadonlyArray1<'py, u64>, PyReadonlyArray1<'py, u64>),
    prefer_larger: bool,
) -> PyResult<Columns<'py>> {
    let max_batch = max_batch.as_slice()?;
    let (model_parallel, gpus_per_node) = (model_parallel.as_slice()?, gpus_per_node.as_slice()?);
    let (micro_values, micro_cuts, micro_group) =
        (micros.0.as_slice()?, micros.1.as_slice()?, micros.2.as_slice()?);
    let (count_values, count_cuts, count_group) =
        (counts.0.as_slice()?, counts.1.as_slice()?, counts.2.as_slice()?);
    let weights = weights.as_ref().map(PyReadonlyArray1::as_slice).transpose()?;
    let (first, last) = (ranges.0.as_slice()?, ranges.1.as_slice()?);

    let config = |row: usize| Config {
        max_batch: max_batch[row],
        micro_batches: &micro_values[cut(micro_cuts, usize::try_from(micro_group[row]).expect("a group"))],
        gpus: match usize::try_from(count_group[row]) {
            Err(_) => Counts::Range(first[row], last[row]),
            Ok(group) => {
                let cut = cut(count_cuts, group);
                Counts::List(&count_values[cut.clone()], weights.map(|w| &w[cut]))
            }
        },
        model_parallel: model_parallel[row],
        gpus_per_node: Some(gpus_per_node[row]),
        prefer_larger,
    };
    let configs: Vec<Config> = (0..max_batch.len()).map(config).collect();
    let found = pool::run_unless(py, is_light(&configs), |stop| elastic(&configs, stop))?;
    Ok((
        found.weight.into_pyarray(py),
        found.batch.into_pyarray(py),
        found.offsets.into_pyarray(py),
        found.gpus.into_pyarray(py),
    ))
}

/// The micro-batch and the accumulation at every count that works.
#[pyfunction]
pub fn elastic_splits<'py>(
    py: Python<'py>,
    batch: PyReadonlyArray1<'py, u64>,
    offsets: PyReadonlyArray1<'py, i64>,
    gpus: PyReadonlyArray1<'py, u64>,
    model_parallel: PyReadonlyArray1<'py, u64>,
    micros: Groups<'py>,
) -> PyResult<(Column<'py>, Column<'py>)> {
    let (batch, offsets, gpus) = (batch.as_slice()?, offsets.as_slice()?, gpus.as_slice()?);
    let model_parallel = model_parallel.as_slice()?;
    let (values, cuts, group) = (micros.0.as_slice()?, micros.1.as_slice()?, micros.2.as_slice()?);
    let all = |stop: &AtomicBool| {
        let rows = (0..batch.len()).take_while(|_| !stop.load(Ordering::Relaxed));
        let splits = rows.flat_map(|row| {
            let micros = &values[cut(cuts, usize::try_from(group[row]).expect("a group"))];
            let replicas = gpus[cut(offsets, row)].iter().map(move |gpus| gpus / model_parallel[row]);
            replicas.map(move |replicas| split(batch[row], replicas, micros).expect("a count that works"))
        });
        splits.unzip()
    };
    let (micro_batch, accumulation): (Vec<u64>, Vec<u64>) = pool::run_unless(py, gpus.len() < SERIAL, all)?;
    Ok((micro_batch.into_pyarray(py), accumulation.into_pyarray(py)))
}

fn cut(cuts: &[i64], group: usize) -> std::ops::Range<usize> {
    let at = |i: usize| usize::try_from(cuts[i]).expect("offsets are not negative");
    at(group)..at(group + 1)
}
