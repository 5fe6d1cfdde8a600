//! Forecasts in bulk. Values are checked on the Python side, which knows their names.
use isobatch_core::forecast::{Constant, Forecast, Link, Measured, Profile, Shape};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::pool;

/// Fewer rows than this are done on the calling thread.
const SERIAL_ROWS: usize = 128;

/// A profile's constants, each with its error: αc, βc, floor, update, latency and seconds a byte inside a node, the
/// same across nodes, γ, memory fixed and per sample.
pub type Constants = [(f64, f64); 11];

type Range = (u64, u64);

/// The core's profile. The ranges are those of the micro-batch, the replicas of a node and the nodes.
pub fn profile(constants: Constants, gradient_bytes: f64, scatter: f64, ranges: [Range; 3]) -> Profile {
    let [
        a,
        b,
        floor,
        update,
        intra_latency,
        intra_byte,
        inter_latency,
        inter_byte,
        overlap,
        fixed,
        per_sample,
    ] = constants.map(|(value, error)| Constant { value, error });
    Profile {
        compute_constant: a,
        compute_per_sample: b,
        compute_floor: floor,
        update,
        gradient_bytes,
        intra: Link { latency: intra_latency, per_byte: intra_byte },
        inter: Link { latency: inter_latency, per_byte: inter_byte },
        overlap,
        memory_fixed: fixed,
        memory_per_sample: per_sample,
        scatter,
        measured: Measured { micro_batch: ranges[0], replicas_per_node: ranges[1], nodes: ranges[2] },
    }
}

/// Seconds to reduce, seconds a step, their error, samples a second, efficiency and bytes of every row, and whether
/// it lies inside the measured ranges. Columns of shapes are world size, GPUs a node, model-parallel size,
/// micro-batch, accumulation, with one value for all rows or one each.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, clippy::type_complexity)] // What pyo3 hands over, and back.
pub fn forecast_rows<'py>(
    py: Python<'py>,
    constants: Constants,
    gradient_bytes: f64,
    scatter: f64,
    ranges: [Range; 3],
    rows: usize,
    shapes: [PyReadonlyArray1<'py, u64>; 5],
) -> PyResult<([Bound<'py, PyArray1<f64>>; 6], Bound<'py, PyArray1<bool>>)> {
    let profile = profile(constants, gradient_bytes, scatter, ranges);
    let mut columns: [&[u64]; 5] = Default::default();
    for (slice, column) in columns.iter_mut().zip(&shapes) {
        *slice = column.as_slice()?;
    }
    let forecast = |row: usize| {
        let [world_size, gpus_per_node, model_parallel, micro_batch, accumulation] =
            columns.map(|column| column[if column.len() == 1 { 0 } else { row }]);
        profile.forecast(&Shape { world_size, gpus_per_node, model_parallel, micro_batch, accumulation })
    };
    let found: Vec<Forecast> = py.detach(|| {
        if rows < SERIAL_ROWS {
            (0..rows).map(forecast).collect()
        } else {
            pool::install(|| (0..rows).into_par_iter().with_min_len(64).map(forecast).collect())
        }
    });
    let reals: [fn(&Forecast) -> f64; 6] = [
        |f| f.sync_seconds,
        |f| f.step_seconds,
        |f| f.step_error,
        |f| f.samples_per_second,
        |f| f.efficiency,
        |f| f.memory_bytes,
    ];
    let reals = reals.map(|of| found.iter().map(of).collect::<Vec<f64>>().into_pyarray(py));
    let inside = found.iter().map(|f| f.inside).collect::<Vec<bool>>().into_pyarray(py);
    Ok((reals, inside))
}

/// The largest micro-batch up to `most` that fits into each number of bytes; −1 where not even one sample does.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // What pyo3 hands over.
pub fn micro_batch_rows<'py>(
    py: Python<'py>,
    fixed: f64,
    per_sample: f64,
    bytes: PyReadonlyArray1<'py, f64>,
    most: u64,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let unknown = (f64::NAN, 0.0);
    let mut constants = [unknown; 11];
    (constants[9].0, constants[10].0) = (fixed, per_sample);
    let profile = profile(constants, f64::NAN, 0.0, [(1, 0); 3]);
    let fits = |&bytes: &f64| profile.largest_micro_batch(bytes, most).map_or(-1, u64::cast_signed);
    Ok(bytes.as_slice()?.iter().map(fits).collect::<Vec<i64>>().into_pyarray(py))
}
