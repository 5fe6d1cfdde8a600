//! Bulk plans: `NumPy` columns in, fresh `NumPy` columns out, the GIL released in between.

use isobatch_core::bulk::{
    Chosen, Criterion, ElementType, Fleet, InputColumn, InputTable, Pairs, ResultColumn, ResultSlice,
};
use isobatch_core::forecast::Workload;
use isobatch_core::input::{Field, Input, Record, Value};
use numpy::{Element, IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::arrays;
use crate::errors::{expected, input_error};
use crate::forecast::{Workloads, list_of};
use crate::pool;
use crate::value::set_all;

/// Fewer rows are planned on the calling thread: waking others costs more.
const SERIAL: usize = 4096;

/// A column as Python hands it over.
#[derive(FromPyObject)]
pub enum Given<'py> {
    Ints(PyReadonlyArray1<'py, i64>),
    Reals(PyReadonlyArray1<'py, f64>),
    /// Each row's number in the list of texts; `None` is unknown, an empty text illegal.
    Codes(PyReadonlyArray1<'py, u32>, Vec<Option<String>>),
}

/// (rows, columns by name) of one table.
type GivenTable<'py> = (usize, Vec<(String, Given<'py>)>);
/// Rows of the jobs and of the clusters that were chosen, the places in these of jobs of which rows were left
/// out, and the number of such rows.
type ChosenPairs<'py> =
    (Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<u32>>, u64);
/// Rows of the jobs and of the clusters that meet.
type GivenPairs<'py> = Option<(PyReadonlyArray1<'py, u32>, PyReadonlyArray1<'py, u32>)>;

fn read(field: Field, text: Option<&str>) -> Value {
    match text.map(str::trim) {
        None => Value::Missing,
        Some("") => Value::Illegal,
        Some(text) => field.read_cell(text),
    }
}

fn columns<'a>(py: Python<'_>, given: &'a GivenTable<'_>, record: Record) -> PyResult<InputTable<'a>> {
    let (rows, given) = given;
    let mut columns = Vec::with_capacity(given.len());
    for (name, data) in given {
        let field = Field::named(name, &[record, Record::Settings])
            .ok_or_else(|| input_error(py, name, "there is no such column"))?;
        let (data, length) = match data {
            Given::Ints(array) => (InputColumn::Ints(array.as_slice()?), array.len()?),
            Given::Reals(array) => (InputColumn::Reals(array.as_slice()?), array.len()?),
            Given::Codes(codes, texts) => {
                let codes = codes.as_slice()?;
                if codes.iter().any(|&code| code as usize >= texts.len()) {
                    return Err(input_error(py, name, "a code without a text"));
                }
                let values = texts.iter().map(|text| read(field, text.as_deref())).collect();
                (InputColumn::Codes(codes, values), codes.len())
            }
        };
        if length != *rows {
            return Err(input_error(py, name, &format!("{length} values for {rows} rows")));
        }
        columns.push((field, data));
    }
    Ok(InputTable { rows: *rows, columns })
}

fn fleet<'a>(
    py: Python<'_>,
    jobs: &'a GivenTable<'_>,
    clusters: &'a GivenTable<'_>,
    shared: &Bound<'_, PyDict>,
    pairs: &'a GivenPairs<'_>,
    workloads: &'a [Workload],
) -> PyResult<Fleet<'a>> {
    let mut input = Input::default();
    set_all(&mut input, shared, &[Record::Settings])?;
    let (jobs, clusters) = (columns(py, jobs, Record::Recipe)?, columns(py, clusters, Record::Cluster)?);
    let pairs = match pairs {
        None => Pairs::Crossed,
        Some((left, right)) => {
            let (left, right) = (left.as_slice()?, right.as_slice()?);
            let within =
                |rows: &[u32], table: &InputTable<'_>| rows.iter().all(|&row| (row as usize) < table.rows);
            if left.len() != right.len() || !within(left, &jobs) || !within(right, &clusters) {
                return Err(input_error(py, "pairs", "a pair names a row that is not there"));
            }
            Pairs::Named { jobs: left, clusters: right }
        }
    };
    Ok(Fleet { shared: input, workloads, jobs, clusters, pairs, stop: None })
}

