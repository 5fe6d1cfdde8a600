//! The best rows of each job.
//!
//! One row of many is asked for, so that most need no plan. Every row first gets a bound, which its worth
//! cannot exceed (`candidates.rs`); the row with the highest bound is looked at, and of the others only those
//! whose bound is no worse than what was found. Rows that the lanes can plan have their split and steps from
//! them, and only a step time is left to work out; under policy goodput the bound is a formula. All others
//! are planned one by one, as is what passes its bound.

mod best;
mod candidates;
mod clusters;

use rayon::prelude::*;

use super::fleet::{Fleet, Pairs};
use candidates::Candidates;
use clusters::SharedClusters;

/// The criterion that ranks the rows of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// The run is over sooner.
    Fastest,
    /// The run costs less.
    Cheapest,
    /// A second brings the loss further, by the noise scale.
    Goodput,
}

/// The figures by which a job's rows are compared.
#[derive(Clone, Copy, Debug)]
struct Figures {
    step_seconds: f64,
    /// None where the run has no end.
    total_steps: Option<u64>,
    effective_batch: u64,
    world_size: u64,
    price_per_gpu_hour: f64,
    /// The steps of the tuned run that one is worth; asked for by goodput alone.
    gain: f64,
}

impl Criterion {
    /// More is better; NaN where the row cannot be compared. It falls with the seconds of a step, also in its
    /// last bit.
    fn worth(self, row: &Figures) -> f64 {
        // Without an end of the run, a sample stands for it.
        let share = row.total_steps.map_or(row.step_seconds / row.effective_batch as f64, |steps| {
            steps as f64 * row.step_seconds / 3600.0
        });
        match self {
            Criterion::Fastest => -share,
            Criterion::Cheapest => -share * row.world_size as f64 * row.price_per_gpu_hour,
            Criterion::Goodput => row.gain / row.step_seconds,
        }
    }
}

/// The rows that were chosen, job by job and best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Of each its job.
    pub jobs: Vec<u32>,
    /// And its cluster.
    pub clusters: Vec<u32>,
    /// The places in these of rows of jobs of which not all rows could be compared.
    pub not_compared: Vec<u32>,
    /// The rows of all jobs that could not be compared.
    pub left_out: u64,
}

impl Fleet<'_> {
    /// The best rows of every job; ties in the order of the rows. A job none of whose rows can be compared
    /// keeps the first that can be planned; where there is none its first row, which says why.
    ///
    /// # Panics
    /// Where a pair names a row that is not there.
    #[must_use]
    pub fn choose(&self, by: Criterion, top: usize) -> Chosen {
        let mut of_job: Vec<Vec<u32>> = Vec::new();
        if let Pairs::Named { jobs, clusters } = self.pairs {
            of_job.resize(self.jobs.rows, Vec::new());
            for (job, cluster) in jobs.iter().zip(clusters) {
                of_job[*job as usize].push(*cluster);
            }
        } else {
            of_job.push((0_u32..).take(self.clusters.rows).collect());
        }
        let of_job = |job: u32| &of_job[(job as usize).min(of_job.len() - 1)];
        let shared = SharedClusters::of(self);
        let chosen: Vec<(Vec<u32>, u64)> = (0_u32..)
            .take(self.jobs.rows)
            .collect::<Vec<_>>()
            .into_par_iter()
            .map_init(
                || Candidates::new(self, shared.as_ref(), by, top),
                |candidates, job| candidates.choose(job, of_job(job)),
            )
            .collect();
        let mut all =
            Chosen { jobs: Vec::new(), clusters: Vec::new(), not_compared: Vec::new(), left_out: 0 };
        for (job, (clusters, left_out)) in (0_u32..).zip(chosen) {
            if left_out > 0 {
                let places = all.jobs.len()..all.jobs.len() + clusters.len();
                all.not_compared.extend(places.filter_map(|place| u32::try_from(place).ok()));
                all.left_out += left_out;
            }
            all.jobs.extend(clusters.iter().map(|_| job));
            all.clusters.extend(clusters);
        }
        all
    }
}
