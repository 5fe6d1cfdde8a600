//! The Python binding: columns in, columns out.
use pyo3::prelude::*;

mod errors;
mod pool;
mod schedule;

/// The compiled core of isobatch.
#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::schedule::{Schedule, fill_schedules};

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
