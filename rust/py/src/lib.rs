//! The Python binding: columns in, columns out.
use pyo3::prelude::*;

mod elastic;
mod forecast;
mod goodput;
mod pool;

/// The compiled core of isobatch.
#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::elastic::elastic_rows;
    #[pymodule_export]
    use crate::forecast::{forecast_rows, micro_batch_rows};
    #[pymodule_export]
    use crate::goodput::goodput_rows;

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("MAX_GPUS", crate::elastic::LARGEST)?;
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
