//! Goodput-optimal splits in bulk. Values are checked on the Python side, which knows their names.
use isobatch_core::forecast::{Best, Case, optimize};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::pool;

/// Fewer rows than this are done on the calling thread.
const SERIAL_ROWS: usize = 128;

type Reals<'py> = PyReadonlyArray1<'py, f64>;
type Counts<'py> = PyReadonlyArray1<'py, u64>;

/// The best split of every row: micro-batch and accumulation (−1 where there is none), seconds a step, statistical
/// efficiency, goodput (NaN where there is none).
///
/// `times` are αc, βc, floor, reducing, γ, update, noise scale and ℓ; `counts` are replicas, tuned batch, least and most
/// effective batch, most micro-batch. A column has one value for all rows or one each.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, clippy::type_complexity)] // What pyo3 hands over, and back.
pub fn goodput_rows<'py>(
    py: Python<'py>,
    rows: usize,
    times: [Reals<'py>; 8],
    counts: [Counts<'py>; 5],
) -> PyResult<(
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
)> {
    let mut reals: [&[f64]; 8] = Default::default();
    for (slice, column) in reals.iter_mut().zip(&times) {
        *slice = column.as_slice()?;
    }
    let mut wholes: [&[u64]; 5] = Default::default();
    for (slice, column) in wholes.iter_mut().zip(&counts) {
        *slice = column.as_slice()?;
    }
    let case = |row: usize| {
        let real = |i: usize| reals[i][if reals[i].len() == 1 { 0 } else { row }];
        let whole = |i: usize| wholes[i][if wholes[i].len() == 1 { 0 } else { row }];
        Case {
            compute_constant: real(0),
            compute_per_sample: real(1),
            compute_floor: real(2),
            sync_seconds: real(3),
            overlap: real(4),
            update: real(5),
            noise_scale: real(6),
            lead: real(7),
            replicas: whole(0),
            tuned_batch: whole(1),
            min_batch: whole(2),
            max_batch: whole(3),
            max_micro_batch: whole(4),
        }
    };
    let found: Vec<Option<Best>> = pool::run_rows(py, rows, SERIAL_ROWS, |row| optimize(&case(row)))?;
    let count = |of: fn(&Best) -> u64| -> Vec<i64> {
        found.iter().map(|best| best.as_ref().map_or(-1, |best| of(best).cast_signed())).collect()
    };
    let real = |of: fn(&Best) -> f64| -> Vec<f64> {
        found.iter().map(|best| best.as_ref().map_or(f64::NAN, of)).collect()
    };
    Ok((
        count(|best| best.micro_batch).into_pyarray(py),
        count(|best| best.accumulation).into_pyarray(py),
        real(|best| best.step_seconds).into_pyarray(py),
        real(|best| best.efficiency).into_pyarray(py),
        real(|best| best.goodput).into_pyarray(py),
    ))
}
