//! Forecasts in bulk. Values are checked on the Python side, which knows their names.
use isobatch_core::forecast::{
    self, AllReduceTable, Constant, Forecast, Link, Measured, Placement, Profile, Shape,
};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::pool;

/// Fewer rows than this are done on the calling thread.
const SERIAL_ROWS: usize = 128;

/// A profile's constants by name, each with its error: seconds, seconds a byte, bytes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Constants {
    compute_constant: (f64, f64),
    compute_per_sample: (f64, f64),
    compute_floor: (f64, f64),
    update: (f64, f64),
    intra_latency: (f64, f64),
    intra_per_byte: (f64, f64),
    inter_latency: (f64, f64),
    inter_per_byte: (f64, f64),
    overlap: (f64, f64),
    lead: (f64, f64),
    memory_fixed: (f64, f64),
    memory_sharded: (f64, f64),
    memory_per_sample: (f64, f64),
}

type Range = (u64, u64);

/// Bytes, the all-reduces they go in, and measured seconds by replicas of a node and nodes.
pub type Gradient = (f64, f64, Vec<(u64, u64, f64)>);

/// The core's profile and its table of all-reduces. The ranges are those of the micro-batch, the replicas of a node and
/// the nodes.
pub fn profile(
    constants: &Constants,
    gradient: &Gradient,
    scatter: f64,
    ranges: [Range; 3],
) -> (Profile, AllReduceTable) {
    let constant = |(value, error)| Constant { value, error };
    let link = |latency, per_byte| Link { latency: constant(latency), per_byte: constant(per_byte) };
    let (gradient_bytes, buckets, measured) = gradient;
    let profile = Profile {
        compute_constant: constant(constants.compute_constant),
        compute_per_sample: constant(constants.compute_per_sample),
        compute_floor: constant(constants.compute_floor),
        update: constant(constants.update),
        gradient_bytes: *gradient_bytes,
        buckets: *buckets,
        intra: link(constants.intra_latency, constants.intra_per_byte),
        inter: link(constants.inter_latency, constants.inter_per_byte),
        overlap: constant(constants.overlap),
        lead: constant(constants.lead),
        memory_fixed: constant(constants.memory_fixed),
        memory_sharded: constant(constants.memory_sharded),
        memory_per_sample: constant(constants.memory_per_sample),
        scatter,
        measured: Measured { micro_batch: ranges[0], replicas_per_node: ranges[1], nodes: ranges[2] },
    };
    let table =
        AllReduceTable::new(measured, |placement| profile.sync_by_formula(placement, 1, placement.per_node));
    (profile, table)
}

/// Columns of shapes by name, with one value for all rows or one each.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Shapes<'py> {
    gpus: PyReadonlyArray1<'py, u64>,
    gpus_per_node: PyReadonlyArray1<'py, u64>,
    model_parallel: PyReadonlyArray1<'py, u64>,
    micro_batch: PyReadonlyArray1<'py, u64>,
    accumulation: PyReadonlyArray1<'py, u64>,
}

impl Shapes<'_> {
    /// The shape of a row.
    fn rows(&self) -> PyResult<impl Fn(usize) -> Shape> {
        let (gpus, gpus_per_node) = (self.gpus.as_slice()?, self.gpus_per_node.as_slice()?);
        let model_parallel = self.model_parallel.as_slice()?;
        let (micro_batch, accumulation) = (self.micro_batch.as_slice()?, self.accumulation.as_slice()?);
        let value = |column: &[u64], row: usize| column[if column.len() == 1 { 0 } else { row }];
        Ok(move |row| Shape {
            world_size: value(gpus, row),
            gpus_per_node: value(gpus_per_node, row),
            model_parallel: value(model_parallel, row),
            micro_batch: value(micro_batch, row),
            accumulation: value(accumulation, row),
        })
    }
}

/// Seconds to reduce, seconds a step, their error, samples a second, efficiency and bytes of every row, whether it lies
/// inside the measured ranges, and whether its reducing does inside the table.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, clippy::type_complexity)] // What pyo3 hands over, and back.
pub fn forecast_rows<'py>(
    py: Python<'py>,
    constants: Constants,
    gradient: Gradient,
    scatter: f64,
    ranges: [Range; 3],
    rows: usize,
    shapes: Shapes<'py>,
) -> PyResult<([Bound<'py, PyArray1<f64>>; 6], [Bound<'py, PyArray1<bool>>; 2])> {
    let (profile, table) = profile(&constants, &gradient, scatter, ranges);
    let shape = shapes.rows()?;
    let found: Vec<Forecast> =
        pool::run_rows(py, rows, SERIAL_ROWS, |row| profile.forecast(&shape(row), &table))?;
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
    let (profile, _) = profile(&constants, &(gradient_bytes, buckets, vec![]), 0.0, [(1, 0); 3]);
    let shape = shapes.rows()?;
    let seconds = |(row, &known): (usize, &f64)| {
        let shape = shape(row);
        let sync = if known.is_nan() {
            profile.sync_by_formula(Placement::of(&shape), shape.model_parallel, shape.gpus_per_node)
        } else {
            known
        };
        profile.step_seconds(shape.micro_batch, shape.accumulation, sync)
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
    let (profile, _) = profile(&constants, &(f64::NAN, 1.0, vec![]), 0.0, [(1, 0); 3]);
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

/// How a forecast with half the width of its range (NaN: none is known) keeps a limit; `None` where it is not known.
#[pyfunction]
pub fn verdict(value: f64, error: f64, limit: f64) -> Option<&'static str> {
    forecast::Verdict::of(value, error, limit).map(forecast::Verdict::name)
}
