//! The best rows of each job.

use rayon::prelude::*;

use super::fleet::{Fleet, INPUTS, Pairs};
use crate::forecast::{ClusterProfile, Workload};
use crate::input::Input;
use crate::plan::{Row, UNKNOWN, plan_or_not};

/// What makes one row of a job better than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// The run is over sooner.
    Fastest,
    /// The run costs less.
    Cheapest,
    /// A second brings the loss further, by the noise scale.
    Goodput,
}

impl Criterion {
    /// More is better; NaN where the row cannot be compared. Without an end of the run, a sample stands for it.
    fn worth(self, input: &Input, workloads: &[Workload], row: &Row) -> f64 {
        let outlook = &row.outlook;
        let share = if row.total_steps == UNKNOWN {
            outlook.step_seconds / row.effective_batch as f64
        } else {
            outlook.hours
        };
        match self {
            Criterion::Fastest => -share,
            Criterion::Cheapest => -share * row.world_size as f64 * input.cluster.price_per_gpu_hour,
            Criterion::Goodput => {
                let profile = ClusterProfile::of(input, workloads);
                let gain = profile.and_then(|profile| profile.gain(row.effective_batch as f64).ok());
                gain.unwrap_or(f64::NAN) / outlook.step_seconds
            }
        }
    }
}

impl Fleet<'_> {
    /// The best rows of every job, as pairs, job by job and best first; ties in the order of the rows. A job none of whose
    /// rows can be compared keeps its first row, which says why.
    ///
    /// # Panics
    /// Where a pair names a row that is not there.
    #[must_use]
    pub fn choose(&self, by: Criterion, top: usize) -> (Vec<u32>, Vec<u32>) {
        let mut of_job: Vec<Vec<u32>> = Vec::new();
        if let Pairs::Named { jobs, clusters } = self.pairs {
            of_job.resize(self.jobs.rows, Vec::new());
            for (job, cluster) in jobs.iter().zip(clusters) {
                of_job[*job as usize].push(*cluster);
            }
        } else {
            of_job.push((0_u32..).take(self.clusters.rows).collect());
        }
        let of_job = |job: usize| &of_job[job.min(of_job.len() - 1)];
        let chosen: Vec<Vec<u32>> = (0..self.jobs.rows)
            .into_par_iter()
            .map(|job| self.choose_of(job, of_job(job), by, top))
            .collect();
        let jobs = (0_u32..).zip(&chosen).flat_map(|(job, chosen)| chosen.iter().map(move |_| job)).collect();
        (jobs, chosen.concat())
    }

    #[allow(clippy::cast_possible_truncation, reason = "tables of 2^32 rows are refused by the binding")]
    fn choose_of(&self, job: usize, clusters: &[u32], by: Criterion, top: usize) -> Vec<u32> {
        let mut inputs = vec![self.shared.clone(); clusters.len().min(INPUTS)];
        let mut row = Row::unknown();
        let mut found: Vec<(f64, u32)> = Vec::new();
        for block in clusters.chunks(INPUTS).take_while(|_| !self.stopped()) {
            let inputs = &mut inputs[..block.len()];
            self.fill(&[job as u32; INPUTS][..block.len()], block, inputs);
            for (input, cluster) in inputs.iter().zip(block) {
                plan_or_not(input, self.workloads, &mut row);
                let worth = by.worth(input, self.workloads, &row);
                let at = found.partition_point(|(other, _)| *other >= worth);
                if !worth.is_nan() && at < top {
                    found.truncate(top - 1);
                    found.insert(at, (worth, *cluster));
                }
            }
        }
        if found.is_empty() {
            clusters.first().copied().into_iter().collect()
        } else {
            found.into_iter().map(|(_, cluster)| cluster).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bulk::{InputColumn, InputTable};
    use crate::forecast::{AllReduceTable, tests::profile};
    use crate::input::{Field, Value};

    #[test]
    fn the_best_rows_of_each_job() {
        let workload = Workload {
            gpu: None,
            profile: profile(),
            table: AllReduceTable::default(),
            estimated: false,
            memory_estimated: false,
            noise: vec![(0.0, 1000.0)],
        };
        let mut shared = Input::default();
        shared.set(Field::Lr, &Value::Real(0.1));
        shared.set(Field::Duration, &Field::Duration.read("1000st"));
        let batches = [64, 7];
        let gpus = [3, 1, 8, 2, 8];
        let price = [1.0, 1.0, 1.0, 0.1, 1.0];
        let jobs =
            InputTable { rows: 2, columns: vec![(Field::EffectiveBatch, InputColumn::Ints(&batches))] };
        let columns = vec![
            (Field::GpusPerNode, InputColumn::Ints(&gpus)),
            (Field::PricePerGpuHour, InputColumn::Reals(&price)),
        ];
        let clusters = InputTable { rows: 5, columns };
        let fleet =
            Fleet { shared, workloads: &[workload], jobs, clusters, pairs: Pairs::Crossed, stop: None };
        // 3 GPUs do not divide 64; of 7 only one GPU does, and ties go by the order.
        assert_eq!(fleet.choose(Criterion::Fastest, 2), (vec![0, 0, 1], vec![2, 4, 1]));
        assert_eq!(fleet.choose(Criterion::Cheapest, 1), (vec![0, 1], vec![3, 1]));
        assert_eq!(fleet.choose(Criterion::Goodput, 1), (vec![0, 1], vec![2, 1]));
        let named = Pairs::Named { jobs: &[1, 0, 0, 1], clusters: &[0, 1, 3, 2] };
        let fleet = Fleet { pairs: named, ..fleet };
        // No row of the second job can be planned: it keeps its first.
        assert_eq!(fleet.choose(Criterion::Fastest, 1), (vec![0, 1], vec![3, 0]));
    }
}
