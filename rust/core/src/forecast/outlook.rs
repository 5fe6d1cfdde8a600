//! Time, memory and money of a plan, by the profile that fits its cluster.

use super::{Case, Constant, Profile, Shape, Workload, noise_over_run, optimize};
use crate::batch::MAX_BATCH;
use crate::input::{Cluster, Recipe, Settings};
use crate::reason::{Reason, Reasons};

/// Bytes in a GiB.
const GIB: f64 = (1_u64 << 30) as f64;

macro_rules! outlook {
    ($($name:ident)*) => {
        /// The columns of time, memory and money; NaN where they are not known.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "said once, where the result columns are declared")]
        pub struct Outlook {
            $(pub $name: f64,)*
        }

        impl Outlook {
            /// Nothing is known.
            pub const UNKNOWN: Outlook = Outlook { $($name: f64::NAN,)* };

            /// The names of its columns.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)*];
        }
    };
}

outlook! { step_seconds step_error samples_per_second efficiency hours hours_error gpu_hours cost memory_gib }

/// The profile that fits a cluster's GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fitted<'a> {
    workload: &'a Workload,
    /// The workload's, its unknown links taken from the cluster.
    profile: Profile,
    /// Whether any were.
    borrowed: bool,
    /// GiB of a GPU: the cluster's, else that of the workload's GPU type; NaN where neither is known.
    pub memory_gib: f64,
}

impl<'a> Fitted<'a> {
    /// Of several GPU types none can be meant without a name.
    pub fn of(cluster: &Cluster, workloads: &'a [Workload]) -> Option<Fitted<'a>> {
        let fits = |workload: &&Workload| match (&workload.gpu, &cluster.gpu) {
            (Some(measured), Some(gpu)) => measured == gpu,
            (None, _) => true,
            (Some(_), None) => workloads.len() == 1,
        };
        let workload = workloads.iter().find(fits)?;
        let mut profile = workload.profile;
        let mut borrowed = false;
        let exact = |value| Constant { value, error: 0.0 };
        for (link, gb_s) in
            [(&mut profile.intra, cluster.intra_gb_s), (&mut profile.inter, cluster.inter_gb_s)]
        {
            if link.per_byte.value.is_nan() && !gb_s.is_nan() {
                let latency = if cluster.latency_us.is_nan() { 0.0 } else { cluster.latency_us };
                (link.latency, link.per_byte) = (exact(latency * 1e-6), exact(1e-9 / gb_s));
                borrowed = true;
            }
        }
        let memory_gib =
            if cluster.memory_gib.is_nan() { workload.gpu_memory_gib } else { cluster.memory_gib };
        Some(Fitted { workload, profile, borrowed, memory_gib })
    }

    /// With a job on that cluster; none where the workload is another model, or has samples of another
    /// length.
    pub fn on(
        &'a self,
        recipe: &'a Recipe,
        settings: &'a Settings,
        cluster: &'a Cluster,
    ) -> Option<ClusterProfile<'a>> {
        let Workload { parameters, seq_len, .. } = *self.workload;
        let is_same = is_about(parameters, recipe.parameters) && is_about(seq_len, recipe.seq_len);
        is_same.then_some(ClusterProfile { recipe, settings, cluster, fitted: self })
    }
}

/// Whether two sizes are the same within a tenth, as far as both are known: a model of 6.74e9 parameters is
/// called 7e9.
fn is_about(measured: Option<u64>, size: Option<u64>) -> bool {
    let (Some(measured), Some(size)) = (measured, size) else { return true };
    measured.abs_diff(size) as f64 <= 0.1 * measured.max(size) as f64
}

/// The profile that fits a cluster's GPUs, with the job that is planned there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterProfile<'a> {
    recipe: &'a Recipe,
    settings: &'a Settings,
    cluster: &'a Cluster,
    fitted: &'a Fitted<'a>,
}

