//! Small caps: every batch's counts, marked multiple by multiple.
use super::problem::{Best, Problem, TOLERANCE};
use crate::numbers::index;

/// Of every batch, its weight so far and the count that was marked last.
#[derive(Default)]
pub(super) struct SieveBuffers {
    sums: Vec<f64>,
    stamps: Vec<u64>,
}

impl Problem<'_> {
    /// Marks every multiple of every product up to the cap and reads off the best.
    pub(super) fn sieve(&self, buffers: &mut SieveBuffers) -> Best {
        // A batch up to half the cap can be doubled without loss, so the largest best one is above half.
        let floor = if self.prefer_larger { self.cap / 2 } else { 0 };
        let len = index(self.cap - floor);
        buffers.sums.clear();
        buffers.sums.resize(len, 0.0);
        let several = self.micros.len() > 1;
        if several {
            buffers.stamps.clear();
            buffers.stamps.resize(len, 0);
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
                        if buffers.stamps[b] != j {
                            buffers.stamps[b] = j;
                            buffers.sums[b] += weight;
                        }
                    }
                } else {
                    buffers.sums.iter_mut().skip(first).step_by(index(step)).for_each(|sum| *sum += weight);
                }
            }
        }
        let most = buffers.sums.iter().copied().fold(0.0, f64::max);
        let mut equal = buffers.sums.iter().map(|&total| total >= most * (1.0 - TOLERANCE));
        let at = if self.prefer_larger { equal.rposition(|is| is) } else { equal.position(|is| is) };
        let at = at.expect("the most is among them");
        Best { total: buffers.sums[at], batch: floor + 1 + at as u64 }
    }
}
