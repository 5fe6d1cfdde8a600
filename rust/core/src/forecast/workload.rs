//! A workload as it was measured on one kind of GPU.

use std::sync::Arc;

use super::{AllReduceTable, Profile};

/// A profile of the workload on one kind of GPU.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The GPU type; none fits every type.
    pub gpu: Option<Arc<str>>,
    /// Parameters of the model; `None` where they are not known.
    pub parameters: Option<u64>,
    /// Tokens of a sample; `None` where they are not known.
    pub seq_len: Option<u64>,
    /// GiB of memory of such a GPU, for clusters that do not name theirs; NaN where it is not known.
    pub gpu_memory_gib: f64,
    /// The constants.
    pub profile: Profile,
    /// The all-reduces that were measured.
    pub table: AllReduceTable,
    /// Whether one of the constants of time was estimated.
    pub estimated: bool,
    /// Whether memory was estimated.
    pub memory_estimated: bool,
    /// The noise scale from each progress on, from 0; empty where it is not known.
    pub noise: Vec<(f64, f64)>,
}

/// The one noise scale that stands for a table of (progress, φ) at a tuned batch: stretches of weight w cost
/// Σ w(φ + m)/(φ + m0) of their samples, as one with φ = Σ wφ/(φ + m0) ÷ Σ w/(φ + m0) does. NaN for an empty
/// table.
#[must_use]
pub fn noise_over_run(noise: &[(f64, f64)], tuned_batch: f64) -> f64 {
    let ends = noise.iter().skip(1).map(|(start, _)| *start).chain([1.0]);
    let (mut top, mut bottom) = (0.0, 0.0);
    for ((start, phi), end) in noise.iter().zip(ends) {
        let share = (end - start) / (phi + tuned_batch);
        top += share * phi;
        bottom += share;
    }
    top / bottom
}
