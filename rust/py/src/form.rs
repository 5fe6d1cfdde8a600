//! A schedule's form on its way from Python: any `msgspec.Struct`, read by its own list of fields.

use std::sync::{Arc, RwLock};

use isobatch_core::schedule::{Entry, Record};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString, PyTuple, PyType};

use crate::errors::input_error;

/// Forms within forms, at most: an evaluation goes as deep.
const DEEPEST: usize = 200;
/// Parts of a form (segments, shapes, tracks), at most: what one evaluation may have to look at.
const MOST: usize = 1 << 16;

/// The name and the fields of a class, looked up once.
struct Class {
    /// Keeps the address, by which it is found, from being another's.
    object: Py<PyType>,
    name: Arc<str>,
    names: Arc<[String]>,
    attributes: Vec<Py<PyString>>,
}

static CLASSES: RwLock<Vec<Arc<Class>>> = RwLock::new(Vec::new());

/// The form as a record.
pub fn record(form: &Bound<'_, PyAny>) -> PyResult<Record> {
    part(form, 0, &mut 0)
}

fn part(part: &Bound<'_, PyAny>, depth: usize, parts: &mut usize) -> PyResult<Record> {
    let py = part.py();
    *parts += 1;
    if depth > DEEPEST || *parts > MOST {
        let message = format!(
            "form must have at most {DEEPEST} levels and {MOST} parts; put what it plays into a table"
        );
        return Err(input_error(py, "form", &message));
    }
    let Some(class) = class_of(&part.get_type())? else {
        return Err(input_error(py, "form", &format!("form must be made of its own parts, got {part:?}")));
    };
    let entries = class.attributes.iter().map(|name| entry(&part.getattr(name)?, depth + 1, parts));
    let entries = entries.collect::<PyResult<_>>()?;
    Ok(Record { name: Arc::clone(&class.name), names: Arc::clone(&class.names), entries })
}

/// None where it is no class of parts.
fn class_of(class: &Bound<'_, PyType>) -> PyResult<Option<Arc<Class>>> {
    if let Some(known) =
        CLASSES.read().ok().and_then(|known| known.iter().find(|known| known.object.is(class)).cloned())
    {
        return Ok(Some(known));
    }
    let py = class.py();
    let Some(config) = class.getattr_opt(intern!(py, "__struct_config__"))? else { return Ok(None) };
    let tag = config.getattr(intern!(py, "tag"))?;
    let names = class.getattr(intern!(py, "__struct_fields__"))?;
    let attributes: Vec<Py<PyString>> = names.extract()?;
    let class = Arc::new(Class {
        object: class.clone().unbind(),
        name: if tag.is_none() { "".into() } else { tag.to_string().into() },
        names: attributes.iter().map(|name| name.bind(py).to_string()).collect(),
        attributes,
    });
    // There are as many as the form has sorts of parts; what a test may make beside them does not grow it
    // without end.
    if let Ok(mut known) = CLASSES.write()
        && known.len() < 64
    {
        known.push(Arc::clone(&class));
    }
    Ok(Some(class))
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
    if value.is_instance_of::<PyInt>() || class_of(&value.get_type())?.is_none() {
        return value.extract().map(Entry::Number);
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
