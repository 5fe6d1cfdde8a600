//! When other threads help.

use super::config::{Config, Counts};

/// A light configuration takes as long as so many samples of the cap,
const LIGHT_BATCH: u64 = 1 << 10;
/// and so many take about a millisecond.
const LIGHT_WORK: u64 = 1 << 23;

/// Whether waking other threads would take longer than answering.
#[must_use]
pub fn is_light(configs: &[Config]) -> bool {
    let same = |config: &Config| match (config.gpus, configs[0].gpus) {
        (Counts::Range(lo, hi), Counts::Range(first, last)) => (lo, hi) == (first, last),
        _ => false,
    };
    let work: u64 = configs.iter().map(|config| config.max_batch + LIGHT_BATCH).sum();
    configs.len() == 1 || (work < LIGHT_WORK && configs.iter().all(same))
}

pub(super) fn in_pool() -> bool {
    rayon::current_thread_index().is_some()
}
