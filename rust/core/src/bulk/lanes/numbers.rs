//! Columns of numbers on their way into lanes.

use multiversion::multiversion;

use super::arithmetic::{BLOCK, LIMIT};
use crate::bulk::columns::{InputColumn, MISSING};
use crate::input::{Field, FieldKind, Value};

/// A number that no field takes.
const ILLEGAL: f64 = f64::INFINITY;

/// A column of numbers, and which of them are legal.
#[derive(Debug)]
pub(super) struct NumberColumn<'a> {
    pub field: Field,
    values: Values<'a>,
    least: f64,
    most: f64,
    whole: bool,
}

#[derive(Debug)]
enum Values<'a> {
    Ints(&'a [i64]),
    Reals(&'a [f64]),
    /// The numbers that the codes stand for.
    Codes(&'a [u32], Vec<f64>),
}

impl<'a> NumberColumn<'a> {
    /// `None` where the field's values are no numbers.
    pub fn of(field: Field, data: &'a InputColumn<'a>) -> Option<NumberColumn<'a>> {
        let (least, most, whole) = match field.kind() {
            FieldKind::Count(most) => (1.0, most as f64, true),
            FieldKind::Real(least, most) => (least, most, false),
            FieldKind::Flag | FieldKind::Other => return None,
        };
        let values = match data {
            InputColumn::Ints(values) => Values::Ints(values),
            InputColumn::Reals(values) => Values::Reals(values),
            InputColumn::Codes(codes, values) => Values::Codes(codes, values.iter().map(number).collect()),
        };
        Some(NumberColumn { field, values, least, most, whole })
    }

    /// Takes the numbers of some rows, those that are known, and marks rows in which they are illegal or very
    /// large.
    pub fn take(&self, rows: &[u32], lanes: &mut [f64; BLOCK], left: &mut [u64; BLOCK]) {
        let mut cells = [f64::NAN; BLOCK];
        let pairs = cells.iter_mut().zip(rows.iter().map(|row| *row as usize));
        match &self.values {
            Values::Ints(values) => pairs.for_each(|(x, row)| {
                let n = values[row];
                *x = if n == MISSING { f64::NAN } else { n as f64 };
            }),
            Values::Reals(values) => pairs.for_each(|(x, row)| *x = values[row]),
            Values::Codes(codes, values) => pairs.for_each(|(x, row)| *x = values[codes[row] as usize]),
        }
        settle(self, &cells, lanes, left);
    }
}

fn number(value: &Value) -> f64 {
    match *value {
        Value::Missing => f64::NAN,
        Value::Int(n) => n as f64,
        Value::Real(x) => x,
        Value::Read(_) | Value::Illegal => ILLEGAL,
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
fn settle(
    numbers: &NumberColumn<'_>,
    cells: &[f64; BLOCK],
    lanes: &mut [f64; BLOCK],
    left: &mut [u64; BLOCK],
) {
    let (least, most) = (numbers.least, numbers.most);
    for i in 0..BLOCK {
        let x = cells[i];
        let fits = !numbers.whole | ((x.fract() == 0.0) & (x < LIMIT));
        let legal = (x >= least) & (x <= most) & fits;
        lanes[i] = if x.is_nan() { lanes[i] } else { x };
        left[i] |= u64::from(!(legal | x.is_nan()));
    }
}
