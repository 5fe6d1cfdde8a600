//! Many rows: columns in, columns out, in parallel.

use rayon::prelude::*;

use crate::input::{Field, Input, Value};
use crate::outlook;
use crate::plan::{Row, UNKNOWN, plan};

/// A whole number that is not known, in a column of the input.
pub const MISSING: i64 = i64::MIN;

/// Rows that one thread plans at a time, and rows held before they are written out column by column.
const CHUNK: usize = 1 << 13;
const BLOCK: usize = 32;

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

macro_rules! results {
    ($($variant:ident $name:literal $kind:ident $type:ty, |$row:ident| $value:expr;)*) => {
        /// A column of the result.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the columns are documented once, for users, in docs/fleet.md")]
        pub enum Column {
            $($variant,)*
        }

        impl Column {
            /// Every column, in the order of the table.
            pub const ALL: &'static [Column] = &[$(Column::$variant,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Column::$variant => $name,)* }
            }

            /// Its type.
            #[must_use]
            pub fn kind(self) -> Kind {
                match self { $(Column::$variant => Kind::$kind,)* }
            }

            /// # Panics
            /// Where the type of `out` is not the column's [`kind`](Column::kind).
            fn write(self, rows: &[Row], out: &mut Out<'_>, at: usize) {
                match (self, out) {
                    $((Column::$variant, Out::$kind(out)) => {
                        for (out, $row) in out[at..].iter_mut().zip(rows) {
                            *out = $value;
                        }
                    })*
                    (column, _) => unreachable!("{column:?} in a column of another type"),
                }
            }
        }
    };
}

#[allow(clippy::cast_possible_truncation, reason = "bounded by the planner")]
fn narrow(n: i64) -> i32 {
    n as i32
}

