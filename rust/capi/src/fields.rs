//! Fields by name, and their values as texts.

use std::ffi::c_char;

use isobatch_core::input::{Field, Input, Record, Value};

use crate::fail::{Fail, null};
use crate::raw;

/// A field and its value, as texts.
#[repr(C)]
pub struct Pair {
    field: *const c_char,
    value: *const c_char,
}

/// The records, as names may have them in front.
const RECORDS: [(&str, Record); 3] =
    [("recipe", Record::Recipe), ("cluster", Record::Cluster), ("settings", Record::Settings)];

/// The field of a name: `lr`, or `cluster.model_parallel` where two records have it; else the first of `records` that does.
pub fn field_of(name: &str, records: &[Record]) -> Result<Field, Fail> {
    let found = match name.split_once('.') {
        Some((record, field)) => RECORDS
            .iter()
            .find(|(text, of)| *text == record && records.contains(of))
            .and_then(|(_, of)| Field::named(field, &[*of])),
        None => records.iter().find_map(|record| Field::named(name, &[*record])),
    };
    found.ok_or_else(|| Fail::unknown("field", name))
}

/// A text as a field's value; none is unknown.
pub fn value_of(field: Field, text: Option<&str>) -> Value {
    match text.map(str::trim) {
        None => Value::Missing,
        Some("") => Value::Illegal,
        Some(text) => field.read(text),
    }
}

/// Sets an input's fields to the pairs' values.
pub fn set(input: &mut Input, given: &[Pair], records: &[Record]) -> Result<(), Fail> {
    let mut seen = Vec::with_capacity(given.len());
    for pair in given {
        // SAFETY: texts of the caller's, who promises that they end.
        let (name, text) = unsafe { (raw::text(pair.field)?, raw::text(pair.value)?) };
        let name = name.ok_or_else(|| null("a field's name"))?;
        let field = field_of(name, records)?;
        if seen.contains(&field) {
            return Err(Fail::wrong(format!("{name} is given twice")));
        }
        seen.push(field);
        input.set(field, &value_of(field, text));
        if input.fault.is_some() {
            return Err(Fail::illegal(name, field.legal()));
        }
    }
    Ok(())
}
