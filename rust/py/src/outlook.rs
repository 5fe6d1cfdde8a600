//! Profiles on their way into the planner.

use isobatch_core::forecast::Workload;
use pyo3::prelude::*;

use crate::forecast::{Constants, Gradient, profile};

/// What was measured of a workload, by GPU type, as the planner takes it.
#[pyclass(frozen, module = "isobatch._core")]
pub struct Workloads {
    pub list: Vec<Workload>,
}

/// GPU type, constants, gradient, scatter, ranges, whether times and memory are estimates, noise by progress.
type Given = (Option<String>, Constants, Gradient, f64, [(u64, u64); 3], bool, bool, Vec<(f64, f64)>);

#[pymethods]
impl Workloads {
    #[new]
    fn new(profiles: Vec<Given>) -> Workloads {
        let workload = |given: Given| {
            let (gpu, constants, gradient, scatter, ranges, estimated, memory_estimated, noise) = given;
            let (profile, table) = profile(constants, &gradient, scatter, ranges);
            Workload { gpu: gpu.map(Into::into), profile, table, estimated, memory_estimated, noise }
        };
        Workloads { list: profiles.into_iter().map(workload).collect() }
    }
}

/// The list, empty where there is none.
pub fn list_of<'a>(workloads: Option<&'a Bound<'_, Workloads>>) -> &'a [Workload] {
    workloads.map_or(&[], |workloads| &workloads.get().list)
}
