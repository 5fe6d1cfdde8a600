//! The rows of one job: a bound of each, and what those are worth that pass it.

use super::best::BestRows;
use super::clusters::{LegalCluster, SharedClusters};
use super::{Criterion, Figures};
use crate::bulk::fleet::{Fleet, INPUTS};
use crate::bulk::lanes::LanePlanner;
use crate::bulk::results::{ResultColumn, ResultSlice};
use crate::forecast::{Case, ClusterProfile, Fitted, Workload, optimize, within_limits};
use crate::input::{Cluster, Input, Policy, Settings};
use crate::plan::{Cap, Row, UNKNOWN, plan_or_not};
use crate::reason::{Reason, Reasons};

/// More than the arithmetic of a bound and that of a worth differ by.
const ROUNDING: f64 = 1e-9;

/// Why a row that may be the best has no plan: a figure is not known.
const UNKNOWNS: [Reason; 4] =
    [Reason::NeedsProfile, Reason::NeedsNoise, Reason::NeedsDuration, Reason::NeedsPrice];

/// A row's split, as the lanes plan it.
#[derive(Clone, Copy, Debug)]
struct Split {
    effective_batch: u64,
    micro_batch: u64,
    accumulation: u64,
    total_steps: Option<u64>,
}

/// One thread's place to choose in, job after job.
pub(super) struct Candidates<'a> {
    fleet: &'a Fleet<'a>,
    shared: Option<&'a SharedClusters<'a>>,
    by: Criterion,
    top: usize,
    lanes: Option<LanePlanner<'a>>,
    /// The job, on any cluster.
    job: [Input; 1],
    /// Of each row what its worth cannot exceed, and its split where that is known.
    rows: Vec<(f64, Option<Split>)>,
    /// The inputs of rows that are planned one by one, and such a row.
    inputs: Vec<Input>,
    row: Row,
    /// The job's rows that could not be compared.
    left_out: u64,
}

