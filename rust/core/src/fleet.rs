//! Many rows: columns in, columns out, in parallel.

use rayon::prelude::*;

use crate::input::{Field, Input, Value};
use crate::outlook;
use crate::plain::{BLOCK, Each, Kinds, Lanes, One, Sites};
use crate::plan::{Row, UNKNOWN, plan, plan_or_not};
pub use crate::results::{Column, Kind, Out};

/// A whole number that is not known, in a column of the input.
pub const MISSING: i64 = i64::MIN;

/// Rows that one thread plans at a time, and rows whose inputs are set together.
const CHUNK: usize = 1 << 13;
const TOGETHER: usize = 32;
/// Rows of one job from which on planning them by themselves takes less time than among others.
const WORTH: usize = 8;

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

/// What makes one row of a job better than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The run is over sooner.
    Fastest,
    /// The run costs less.
    Cheapest,
    /// A second brings the loss further, by the noise scale.
    Goodput,
}

impl By {
    /// More is better; NaN where the row cannot be compared. Without an end of the run, a sample stands for it.
    fn worth(self, input: &Input, row: &Row) -> f64 {
        let outlook = &row.outlook;
        let share = if row.total_steps == UNKNOWN {
            outlook.step_seconds / row.effective_batch as f64
        } else {
            outlook.hours
        };
        match self {
            By::Fastest => -share,
            By::Cheapest => -share * row.world_size as f64 * input.cluster.price_per_gpu_hour,
            By::Goodput => {
                let gain = outlook::gain(input, row.effective_batch as f64).unwrap_or(f64::NAN);
                gain / outlook.step_seconds
            }
        }
    }
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

