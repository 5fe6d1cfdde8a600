//! Elastic batches in bulk. Values are checked on the Python side, which knows their names.
use isobatch_core::elastic::{Config, Counts, Elastic, MAX_GPUS, Scratch, elastic};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::pool;

/// Fewer rows than this are done on the calling thread.
const SERIAL_ROWS: usize = 32;

type Columns<'py> = (
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
);

/// The largest GPU count that `elastic_rows` accepts.
pub const LARGEST: u64 = MAX_GPUS;

/// Answers many elastic questions. Micro-batches and listed GPU counts are groups cut out of one array by
/// offsets; a row names its groups. A row whose counts group is −1 asks for every count from `first` to `last`.
/// Returns batch (−1 where none), weight, offsets into the three arrays that follow, and for every count that
/// works the count, its micro-batch and its accumulation.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Columns of one table.
#[allow(clippy::needless_pass_by_value)] // What pyo3 hands over.
pub fn elastic_rows<'py>(
    py: Python<'py>,
    max_batch: PyReadonlyArray1<'py, u64>,
    model_parallel: PyReadonlyArray1<'py, u64>,
    gpus_per_node: PyReadonlyArray1<'py, u64>,
    micros: (PyReadonlyArray1<'py, u64>, PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, i64>),
    counts: (PyReadonlyArray1<'py, u64>, PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, i64>),
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

    let answer = |scratch: &mut Scratch, row: usize| {
        let gpus = match usize::try_from(count_group[row]) {
            Err(_) => Counts::Range(first[row], last[row]),
            Ok(group) => {
                let cut = cut(count_cuts, group);
                Counts::List(&count_values[cut.clone()], weights.map(|w| &w[cut]))
            }
        };
        let config = Config {
            max_batch: max_batch[row],
            micro_batches: &micro_values
                [cut(micro_cuts, usize::try_from(micro_group[row]).expect("a group"))],
            gpus,
            model_parallel: model_parallel[row],
            gpus_per_node: Some(gpus_per_node[row]),
            prefer_larger,
        };
        elastic(&config, scratch)
    };
    let rows = max_batch.len();
    let columns = py.detach(|| {
        let found: Vec<Elastic> = if rows < SERIAL_ROWS {
            let mut scratch = Scratch::default();
            (0..rows).map(|row| answer(&mut scratch, row)).collect()
        } else {
            pool::install(|| (0..rows).into_par_iter().map_init(Scratch::default, answer).collect())
        };
        flatten(&found)
    });
    let (batch, weight, offsets, gpus, micro_batch, accumulation) = columns;
    Ok((
        batch.into_pyarray(py),
        weight.into_pyarray(py),
        offsets.into_pyarray(py),
        gpus.into_pyarray(py),
        micro_batch.into_pyarray(py),
        accumulation.into_pyarray(py),
    ))
}

fn cut(cuts: &[i64], group: usize) -> std::ops::Range<usize> {
    let at = |i: usize| usize::try_from(cuts[i]).expect("offsets are not negative");
    at(group)..at(group + 1)
}

fn flatten(found: &[Elastic]) -> (Vec<i64>, Vec<f64>, Vec<i64>, Vec<i64>, Vec<i64>, Vec<i64>) {
    let total = found.iter().map(|f| f.splits.len()).sum();
    let (mut gpus, mut micro) = (Vec::with_capacity(total), Vec::with_capacity(total));
    let mut accumulation = Vec::with_capacity(total);
    let mut offsets = Vec::with_capacity(found.len() + 1);
    offsets.push(0);
    for f in found {
        for split in &f.splits {
            gpus.push(split.gpus.cast_signed());
            micro.push(split.micro_batch.cast_signed());
            accumulation.push(split.accumulation.cast_signed());
        }
        offsets.push(gpus.len() as i64);
    }
    let batch = found.iter().map(|f| f.effective_batch.map_or(-1, u64::cast_signed)).collect();
    (batch, found.iter().map(|f| f.weight).collect(), offsets, gpus, micro, accumulation)
}
