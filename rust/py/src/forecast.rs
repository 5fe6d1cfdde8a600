//! Forecasts in bulk. Values are checked on the Python side, which knows their names.
use isobatch_core::forecast::{
    self, AllReduceTable, Constant, Forecast, Link, Measured, Placement, Profile, Shape,
};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::pool;

/// Fewer rows than this are done on the calling thread.
const SERIAL_ROWS: usize = 128;

/// A profile's constants, each with its error: αc, βc, floor, update, latency and seconds a byte inside a node, the
/// same across nodes, γ, memory fixed and per sample, ℓ, memory that the replicas share.
pub type Constants = [(f64, f64); 13];

type Range = (u64, u64);

/// Bytes, the all-reduces they go in, and measured seconds by replicas of a node and nodes.
pub type Gradient = (f64, f64, Vec<(u64, u64, f64)>);

/// The core's profile and its table of all-reduces. The ranges are those of the micro-batch, the replicas of a node and
/// the nodes.
pub fn profile(
    constants: Constants,
    gradient: &Gradient,
    scatter: f64,
    ranges: [Range; 3],
) -> (Profile, AllReduceTable) {
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
        lead,
        sharded,
    ] = constants.map(|(value, error)| Constant { value, error });
    let (gradient_bytes, buckets, measured) = gradient;
    let profile = Profile {
        compute_constant: a,
        compute_per_sample: b,
        compute_floor: floor,
        update,
        gradient_bytes: *gradient_bytes,
        buckets: *buckets,
        intra: Link { latency: intra_latency, per_byte: intra_byte },
        inter: Link { latency: inter_latency, per_byte: inter_byte },
        overlap,
        lead,
        memory_fixed: fixed,
        memory_sharded: sharded,
        memory_per_sample: per_sample,
        scatter,
        measured: Measured { micro_batch: ranges[0], replicas_per_node: ranges[1], nodes: ranges[2] },
    };
    let table =
        AllReduceTable::new(measured, |placement| profile.sync_by_formula(placement, 1, placement.per_node));
    (profile, table)
}

/// Seconds to reduce, seconds a step, their error, samples a second, efficiency and bytes of every row, whether it lies
/// inside the measured ranges, and whether its reducing does inside the table. Columns of shapes are world size, GPUs a node, model-parallel size,
/// micro-batch, accumulation, with one value for all rows or one each.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, clippy::type_complexity)] // What pyo3 hands over, and back.
pub fn forecast_rows<'py>(
    py: Python<'py>,
    constants: Constants,
    gradient: Gradient,
    scatter: f64,
    ranges: [Range; 3],
    rows: usize,
    shapes: [PyReadonlyArray1<'py, u64>; 5],
) -> PyResult<([Bound<'py, PyArray1<f64>>; 6], [Bound<'py, PyArray1<bool>>; 2])> {
    let (profile, table) = profile(constants, &gradient, scatter, ranges);
    let mut columns: [&[u64]; 5] = Default::default();
    for (slice, column) in columns.iter_mut().zip(&shapes) {
        *slice = column.as_slice()?;
    }
    let forecast = |row: usize| {
        let [world_size, gpus_per_node, model_parallel, micro_batch, accumulation] =
            columns.map(|column| column[if column.len() == 1 { 0 } else { row }]);
        let shape = Shape { world_size, gpus_per_node, model_parallel, micro_batch, accumulation };
        profile.forecast(&shape, &table)
    };
    let found: Vec<Forecast> = pool::run_rows(py, rows, SERIAL_ROWS, forecast)?;
    let reals: [fn(&Forecast) -> f64; 6] = [
        |f| f.sync_seconds,
        |f| f.step_seconds,
        |f| f.step_error,
        |f| f.samples_per_second,
        |f| f.efficiency,
        |f| f.memory_bytes,
    ];
    let reals = reals.map(|of| found.iter().map(of).collect::<Vec<f64>>().into_pyarray(py));
    let flags: [fn(&Forecast) -> bool; 2] = [|f| f.inside, |f| f.sync_measured];
    let flags = flags.map(|of| found.iter().map(of).collect::<Vec<bool>>().into_pyarray(py));
    Ok((reals, flags))
}

