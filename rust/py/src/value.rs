//! Python values on their way into a field of the input.

use isobatch_core::input::{DeviceBatches, Field, FieldKind, Input, Read, Record, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString, PyTuple};

use crate::errors::{illegal, input_error, together};

/// A scalar as the core takes it, of its field's own type: unlike a table's cell, no text stands for a
/// number. A real that is NaN was said to be one, and is illegal: `None` is what is unknown.
pub fn value_of(field: Field, value: &Bound<'_, PyAny>) -> Value {
    if value.is_none() {
        if field.nullable() { Value::Missing } else { Value::Illegal }
    } else if let Ok(flag) = value.cast::<PyBool>() {
        Value::Read(Read::Flag(flag.is_true()))
    } else if let Ok(text) = value.cast::<PyString>() {
        match text.to_cow().map(|text| field.read(&text)) {
            Ok(Value::Read(Read::Flag(_) | Read::Betas(..) | Read::DeviceBatches(_))) | Err(_) => {
                Value::Illegal
            }
            Ok(read @ Value::Read(_)) => read,
            Ok(_) => Value::Illegal,
        }
    } else if value.is_instance_of::<PyInt>() && field.kind() != FieldKind::Flag {
        value.extract().map_or(Value::Illegal, Value::Int)
    } else if value.is_instance_of::<PyFloat>() && matches!(field.kind(), FieldKind::Real(..)) {
        value.extract().ok().filter(|x: &f64| !x.is_nan()).map_or(Value::Illegal, Value::Real)
    } else if let Ok(numbers) = value.cast::<PyTuple>() {
        tuple_of(field, numbers).map_or(Value::Illegal, Value::Read)
    } else {
        Value::Illegal
    }
}

fn tuple_of(field: Field, numbers: &Bound<'_, PyTuple>) -> Option<Read> {
    match field {
        Field::Betas => numbers.extract().ok().map(|(first, second)| Read::Betas(first, second)),
        Field::DeviceBatches => {
            DeviceBatches::of(numbers.iter().map(|number| number.extract().ok())).map(Read::DeviceBatches)
        }
        _ => None,
    }
}

/// The errors of the fields that were given illegal values.
#[derive(Default)]
pub struct Faults(Vec<PyErr>);

impl Faults {
    /// Sets a field, or notes that its value is illegal.
    pub fn set(&mut self, input: &mut Input, field: Field, value: &Bound<'_, PyAny>) {
        input.set(field, &value_of(field, value));
        if input.fault.take().is_some() {
            self.0.push(illegal(value.py(), field, Some(value), None));
        }
    }

    /// One error that names all of them; nothing where there are none.
    pub fn raise(self, py: Python<'_>) -> PyResult<()> {
        if self.0.is_empty() { Ok(()) } else { Err(together(py, self.0)) }
    }
}

/// Each entry of `fields` with its field, one of these records.
fn named<'py>(
    fields: &Bound<'py, PyDict>,
    records: &[Record],
    kind: &str,
) -> PyResult<Vec<(Field, Bound<'py, PyAny>)>> {
    let entry = |(name, value): (Bound<'py, PyAny>, Bound<'py, PyAny>)| {
        let text: String = name.extract()?;
        let unknown = || input_error(fields.py(), &text, &format!("there is no such {kind}"));
        Ok((Field::named(&text, records).ok_or_else(unknown)?, value))
    };
    fields.iter().map(entry).collect()
}

/// Sets every entry of `fields`; the error names all that are illegal.
pub fn set_all(input: &mut Input, fields: &Bound<'_, PyDict>, records: &[Record]) -> PyResult<()> {
    let mut faults = Faults::default();
    for (field, value) in named(fields, records, "field")? {
        faults.set(input, field, &value);
    }
    faults.raise(fields.py())
}

/// A field's fault: its name, its value, the legal values.
type Fault<'py> = (&'static str, Bound<'py, PyAny>, &'static str);

/// Every setting whose value is illegal, by itself or beside the others; `InputError` for a name that is no
/// setting's.
#[pyfunction]
pub fn check_settings<'py>(settings: &Bound<'py, PyDict>) -> PyResult<Vec<Fault<'py>>> {
    let mut input = Input::default();
    let mut faults = Vec::new();
    for (field, value) in named(settings, &[Record::Settings], "setting")? {
        input.set(field, &value_of(field, &value));
        if input.fault.take().is_some() {
            faults.push((field.name(), value, field.legal()));
        }
    }
    // The recipe and the cluster, which are not there, do not contradict the settings.
    for field in input.contradictions().filter(|field| field.record() == Record::Settings) {
        let value = settings.get_item(field.name())?;
        let value = value.unwrap_or_else(|| settings.py().None().into_bound(settings.py()));
        faults.push((field.name(), value, field.legal()));
    }
    Ok(faults)
}