impl ClusterProfile<'_> {
    /// The replicas that share what is sharded.
    fn replicas(&self) -> u64 {
        let shape = self.shape(1, 1);
        (shape.world_size / shape.model_parallel).max(1)
    }

    /// The largest micro-batch that fits in a GPU's memory, where that is known; an error where not even one
    /// sample fits.
    pub fn memory_cap(&self) -> Result<Option<u64>, Reason> {
        let profile = &self.fitted.profile;
        let bytes = self.fitted.memory_gib * GIB;
        if bytes.is_nan() || profile.memory_fixed.value.is_nan() || profile.memory_per_sample.value.is_nan() {
            return Ok(None);
        }
        profile
            .largest_micro_batch(bytes, self.replicas(), i32::MAX as u64)
            .map(Some)
            .ok_or(Reason::AboveMemory)
    }

    /// The noise scale over the run: the recipe's, else the profile's.
    fn noise_scale(&self) -> Result<f64, Reason> {
        let given = self.recipe.noise_scale;
        let tuned_batch = self.recipe.effective_batch as f64;
        let known =
            if given.is_nan() { noise_over_run(&self.fitted.workload.noise, tuned_batch) } else { given };
        if known.is_nan() { Err(Reason::NeedsNoise) } else { Ok(known) }
    }

    /// The optimizer steps of the tuned run that one at this batch is worth, by the noise scale, which must
    /// be known.
    pub fn gain(&self, batch: f64) -> Result<f64, Reason> {
        let (phi, tuned) = (self.noise_scale()?, self.recipe.effective_batch as f64);
        Ok(batch / tuned * (phi + tuned) / (phi + batch))
    }

    /// The effective batch that reaches the same loss soonest, from the tuned one up; an error where
    /// [`case`](Self::case) is one, or no batch lies below the cap.
    pub fn best_batch(&self, replicas: u64, micro_batch_cap: u64, divisor: u64) -> Result<u64, Reason> {
        let case = self.case(replicas, micro_batch_cap, divisor)?;
        let none = if case.has_split() { Reason::TooLarge } else { Reason::AboveMaxBatch };
        let best = optimize(&case).ok_or(none)?;
        Ok(best.micro_batch * best.accumulation * case.replicas)
    }

    /// The question of [`best_batch`](Self::best_batch); an error where the profile does not know the links,
    /// or no noise scale is known.
    pub fn case(&self, replicas: u64, micro_batch_cap: u64, divisor: u64) -> Result<Case, Reason> {
        let profile = &self.fitted.profile;
        let noise_scale = self.noise_scale()?;
        let sync_seconds = self.sync_seconds();
        if sync_seconds.is_nan() {
            return Err(Reason::NeedsProfile);
        }
        // Micro-batches come in multiples of the divisor: to the search, a replica's sample is that many.
        let unit = divisor as f64;
        Ok(Case {
            replicas: replicas * divisor,
            compute_constant: profile.compute_constant.value,
            compute_per_sample: profile.compute_per_sample.value * unit,
            compute_floor: profile.compute_floor.value,
            sync_seconds,
            overlap: profile.overlap.value,
            lead: profile.lead.value,
            update: profile.update.value,
            noise_scale,
            tuned_batch: self.recipe.effective_batch,
            min_batch: self.recipe.effective_batch,
            max_batch: self.settings.max_batch.unwrap_or(MAX_BATCH),
            max_micro_batch: micro_batch_cap.min(i32::MAX as u64) / divisor,
        })
    }

    fn shape(&self, micro_batch: u64, accumulation: u64) -> Shape {
        let ClusterProfile { recipe, cluster, .. } = self;
        Shape {
            world_size: cluster.nodes * cluster.gpus_per_node,
            gpus_per_node: cluster.gpus_per_node,
            model_parallel: cluster.model_parallel.unwrap_or(recipe.model_parallel),
            micro_batch,
            accumulation,
        }
    }

    /// Seconds a step at this split.
    pub fn step_seconds(&self, micro_batch: u64, accumulation: u64) -> f64 {
        self.fitted.profile.step_seconds(micro_batch, accumulation, self.sync_seconds())
    }

    /// Seconds that a step at this split takes at least: cheaply.
    pub fn least_step_seconds(&self, micro_batch: u64, accumulation: u64) -> f64 {
        self.fitted.profile.least_step_seconds(micro_batch, accumulation, self.sync_seconds())
    }

    /// Seconds to reduce the gradients, whatever the split.
    fn sync_seconds(&self) -> f64 {
        self.fitted.profile.sync_seconds(&self.shape(1, 1), &self.fitted.workload.table).0
    }

    /// The costs of a run of `total_steps` (none: without an end), given the seconds of a step; without the
    /// error of these and the efficiency.
    pub fn costs(
        &self,
        effective_batch: u64,
        micro_batch: u64,
        total_steps: Option<u64>,
        step_seconds: f64,
    ) -> Outlook {
        let cluster = self.cluster;
        let hours = total_steps.map_or(f64::NAN, |steps| steps as f64 * step_seconds / 3600.0);
        let gpu_hours = hours * (cluster.nodes * cluster.gpus_per_node) as f64;
        Outlook {
            step_seconds,
            samples_per_second: effective_batch as f64 / step_seconds,
            hours,
            gpu_hours,
            cost: gpu_hours * cluster.price_per_gpu_hour,
            memory_gib: self.fitted.profile.memory_bytes(micro_batch, self.replicas()) / GIB,
            ..Outlook::UNKNOWN
        }
    }

    /// The outlook of a run of `total_steps` (none: without an end) at this split, and its cautions.
    pub fn outlook(
        &self,
        effective_batch: u64,
        micro_batch: u64,
        accumulation: u64,
        total_steps: Option<u64>,
    ) -> (Outlook, Reasons) {
        let Fitted { workload, profile, borrowed, .. } = self.fitted;
        let shape = self.shape(micro_batch, accumulation);
        let forecast = profile.forecast(&shape, &workload.table);
        let costs = self.costs(effective_batch, micro_batch, total_steps, forecast.step_seconds);
        // One that no float holds is not known.
        let known = |error: f64| if error.is_finite() { error } else { f64::NAN };
        let relative = forecast.step_error / forecast.step_seconds;
        let outlook = Outlook {
            step_error: known(forecast.step_error),
            efficiency: forecast.efficiency,
            // Constants without errors say nothing of how sure the time is.
            hours_error: if relative > 0.0 { known(costs.hours * relative) } else { f64::NAN },
            ..costs
        };
        let mut reasons = Reasons::default();
        let estimated = workload.estimated || *borrowed;
        reasons.insert_if(estimated, Reason::ForecastEstimated);
        let fitted = !workload.table.is_empty() && !forecast.sync_measured;
        reasons.insert_if(fitted || !estimated && !forecast.inside, Reason::OutsideMeasured);
        let memory = !forecast.memory_bytes.is_nan();
        reasons.insert_if(workload.memory_estimated && memory, Reason::MemoryEstimated);
        (outlook, reasons)
    }
}

