//! Python values on their way into a field of the input.

use isobatch_core::input::{Field, Input, Read, Table, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString, PyTuple};

use crate::errors::{illegal, input_error};

/// A scalar as the core takes it. A real that is NaN was said to be one, and is illegal: `None` is what is unknown.
pub fn value_of(field: Field, value: &Bound<'_, PyAny>) -> Value {
    if value.is_none() {
        Value::Missing
    } else if let Ok(flag) = value.cast::<PyBool>() {
        Value::Read(Read::Flag(flag.is_true()))
    } else if let Ok(text) = value.cast::<PyString>() {
        match text.to_cow() {
            Ok(text) if !text.trim().is_empty() => Value::read(field, &text),
            _ => Value::Illegal,
        }
    } else if value.is_instance_of::<PyInt>() {
        value.extract().map_or(Value::Illegal, Value::Int)
    } else if value.is_instance_of::<PyFloat>() {
        value.extract().ok().filter(|x: &f64| !x.is_nan()).map_or(Value::Illegal, Value::Real)
    } else if field == Field::DeviceBatches && value.is_instance_of::<PyTuple>() {
        Value::Read(Read::Name)
    } else if let Ok((first, second)) = value.extract::<(f64, f64)>() {
        Value::Read(Read::Betas(first, second))
    } else {
        Value::Illegal
    }
}

/// Sets every entry of `fields`, and refuses the first that is illegal.
pub fn set_all(input: &mut Input, fields: &Bound<'_, PyDict>, tables: &[Table]) -> PyResult<()> {
    let py = fields.py();
    for (name, value) in fields {
        let text: String = name.extract()?;
        let field =
            Field::named(&text, tables).ok_or_else(|| input_error(py, &text, "there is no such field"))?;
        input.set(field, &value_of(field, &value));
        if input.fault.is_some() {
            return Err(illegal(py, field, Some(&value)));
        }
    }
    Ok(())
}
