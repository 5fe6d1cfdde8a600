//! `isobatch._core.Schedule`: a core schedule beside the Python form that it was built from.

use std::sync::Arc;

use isobatch_core::schedule::{
    Clock, Cosine, Cycle, Decay, Exponential, Inner, Power, Reciprocal, Rex, Schedule as Core, ScheduleError,
    Segment, Shape, Steps, Table, Tail, Tanh, Track, Value, fill_matrix,
};
use numpy::{
    AllowTypeChange, Element, PyArrayDyn, PyArrayLikeDyn, PyArrayMethods, PyReadonlyArray1,
    PyReadwriteArray2, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors::{input_error, schedule_error};
use crate::pool;

/// A learning rate at every optimizer step. Build one with the functions of `isobatch.schedules`.
///
/// It is a value: frozen, hashable, picklable, equal to any schedule of the same form.
#[pyclass(frozen, module = "isobatch._core")]
pub struct Schedule {
    pub core: Arc<Core>,
    /// The `isobatch.schedules.Form` that describes it, for JSON, pickling and equality.
    #[pyo3(get)]
    form: Py<PyAny>,
}

#[pymethods]
impl Schedule {
    #[new]
    fn new(form: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = form.py();
        let read: FormIn = form.extract().map_err(|error| root(py, error))?;
        let core = read.build().map_err(|error| schedule_error(py, &error))?;
        Ok(Self { core: Arc::new(core), form: form.clone().unbind() })
    }

    /// The learning rate at one step, which may be fractional.
    fn at(&self, py: Python<'_>, step: f64) -> PyResult<f64> {
        self.core.check(step).map_err(|error| schedule_error(py, &error))?;
        Ok(self.core.at(step))
    }

    /// The learning rates at an array of steps: float64, of the same shape.
    fn values<'py>(
        &self,
        py: Python<'py>,
        steps: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
        let steps = steps_array(steps)?;
        let out = PyArrayDyn::<f64>::zeros(py, steps.shape(), false);
        let input = steps.as_array();
        {
            let mut writer = out.readwrite();
            let target = writer.as_slice_mut()?;
            let core = &self.core;
            py.detach(|| {
                for (value, &step) in target.iter_mut().zip(input.iter()) {
                    core.check(step)?;
                    *value = core.at(step);
                }
                Ok(())
            })
            .map_err(|error| schedule_error(py, &error))?;
        }
        Ok(out)
    }

    /// The same schedule through a clock of (step, schedule step) knots; see `isobatch.schedules.with_clock`.
    fn with_clock<'py>(slf: &Bound<'py, Self>, points: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "form", "with_clock")?.call1((slf, points))
    }

    /// The same schedule, every value multiplied by `factor`.
    fn scaled<'py>(slf: &Bound<'py, Self>, factor: f64) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "form", "scaled")?.call1((slf, factor))
    }

    /// The schedule as JSON text, with a schema version.
    fn to_json<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "form", "to_json")?.call1((slf,))
    }

    /// The schedule that `to_json` wrote.
    #[staticmethod]
    fn from_json<'py>(text: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        text.py().import("isobatch.schedules.form")?.getattr("from_json")?.call1((text,))
    }

    /// The highest value that the schedule starts, ends or turns at.
    #[getter]
    fn peak<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "form", "peak")?.call1((slf,))
    }

    /// The step where the schedule ends, or None if it never does.
    #[getter]
    fn end<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "form", "end")?.call1((slf,))
    }

    /// What is odd about the schedule over a run of `total_steps` (default: its own length).
    #[pyo3(signature = (total_steps = None))]
    fn check<'py>(slf: &Bound<'py, Self>, total_steps: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "lint", "check")?.call1((slf, total_steps))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "draw", "svg")?.call1((slf,))
    }

    fn __repr__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "form", "text")?.call1((slf,))
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        match other.cast::<Self>() {
            Ok(other) => self.form.bind(py).eq(&other.get().form),
            Err(_) => Ok(false),
        }
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.form.bind(py).hash()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyAny>, (Py<PyAny>,)) {
        (slf.get_type().into_any(), (slf.get().form.clone_ref(slf.py()),))
    }
}

/// The error at the bottom: deriving extraction wraps each in a `TypeError` that names only a Rust type.
fn root(py: Python<'_>, mut error: PyErr) -> PyErr {
    while let Some(cause) = error.cause(py) {
        error = cause;
    }
    error
}

/// Values below which a second thread costs more than it gives.
const SERIAL: usize = 1 << 15;

/// Fills a float32 or float64 array with schedules × steps.
///
/// `steps` is an array, or a (start, step, count) range of them. The caller has made `out` C-contiguous.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // Arguments are extracted by value.
pub fn fill_schedules(
    py: Python<'_>,
    schedules: Vec<Py<Schedule>>,
    steps: StepsIn<'_>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let schedules: Vec<&Core> = schedules.iter().map(|schedule| &*schedule.get().core).collect();
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
    schedules: &[&Core],
    steps: &StepsIn<'_>,
    mut out: PyReadwriteArray2<'_, T>,
) -> PyResult<()> {
    let out = out.as_slice_mut()?;
    let array = match steps {
        StepsIn::Range(_) => None,
        StepsIn::Array(array) => Some(array.as_slice()?),
    };
    let range = if let StepsIn::Range(range) = steps { *range } else { (0.0, 1.0, 0) };
    py.detach(|| {
        let steps = match array {
            Some(array) => Steps::of(array)?,
            None => Steps::Range { start: range.0, step: range.1, len: range.2 },
        };
        if let Some(last) = steps.max() {
            for schedule in schedules {
                schedule.check(last)?;
            }
        }
        if out.len() < SERIAL {
            fill_matrix(schedules, steps, out);
        } else {
            pool::install(|| fill_matrix(schedules, steps, out));
        }
        Ok(())
    })
    .map_err(|error| schedule_error(py, &error))
}

