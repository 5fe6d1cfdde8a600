//! Profiles on their way into the planner; forecasts in bulk. Values are checked
//! on the Python side, which knows their names.
use isobatch_core::forecast::{
    self, AllReduceTable, Constant, Forecast, Link, Measured, Placement, Profile, Shape, Workload,
};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::columns;
use crate::pool;

/// Fewer rows than this are done on the calling thread.
const SERIAL_ROWS: usize = 128;

/// Measurements of a workload, by GPU type, as the planner takes them.
#[pyclass(frozen, module = "isobatch._core")]
pub struct Workloads {
    list: Vec<Workload>,
}

/// A profile's fields, by name.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct ProfileFields<'py> {
    gpu: Option<String>,
    parameters: Option<u64>,
    seq_len: Option<u64>,
    gpu_memory_gib: Option<f64>,
    constants: Constants<'py>,
    gradient: Gradient,
    scatter: f64,
    ranges: [Range; 3],
    times_estimated: bool,
    memory_estimated: bool,
    noise_by_progress: Vec<(f64, f64)>,
}

#[pymethods]
impl Workloads {
    #[new]
    fn new(profiles: Vec<ProfileFields<'_>>) -> PyResult<Workloads> {
        let workload = |of: ProfileFields<'_>| {
            let (profile, table) = profile(&of.constants, &of.gradient, of.scatter, of.ranges)?;
            Ok(Workload {
                gpu: of.gpu.map(Into::into),
                parameters: of.parameters,
                seq_len: of.seq_len,
                gpu_memory_gib: of.gpu_memory_gib.unwrap_or(f64::NAN),
                profile,
                table,
                estimated: of.times_estimated,
                memory_estimated: of.memory_estimated,
                noise: of.noise_by_progress,
            })
        };
        Ok(Workloads { list: profiles.into_iter().map(workload).collect::<PyResult<_>>()? })
    }
}

/// The list, empty where there is none.
pub fn list_of<'a>(workloads: Option<&'a Bound<'_, Workloads>>) -> &'a [Workload] {
    workloads.map_or(&[], |workloads| &workloads.get().list)
}

/// A profile's constants by name, each with its error: seconds, seconds a byte, bytes.
type Constants<'py> = Bound<'py, PyDict>;

type Range = (u64, u64);

/// Bytes, the all-reduces they go in, and measured seconds by replicas of a node and nodes.
type Gradient = (f64, f64, Vec<(u64, u64, f64)>);

/// The core's profile and its table of all-reduces. The ranges are those of the micro-batch, the replicas of
/// a node and the nodes.
fn profile(
    constants: &Constants<'_>,
    gradient: &Gradient,
    scatter: f64,
    ranges: [Range; 3],
) -> PyResult<(Profile, AllReduceTable)> {
    let constant = |name| -> PyResult<Constant> {
        let (value, error) = constants.as_any().get_item(name)?.extract()?;
        Ok(Constant { value, error })
    };
    let link = |latency, per_byte| -> PyResult<Link> {
        Ok(Link { latency: constant(latency)?, per_byte: constant(per_byte)? })
    };
    let (gradient_bytes, buckets, measured) = gradient;
    let profile = Profile {
        compute_constant: constant("compute_constant")?,
        compute_per_sample: constant("compute_per_sample")?,
        compute_floor: constant("compute_floor")?,
        update: constant("update")?,
        gradient_bytes: *gradient_bytes,
        buckets: *buckets,
        intra: link("intra_latency", "intra_per_byte")?,
        inter: link("inter_latency", "inter_per_byte")?,
        overlap: constant("overlap")?,
        lead: constant("lead")?,
        memory_fixed: constant("memory_fixed")?,
        memory_sharded: constant("memory_sharded")?,
        memory_per_sample: constant("memory_per_sample")?,
        scatter,
        measured: Measured { micro_batch: ranges[0], replicas_per_node: ranges[1], nodes: ranges[2] },
    };
    let table =
        AllReduceTable::new(measured, |placement| profile.sync_by_formula(placement, 1, placement.per_node));
    Ok((profile, table))
}

columns! {
    Shapes of Shape:
    gpus u64 world_size,
    gpus_per_node u64 gpus_per_node,
    model_parallel u64 model_parallel,
    micro_batch u64 micro_batch,
    accumulation u64 accumulation,
}

