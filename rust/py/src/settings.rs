//! Settings, checked without a recipe.

use isobatch_core::input::{Field, Input, Record};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::input_error;
use crate::value::value_of;

/// What is wrong with a field: its name, its value, what it must be.
type Fault<'py> = (&'static str, Bound<'py, PyAny>, &'static str);

/// Every setting whose value is illegal, by itself or beside the others; `InputError` for a name that is no setting's.
#[pyfunction]
pub fn check_settings<'py>(settings: &Bound<'py, PyDict>) -> PyResult<Vec<Fault<'py>>> {
    let mut input = Input::default();
    let mut faults = Vec::new();
    for (name, value) in settings {
        let text: String = name.extract()?;
        let field = Field::named(&text, &[Record::Settings])
            .ok_or_else(|| input_error(settings.py(), &text, "there is no such setting"))?;
        input.set(field, &value_of(field, &value));
        if input.fault.take().is_some() {
            faults.push((field.name(), value, field.legal()));
        }
    }
    // The recipe and the cluster, which are not there, do not contradict the settings.
    for field in input.contradictions().filter(|field| field.record() == Record::Settings) {
        let value = settings.get_item(field.name())?;
        faults.push((
            field.name(),
            value.unwrap_or_else(|| settings.py().None().into_bound(settings.py())),
            field.legal(),
        ));
    }
    Ok(faults)
}
