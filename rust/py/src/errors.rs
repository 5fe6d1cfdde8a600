//! The one place where errors become Python exceptions.

use isobatch_core::input::Field;
use isobatch_core::schedule::ScheduleError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

static INPUT_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static MUST_BE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static TOGETHER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// An `isobatch.errors.InputError` about a field.
pub fn input_error(py: Python<'_>, field: &str, message: &str) -> PyErr {
    error(py, None, field, message)
}

fn error(py: Python<'_>, row: Option<usize>, field: &str, message: &str) -> PyErr {
    let build = || -> PyResult<PyErr> {
        let class = INPUT_ERROR.import(py, "isobatch.errors", "InputError")?;
        let named = PyDict::new(py);
        named.set_item("field", field)?;
        named.set_item("row", row)?;
        Ok(PyErr::from_value(class.call((message,), Some(&named))?))
    };
    build().unwrap_or_else(|error| error)
}

/// The Python exception of a schedule's error; in a row, it is counted from 1.
pub fn schedule_error(py: Python<'_>, error: &ScheduleError, row: Option<usize>) -> PyErr {
    self::error(py, row, error.field, &error.to_string())
}

/// The legal values of a field, and behind a semicolon why this one is not.
pub fn expected(field: Field, why: Option<String>) -> String {
    why.map_or_else(|| field.legal().to_owned(), |why| format!("{}; {why}", field.legal()))
}

/// The Python exception of a field that has an illegal value, and why it is; without the value where it is
/// not at hand.
pub fn illegal(py: Python<'_>, field: Field, value: Option<&Bound<'_, PyAny>>, why: Option<String>) -> PyErr {
    let (name, legal) = (field.name(), &expected(field, why));
    let Some(value) = value else {
        return input_error(py, name, &format!("{name} must be {legal}"));
    };
    must_be(value, name, legal)
}

/// The Python exception of a value that is not what it must be.
pub fn must_be(value: &Bound<'_, PyAny>, field: &str, legal: &str) -> PyErr {
    let py = value.py();
    let build = || -> PyResult<PyErr> {
        let must_be = MUST_BE.import(py, "isobatch.errors", "must_be")?;
        let named = PyDict::new(py);
        named.set_item("field", field)?;
        Ok(PyErr::from_value(must_be.call((legal, value), Some(&named))?))
    };
    build().unwrap_or_else(|error| error)
}

/// One exception of all that is wrong.
pub fn together(py: Python<'_>, errors: Vec<PyErr>) -> PyErr {
    let build = || -> PyResult<PyErr> {
        let errors: Vec<_> = errors.into_iter().map(|error| error.into_value(py)).collect();
        Ok(PyErr::from_value(TOGETHER.import(py, "isobatch.errors", "together")?.call1((errors,))?))
    };
    build().unwrap_or_else(|error| error)
}

/// The Python exception of a fault of our own.
pub fn fault() -> PyErr {
    PyRuntimeError::new_err("a fault of isobatch itself: please report it, with the input that it came of")
}