    /// Plans every row into `out`, on the threads of the current rayon pool.
    ///
    /// # Panics
    /// Where a column of `out` has not [`rows`](Fleet::rows) elements of its type, or a pair names a row that is not there.
    pub fn plan(&self, out: Vec<(Column, Out<'_>)>) {
        assert!(out.iter().all(|(_, out)| out.len() == self.rows()), "a column of another length");
        let sites = Sites::of(&self.shared, &self.clusters);
        let kinds = Kinds::of(&self.shared, &self.jobs, self.rows());
        let ground = sites.map(|sites| Ground { sites, kinds });
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
        let mut plain = ground.map(|ground| Plain::new(self, ground));
        let mut at = 0;
        while at < rows {
            let (count, left) = match &mut plain {
                Some(plain) => plain.plan(self, start + at, rows - at, out, at),
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

    /// The best rows of every job, as pairs, job by job and best first; ties in the order of the rows. A job none of whose
    /// rows can be compared keeps its first row, which says why.
    ///
    /// # Panics
    /// Where a pair names a row that is not there.
    #[must_use]
    pub fn choose(&self, by: By, top: usize) -> (Vec<u32>, Vec<u32>) {
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
    fn choose_of(&self, job: usize, clusters: &[u32], by: By, top: usize) -> Vec<u32> {
        let mut inputs = vec![self.shared.clone(); clusters.len().min(TOGETHER)];
        let mut row = Row::unknown();
        let mut found: Vec<(f64, u32)> = Vec::new();
        for block in clusters.chunks(TOGETHER) {
            let inputs = &mut inputs[..block.len()];
            self.fill(&[job as u32; TOGETHER][..block.len()], block, inputs);
            for (input, cluster) in inputs.iter().zip(block) {
                plan_or_not(input, &mut row);
                let worth = by.worth(input, &row);
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

/// Rows planned one by one.
struct Desk {
    inputs: Vec<Input>,
    rows: Vec<Row>,
}

impl Desk {
    fn new(fleet: &Fleet<'_>, rows: usize) -> Desk {
        let together = rows.min(TOGETHER);
        Desk { inputs: vec![fleet.shared.clone(); together], rows: vec![Row::unknown(); together] }
    }

    /// Plans the rows that are `left` into columns that begin with the row `start`.
    fn plan(&mut self, fleet: &Fleet<'_>, left: &[usize], out: &mut [(Column, Out<'_>)], start: usize) {
        // What would work instead takes longer to find than a plan: only where it is asked for.
        let plan = if out.iter().any(|(column, _)| column.is_way_out()) { plan } else { plan_or_not };
        for left in left.chunks(TOGETHER) {
            let inputs = &mut self.inputs[..left.len()];
            let (jobs, clusters): (Vec<u32>, Vec<u32>) = left.iter().map(|&row| fleet.pair(row)).unzip();
            fleet.fill(&jobs, &clusters, inputs);
            for (input, row) in inputs.iter().zip(&mut self.rows) {
                plan(input, row);
            }
            for (column, out) in &mut *out {
                column.write(&self.rows, left.iter().map(|row| row - start), out);
            }
        }
    }
}

/// What plain rows are planned from; without `kinds`, only those of one job are planned together.
struct Ground<'a> {
    sites: Sites,
    kinds: Option<Kinds<'a>>,
}

/// Plain rows, planned together.
struct Plain<'a> {
    ground: &'a Ground<'a>,
    input: [Input; 1],
    /// The job that the recipe is of: its next rows need not ask again.
    job: Option<u32>,
    recipe: Option<One>,
    each: Each,
    lanes: Lanes,
}

impl<'a> Plain<'a> {
    fn new(fleet: &Fleet<'_>, ground: &'a Ground<'_>) -> Plain<'a> {
        Plain {
            ground,
            input: [fleet.shared.clone()],
            job: None,
            recipe: None,
            each: Each::new(),
            lanes: Lanes::new(),
        }
    }

    /// Plans plain rows from `start` on, at most `rows`, which stand at `at` in the columns. Gives how many were looked at, and
    /// of these those that are left; `None` for all.
    fn plan(
        &mut self,
        fleet: &Fleet<'_>,
        start: usize,
        rows: usize,
        out: &mut [(Column, Out<'_>)],
        at: usize,
    ) -> (usize, Option<Vec<usize>>) {
        let of_job = fleet.rows_of_job(start, rows);
        let Ground { sites, kinds } = self.ground;
        let (count, left) = match kinds {
            _ if of_job >= WORTH => {
                let (job, cluster) = fleet.pair(start);
                if self.job != Some(job) {
                    self.input[0].fault = fleet.shared.fault;
                    fleet.jobs.apply(&[job], &mut self.input);
                    (self.job, self.recipe) = (Some(job), One::of(&self.input[0]));
                }
                let Some(recipe) = &self.recipe else { return (of_job, None) };
                match fleet.pairs {
                    Pairs::Crossed => self.lanes.set(sites, (cluster..).take(of_job)),
                    Pairs::Named { clusters, .. } => {
                        self.lanes.set(sites, clusters[start..start + of_job].iter().copied());
                    }
                }
                (of_job, self.lanes.plan(recipe, of_job, out, at))
            }
            Some(kinds) => {
                let count = BLOCK.min(rows);
                let rows = start..start + count;
                let mut crossed = ([0; BLOCK], [0; BLOCK]);
                let (jobs, clusters) = match fleet.pairs {
                    Pairs::Named { jobs, clusters } => (&jobs[rows.clone()], &clusters[rows]),
                    Pairs::Crossed => {
                        for (i, row) in rows.enumerate() {
                            (crossed.0[i], crossed.1[i]) = fleet.pair(row);
                        }
                        (&crossed.0[..count], &crossed.1[..count])
                    }
                };
                self.lanes.set(sites, clusters.iter().copied());
                self.each.set(kinds, jobs, &mut self.lanes);
                (count, self.each.plan(&mut self.lanes, count, out, at))
            }
            None => return (TOGETHER.min(rows), None),
        };
        (count, Some(left.into_iter().map(|i| start + i).collect()))
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
        let fleet = Fleet { shared, jobs, clusters, pairs: Pairs::Crossed };
        let mut status = [9; 8];
        let mut micro = [0; 8];
        fleet.plan(vec![(Column::Status, Out::U8(&mut status)), (Column::MicroBatch, Out::I32(&mut micro))]);
        let bad = Status::Infeasible as u8;
        assert_eq!(status, [0, bad, bad, bad, bad, bad, bad, bad]);
        assert_eq!(micro, [32, -1, -1, -1, -1, -1, -1, -1]);
    }

    #[test]
    fn the_best_rows_of_each_job() {
        let profile = crate::forecast::tests::profile();
        let workload = outlook::Workload {
            gpu: None,
            profile,
            table: crate::allreduce::Table::default(),
            estimated: false,
            memory_estimated: false,
            noise: vec![(0.0, 1000.0)],
        };
        let mut shared = Input { workloads: [workload].into(), ..Input::default() };
        shared.set(Field::Lr, &Value::Real(0.1));
        shared.set(Field::Duration, &Value::read(Field::Duration, "1000st"));
        let batches = [64, 7];
        let gpus = [3, 1, 8, 2, 8];
        let price = [1.0, 1.0, 1.0, 0.1, 1.0];
        let jobs = Columns { rows: 2, columns: vec![(Field::EffectiveBatch, Data::Ints(&batches))] };
        let columns =
            vec![(Field::GpusPerNode, Data::Ints(&gpus)), (Field::PricePerGpuHour, Data::Reals(&price))];
        let clusters = Columns { rows: 5, columns };
        let fleet = Fleet { shared, jobs, clusters, pairs: Pairs::Crossed };
        // 3 GPUs do not divide 64; of 7 only one GPU does, and ties go by the order.
        assert_eq!(fleet.choose(By::Fastest, 2), (vec![0, 0, 1], vec![2, 4, 1]));
        assert_eq!(fleet.choose(By::Cheapest, 1), (vec![0, 1], vec![3, 1]));
        assert_eq!(fleet.choose(By::Goodput, 1), (vec![0, 1], vec![2, 1]));
        let named = Pairs::Named { jobs: &[1, 0, 0, 1], clusters: &[0, 1, 3, 2] };
        let fleet = Fleet { pairs: named, ..fleet };
        // No row of the second job can be planned: it keeps its first.
        assert_eq!(fleet.choose(By::Fastest, 1), (vec![0, 1], vec![3, 0]));
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
        let fleet = Fleet { shared, jobs, clusters, pairs: Pairs::Crossed };
        let mut batch = vec![0; batches.len()];
        fleet.plan(vec![(Column::EffectiveBatch, Out::I64(&mut batch))]);
        assert_eq!(batch, batches);
    }
}
