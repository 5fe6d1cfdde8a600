//! Profiles on their way into the planner.

use isobatch_core::forecast::Workload;
use pyo3::prelude::*;

use crate::forecast::{Constants, Gradient, profile};

/// What was measured of a workload, by GPU type, as the planner takes it.
#[pyclass(frozen, module = "isobatch._core")]
pub struct Workloads {
    pub list: Vec<Workload>,
}

/// What a profile says, by name.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct ProfileFields {
    gpu: Option<String>,
    constants: Constants,
    gradient: Gradient,
    scatter: f64,
    ranges: [(u64, u64); 3],
    times_estimated: bool,
    memory_estimated: bool,
    noise_by_progress: Vec<(f64, f64)>,
}

#[pymethods]
impl Workloads {
    #[new]
    fn new(profiles: Vec<ProfileFields>) -> Workloads {
        let workload = |of: ProfileFields| {
            let (profile, table) = profile(&of.constants, &of.gradient, of.scatter, of.ranges);
            Workload {
                gpu: of.gpu.map(Into::into),
                profile,
                table,
                estimated: of.times_estimated,
                memory_estimated: of.memory_estimated,
                noise: of.noise_by_progress,
            }
        };
        Workloads { list: profiles.into_iter().map(workload).collect() }
    }
}

/// The list, empty where there is none.
pub fn list_of<'a>(workloads: Option<&'a Bound<'_, Workloads>>) -> &'a [Workload] {
    workloads.map_or(&[], |workloads| &workloads.get().list)
}
