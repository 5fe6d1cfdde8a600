//! A schedule's form on its way from Python: any `msgspec.Struct`, read by its own list of fields.

use isobatch_core::schedule::{Entry, Record};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyTuple};

use crate::errors::input_error;

/// Forms within forms, at most: an evaluation goes as deep.
const DEEPEST: usize = 200;
/// Parts of a form (segments, shapes, tracks), at most: what one evaluation may have to look at.
const MOST: usize = 1 << 16;

/// The form as a record.
pub fn record(form: &Bound<'_, PyAny>) -> PyResult<Record> {
    part(form, 0, &mut 0)
}

fn part(part: &Bound<'_, PyAny>, depth: usize, parts: &mut usize) -> PyResult<Record> {
    let py = part.py();
    *parts += 1;
    if depth > DEEPEST || *parts > MOST {
        let message = format!(
            "a schedule must have at most {DEEPEST} levels and {MOST} parts; put what it plays into a table"
        );
        return Err(input_error(py, "form", &message));
    }
    let tag = part.getattr(intern!(py, "__struct_config__"))?.getattr(intern!(py, "tag"))?;
    let names = part.getattr(intern!(py, "__struct_fields__"))?;
    let mut fields = Vec::new();
    for name in names.cast::<PyTuple>()? {
        let name = name.cast_into()?;
        fields.push((name.to_string(), entry(&part.getattr(&name)?, depth + 1, parts)?));
    }
    Ok(Record { name: if tag.is_none() { String::new() } else { tag.to_string() }, fields })
}

fn entry(value: &Bound<'_, PyAny>, depth: usize, parts: &mut usize) -> PyResult<Entry> {
    if value.is_none() {
        return Ok(Entry::Nothing);
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(Entry::Number(number.value()));
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Entry::Flag(flag.is_true()));
    }
    if let Ok(list) = value.cast::<PyTuple>() {
        let numbers =
            list.iter_borrowed().map(|item| item.cast::<PyFloat>().ok().map(|number| number.value()));
        if let Some(numbers) = numbers.collect::<Option<Vec<f64>>>().filter(|numbers| !numbers.is_empty()) {
            return Ok(Entry::Numbers(numbers));
        }
        return list
            .iter_borrowed()
            .map(|item| entry(&item, depth, parts))
            .collect::<PyResult<_>>()
            .map(numbers_of);
    }
    if let Ok(number) = value.extract::<f64>() {
        return Ok(Entry::Number(number));
    }
    part(value, depth, parts).map(Entry::Record)
}

/// Numbers that were not all floats are numbers too.
fn numbers_of(list: Vec<Entry>) -> Entry {
    let number = |entry: &Entry| if let Entry::Number(number) = entry { Some(*number) } else { None };
    match list.iter().map(number).collect::<Option<Vec<f64>>>() {
        Some(numbers) if !list.is_empty() => Entry::Numbers(numbers),
        _ => Entry::List(list),
    }
}