/// How a forecast keeps a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The upper end of its range does too; or it has no range.
    Met,
    /// The forecast does, the upper end of its range does not.
    Likely,
    /// The forecast does not.
    Missed,
}

impl Verdict {
    /// Of a figure with half the width of its range (NaN: none is known); `None` where it is not known, or
    /// has no limit.
    #[must_use]
    pub fn of(value: f64, error: f64, limit: f64) -> Option<Verdict> {
        match () {
            () if value.is_nan() || limit.is_nan() => None,
            () if value > limit => Some(Verdict::Missed),
            () if value + error > limit => Some(Verdict::Likely),
            () => Some(Verdict::Met),
        }
    }

    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Likely => "likely",
            Verdict::Missed => "missed",
        }
    }
}

/// The cautions of a plan that keeps the deadline and the budget: whether it may miss them. An error where
/// it does, where its cost is no number, or where nobody can say: no profile fits, the run has no end, the
/// GPUs have no price.
pub(crate) fn within_limits(settings: &Settings, outlook: &Outlook) -> Result<Reasons, Reason> {
    let Outlook { step_seconds, samples_per_second, hours, hours_error, gpu_hours, cost, memory_gib, .. } =
        *outlook;
    let figures = [step_seconds, samples_per_second, hours, gpu_hours, cost, memory_gib];
    if figures.contains(&f64::INFINITY) {
        return Err(Reason::TooLarge);
    }
    let (deadline, budget) =
        (settings.deadline_hours.unwrap_or(f64::NAN), settings.budget.unwrap_or(f64::NAN));
    if deadline.is_nan() && budget.is_nan() {
        return Ok(Reasons::default());
    }
    let in_time = Verdict::of(hours, hours_error, deadline);
    let paid = Verdict::of(cost, cost * (hours_error / hours), budget);
    let checks = [
        (step_seconds.is_nan(), Reason::NeedsProfile),
        (hours.is_nan(), Reason::NeedsDuration),
        (in_time == Some(Verdict::Missed), Reason::MissesDeadline),
        (!budget.is_nan() && cost.is_nan(), Reason::NeedsPrice),
        (paid == Some(Verdict::Missed), Reason::AboveBudget),
    ];
    if let Some(&(_, reason)) = checks.iter().find(|(breach, _)| *breach) {
        return Err(reason);
    }
    let mut reasons = Reasons::default();
    reasons.insert_if([in_time, paid].contains(&Some(Verdict::Likely)), Reason::LimitLikely);
    Ok(reasons)
}
