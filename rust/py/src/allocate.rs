//! The division of a pool. Values are checked on the Python side, which knows the jobs' names.
use isobatch_core::allocate::{Options, divide};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::pool;

type Solution<'py> = (Bound<'py, PyArray1<i64>>, f64, f64, Vec<f64>, bool);

/// The option of each job (−1: it waits), the sum of the values, its bound, the price of a GPU of each kind,
/// and whether no division is better. The options of a job come together, in the order of the jobs, their
/// kinds and GPUs.
#[pyfunction]
pub fn divide_pool<'py>(
    py: Python<'py>,
    offsets: PyReadonlyArray1<'py, u64>,
    kind: PyReadonlyArray1<'py, u32>,
    gpus: PyReadonlyArray1<'py, u64>,
    value: PyReadonlyArray1<'py, f64>,
    wait: PyReadonlyArray1<'py, f64>,
    capacity: PyReadonlyArray1<'py, u64>,
) -> PyResult<Solution<'py>> {
    let offsets: Vec<usize> =
        offsets.as_slice()?.iter().map(|&at| usize::try_from(at).expect("a place")).collect();
    let (kind, gpus, value) = (kind.as_slice()?, gpus.as_slice()?, value.as_slice()?);
    let (wait, capacity) = (wait.as_slice()?, capacity.as_slice()?);
    let options = Options { offsets: &offsets, kind, gpus, value, wait, capacity };
    let solution = pool::alone(py, || divide(&options))?;
    let place = |option: Option<usize>| option.map_or(-1, |at| i64::try_from(at).expect("a place"));
    let choice: Vec<i64> = solution.choice.into_iter().map(place).collect();
    Ok((choice.into_pyarray(py), solution.value, solution.bound, solution.prices, solution.exact))
}