/// A fresh result column, typed.
enum Fresh<'py> {
    U8(PyReadwriteArray1<'py, u8>),
    U64(PyReadwriteArray1<'py, u64>),
    I32(PyReadwriteArray1<'py, i32>),
    I64(PyReadwriteArray1<'py, i64>),
    F64(PyReadwriteArray1<'py, f64>),
}

fn fresh<T: Element>(py: Python<'_>, rows: usize) -> PyResult<(Bound<'_, PyAny>, PyReadwriteArray1<'_, T>)> {
    let array: Bound<'_, PyArray1<T>> = arrays::zeros(py, &[rows])?;
    Ok((array.clone().into_any(), array.readwrite()))
}

/// The best rows of every job by hours, cost or goodput, as rows of the jobs and of the clusters, which of
/// these are of jobs whose rows could not all be compared, and how many could not.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "those of plan_fleet, and the choice")]
pub fn choose_rows<'py>(
    py: Python<'py>,
    jobs: GivenTable<'py>,
    clusters: GivenTable<'py>,
    shared: &Bound<'py, PyDict>,
    pairs: GivenPairs<'py>,
    workloads: &Bound<'py, Workloads>,
    by: &str,
    top: usize,
) -> PyResult<ChosenPairs<'py>> {
    let fleet = fleet(py, &jobs, &clusters, shared, &pairs, list_of(Some(workloads)))?;
    let by = match by {
        "fastest" => Criterion::Fastest,
        "cheapest" => Criterion::Cheapest,
        "goodput" => Criterion::Goodput,
        _ => return Err(input_error(py, "select", "legal: all, fastest, cheapest, goodput")),
    };
    let Chosen { jobs, clusters, not_compared, left_out } =
        pool::run(py, |stop| Fleet { stop: Some(stop), ..fleet }.choose(by, top))?;
    Ok((jobs.into_pyarray(py), clusters.into_pyarray(py), not_compared.into_pyarray(py), left_out))
}

/// Plans every row; gives a list of arrays, one for each of `results`.
#[pyfunction]
#[pyo3(signature = (jobs, clusters, shared, pairs, results, workloads=None))]
pub fn plan_fleet<'py>(
    py: Python<'py>,
    jobs: GivenTable<'py>,
    clusters: GivenTable<'py>,
    shared: &Bound<'py, PyDict>,
    pairs: GivenPairs<'py>,
    results: Vec<String>,
    workloads: Option<&Bound<'py, Workloads>>,
) -> PyResult<Bound<'py, PyList>> {
    let fleet = fleet(py, &jobs, &clusters, shared, &pairs, list_of(workloads))?;
    let rows = fleet.rows();
    let list = PyList::empty(py);
    let mut arrays = Vec::with_capacity(results.len());
    for name in &results {
        let column = ResultColumn::ALL.iter().copied().find(|column| column.name() == name);
        let column = column.ok_or_else(|| input_error(py, name, "there is no such result column"))?;
        macro_rules! typed {
            ($($kind:ident)*) => {
                match column.element() {
                    $(ElementType::$kind => {
                        let (array, memory) = fresh(py, rows)?;
                        list.append(array)?;
                        Fresh::$kind(memory)
                    })*
                }
            };
        }
        arrays.push((column, typed!(U8 U64 I32 I64 F64)));
    }
    let mut out = Vec::with_capacity(arrays.len());
    for (column, array) in &mut arrays {
        macro_rules! slices {
            ($($kind:ident)*) => {
                match array { $(Fresh::$kind(array) => ResultSlice::$kind(array.as_slice_mut()?),)* }
            };
        }
        out.push((*column, slices!(U8 U64 I32 I64 F64)));
    }
    pool::run_unless(py, rows < SERIAL, |stop| Fleet { stop: Some(stop), ..fleet }.plan(out))?;
    drop(arrays);
    Ok(list)
}

/// The illegal field of one row: (field, its legal values), or None.
#[pyfunction]
pub fn fleet_fault<'py>(
    py: Python<'py>,
    jobs: GivenTable<'py>,
    clusters: GivenTable<'py>,
    shared: &Bound<'py, PyDict>,
    pairs: GivenPairs<'py>,
    row: usize,
) -> PyResult<Option<(&'static str, String)>> {
    let fleet = fleet(py, &jobs, &clusters, shared, &pairs, &[])?;
    let input = fleet.input(row);
    Ok(input.invalid().map(|field| (field.name(), expected(field, input.why(field)))))
}
