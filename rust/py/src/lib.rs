//! The Python binding: columns in, columns out.
#![allow(clippy::needless_pass_by_value, reason = "pyo3 hands arguments over by value")]

mod allocate;
mod arrays;
mod errors;
mod fleet;
mod forecast;
mod form;
mod plan;
mod pool;
mod schedule;
mod tables;
mod value;

/// The compiled core of isobatch.
#[pyo3::pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::allocate::divide_pool;
    #[pymodule_export]
    use crate::fleet::{choose_rows, fleet_fault, plan_fleet};
    #[pymodule_export]
    use crate::forecast::{Workloads, all_reduce_rows, forecast_rows, noise_over_run, step_rows, verdict};
    #[pymodule_export]
    use crate::plan::{Planner, Recipe, length};
    #[pymodule_export]
    use crate::schedule::{Evaluator, fill_schedules, schedule_shapes};
    #[pymodule_export]
    use crate::tables::{
        canonical, fields, number, optimizers, precisions, reasons, results, right_form, rules,
    };
    #[pymodule_export]
    use crate::value::check_settings;

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