results! {
    Status "status" U8 u8, |r| r.reasons.status() as u8;
    Reasons "reasons" U64 u64, |r| r.reasons.bits();
    WorldSize "world_size" I64 i64, |r| r.world_size;
    DataParallel "data_parallel" I64 i64, |r| r.data_parallel;
    MicroBatch "micro_batch" I32 i32, |r| narrow(r.micro_batch);
    Accumulation "accumulation" I32 i32, |r| narrow(r.accumulation);
    EffectiveBatch "effective_batch" I64 i64, |r| r.effective_batch;
    BatchChange "batch_change" F64 f64, |r| r.batch_change;
    Lr "lr" F64 f64, |r| r.lr;
    LrScale "lr_scale" F64 f64, |r| r.lr_scale;
    Beta1 "beta1" F64 f64, |r| r.moments.beta1;
    Beta2 "beta2" F64 f64, |r| r.moments.beta2;
    Eps "eps" F64 f64, |r| r.moments.eps;
    WeightDecay "weight_decay" F64 f64, |r| r.weight_decay;
    Momentum "momentum" F64 f64, |r| r.momentum;
    EmaDecay "ema_decay" F64 f64, |r| r.ema_decay;
    WarmupSteps "warmup_steps" I64 i64, |r| r.warmup_steps;
    StepsPerEpoch "steps_per_epoch" I64 i64, |r| r.steps_per_epoch;
    TotalSteps "total_steps" I64 i64, |r| r.total_steps;
    SamplesPerEpoch "samples_per_epoch" I64 i64, |r| r.samples_per_epoch;
    PaddedSamples "padded_samples" I64 i64, |r| r.padded_samples;
    DroppedSamples "dropped_samples" I64 i64, |r| r.dropped_samples;
    StepSeconds "step_seconds" F64 f64, |r| r.outlook.step_seconds;
    StepError "step_error" F64 f64, |r| r.outlook.step_error;
    SamplesPerSecond "samples_per_second" F64 f64, |r| r.outlook.samples_per_second;
    Efficiency "efficiency" F64 f64, |r| r.outlook.efficiency;
    Hours "hours" F64 f64, |r| r.outlook.hours;
    GpuHours "gpu_hours" F64 f64, |r| r.outlook.gpu_hours;
    Cost "cost" F64 f64, |r| r.outlook.cost;
    MemoryGib "memory_gib" F64 f64, |r| r.outlook.memory_gib;
    NearestWorldSize "nearest_world_size" I64 i64, |r| r.nearest_world_size.nearest;
    NearestBatch "nearest_batch" I64 i64, |r| r.nearest_batch.nearest;
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

/// The element type of a result column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the types they stand for")]
pub enum Kind {
    U8,
    U64,
    I32,
    I64,
    F64,
}

/// Memory for a result column.
#[derive(Debug)]
#[allow(missing_docs, reason = "named as the types they hold")]
pub enum Out<'a> {
    U8(&'a mut [u8]),
    U64(&'a mut [u64]),
    I32(&'a mut [i32]),
    I64(&'a mut [i64]),
    F64(&'a mut [f64]),
}

impl<'a> Out<'a> {
    fn len(&self) -> usize {
        match self {
            Out::U8(s) => s.len(),
            Out::U64(s) => s.len(),
            Out::I32(s) => s.len(),
            Out::I64(s) => s.len(),
            Out::F64(s) => s.len(),
        }
    }

    fn split_at(self, mid: usize) -> (Out<'a>, Out<'a>) {
        macro_rules! halves {
            ($($kind:ident)*) => {
                match self { $(Out::$kind(s) => { let (a, b) = s.split_at_mut(mid); (Out::$kind(a), Out::$kind(b)) })* }
            };
        }
        halves!(U8 U64 I32 I64 F64)
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
        self.plan_range(0, self.rows(), out);
    }

    fn plan_range(&self, start: usize, rows: usize, mut out: Vec<(Column, Out<'_>)>) {
        if rows <= CHUNK {
            return self.plan_chunk(start, rows, &mut out);
        }
        let mid = (rows / 2).next_multiple_of(CHUNK);
        let (left, right) = out
            .into_iter()
            .map(|(column, out)| {
                let (left, right) = out.split_at(mid);
                ((column, left), (column, right))
            })
            .unzip();
        rayon::join(|| self.plan_range(start, mid, left), || self.plan_range(start + mid, rows - mid, right));
    }

    fn plan_chunk(&self, start: usize, rows: usize, out: &mut [(Column, Out<'_>)]) {
        let mut inputs = vec![self.shared.clone(); rows.min(BLOCK)];
        let mut plans = vec![Row::unknown(); rows.min(BLOCK)];
        for at in (0..rows).step_by(BLOCK) {
            let count = BLOCK.min(rows - at);
            self.fill(start + at, &mut inputs[..count]);
            for (input, row) in inputs[..count].iter().zip(&mut plans) {
                plan(input, row);
            }
            for (column, out) in &mut *out {
                column.write(&plans[..count], out, at);
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
        let mut inputs = vec![self.shared.clone(); clusters.len().min(BLOCK)];
        let mut row = Row::unknown();
        let mut found: Vec<(f64, u32)> = Vec::new();
        for block in clusters.chunks(BLOCK) {
            let inputs = &mut inputs[..block.len()];
            for input in &mut *inputs {
                input.fault = self.shared.fault;
            }
            self.jobs.apply(&[job as u32; BLOCK][..block.len()], inputs);
            self.clusters.apply(block, inputs);
            for (input, cluster) in inputs.iter().zip(block) {
                plan(input, &mut row);
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

    /// Sets the inputs to those of the rows from `start`.
    fn fill(&self, start: usize, inputs: &mut [Input]) {
        let (mut jobs, mut clusters) = ([0; BLOCK], [0; BLOCK]);
        for (i, (job, cluster)) in jobs.iter_mut().zip(&mut clusters).take(inputs.len()).enumerate() {
            (*job, *cluster) = self.pair(start + i);
        }
        for input in &mut *inputs {
            input.fault = self.shared.fault;
        }
        self.jobs.apply(&jobs, inputs);
        self.clusters.apply(&clusters, inputs);
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
        self.fill(row, &mut input);
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
