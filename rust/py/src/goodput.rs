//! Goodput-optimal splits in bulk. Values are checked on the Python side, which knows their names.
use isobatch_core::forecast::{Best, Case, optimize};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::pool;

/// Fewer rows than this are done on the calling thread.
const SERIAL_ROWS: usize = 128;

type Reals<'py> = PyReadonlyArray1<'py, f64>;
type Counts<'py> = PyReadonlyArray1<'py, u64>;

/// The columns of one table, by name.
macro_rules! columns {
    ($($name:ident: $type:ident = $field:ident;)*) => {
        /// Columns by name, with one value for all rows or one each.
        #[derive(FromPyObject)]
        #[pyo3(from_item_all)]
        pub struct Cases<'py> {
            $($name: $type<'py>,)*
        }

        impl Cases<'_> {
            fn rows(&self) -> PyResult<impl Fn(usize) -> Case> {
                $(let $name = self.$name.as_slice()?;)*
                Ok(move |row| Case { $($field: $name[if $name.len() == 1 { 0 } else { row }],)* })
            }
        }
    };
}

columns! {
    compute_constant: Reals = compute_constant;
    compute_per_sample: Reals = compute_per_sample;
    compute_floor: Reals = compute_floor;
    sync_seconds: Reals = sync_seconds;
    overlap: Reals = overlap;
    update_seconds: Reals = update;
    noise_scale: Reals = noise_scale;
    lead: Reals = lead;
    replicas: Counts = replicas;
    tuned_batch: Counts = tuned_batch;
    min_batch: Counts = min_batch;
    max_batch: Counts = max_batch;
    max_micro_batch: Counts = max_micro_batch;
}

/// The best split of every row: micro-batch and accumulation (−1 where there is none), seconds a step, statistical
/// efficiency, goodput (NaN where there is none).
#[pyfunction]
#[allow(clippy::needless_pass_by_value, clippy::type_complexity)] // What pyo3 hands over, and back.
pub fn goodput_rows<'py>(
    py: Python<'py>,
    rows: usize,
    cases: Cases<'py>,
) -> PyResult<(
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
)> {
    let case = cases.rows()?;
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
