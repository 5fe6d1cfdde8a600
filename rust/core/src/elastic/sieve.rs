//! Small caps: every batch's counts, marked multiple by multiple.
use super::problem::{Best, Problem, Scratch};
use super::{TOLERANCE, index};

impl Problem<'_> {
    /// Marks every multiple of every product up to the cap and reads off the best.
    pub(super) fn sieve(&self, scratch: &mut Scratch) -> Best {
        // A batch up to half the cap can be doubled without loss, so the largest best one is above half.
        let floor = if self.prefer_larger { self.cap / 2 } else { 0 };
        let len = index(self.cap - floor);
        scratch.sums.clear();
        scratch.sums.resize(len, 0.0);
        let several = self.micros.len() > 1;
        if several {
            scratch.stamps.clear();
            scratch.stamps.resize(len, 0);
        }
        for j in self.lo..=self.hi {
            let weight = self.weight(j);
            if weight == 0.0 {
                continue;
            }
            for m in self.micros {
                let step = j * m;
                if step > self.cap {
                    break;
                }
                let first = index((floor / step + 1) * step - floor - 1);
                if several {
                    for b in (first..len).step_by(index(step)) {
                        if scratch.stamps[b] != j {
                            scratch.stamps[b] = j;
                            scratch.sums[b] += weight;
                        }
                    }
                } else {
                    scratch.sums.iter_mut().skip(first).step_by(index(step)).for_each(|sum| *sum += weight);
                }
            }
        }
        let most = scratch.sums.iter().copied().fold(0.0, f64::max);
        let mut equal = scratch.sums.iter().map(|&total| total >= most * (1.0 - TOLERANCE));
        let at = if self.prefer_larger { equal.rposition(|is| is) } else { equal.position(|is| is) };
        let at = at.expect("the most is among them");
        Best { total: scratch.sums[at], batch: floor + 1 + at as u64 }
    }
}
