//! `isobatch._core.Evaluator`: a schedule of the core, built from a form, and evaluated one by one or in
//! bulk.

use std::sync::atomic::{AtomicBool, Ordering};

use isobatch_core::schedule::{Halt, Schedule, ScheduleError, Shape, Steps, Value, fill_matrix};
use numpy::{
    AllowTypeChange, Element, PyArrayDyn, PyArrayLikeDyn, PyArrayMethods, PyReadonlyArray1,
    PyReadwriteArray2, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::arrays;
use crate::errors::{input_error, must_be, schedule_error};
use crate::form::record;
use crate::pool;

/// The values of a schedule at optimizer steps, the first of which is 0.
#[pyclass(frozen, subclass, module = "isobatch._core")]
pub struct Evaluator {
    schedule: Schedule,
}

#[pymethods]
impl Evaluator {
    /// `form` is an `isobatch.schedules.Form`.
    #[new]
    fn new(form: &Bound<'_, PyAny>) -> PyResult<Self> {
        let schedule =
            Schedule::read(&record(form)?).map_err(|error| schedule_error(form.py(), &error, None))?;
        Ok(Self { schedule })
    }

    /// The learning rate at one step, which may be fractional.
    ///
    /// Raises:
    ///     `InputError`: the step is NaN, negative, at or past 2^53, or past the schedule's end, or the value
    ///         overflows.
    fn at(&self, py: Python<'_>, step: &Bound<'_, PyAny>) -> PyResult<f64> {
        let step = step.extract().map_err(|_| must_be(step, "step", "a number from 0 to below 2^53"))?;
        value(&self.schedule, step).map_err(|error| schedule_error(py, &error, None))
    }

    /// The learning rates at an array of steps, of any shape: float64, of the same shape.
    ///
    /// Raises:
    ///     `InputError`: as `at`.
    fn values<'py>(
        &self,
        py: Python<'py>,
        steps: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
        let steps = steps_array(steps)?;
        let out: Bound<'py, PyArrayDyn<f64>> = arrays::zeros(py, steps.shape())?;
        let input = steps.as_array();
        {
            let mut writer = out.readwrite();
            let target = writer.as_slice_mut()?;
            let few = target.len() < SERIAL;
            let fill = |stop: &AtomicBool| {
                for (target, &step) in target.iter_mut().zip(input.iter()) {
                    *target = value(&self.schedule, step)?;
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                Ok(())
            };
            pool::run_unless(py, few, fill)?.map_err(|error| schedule_error(py, &error, None))?;
        }
        Ok(out)
    }
}

fn value(schedule: &Schedule, step: f64) -> Result<f64, ScheduleError> {
    schedule.check(step)?;
    let value = schedule.at(step);
    if value.is_finite() { Ok(value) } else { Err(overflow(step)) }
}

fn overflow(step: f64) -> ScheduleError {
    ScheduleError { field: "steps", message: format!("the learning rate overflows at step {step}") }
}

/// The names of the shapes that a form may have.
#[pyfunction]
pub fn schedule_shapes() -> Vec<&'static str> {
    Shape::NAMES.to_vec()
}

/// Values below which a second thread costs more than it gives.
const SERIAL: usize = 1 << 15;

/// Fills a float32 or float64 array with schedules × steps.
///
/// `steps` is an array, or a (start, step, count) range of them. The caller has made `out` C-contiguous.
#[pyfunction]
pub fn fill_schedules(
    py: Python<'_>,
    schedules: Vec<Py<Evaluator>>,
    steps: StepsIn<'_>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let schedules: Vec<&Schedule> = schedules.iter().map(|schedule| &schedule.get().schedule).collect();
    match out.extract::<PyReadwriteArray2<'_, f32>>() {
        Ok(out) => fill_out(py, &schedules, &steps, out),
        Err(_) => fill_out(py, &schedules, &steps, out.extract::<PyReadwriteArray2<'_, f64>>()?),
    }
}

/// Steps as they come in: a range, or a float64 array.
#[derive(FromPyObject)]
pub enum StepsIn<'py> {
    Range((f64, f64, usize)),
    Array(PyReadonlyArray1<'py, f64>),
}

fn fill_out<T: Value + Element>(
    py: Python<'_>,
    schedules: &[&Schedule],
    steps: &StepsIn<'_>,
    mut out: PyReadwriteArray2<'_, T>,
) -> PyResult<()> {
    let out = out.as_slice_mut()?;
    let steps = match steps {
        StepsIn::Range((start, step, len)) => Ok(Steps::Range { start: *start, step: *step, len: *len }),
        StepsIn::Array(array) => {
            let array = array.as_slice()?;
            py.detach(|| Steps::of(array))
        }
    }
    .map_err(|error| schedule_error(py, &error, None))?;
    if let Some(last) = steps.max() {
        for (row, schedule) in schedules.iter().enumerate() {
            schedule.check(last).map_err(|error| schedule_error(py, &error, Some(row + 1)))?;
        }
    }
    let few = out.len() < SERIAL;
    let filled = pool::run_unless(py, few, |stop| fill_matrix(schedules, steps, out, stop))?;
    match filled {
        Ok(()) | Err(Halt::Stopped) => Ok(()),
        Err(Halt::Overflow { row, step }) => Err(schedule_error(py, &overflow(step), Some(row + 1))),
    }
}

/// Steps as a float64 array, whatever real number type they came in: `NumPy` would read texts and dates, too.
pub fn steps_array<'py>(steps: &Bound<'py, PyAny>) -> PyResult<PyArrayLikeDyn<'py, f64, AllowTypeChange>> {
    let real = |steps: &Bound<'py, PyAny>| {
        let array = steps.py().import("numpy")?.call_method1("asarray", (steps,))?;
        let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
        if "biuf".contains(&kind) { array.extract() } else { Err(PyTypeError::new_err(kind)) }
    };
    real(steps).map_err(|_| {
        input_error(
            steps.py(),
            "steps",
            "steps must be numbers: an int, a float, a sequence, a range or an array of them",
        )
    })
}
