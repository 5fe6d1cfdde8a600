//! The bound: for each job the upper concave hull of its options, and the prices at which the sum of the
//! jobs' bests is least.

use super::Options;

/// Cuts of the ellipsoid, at most, for the square of the number of kinds.
const CUTS: usize = 400;
const MOST_CUTS: usize = 20_000;

/// An option on its job's hull.
struct Point {
    option: usize,
    kind: usize,
    gpus: f64,
    value: f64,
}

/// The hulls of all jobs.
pub(super) struct Bids<'a> {
    options: &'a Options<'a>,
    hulls: Vec<Vec<Point>>,
}

impl<'a> Bids<'a> {
    pub fn of(options: &'a Options<'a>) -> Self {
        Self { options, hulls: (0..options.jobs()).map(|job| hulls(options, job)).collect() }
    }

    /// The best choice of each job at these prices; of equals the fewest GPUs.
    pub fn choices(&self, prices: &[f64]) -> Vec<Option<usize>> {
        (0..self.hulls.len()).map(|job| self.best(job, prices).1.map(|point| point.option)).collect()
    }

    fn best(&self, job: usize, prices: &[f64]) -> (f64, Option<&Point>) {
        let mut best = (self.options.wait[job], None);
        for point in &self.hulls[job] {
            let worth = point.value - prices[point.kind] * point.gpus;
            if worth > best.0 {
                best = (worth, Some(point));
            }
        }
        best
    }

    /// The bound at these prices, and the GPUs of each kind that are then left.
    fn bound(&self, prices: &[f64]) -> (f64, Vec<f64>) {
        let mut left: Vec<f64> = self.options.capacity.iter().map(|&gpus| gpus as f64).collect();
        let mut bound: f64 = prices.iter().zip(&left).map(|(price, gpus)| price * gpus).sum();
        for job in 0..self.hulls.len() {
            let (worth, point) = self.best(job, prices);
            bound += worth;
            if let Some(point) = point {
                left[point.kind] -= point.gpus;
            }
        }
        (bound, left)
    }

    /// The prices with the least bound, and that.
    pub fn least_bound(&self) -> (Vec<f64>, f64) {
        let nothing = vec![0.0; self.options.capacity.len()];
        let (bound, left) = self.bound(&nothing);
        if left.iter().all(|&gpus| gpus >= 0.0) {
            return (nothing, bound);
        }
        if nothing.len() == 1 {
            return self.search();
        }
        let mut most = vec![0.0_f64; self.options.capacity.len()];
        for (job, hull) in self.hulls.iter().enumerate() {
            for point in hull {
                most[point.kind] = most[point.kind].max((point.value - self.options.wait[job]) / point.gpus);
            }
        }
        self.cut(&most)
    }

    /// For one kind: the least price at which the GPUs suffice. It is the slope of a hull: only there does a
    /// job take fewer. It is found by the GPUs behind each slope, as the jobs' bests at a slope itself are
    /// decided by rounding.
    fn search(&self) -> (Vec<f64>, f64) {
        let mut steps = Vec::new();
        for (job, hull) in self.hulls.iter().enumerate() {
            let (mut value, mut gpus) = (self.options.wait[job], 0.0);
            for point in hull {
                steps.push(((point.value - value) / (point.gpus - gpus), point.gpus - gpus));
                (value, gpus) = (point.value, point.gpus);
            }
        }
        steps.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let mut left = self.options.capacity[0] as f64;
        let short = steps.iter().find(|(_, gpus)| {
            left -= gpus;
            left < 0.0
        });
        let price = short.map_or(0.0, |step| step.0);
        (vec![price], self.bound(&[price]).0)
    }

    /// For several: the ellipsoid method (Shor 1977; Yudin and Nemirovski 1976). The GPUs that are left are a
    /// slope of the bound.
    fn cut(&self, most: &[f64]) -> (Vec<f64>, f64) {
        let kinds = most.len();
        let n = kinds as f64;
        let mut center: Vec<f64> = most.iter().map(|most| most / 2.0).collect();
        let mut shape = vec![vec![0.0; kinds]; kinds];
        for (kind, most) in most.iter().enumerate() {
            shape[kind][kind] = n * (most / 2.0).powi(2).max(1e-30);
        }
        let mut best = (center.clone(), self.bound(&center).0);
        for _ in 0..(CUTS * kinds * kinds).min(MOST_CUTS) {
            let below = center.iter().position(|&price| price < 0.0);
            let slope = if let Some(kind) = below {
                (0..kinds).map(|axis| if axis == kind { -1.0 } else { 0.0 }).collect()
            } else {
                let (bound, slope) = self.bound(&center);
                if bound < best.1 {
                    best = (center.clone(), bound);
                }
                slope
            };
            let along: Vec<f64> =
                shape.iter().map(|row| row.iter().zip(&slope).map(|(a, b)| a * b).sum()).collect();
            let width = along.iter().zip(&slope).map(|(a, b)| a * b).sum::<f64>().max(0.0).sqrt();
            // No price inside has a bound that is less by more than the width.
            if below.is_none() && width <= super::rounding(best.1) || width == 0.0 {
                break;
            }
            for (price, step) in center.iter_mut().zip(&along) {
                *price -= step / width / (n + 1.0);
            }
            let grown = n * n / (n * n - 1.0);
            for (row, a) in shape.iter_mut().zip(&along) {
                for (cell, b) in row.iter_mut().zip(&along) {
                    *cell = grown * (*cell - 2.0 / (n + 1.0) * a / width * b / width);
                }
            }
        }
        best
    }
}

/// The options of a job that are best at some price, for each kind.
fn hulls(options: &Options<'_>, job: usize) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    let mut start = 0;
    for option in options.of(job) {
        let (value, kind, gpus) = options.at(job, Some(option));
        if points.get(start).is_some_and(|point| point.kind != kind) {
            start = points.len();
        }
        let new = Point { option, kind, gpus: gpus as f64, value };
        if value <= points[start..].last().map_or(options.wait[job], |point| point.value) {
            continue;
        }
        while let Some(last) = points[start..].last() {
            let before = &points[start..points.len() - 1];
            let (gpus, value) =
                before.last().map_or((0.0, options.wait[job]), |point| (point.gpus, point.value));
            if (last.value - value) * (new.gpus - last.gpus) > (new.value - last.value) * (last.gpus - gpus) {
                break;
            }
            points.pop();
        }
        points.push(new);
    }
    points
}
