//! Rows planned one by one.

use super::fleet::{Fleet, INPUTS};
use super::results::{ResultColumn, ResultSlice};
use crate::input::Input;
use crate::plan::{Row, UNKNOWN, plan, plan_or_not};

/// The inputs and plans of some of them.
pub(super) struct OneByOne {
    inputs: Vec<Input>,
    rows: Vec<Row>,
}

impl OneByOne {
    pub fn new(fleet: &Fleet<'_>, rows: usize) -> OneByOne {
        let together = rows.min(INPUTS);
        OneByOne { inputs: vec![fleet.shared.clone(); together], rows: vec![Row::unknown(); together] }
    }

    /// Plans the rows that are `left` into columns that begin with the row `start`.
    pub fn plan(
        &mut self,
        fleet: &Fleet<'_>,
        left: &[usize],
        out: &mut [(ResultColumn, ResultSlice<'_>)],
        start: usize,
    ) {
        // The nearest batches and GPU counts take longer than a plan: only where they are asked for.
        let plan = if out.iter().any(|(column, _)| column.is_way_out()) { plan } else { plan_or_not };
        for left in left.chunks(INPUTS) {
            let inputs = &mut self.inputs[..left.len()];
            let (jobs, clusters): (Vec<u32>, Vec<u32>) = left.iter().map(|&row| fleet.pair(row)).unzip();
            fleet.fill(&jobs, &clusters, inputs);
            for ((input, row), cluster) in inputs.iter().zip(&mut self.rows).zip(clusters) {
                if plan(input, fleet.workloads, row).is_some() {
                    // An illegal job leaves the cluster as it is: its GPUs are a key to join by.
                    row.world_size = fleet.gpus_of(cluster).unwrap_or(UNKNOWN);
                }
            }
            for (column, out) in &mut *out {
                column.write(&self.rows, left.iter().map(|row| row - start), out);
            }
        }
    }
}