/// Columns of shapes: world size, GPUs a node, model-parallel size, micro-batch, accumulation.
type Shapes<'py> = [PyReadonlyArray1<'py, u64>; 5];
type Reals<'py> = Bound<'py, PyArray1<f64>>;

/// Seconds of each step of a fit, one for every value of `sync_seconds`: what is known of its all-reduces, NaN where the formula
/// is to say it.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // What pyo3 hands over.
pub fn step_rows<'py>(
    py: Python<'py>,
    constants: Constants,
    gradient_bytes: f64,
    buckets: f64,
    shapes: Shapes<'py>,
    sync_seconds: PyReadonlyArray1<'py, f64>,
) -> PyResult<Reals<'py>> {
    let (profile, _) = profile(constants, &(gradient_bytes, buckets, vec![]), 0.0, [(1, 0); 3]);
    let mut columns: [&[u64]; 5] = Default::default();
    for (slice, column) in columns.iter_mut().zip(&shapes) {
        *slice = column.as_slice()?;
    }
    let seconds = |(row, &known): (usize, &f64)| {
        let [world_size, gpus_per_node, model_parallel, micro_batch, accumulation] =
            columns.map(|column| column[row]);
        let shape = Shape { world_size, gpus_per_node, model_parallel, micro_batch, accumulation };
        let sync = if known.is_nan() {
            profile.sync_by_formula(Placement::of(&shape), model_parallel, gpus_per_node)
        } else {
            known
        };
        profile.step_seconds(micro_batch, accumulation, sync)
    };
    let found: Vec<f64> = sync_seconds.as_slice()?.iter().enumerate().map(seconds).collect();
    Ok(found.into_pyarray(py))
}

/// Seconds of one all-reduce of each number of bytes, over replicas of a node and nodes.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // What pyo3 hands over.
pub fn all_reduce_rows<'py>(
    py: Python<'py>,
    constants: Constants,
    per_node: PyReadonlyArray1<'py, u64>,
    groups: PyReadonlyArray1<'py, u64>,
    bytes: PyReadonlyArray1<'py, f64>,
) -> PyResult<Reals<'py>> {
    let (profile, _) = profile(constants, &(f64::NAN, 1.0, vec![]), 0.0, [(1, 0); 3]);
    let placements = per_node.as_slice()?.iter().zip(groups.as_slice()?);
    let seconds = |((&per_node, &groups), &gradient_bytes): ((&u64, &u64), &f64)| {
        let placement = Placement { all: per_node * groups, per_node, groups };
        Profile { gradient_bytes, ..profile }.sync_by_formula(placement, 1, per_node)
    };
    let found: Vec<f64> = placements.zip(bytes.as_slice()?).map(seconds).collect();
    Ok(found.into_pyarray(py))
}

/// The one noise scale that stands for a table of (progress, noise scale) at a tuned batch.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // What pyo3 hands over.
pub fn noise_over_run(noise: Vec<(f64, f64)>, tuned_batch: f64) -> f64 {
    forecast::noise_over_run(&noise, tuned_batch)
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
    let mut constants = [unknown; 13];
    (constants[9].0, constants[10].0, constants[12].0) = (fixed, per_sample, 0.0);
    let (profile, _) = profile(constants, &(f64::NAN, 1.0, vec![]), 0.0, [(1, 0); 3]);
    let fits = |&bytes: &f64| profile.largest_micro_batch(bytes, 1, most).map_or(-1, u64::cast_signed);
    Ok(bytes.as_slice()?.iter().map(fits).collect::<Vec<i64>>().into_pyarray(py))
}
