//! Input tables: columns of values, each for one field.

use crate::input::{Field, Input, Value};

/// A whole number that is not known, in a column of the input.
pub const MISSING: i64 = i64::MIN;

/// The values of an input column.
#[derive(Debug)]
pub enum InputColumn<'a> {
    /// Whole numbers; [`MISSING`] where unknown.
    Ints(&'a [i64]),
    /// Reals; NaN where unknown.
    Reals(&'a [f64]),
    /// Each row's number in a list of distinct values.
    Codes(&'a [u32], Vec<Value>),
}

impl InputColumn<'_> {
    /// The value in a row.
    pub(super) fn value(&self, row: usize) -> Value {
        match self {
            InputColumn::Ints(values) if values[row] == MISSING => Value::Missing,
            InputColumn::Ints(values) => Value::Int(values[row]),
            InputColumn::Reals(values) => Value::Real(values[row]),
            InputColumn::Codes(codes, values) => values[codes[row] as usize].clone(),
        }
    }
}

/// An input table: its varying columns.
#[derive(Debug)]
pub struct InputTable<'a> {
    /// Rows in every column.
    pub rows: usize,
    /// The columns, each for one field.
    pub columns: Vec<(Field, InputColumn<'a>)>,
}

impl InputTable<'_> {
    /// Sets the fields of each input to those of its row, column by column: the processor then sees one field
    /// at a time.
    pub(super) fn apply(&self, rows: &[u32], inputs: &mut [Input]) {
        for (field, data) in &self.columns {
            let pairs = inputs.iter_mut().zip(rows.iter().map(|&row| row as usize));
            match data {
                InputColumn::Ints(values) => Input::set_each(
                    *field,
                    pairs.map(|(input, row)| {
                        let n = values[row];
                        (input, if n == MISSING { Value::Missing } else { Value::Int(n) })
                    }),
                ),
                InputColumn::Reals(values) => {
                    Input::set_each(*field, pairs.map(|(input, row)| (input, Value::Real(values[row]))));
                }
                InputColumn::Codes(codes, values) => {
                    Input::set_each(*field, pairs.map(|(input, row)| (input, &values[codes[row] as usize])));
                }
            }
        }
    }
}
