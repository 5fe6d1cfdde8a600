//! Constant: the segment stays at `a`.

use super::polynomial::{Expansion, MAX_TERMS};

pub(super) fn series() -> Expansion {
    let mut c = [0.0; MAX_TERMS];
    c[0] = 1.0;
    Expansion { reach: f64::INFINITY, centre: 0.0, coefficients: c, degree: 0 }
}
