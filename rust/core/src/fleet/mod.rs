//! Many rows: columns in, columns out, in parallel.

mod choose;
mod desk;
mod together;

pub use choose::By;
use desk::Desk;
use together::{Ground, Together};

use std::sync::atomic::{AtomicBool, Ordering};

use crate::input::{Field, Input, Value};
use crate::plain::BLOCK;
pub use crate::results::{Column, Kind, Out};

/// A whole number that is not known, in a column of the input.
pub const MISSING: i64 = i64::MIN;

/// Rows that one thread plans at a time, and rows whose inputs are set together.
const CHUNK: usize = 1 << 13;
const TOGETHER: usize = 32;

/// The values of an input column.
#[derive(Debug)]
pub enum Data<'a> {
    /// Whole numbers; [`MISSING`] where unknown.
    Ints(&'a [i64]),
    /// Reals; NaN where unknown.
    Reals(&'a [f64]),
    /// Each row's number in a list of distinct values.
    Codes(&'a [u32], Vec<Value>),
}

/// An input table: its varying columns.
#[derive(Debug)]
pub struct Columns<'a> {
    /// Rows in every column.
    pub rows: usize,
    /// The columns, each for one field.
    pub columns: Vec<(Field, Data<'a>)>,
}

impl Columns<'_> {
    /// Sets the fields of each input to those of its row, column by column: the processor then sees one field at a time.
    fn apply(&self, rows: &[u32], inputs: &mut [Input]) {
        for (field, data) in &self.columns {
            let pairs = inputs.iter_mut().zip(rows.iter().map(|&row| row as usize));
            match data {
                Data::Ints(values) => Input::set_each(
                    *field,
                    pairs.map(|(input, row)| {
                        let n = values[row];
                        (input, if n == MISSING { Value::Missing } else { Value::Int(n) })
                    }),
                ),
                Data::Reals(values) => {
                    Input::set_each(*field, pairs.map(|(input, row)| (input, Value::Real(values[row]))));
                }
                Data::Codes(codes, values) => {
                    Input::set_each(*field, pairs.map(|(input, row)| (input, &values[codes[row] as usize])));
                }
            }
        }
    }
}

/// Which jobs meet which clusters.
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
    /// The jobs.
    pub jobs: Columns<'a>,
    /// The clusters.
    pub clusters: Columns<'a>,
    /// Which meet.
    pub pairs: Pairs<'a>,
    /// Raised by another thread when the caller wants no result any more: the work then ends within milliseconds, and what it
    /// leaves is worth nothing.
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

    pub(crate) fn stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Plans every row into `out`, on the threads of the current rayon pool.
    ///
    /// # Panics
    /// Where a column of `out` has not [`rows`](Fleet::rows) elements of its type, or a pair names a row that is not there.
    pub fn plan(&self, out: Vec<(Column, Out<'_>)>) {
        assert!(out.iter().all(|(_, out)| out.len() == self.rows()), "a column of another length");
        let ground = Ground::of(self);
        self.plan_range(ground.as_ref(), 0, self.rows(), out);
    }

    fn plan_range(
        &self,
        ground: Option<&Ground<'_>>,
        start: usize,
        rows: usize,
        mut out: Vec<(Column, Out<'_>)>,
    ) {
        if rows <= CHUNK {
            return self.plan_chunk(ground, start, rows, &mut out);
        }
        let mid = (rows / 2).next_multiple_of(CHUNK);
        let (left, right) = out
            .into_iter()
            .map(|(column, out)| {
                let (left, right) = out.split_at(mid);
                ((column, left), (column, right))
            })
            .unzip();
        rayon::join(
            || self.plan_range(ground, start, mid, left),
            || self.plan_range(ground, start + mid, rows - mid, right),
        );
    }

    fn plan_chunk(
        &self,
        ground: Option<&Ground<'_>>,
        start: usize,
        rows: usize,
        out: &mut [(Column, Out<'_>)],
    ) {
        let mut desk = Desk::new(self, rows);
        let mut together = ground.map(|ground| Together::new(self, ground));
        let mut at = 0;
        while at < rows && !self.stopped() {
            let (count, left) = match &mut together {
                Some(together) => together.plan(self, start + at, rows - at, out, at),
                None => (TOGETHER.min(rows - at), None),
            };
            let all = start + at..start + at + count;
            desk.plan(self, &left.unwrap_or_else(|| all.collect()), out, start);
            at += count;
        }
    }

    /// How many rows from `start` on are of one job, up to a block.
    fn rows_of_job(&self, start: usize, rows: usize) -> usize {
        let most = rows.min(BLOCK);
        match self.pairs {
            Pairs::Crossed => most.min(self.clusters.rows - start % self.clusters.rows),
            Pairs::Named { jobs, .. } => {
                jobs[start..start + most].iter().take_while(|job| **job == jobs[start]).count()
            }
        }
    }

    /// Sets the inputs to those of these rows.
    fn fill(&self, jobs: &[u32], clusters: &[u32], inputs: &mut [Input]) {
        for input in &mut *inputs {
            input.fault = self.shared.fault;
        }
        self.jobs.apply(jobs, inputs);
        self.clusters.apply(clusters, inputs);
    }

    #[allow(clippy::cast_possible_truncation, reason = "tables of 2^32 rows are refused by the binding")]
    fn pair(&self, row: usize) -> (u32, u32) {
        match self.pairs {
            Pairs::Crossed => ((row / self.clusters.rows) as u32, (row % self.clusters.rows) as u32),
            Pairs::Named { jobs, clusters } => (jobs[row], clusters[row]),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Read;
    use crate::reason::Status;

    #[test]
    fn a_bad_row_stops_no_other() {
        let mut shared = Input::default();
        shared.set(Field::Duration, &Value::read(Field::Duration, "1000st"));
        let batches = [256, 0, MISSING, 1024];
        let rates = [0.1, 0.1, 0.1, f64::NAN];
        let jobs = Columns {
            rows: 4,
            columns: vec![(Field::EffectiveBatch, Data::Ints(&batches)), (Field::Lr, Data::Reals(&rates))],
        };
        let nodes = [1, 3];
        let clusters = Columns { rows: 2, columns: vec![(Field::Nodes, Data::Ints(&nodes))] };
        let fleet = Fleet { shared, jobs, clusters, pairs: Pairs::Crossed, stop: None };
        let mut status = [9; 8];
        let mut micro = [0; 8];
        fleet.plan(vec![(Column::Status, Out::U8(&mut status)), (Column::MicroBatch, Out::I32(&mut micro))]);
        let bad = Status::Infeasible as u8;
        assert_eq!(status, [0, bad, bad, bad, bad, bad, bad, bad]);
        assert_eq!(micro, [32, -1, -1, -1, -1, -1, -1, -1]);
    }

    #[test]
    fn chunks_join_without_a_seam() {
        let mut shared = Input::default();
        shared.set(Field::Lr, &Value::Real(0.1));
        shared.set(Field::Duration, &Value::read(Field::Duration, "10st"));
        shared.set(Field::Policy, &Value::Read(Read::Policy(crate::input::Policy::Keep)));
        let batches: Vec<i64> = (1..=30_001).collect();
        let jobs =
            Columns { rows: batches.len(), columns: vec![(Field::EffectiveBatch, Data::Ints(&batches))] };
        let gpus = [1];
        let clusters = Columns { rows: 1, columns: vec![(Field::GpusPerNode, Data::Ints(&gpus))] };
        let fleet = Fleet { shared, jobs, clusters, pairs: Pairs::Crossed, stop: None };
        let mut batch = vec![0; batches.len()];
        fleet.plan(vec![(Column::EffectiveBatch, Out::I64(&mut batch))]);
        assert_eq!(batch, batches);
        let stop = AtomicBool::new(true);
        batch.fill(0);
        Fleet { stop: Some(&stop), ..fleet }.plan(vec![(Column::EffectiveBatch, Out::I64(&mut batch))]);
        assert!(batch.iter().all(|&batch| batch == 0), "what is stopped plans no more rows");
    }
}