/// Seconds to reduce, seconds a step, their error, samples a second, efficiency and bytes of every row,
/// whether it lies inside the measured ranges, and whether its reducing does inside the table.
#[pyfunction]
#[allow(clippy::type_complexity)] // A tuple for Python.
pub fn forecast_rows<'py>(
    py: Python<'py>,
    constants: Constants<'py>,
    gradient: Gradient,
    scatter: f64,
    ranges: [Range; 3],
    rows: usize,
    shapes: Shapes<'py>,
) -> PyResult<([Bound<'py, PyArray1<f64>>; 6], [Bound<'py, PyArray1<bool>>; 2])> {
    let (profile, table) = profile(&constants, &gradient, scatter, ranges)?;
    let shape = shapes.rows()?;
    let forecasts: Vec<Forecast> =
        pool::run_rows(py, rows, SERIAL_ROWS, |row| profile.forecast(&shape(row), &table))?;
    let reals: [fn(&Forecast) -> f64; 6] = [
        |f| f.sync_seconds,
        |f| f.step_seconds,
        |f| f.step_error,
        |f| f.samples_per_second,
        |f| f.efficiency,
        |f| f.memory_bytes,
    ];
    let reals = reals.map(|of| forecasts.iter().map(of).collect::<Vec<f64>>().into_pyarray(py));
    let flags: [fn(&Forecast) -> bool; 2] = [|f| f.inside, |f| f.sync_measured];
    let flags = flags.map(|of| forecasts.iter().map(of).collect::<Vec<bool>>().into_pyarray(py));
    Ok((reals, flags))
}

type Reals<'py> = Bound<'py, PyArray1<f64>>;

/// Seconds of each step of a fit, one for every value of `sync_seconds`: what is known of its all-reduces,
/// NaN where the formula is to say it.
#[pyfunction]
pub fn step_rows<'py>(
    py: Python<'py>,
    constants: Constants<'py>,
    gradient_bytes: f64,
    buckets: f64,
    shapes: Shapes<'py>,
    sync_seconds: PyReadonlyArray1<'py, f64>,
) -> PyResult<Reals<'py>> {
    let (profile, _) = profile(&constants, &(gradient_bytes, buckets, vec![]), 0.0, [(1, 0); 3])?;
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
    let steps: Vec<f64> = sync_seconds.as_slice()?.iter().enumerate().map(seconds).collect();
    Ok(steps.into_pyarray(py))
}

/// Seconds of one all-reduce of each number of bytes, over replicas of a node and nodes.
#[pyfunction]
pub fn all_reduce_rows<'py>(
    py: Python<'py>,
    constants: Constants<'py>,
    per_node: PyReadonlyArray1<'py, u64>,
    groups: PyReadonlyArray1<'py, u64>,
    bytes: PyReadonlyArray1<'py, f64>,
) -> PyResult<Reals<'py>> {
    let (profile, _) = profile(&constants, &(f64::NAN, 1.0, vec![]), 0.0, [(1, 0); 3])?;
    let placements = per_node.as_slice()?.iter().zip(groups.as_slice()?);
    let seconds = |((&per_node, &groups), &gradient_bytes): ((&u64, &u64), &f64)| {
        let placement = Placement { all: per_node * groups, per_node, groups };
        Profile { gradient_bytes, ..profile }.sync_by_formula(placement, 1, per_node)
    };
    let reductions: Vec<f64> = placements.zip(bytes.as_slice()?).map(seconds).collect();
    Ok(reductions.into_pyarray(py))
}

/// The one noise scale that stands for a table of (progress, noise scale) at a tuned batch.
#[pyfunction]
pub fn noise_over_run(noise: Vec<(f64, f64)>, tuned_batch: f64) -> f64 {
    forecast::noise_over_run(&noise, tuned_batch)
}

/// How a forecast with half the width of its range (NaN: none is known) keeps a limit; `None` where it is not
/// known.
#[pyfunction]
pub fn verdict(value: f64, error: f64, limit: f64) -> Option<&'static str> {
    forecast::Verdict::of(value, error, limit).map(forecast::Verdict::name)
}
