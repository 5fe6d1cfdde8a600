//! The one place where the core's refusals become Python exceptions.

use isobatch_core::input::Field;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

static INPUT_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// `isobatch.errors.InputError(message, field=field)`.
pub fn input_error(py: Python<'_>, message: &str, field: Option<&str>) -> PyErr {
    let build = || -> PyResult<PyErr> {
        let class = INPUT_ERROR.import(py, "isobatch.errors", "InputError")?;
        let named = PyDict::new(py);
        named.set_item("field", field)?;
        Ok(PyErr::from_value(class.call((message,), Some(&named))?))
    };
    build().unwrap_or_else(|error| error)
}

/// A field that has an illegal value.
pub fn illegal(py: Python<'_>, field: Field, value: Option<&Bound<'_, PyAny>>) -> PyErr {
    let given = value.and_then(|v| v.repr().ok()).map_or_else(String::new, |repr| format!("{repr} is "));
    input_error(py, &format!("{given}not legal; legal: {}", field.legal()), Some(field.name()))
}
