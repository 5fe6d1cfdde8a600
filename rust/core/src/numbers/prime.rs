//! The primes that factor every batch.
use std::sync::OnceLock;

use super::index;

/// The primes up to this are known: no batch is above its square, and no GPU count above it.
pub(crate) const MOST: u64 = 1 << 20;

/// The primes up to [`MOST`], ascending.
pub(crate) fn primes() -> &'static [u64] {
    static PRIMES: OnceLock<Vec<u64>> = OnceLock::new();
    PRIMES.get_or_init(|| {
        let mut composite = vec![false; index(MOST) + 1];
        let mut primes = Vec::new();
        for n in 2..composite.len() {
            if !composite[n] {
                primes.push(n as u64);
                (n * n..composite.len()).step_by(n).for_each(|multiple| composite[multiple] = true);
            }
        }
        primes
    })
}