impl<'a> Candidates<'a> {
    pub fn new(
        fleet: &'a Fleet<'a>,
        shared: Option<&'a SharedClusters<'a>>,
        by: Criterion,
        top: usize,
    ) -> Candidates<'a> {
        Candidates {
            fleet,
            shared,
            by,
            top,
            lanes: shared.map(|shared| LanePlanner::new(fleet, &shared.prepared)),
            job: [fleet.shared.clone()],
            rows: Vec::new(),
            inputs: vec![fleet.shared.clone(); INPUTS],
            row: Row::unknown(),
            left_out: 0,
        }
    }

    /// The best of the job's rows on these clusters, best first, and how many rows could not be compared.
    /// Where none can, the first that can be planned: else its first, which says why not.
    pub fn choose(&mut self, job: u32, clusters: &[u32]) -> (Vec<u32>, u64) {
        if self.fleet.stopped() {
            return (Vec::new(), 0);
        }
        self.bound(job, clusters.len());
        self.left_out = (0..clusters.len()).filter(|&at| self.is_unknown(at)).count() as u64;
        let mut best = BestRows::new(self.top);
        let bound = |at: &usize| self.rows[*at].0;
        let likely =
            (0..clusters.len()).filter(|at| !bound(at).is_nan()).max_by(|a, b| bound(a).total_cmp(&bound(b)));
        let others = (0..clusters.len()).filter(|&at| Some(at) != likely);
        let mut open = Vec::with_capacity(INPUTS);
        for at in likely.into_iter().chain(others) {
            let (bound, split) = self.rows[at];
            if !best.may_take(bound, at) {
                continue;
            }
            if let Some(split) = split {
                best.offer(self.worth_of_split(at, &split), at);
            } else if best.may_take(self.best_goodput(at), at) {
                open.push(at);
                if open.len() == INPUTS || likely == Some(at) {
                    self.plan(job, clusters, &mut open, &mut best);
                }
            }
        }
        self.plan(job, clusters, &mut open, &mut best);
        let chosen: Vec<u32> = best.places().map(|at| clusters[at]).collect();
        if !chosen.is_empty() {
            return (chosen, self.left_out);
        }
        match self.first_planned(job, clusters) {
            Some(at) => (vec![clusters[at]], self.left_out),
            None => (clusters.first().copied().into_iter().collect(), 0),
        }
    }

    /// Whether a row whose split is known cannot be compared, and breaks no limit for certain.
    fn is_unknown(&self, at: usize) -> bool {
        let (bound, Some(split)) = self.rows[at] else { return false };
        let limits = |(profile, _)| self.limits(&profile, &split).err();
        bound.is_nan() && self.on(at).and_then(limits).is_none_or(is_of_unknown)
    }

    /// The first of the job's rows that can be planned.
    fn first_planned(&mut self, job: u32, clusters: &[u32]) -> Option<usize> {
        (0..clusters.len()).find(|&at| {
            if self.fleet.stopped() || self.breaks_a_limit(at) {
                return false;
            }
            self.fleet.fill(&[job], &clusters[at..=at], &mut self.inputs[..1]);
            plan_or_not(&self.inputs[0], self.fleet.workloads, &mut self.row);
            self.row.effective_batch != UNKNOWN
        })
    }

    /// Whether a row whose split is known breaks a limit: of many rows that all do, none is planned again.
    fn breaks_a_limit(&self, at: usize) -> bool {
        let (_, Some(split)) = self.rows[at] else { return false };
        self.on(at).is_some_and(|(profile, _)| self.limits(&profile, &split).is_err())
    }

    /// Sets the rows of a job: bounds that are infinite where nothing is known, and NaN where there is
    /// nothing to compare.
    fn bound(&mut self, job: u32, rows: usize) {
        self.rows.clear();
        self.rows.resize(rows, (f64::INFINITY, None));
        let Some(SharedClusters { legal, .. }) = self.shared else { return };
        self.job[0].fault = self.fleet.shared.fault;
        self.fleet.jobs.apply(&[job], &mut self.job);
        if self.asks_goodput() {
            for at in 0..rows {
                self.rows[at].0 =
                    self.case(at).map_or(f64::INFINITY, |case| self.worth_of_goodput(case.goodput_bound()));
            }
            return;
        }
        // Where the GPUs' memory limits the micro-batch, the lanes know nothing of that.
        let capped = self.job[0].settings.max_micro_batch.is_some();
        let is_limited = |fitted: &Fitted<'_>| !fitted.memory_gib.is_nan();
        if !capped && legal.iter().flatten().any(|cluster| cluster.fitted.as_ref().is_some_and(is_limited)) {
            return;
        }
        self.take_splits(job as usize * rows, rows);
        for at in 0..rows {
            if let Some(split) = self.rows[at].1 {
                self.rows[at].0 = self.bound_of_split(at, &split);
            }
        }
    }

    /// Has the lanes plan the rows of the job, the first of which is `start` in the fleet. A row without a
    /// plan gets NaN.
    fn take_splits(&mut self, start: usize, rows: usize) {
        let Some(lanes) = &mut self.lanes else { return };
        let (mut batch, mut steps) = (vec![UNKNOWN; rows], vec![UNKNOWN; rows]);
        let (mut micro, mut accumulation) = (vec![0; rows], vec![0; rows]);
        let mut out = vec![
            (ResultColumn::EffectiveBatch, ResultSlice::I64(&mut batch)),
            (ResultColumn::TotalSteps, ResultSlice::I64(&mut steps)),
            (ResultColumn::MicroBatch, ResultSlice::I32(&mut micro)),
            (ResultColumn::Accumulation, ResultSlice::I32(&mut accumulation)),
        ];
        let mut planned = vec![true; rows];
        let mut at = 0;
        while at < rows {
            let (count, left) = lanes.plan(self.fleet, start + at, rows - at, &mut out, at);
            match left {
                Some(left) => left.into_iter().for_each(|row| planned[row - start] = false),
                None => planned[at..at + count].fill(false),
            }
            at += count;
        }
        drop(out);
        for at in (0..rows).filter(|&at| planned[at]) {
            let split = u64::try_from(batch[at]).ok().map(|effective_batch| Split {
                effective_batch,
                micro_batch: u64::from(micro[at].unsigned_abs()),
                accumulation: u64::from(accumulation[at].unsigned_abs()),
                total_steps: u64::try_from(steps[at]).ok(),
            });
            self.rows[at] = (f64::NAN, split);
        }
    }

    /// An upper bound of the worth of a row with this split.
    fn bound_of_split(&self, at: usize, split: &Split) -> f64 {
        let Some((profile, cluster)) = self.on(at) else { return f64::NAN };
        let least = profile.least_step_seconds(split.micro_batch, split.accumulation);
        self.worth(&profile, cluster, split, least * (1.0 - ROUNDING))
    }

    /// The worth of a row with this split; NaN where it breaks a limit.
    fn worth_of_split(&self, at: usize, split: &Split) -> f64 {
        let Some((profile, cluster)) = self.on(at) else { return f64::NAN };
        if self.limits(&profile, split).is_err() {
            return f64::NAN;
        }
        self.worth(&profile, cluster, split, profile.step_seconds(split.micro_batch, split.accumulation))
    }

    /// Whether a row with this split keeps the deadline and the budget: an error where it does not.
    fn limits(&self, profile: &ClusterProfile<'_>, split: &Split) -> Result<Reasons, Reason> {
        let &Split { effective_batch, micro_batch, accumulation, total_steps } = split;
        let step_seconds = profile.step_seconds(micro_batch, accumulation);
        let costs = profile.costs(effective_batch, micro_batch, total_steps, step_seconds);
        within_limits(&self.job[0].settings, &costs)
    }

    fn worth(
        &self,
        profile: &ClusterProfile<'_>,
        cluster: &Cluster,
        split: &Split,
        step_seconds: f64,
    ) -> f64 {
        let gain = match self.by {
            Criterion::Goodput => profile.gain(split.effective_batch as f64).unwrap_or(f64::NAN),
            Criterion::Fastest | Criterion::Cheapest => f64::NAN,
        };
        self.by.worth(&Figures {
            step_seconds,
            total_steps: split.total_steps,
            effective_batch: split.effective_batch,
            world_size: cluster.nodes * cluster.gpus_per_node,
            price_per_gpu_hour: cluster.price_per_gpu_hour,
            gain,
        })
    }

    /// The job on a cluster, where a profile fits it.
    fn on(&self, at: usize) -> Option<(ClusterProfile<'_>, &Cluster)> {
        let LegalCluster { cluster, fitted } = self.shared?.legal[at].as_ref()?;
        let Input { recipe, settings, .. } = &self.job[0];
        Some((fitted.as_ref()?.on(recipe, settings, cluster)?, cluster))
    }

    /// Whether rows are bounded by the goodput of the best batch: of nothing else, then, does the batch
    /// depend.
    fn asks_goodput(&self) -> bool {
        let Input { recipe, settings, fault, .. } = &self.job[0];
        let Settings { rule, max_micro_batch, max_batch, .. } = *settings;
        let known =
            Settings { policy: Policy::Goodput, rule, max_micro_batch, max_batch, ..Settings::default() };
        self.by == Criterion::Goodput && fault.is_none() && recipe.ramp.is_none() && *settings == known
    }

    /// The search for the best batch of a row; `None` where it is not asked, or cannot be.
    fn case(&self, at: usize) -> Option<Case> {
        let (profile, cluster) = self.on(at)?;
        let Input { recipe, settings, .. } = &self.job[0];
        let world_size = cluster.nodes * cluster.gpus_per_node;
        let model_parallel = cluster.model_parallel.unwrap_or(recipe.model_parallel);
        if world_size < model_parallel {
            return None;
        }
        let cap = Cap::here(recipe, settings, Some(&profile)).ok()?;
        profile.case(world_size / model_parallel, cap.samples(), 1).ok()
    }

    /// As a row's worth: what a goodput brings to the tuned run.
    fn worth_of_goodput(&self, goodput: f64) -> f64 {
        goodput / self.job[0].recipe.effective_batch as f64 * (1.0 + ROUNDING)
    }

    /// An upper bound of a row's worth, by the best batch; infinite where that is not asked.
    fn best_goodput(&self, at: usize) -> f64 {
        if self.rows[at].0 == f64::INFINITY {
            return f64::INFINITY;
        }
        let best = self.case(at).and_then(|case| optimize(&case));
        best.map_or(f64::INFINITY, |best| self.worth_of_goodput(best.goodput))
    }

    /// Plans these rows one by one, and offers what they are worth.
    fn plan(&mut self, job: u32, clusters: &[u32], open: &mut Vec<usize>, best: &mut BestRows) {
        if !self.fleet.stopped() {
            let places: Vec<u32> = open.iter().map(|&at| clusters[at]).collect();
            let inputs = &mut self.inputs[..open.len()];
            self.fleet.fill(&[job; INPUTS][..open.len()], &places, inputs);
            for (input, &at) in inputs.iter().zip(&*open) {
                plan_or_not(input, self.fleet.workloads, &mut self.row);
                let worth = worth_of_row(self.by, input, self.fleet.workloads, &self.row);
                let is_planned = self.row.effective_batch != UNKNOWN;
                let is_unknown =
                    is_planned || UNKNOWNS.iter().any(|&reason| self.row.reasons.contains(reason));
                self.left_out += u64::from(worth.is_nan() && is_unknown);
                best.offer(worth, at);
            }
        }
        open.clear();
    }
}

/// Whether a row without a plan has none because a figure is not known.
fn is_of_unknown(reason: Reason) -> bool {
    UNKNOWNS.contains(&reason)
}

/// The worth of a row planned by itself; NaN where it has no plan.
fn worth_of_row(by: Criterion, input: &Input, workloads: &[Workload], row: &Row) -> f64 {
    let Ok(effective_batch) = u64::try_from(row.effective_batch) else { return f64::NAN };
    let Input { recipe, settings, cluster, .. } = input;
    let fitted = Fitted::of(cluster, workloads);
    let profile = fitted.as_ref().and_then(|fitted| fitted.on(recipe, settings, cluster));
    let gain = profile.and_then(|profile| profile.gain(effective_batch as f64).ok());
    by.worth(&Figures {
        step_seconds: row.outlook.step_seconds,
        total_steps: u64::try_from(row.total_steps).ok(),
        effective_batch,
        world_size: cluster.nodes * cluster.gpus_per_node,
        price_per_gpu_hour: cluster.price_per_gpu_hour,
        gain: gain.unwrap_or(f64::NAN),
    })
}
