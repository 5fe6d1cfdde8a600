//! The one place where errors become Python exceptions.

use isobatch_core::input::Field;
use isobatch_core::schedule::ScheduleError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

static INPUT_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// An `isobatch.errors.InputError` about a field.
pub fn input_error(py: Python<'_>, field: &str, message: &str) -> PyErr {
    let build = || -> PyResult<PyErr> {
        let class = INPUT_ERROR.import(py, "isobatch.errors", "InputError")?;
        let named = PyDict::new(py);
        named.set_item("field", field)?;
        Ok(PyErr::from_value(class.call((message,), Some(&named))?))
    };
    build().unwrap_or_else(|error| error)
}

/// The Python exception of a schedule's error.
pub fn schedule_error(py: Python<'_>, error: &ScheduleError) -> PyErr {
    input_error(py, error.field, &error.message)
}

/// The Python exception of a field that has an illegal value.
pub fn illegal(py: Python<'_>, field: Field, value: Option<&Bound<'_, PyAny>>) -> PyErr {
    let given = value.and_then(|v| v.repr().ok()).map_or_else(String::new, |repr| format!("{repr} is "));
    input_error(py, field.name(), &format!("{given}not legal; legal: {}", field.legal()))
}
