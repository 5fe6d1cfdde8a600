//! Many plans: columns in, columns out.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};

use isobatch_core::bulk::{ElementType, Fleet, InputColumn, InputTable, Pairs, ResultColumn, ResultSlice};
use isobatch_core::input::{Field, Input, Record, Value};

use crate::fail::{Fail, null};
use crate::fields::{Pair, field_of, set, value_of};
use crate::raw;

/// A column of a table: `values` leads to one value a row, of the type that `kind` says.
#[repr(C)]
pub struct Column {
    field: *const c_char,
    kind: c_int,
    values: *const c_void,
}

/// A column of the result: `values` leads to `bytes` bytes.
#[repr(C)]
pub struct Results {
    column: *const c_char,
    values: *mut c_void,
    bytes: usize,
}

const INTS: c_int = 0;
const REALS: c_int = 1;
const TEXTS: c_int = 2;

/// A column in Rust: texts as numbers in a list of distinct values.
enum Read<'a> {
    Ints(&'a [i64]),
    Reals(&'a [f64]),
    Codes(Vec<u32>, Vec<Value>),
}

/// Plans every job on every cluster into the results' memory.
pub fn plan_into(
    jobs: (&[Column], usize),
    clusters: (&[Column], usize),
    shared: &[Pair],
    results: &[Results],
) -> Result<(), Fail> {
    let all = [Record::Recipe, Record::Cluster, Record::Settings];
    let mut input = Input::default();
    set(&mut input, shared, &all)?;
    let jobs = (read(jobs, &[Record::Recipe, Record::Settings])?, jobs.1);
    let clusters = (read(clusters, &[Record::Cluster, Record::Settings])?, clusters.1);
    let fleet = Fleet {
        shared: input,
        workloads: &[],
        jobs: table(&jobs),
        clusters: table(&clusters),
        pairs: Pairs::Crossed,
        stop: None,
    };
    let rows = jobs.1.checked_mul(clusters.1).ok_or_else(|| Fail::wrong("too many rows".to_owned()))?;
    let out = results.iter().map(|result| memory(result, rows)).collect::<Result<Vec<_>, Fail>>()?;
    fleet.plan(out);
    Ok(())
}

fn read<'a>(
    (given, rows): (&'a [Column], usize),
    records: &[Record],
) -> Result<Vec<(Field, Read<'a>)>, Fail> {
    if u32::try_from(rows).is_err() {
        return Err(Fail::wrong("a table has at most 2^32 - 1 rows".to_owned()));
    }
    let mut found: Vec<(Field, Read<'a>)> = Vec::with_capacity(given.len());
    for column in given {
        // SAFETY: a text of the caller's, who promises that it ends.
        let name = unsafe { raw::text(column.field)? }.ok_or_else(|| null("a column's field"))?;
        let field = field_of(name, records)?;
        if found.iter().any(|(other, _)| *other == field) {
            return Err(Fail::wrong(format!("{name} is given twice")));
        }
        // SAFETY: the caller promises a value of this kind for each row.
        let values = unsafe {
            match column.kind {
                INTS => Read::Ints(raw::slice(column.values.cast(), rows)?),
                REALS => Read::Reals(raw::slice(column.values.cast(), rows)?),
                TEXTS => codes(field, raw::slice(column.values.cast(), rows)?)?,
                other => return Err(Fail::wrong(format!("{name} has kind {other}, must be 0, 1 or 2"))),
            }
        };
        found.push((field, values));
    }
    Ok(found)
}

/// Each distinct text is read once.
fn codes<'a>(field: Field, texts: &[*const c_char]) -> Result<Read<'a>, Fail> {
    let mut numbers: HashMap<Option<&str>, u32> = HashMap::new();
    let (mut codes, mut values) = (Vec::with_capacity(texts.len()), Vec::new());
    for text in texts {
        // SAFETY: a text of the caller's, who promises that it ends.
        let text = unsafe { raw::text(*text)? };
        let number = *numbers.entry(text).or_insert_with(|| {
            values.push(value_of(field, text));
            u32::try_from(values.len() - 1).unwrap_or(u32::MAX)
        });
        codes.push(number);
    }
    Ok(Read::Codes(codes, values))
}

fn table<'a>((columns, rows): &'a (Vec<(Field, Read<'_>)>, usize)) -> InputTable<'a> {
    let borrowed = columns.iter().map(|(field, values)| {
        let column = match values {
            Read::Ints(values) => InputColumn::Ints(values),
            Read::Reals(values) => InputColumn::Reals(values),
            Read::Codes(codes, values) => InputColumn::Codes(codes, values.clone()),
        };
        (*field, column)
    });
    InputTable { rows: *rows, columns: borrowed.collect() }
}

/// A result's memory in its column's type.
fn memory<'a>(result: &Results, rows: usize) -> Result<(ResultColumn, ResultSlice<'a>), Fail> {
    // SAFETY: a text of the caller's, who promises that it ends.
    let name = unsafe { raw::text(result.column)? }.ok_or_else(|| null("a result's column"))?;
    let column = ResultColumn::ALL.iter().copied().find(|column| column.name() == name);
    let column = column.ok_or_else(|| Fail::unknown("result column", name))?;
    macro_rules! typed {
        ($($kind:ident $element:ty),*) => {
            match column.element() {
                $(ElementType::$kind => {
                    let width = size_of::<$element>();
                    if rows.checked_mul(width) != Some(result.bytes) {
                        return Err(Fail::wrong(format!(
                            "{name} needs {rows} values of {width} bytes, got {} bytes", result.bytes
                        )));
                    }
                    // SAFETY: the size was compared; the caller promises that the memory is there and nobody else's.
                    ResultSlice::$kind(unsafe { raw::slice_mut(result.values.cast(), rows)? })
                })*
            }
        };
    }
    Ok((column, typed!(U8 u8, U64 u64, I32 i32, I64 i64, F64 f64)))
}
