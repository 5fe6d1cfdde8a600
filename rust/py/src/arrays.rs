//! Memory for results.

use numpy::{Element, PyArray, dtype};
use pyo3::prelude::*;
use pyo3::type_object::PyTypeCheck;

/// Makes an array of zeros as `NumPy` does: where there is no memory, its `MemoryError` says how much was asked for.
pub fn zeros<'py, T: Element, D>(py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyArray<T, D>>>
where
    PyArray<T, D>: PyTypeCheck,
{
    let array = py.import("numpy")?.call_method1("zeros", (shape.to_vec(), dtype::<T>(py)))?;
    Ok(array.cast_into()?)
}
