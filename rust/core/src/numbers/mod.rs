//! Primes and divisors of whole numbers.

mod divisor;
mod prime;

pub(crate) use divisor::{DivisorsOf, smallest_divisor_from};
pub(crate) use prime::MOST;

/// Of two numbers above 0, by halves: a division takes longer.
pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    let twos = (a | b).trailing_zeros();
    a >>= a.trailing_zeros();
    while b != 0 {
        b >>= b.trailing_zeros();
        (a, b) = (a.min(b), a.abs_diff(b));
    }
    a << twos
}

/// A number that was checked, as an index.
pub(crate) fn index(n: u64) -> usize {
    usize::try_from(n).expect("a number that was checked fits in memory")
}
