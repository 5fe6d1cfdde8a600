//! Jobs × clusters: which rows there are, and the input of each.

use std::sync::atomic::{AtomicBool, Ordering};

use super::columns::InputTable;
use crate::forecast::Workload;
use crate::input::{Field, Input, MAX_GPUS};

/// Rows whose inputs are set together: the processor then sees one field at a time.
pub(super) const INPUTS: usize = 32;

/// The rows, as pairs of job and cluster.
#[derive(Clone, Copy, Debug)]
pub enum Pairs<'a> {
    /// Each job with every cluster; row = job × clusters + cluster.
    Crossed,
    /// These.
    Named {
        /// Rows of the jobs.
        jobs: &'a [u32],
        /// Rows of the clusters.
        clusters: &'a [u32],
    },
}

/// Jobs × clusters, and the values that all rows share.
#[derive(Debug)]
pub struct Fleet<'a> {
    /// The fields that are the same in every row.
    pub shared: Input,
    /// The measurements of the workload, by GPU type.
    pub workloads: &'a [Workload],
    /// The jobs.
    pub jobs: InputTable<'a>,
    /// The clusters.
    pub clusters: InputTable<'a>,
    /// The pair of each row.
    pub pairs: Pairs<'a>,
    /// Raised by another thread when the caller wants no result any more: the work then ends within
    /// milliseconds, and what it leaves is worth nothing.
    pub stop: Option<&'a AtomicBool>,
}

impl Fleet<'_> {
    /// Rows of the result.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self.pairs {
            Pairs::Crossed => self.jobs.rows * self.clusters.rows,
            Pairs::Named { jobs, .. } => jobs.len(),
        }
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Sets the inputs to those of these rows.
    pub(super) fn fill(&self, jobs: &[u32], clusters: &[u32], inputs: &mut [Input]) {
        for input in &mut *inputs {
            input.fault = self.shared.fault;
        }
        self.jobs.apply(jobs, inputs);
        self.clusters.apply(clusters, inputs);
    }

    #[allow(clippy::cast_possible_truncation, reason = "tables of 2^32 rows are refused by the binding")]
    pub(super) fn pair(&self, row: usize) -> (u32, u32) {
        match self.pairs {
            Pairs::Crossed => ((row / self.clusters.rows) as u32, (row % self.clusters.rows) as u32),
            Pairs::Named { jobs, clusters } => (jobs[row], clusters[row]),
        }
    }

    /// GPUs of a cluster, which a row whose job is illegal has too; `None` where they are illegal themselves.
    pub(super) fn gpus_of(&self, cluster: u32) -> Option<i64> {
        let mut input = Input::default();
        for (field, column) in &self.clusters.columns {
            if matches!(field, Field::Nodes | Field::GpusPerNode) {
                input.set(*field, &column.value(cluster as usize));
            }
        }
        let gpus = input.cluster.nodes.checked_mul(input.cluster.gpus_per_node)?;
        i64::try_from(gpus).ok().filter(|_| input.fault.is_none() && gpus <= MAX_GPUS)
    }

    /// The input of one row, for a close look at what is wrong with it.
    #[must_use]
    pub fn input(&self, row: usize) -> Input {
        let mut input = [self.shared.clone()];
        let (job, cluster) = self.pair(row);
        self.fill(&[job], &[cluster], &mut input);
        let [input] = input;
        input
    }
}
