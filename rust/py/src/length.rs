//! Lengths with a unit, read by the core.

use isobatch_core::duration::Length;
use pyo3::prelude::*;

/// A length such as "90ep" as (numerator, denominator, unit), exact; None where the text is none.
#[pyfunction]
pub fn parse_length(text: &str) -> Option<(u64, u64, &'static str)> {
    let length = Length::parse(text)?;
    let (numerator, denominator) = length.fraction_of_ten();
    Some((numerator, denominator, length.unit.suffix()))
}
