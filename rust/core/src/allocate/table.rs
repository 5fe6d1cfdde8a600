//! The best division by dynamic programming over GPUs, of the options that the bound leaves.

use super::{Options, rounding};

/// Cells of the table, and sums that it takes, at most: beyond, the division near the bound stands, with its
/// gap.
const MOST_CELLS: usize = 1 << 26;
const MOST_SUMS: usize = 1 << 28;

/// A job with more than one choice left, and the GPUs that it takes in any case, where all are of one kind.
struct Open {
    job: usize,
    left: Vec<Option<usize>>,
    base: u64,
}

/// The axes of the table: for each kind the GPUs that are open, from 0 up, and the cells from one to the
/// next.
struct Axes {
    length: Vec<usize>,
    stride: Vec<usize>,
    cells: usize,
}

/// The best division, given how far below the bound a known one is; `None` where the table would be too
/// large.
pub(super) fn divide(options: &Options<'_>, prices: &[f64], slack: f64) -> Option<Vec<Option<usize>>> {
    let slack = slack + rounding(options.wait.iter().map(|value| value.abs()).sum::<f64>() + slack);
    let left: Vec<Vec<Option<usize>>> = (0..options.jobs())
        .map(|job| {
            let worth = |choice| options.worth(job, choice, prices);
            let best = options.choices(job).map(worth).fold(f64::NEG_INFINITY, f64::max);
            options.choices(job).filter(|&choice| best - worth(choice) <= slack).collect()
        })
        .collect();
    let mut choice: Vec<Option<usize>> = left.iter().map(|left| left[0]).collect();
    let open: Vec<Open> = left
        .into_iter()
        .enumerate()
        .filter(|(_, left)| left.len() > 1)
        .map(|job| Open::of(options, job))
        .collect();
    let axes = Axes::of(options, &choice, &open)?;
    let sums = open.iter().map(|open| open.left.len()).sum::<usize>().checked_mul(axes.cells)?;
    if sums > MOST_SUMS || open.len().checked_mul(axes.cells)? > MOST_CELLS {
        return None;
    }
    let mut best = vec![0.0; axes.cells];
    let picked: Vec<Vec<u16>> = open.iter().map(|open| axes.add(options, open, &mut best)).collect();
    let mut cell = axes.cells - 1;
    if best[cell] == f64::NEG_INFINITY {
        return None; // rounding has left out too much
    }
    for (open, picked) in open.iter().zip(&picked).rev() {
        choice[open.job] = open.left[usize::from(picked[cell])];
        cell -= axes.step(options, open, choice[open.job]);
    }
    Some(choice)
}

impl Open {
    fn of(options: &Options<'_>, (job, left): (usize, Vec<Option<usize>>)) -> Self {
        let taken = |choice: &Option<usize>| choice.map_or(0, |option| options.gpus[option]);
        let kinds: Vec<Option<u32>> =
            left.iter().map(|choice| choice.map(|option| options.kind[option])).collect();
        let alike = kinds.iter().all(|kind| *kind == kinds[0]);
        let base = if alike { left.iter().map(taken).min().unwrap_or(0) } else { 0 };
        Self { job, left, base }
    }
}

impl Axes {
    fn of(options: &Options<'_>, choice: &[Option<usize>], open: &[Open]) -> Option<Self> {
        let mut fixed = choice.to_vec();
        for open in open {
            fixed[open.job] = None;
        }
        let mut room = options.free(&fixed);
        let mut reach = vec![0_i64; room.len()];
        for open in open {
            let mut most = vec![0_i64; room.len()];
            for &option in open.left.iter().flatten() {
                let kind = options.kind[option] as usize;
                most[kind] = most[kind].max((options.gpus[option] - open.base).cast_signed());
                if open.base > 0 && Some(option) == open.left[0] {
                    room[kind] -= open.base.cast_signed();
                }
            }
            reach.iter_mut().zip(most).for_each(|(reach, most)| *reach += most);
        }
        let mut axes = Self { length: Vec::new(), stride: Vec::new(), cells: 1 };
        for (room, reach) in room.into_iter().zip(reach) {
            axes.length.push(usize::try_from(room.min(reach)).ok()? + 1);
            axes.stride.push(axes.cells);
            axes.cells = axes.cells.checked_mul(*axes.length.last()?).filter(|&cells| cells <= MOST_CELLS)?;
        }
        Some(axes)
    }

    /// Cells between a table with a job's choice and one without it.
    fn step(&self, options: &Options<'_>, open: &Open, choice: Option<usize>) -> usize {
        choice.map_or(0, |option| {
            let extra = usize::try_from(options.gpus[option] - open.base).unwrap_or(usize::MAX);
            extra.saturating_mul(self.stride[options.kind[option] as usize])
        })
    }

    /// Adds a job to the best sums of all cells; which of its choices each cell has.
    fn add(&self, options: &Options<'_>, open: &Open, best: &mut Vec<f64>) -> Vec<u16> {
        let mut sums = vec![f64::NEG_INFINITY; self.cells];
        let mut picked = vec![0; self.cells];
        for (number, &choice) in open.left.iter().enumerate() {
            let number = u16::try_from(number).unwrap_or(u16::MAX);
            let (value, kind, _) = options.at(open.job, choice);
            let step = self.step(options, open, choice);
            let block = if step == 0 { self.cells } else { self.stride[kind] * self.length[kind] };
            for start in (0..self.cells).step_by(block) {
                for cell in start.saturating_add(step)..start + block {
                    let sum = best[cell - step] + value;
                    if sum > sums[cell] {
                        (sums[cell], picked[cell]) = (sum, number);
                    }
                }
            }
        }
        *best = sums;
        picked
    }
}
