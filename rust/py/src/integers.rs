//! Whole numbers in Python's own sequences, as columns.
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList, PyTuple};

type Column<'py> = Bound<'py, PyArray1<i64>>;

/// A sequence of whole numbers as an array, several times as fast as `NumPy`; a `TypeError` or `OverflowError` where one is
/// something else.
#[pyfunction]
pub fn integers<'py>(py: Python<'py>, values: &Bound<'py, PyAny>) -> PyResult<Column<'py>> {
    let mut found = Vec::with_capacity(values.len()?);
    read(values, &mut found)?;
    Ok(found.into_pyarray(py))
}

/// The same for sequences of them: all end to end, and where each begins and the last one ends.
#[pyfunction]
pub fn integer_groups<'py>(
    py: Python<'py>,
    groups: &Bound<'py, PyAny>,
) -> PyResult<(Column<'py>, Column<'py>)> {
    let rows = groups.len()?;
    let (mut found, mut cuts) = (Vec::with_capacity(4 * rows), Vec::with_capacity(rows + 1));
    cuts.push(0);
    each(groups, |group| {
        read(group, &mut found)?;
        cuts.push(i64::try_from(found.len())?);
        Ok(())
    })?;
    Ok((found.into_pyarray(py), cuts.into_pyarray(py)))
}

fn read(values: &Bound<'_, PyAny>, found: &mut Vec<i64>) -> PyResult<()> {
    each(values, |value| {
        if value.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("a bool"));
        }
        found.push(value.extract()?);
        Ok(())
    })
}

/// Lists and tuples have a shorter way than iterators.
fn each(values: &Bound<'_, PyAny>, mut take: impl FnMut(&Bound<'_, PyAny>) -> PyResult<()>) -> PyResult<()> {
    if let Ok(list) = values.cast::<PyList>() {
        list.iter().try_for_each(|value| take(&value))
    } else if let Ok(tuple) = values.cast::<PyTuple>() {
        tuple.iter_borrowed().try_for_each(|value| take(&value))
    } else {
        values.try_iter()?.try_for_each(|value| take(&value?))
    }
}
