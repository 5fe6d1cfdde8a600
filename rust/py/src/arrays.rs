//! Arrays from and to Python.

use numpy::{Element, PyArray, dtype};
use pyo3::prelude::*;
use pyo3::type_object::PyTypeCheck;

/// Makes an array of zeros as `NumPy` does: where there is no memory, its `MemoryError` says how much was
/// asked for.
pub fn zeros<'py, T: Element, D>(py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyArray<T, D>>>
where
    PyArray<T, D>: PyTypeCheck,
{
    let array = py.import("numpy")?.call_method1("zeros", (shape.to_vec(), dtype::<T>(py)))?;
    Ok(array.cast_into()?)
}

/// Columns by name, with one value for all rows or one each: what the core takes of a row.
macro_rules! columns {
    ($columns:ident of $row:ident: $($name:ident $type:ident $field:ident,)*) => {
        #[derive(FromPyObject)]
        #[pyo3(from_item_all)]
        pub struct $columns<'py> {
            $($name: PyReadonlyArray1<'py, $type>,)*
        }

        impl $columns<'_> {
            fn rows(&self) -> PyResult<impl Fn(usize) -> $row> {
                $(let $name = self.$name.as_slice()?;)*
                Ok(move |row| $row { $($field: $name[if $name.len() == 1 { 0 } else { row }],)* })
            }
        }
    };
}
pub(crate) use columns;
