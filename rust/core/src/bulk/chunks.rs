//! Every row of a fleet, chunk by chunk, on many threads.
//!
//! The columns are cut in halves until a part has one chunk's rows, which a thread then plans from first to
//! last: into memory that it alone has, in the order of its addresses, since writing fresh memory is what
//! bounds the whole. A chunk is taken in blocks. Where the lanes can plan a block they do, and name the rows
//! that are left; these, and all rows where they cannot, are planned one by one, `INPUTS` together, so that
//! setting their inputs is one loop a field.

use super::fleet::{Fleet, INPUTS};
use super::lanes::{LanePlanner, Prepared};
use super::one_by_one::OneByOne;
use super::results::{ResultColumn, ResultSlice};

/// Rows that one thread plans at a time.
const CHUNK: usize = 1 << 13;

impl Fleet<'_> {
    /// Plans every row into `out`, on the threads of the current rayon pool.
    ///
    /// # Panics
    /// Where a column of `out` has not [`rows`](Fleet::rows) elements of its type, or a pair names a row that
    /// is not there.
    pub fn plan(&self, out: Vec<(ResultColumn, ResultSlice<'_>)>) {
        assert!(out.iter().all(|(_, out)| out.len() == self.rows()), "a column of another length");
        let prepared = Prepared::of(self);
        self.plan_range(prepared.as_ref(), 0, self.rows(), out);
    }

    fn plan_range(
        &self,
        prepared: Option<&Prepared<'_>>,
        start: usize,
        rows: usize,
        mut out: Vec<(ResultColumn, ResultSlice<'_>)>,
    ) {
        if rows <= CHUNK {
            return self.plan_chunk(prepared, start, rows, &mut out);
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
            || self.plan_range(prepared, start, mid, left),
            || self.plan_range(prepared, start + mid, rows - mid, right),
        );
    }

    fn plan_chunk(
        &self,
        prepared: Option<&Prepared<'_>>,
        start: usize,
        rows: usize,
        out: &mut [(ResultColumn, ResultSlice<'_>)],
    ) {
        let mut one_by_one = OneByOne::new(self, rows);
        let mut lanes = prepared.map(|prepared| LanePlanner::new(self, prepared));
        let mut at = 0;
        while at < rows && !self.stopped() {
            let (count, left) = match &mut lanes {
                Some(lanes) => lanes.plan(self, start + at, rows - at, out, at),
                None => (INPUTS.min(rows - at), None),
            };
            let all = start + at..start + at + count;
            one_by_one.plan(self, &left.unwrap_or_else(|| all.collect()), out, start);
            at += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    use crate::bulk::{InputColumn, InputTable, Pairs};
    use crate::input::{Field, Input, Read, Value};

    #[test]
    fn chunks_join_without_a_seam() {
        let mut shared = Input::default();
        shared.set(Field::Lr, &Value::Real(0.1));
        shared.set(Field::Duration, &Field::Duration.read("10st"));
        shared.set(Field::Policy, &Value::Read(Read::Policy(crate::input::Policy::Keep)));
        let batches: Vec<i64> = (1..=30_001).collect();
        let jobs = InputTable {
            rows: batches.len(),
            columns: vec![(Field::EffectiveBatch, InputColumn::Ints(&batches))],
        };
        let gpus = [1];
        let clusters = InputTable { rows: 1, columns: vec![(Field::GpusPerNode, InputColumn::Ints(&gpus))] };
        let fleet = Fleet { shared, workloads: &[], jobs, clusters, pairs: Pairs::Crossed, stop: None };
        let mut batch = vec![0; batches.len()];
        fleet.plan(vec![(ResultColumn::EffectiveBatch, ResultSlice::I64(&mut batch))]);
        assert_eq!(batch, batches);
        let stop = AtomicBool::new(true);
        batch.fill(0);
        Fleet { stop: Some(&stop), ..fleet }
            .plan(vec![(ResultColumn::EffectiveBatch, ResultSlice::I64(&mut batch))]);
        assert!(batch.iter().all(|&batch| batch == 0), "what is stopped plans no more rows");
    }
}