fn helper<'py>(slf: &Bound<'py, Schedule>, module: &str, name: &str) -> PyResult<Bound<'py, PyAny>> {
    slf.py().import(format!("isobatch.schedules.{module}"))?.getattr(name)
}

/// Steps as a float64 array, whatever number type they came in.
pub fn steps_array<'py>(steps: &Bound<'py, PyAny>) -> PyResult<PyArrayLikeDyn<'py, f64, AllowTypeChange>> {
    steps.extract().map_err(|_| {
        input_error(
            steps.py(),
            "steps",
            "must be numbers: an int, a float, a sequence, a range or an array of them",
        )
    })
}

#[derive(FromPyObject)]
struct FormIn {
    tracks: Vec<TrackIn>,
    clock: Vec<(f64, f64)>,
    floor: f64,
    low: Option<f64>,
    high: Option<f64>,
    scale: f64,
    last: Option<f64>,
}

impl FormIn {
    fn build(self) -> Result<Core, ScheduleError> {
        let tracks = self.tracks.into_iter().map(TrackIn::build).collect::<Result<_, _>>()?;
        let mut core = Core::new(tracks, self.floor)?.with_scale(self.scale)?;
        if !self.clock.is_empty() {
            core = core.with_clock(Clock::new(&self.clock)?);
        }
        if self.low.is_some() || self.high.is_some() {
            core =
                core.with_clip(self.low.unwrap_or(f64::NEG_INFINITY), self.high.unwrap_or(f64::INFINITY))?;
        }
        self.last.map_or(Ok(core.clone()), |last| core.with_last(last))
    }
}

#[derive(FromPyObject)]
struct TrackIn {
    segments: Vec<SegmentIn>,
    cycle: Option<CycleIn>,
}

impl TrackIn {
    fn build(self) -> Result<Track, ScheduleError> {
        let cycle = self.cycle.map(CycleIn::build).transpose()?;
        Track::new(self.segments.into_iter().map(SegmentIn::build).collect(), cycle)
    }
}

#[derive(FromPyObject)]
struct CycleIn {
    period: f64,
    multiplier: f64,
    peak_decay: f64,
    amplitude_decay: f64,
    about: f64,
    limit: Option<u64>,
    end: f64,
    rounded: bool,
}

impl CycleIn {
    #[allow(clippy::float_cmp)] // 1 is the default, not the outcome of arithmetic.
    fn build(self) -> Result<Cycle, ScheduleError> {
        let decay = if self.peak_decay != 1.0 {
            Decay::Peak(self.peak_decay)
        } else if self.amplitude_decay != 1.0 {
            Decay::Amplitude { factor: self.amplitude_decay, about: self.about }
        } else {
            Decay::None
        };
        let cycle = Cycle::new(self.period, self.multiplier, decay, self.limit, self.end)?;
        Ok(if self.rounded { cycle.rounded() } else { cycle })
    }
}

#[derive(FromPyObject)]
struct SegmentIn {
    start: f64,
    after: bool,
    origin: f64,
    length: f64,
    a: f64,
    b: f64,
    shape: ShapeIn,
    beyond: bool,
}

impl SegmentIn {
    fn build(self) -> Segment {
        Segment {
            start: self.start,
            after: self.after,
            origin: self.origin,
            length: self.length,
            a: self.a,
            b: self.b,
            shape: self.shape.0,
            tail: if self.beyond { Tail::Continue } else { Tail::Clamp },
        }
    }
}

struct ShapeIn(Shape);

impl<'a, 'py> FromPyObject<'a, 'py> for ShapeIn {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let py = value.py();
        let number = |name: &str| -> PyResult<f64> { value.getattr(name)?.extract() };
        let flag = |name: &str| -> PyResult<bool> { value.getattr(name)?.extract() };
        let fail = |error: ScheduleError| schedule_error(py, &error);
        let kind = value.getattr(intern!(py, "kind"))?;
        let shape = match kind.cast::<PyString>()?.to_str()? {
            "constant" => Shape::Constant,
            "power" => Shape::Power(Power::new(number("stretch")?, number("exponent")?).map_err(fail)?),
            "cosine" => Shape::Cosine(
                Cosine::new(number("waves")?, number("stretch")?, number("exponent")?, flag("wrap")?)
                    .map_err(fail)?,
            ),
            "exponential" => {
                Shape::Exponential(Exponential::new(number("rate")?, flag("stairs")?).map_err(fail)?)
            }
            "reciprocal" => Shape::Reciprocal(Reciprocal::new(number("exponent")?).map_err(fail)?),
            "rex" => Shape::Rex(Rex),
            "tanh" => Shape::Tanh(Tanh::new(number("lower")?, number("upper")?).map_err(fail)?),
            "table" => {
                let values: Vec<f64> = value.getattr("values")?.extract()?;
                Shape::Table(Table::new(&values).map_err(fail)?)
            }
            "inner" => {
                let inner: FormIn = value.getattr("form")?.extract()?;
                Shape::Inner(Inner::new(Arc::new(inner.build().map_err(fail)?)))
            }
            other => return Err(PyTypeError::new_err(format!("{other} is not a kind of shape"))),
        };
        Ok(Self(shape))
    }
}
