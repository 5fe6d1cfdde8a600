//! What a plan costs in time, memory and money, by the profile that fits its cluster.

use std::sync::Arc;

use crate::allreduce::Table;
use crate::batch::MAX_BATCH;
use crate::forecast::{Constant, Profile, Shape};
use crate::goodput::{Pair, optimize};
use crate::input::Input;
use crate::plan::{Row, UNKNOWN};
use crate::reason::{Reason, Reasons};

/// Bytes in a GiB.
pub const GIB: f64 = (1_u64 << 30) as f64;

/// A profile of the workload on one kind of GPU.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The GPU type; none fits every type.
    pub gpu: Option<Arc<str>>,
    /// The constants.
    pub profile: Profile,
    /// The all-reduces that were measured.
    pub table: Table,
    /// Whether one of the constants of time was estimated.
    pub estimated: bool,
    /// Whether memory was estimated.
    pub memory_estimated: bool,
    /// The noise scale from each progress on, from 0; empty where it is not known.
    pub noise: Vec<(f64, f64)>,
}

/// The columns of time, memory and money; NaN where they are not known.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the columns are documented once, for users, in docs/fleet.md")]
pub struct Outlook {
    pub step_seconds: f64,
    pub step_error: f64,
    pub samples_per_second: f64,
    pub efficiency: f64,
    pub hours: f64,
    pub gpu_hours: f64,
    pub cost: f64,
    pub memory_gib: f64,
}

impl Outlook {
    /// Nothing is known.
    pub const UNKNOWN: Outlook = Outlook {
        step_seconds: f64::NAN,
        step_error: f64::NAN,
        samples_per_second: f64::NAN,
        efficiency: f64::NAN,
        hours: f64::NAN,
        gpu_hours: f64::NAN,
        cost: f64::NAN,
        memory_gib: f64::NAN,
    };
}

impl Workload {
    /// The one noise scale that stands for the whole run at a tuned batch: stretches of weight w cost
    /// Σ w(φ + m)/(φ + m0) of their samples, as one with φ = Σ wφ/(φ + m0) ÷ Σ w/(φ + m0) does. NaN where not known.
    #[must_use]
    pub fn noise_over_run(&self, tuned_batch: f64) -> f64 {
        let ends = self.noise.iter().skip(1).map(|(start, _)| *start).chain([1.0]);
        let (mut top, mut bottom) = (0.0, 0.0);
        for ((start, phi), end) in self.noise.iter().zip(ends) {
            let share = (end - start) / (phi + tuned_batch);
            top += share * phi;
            bottom += share;
        }
        top / bottom
    }
}

/// The workload's profile on the cluster's GPUs, its unknown links taken from the cluster, and whether those were.
fn profile_of(input: &Input) -> Option<(&Workload, Profile, bool)> {
    let cluster = &input.cluster;
    let fits = |workload: &&Workload| match (&workload.gpu, &cluster.gpu) {
        (Some(ours), Some(asked)) => ours == asked,
        (None, _) => true,
        // Of several GPU types none can be meant without a name.
        (Some(_), None) => input.workloads.len() == 1,
    };
    let workload = input.workloads.iter().find(fits)?;
    let mut profile = workload.profile;
    let mut borrowed = false;
    let exact = |value| Constant { value, error: 0.0 };
    for (link, gb_s) in [(&mut profile.intra, cluster.intra_gb_s), (&mut profile.inter, cluster.inter_gb_s)] {
        if link.per_byte.value.is_nan() && !gb_s.is_nan() {
            let latency = if cluster.latency_us.is_nan() { 0.0 } else { cluster.latency_us };
            (link.latency, link.per_byte) = (exact(latency * 1e-6), exact(1e-9 / gb_s));
            borrowed = true;
        }
    }
    Some((workload, profile, borrowed))
}

/// The largest micro-batch that fits in the cluster's memory; none where that is not known.
///
/// # Errors
/// When not even one sample fits.
pub fn memory_cap(input: &Input) -> Result<Option<u64>, Reason> {
    let Some((_, profile, _)) = profile_of(input) else { return Ok(None) };
    let bytes = input.cluster.memory_gib * GIB;
    if bytes.is_nan() || profile.memory_fixed.value.is_nan() || profile.memory_per_sample.value.is_nan() {
        return Ok(None);
    }
    profile.largest_micro_batch(bytes, i32::MAX as u64).map(Some).ok_or(Reason::AboveMemory)
}

/// The noise scale over the run: the recipe's, else the profile's.
fn noise_of(input: &Input, workload: &Workload) -> f64 {
    let given = input.job.noise.scale;
    if given.is_nan() { workload.noise_over_run(input.job.effective_batch as f64) } else { given }
}

/// The optimizer steps of the tuned run that one at this batch is worth, by the noise scale.
///
/// # Errors
/// When no profile fits, or no noise scale is known.
pub fn gain(input: &Input, batch: f64) -> Result<f64, Reason> {
    let (workload, ..) = profile_of(input).ok_or(Reason::NeedsProfile)?;
    let (phi, tuned) = (noise_of(input, workload), input.job.effective_batch as f64);
    if phi.is_nan() { Err(Reason::NeedsNoise) } else { Ok(batch / tuned * (phi + tuned) / (phi + batch)) }
}

/// The effective batch that reaches the same loss soonest, from the tuned one up.
///
/// # Errors
/// When no profile fits or does not know the links, no noise scale is known, or no batch lies below the cap.
pub fn best_batch(input: &Input, replicas: u64, micro_batch_cap: u64, divisor: u64) -> Result<u64, Reason> {
    let (workload, profile, _) = profile_of(input).ok_or(Reason::NeedsProfile)?;
    let noise_scale = noise_of(input, workload);
    if noise_scale.is_nan() {
        return Err(Reason::NeedsNoise);
    }
    let (sync_seconds, _) = profile.sync_seconds(&shape(input, 1, 1), &workload.table);
    if sync_seconds.is_nan() {
        return Err(Reason::NeedsProfile);
    }
    // Micro-batches come in multiples of the divisor: to the search, a replica's sample is that many.
    let unit = divisor as f64;
    let pair = Pair {
        replicas: replicas * divisor,
        compute_constant: profile.compute_constant.value,
        compute_per_sample: profile.compute_per_sample.value * unit,
        compute_floor: profile.compute_floor.value,
        sync_seconds,
        overlap: profile.overlap.value,
        lead: profile.lead.value,
        update: profile.update.value,
        noise_scale,
        tuned_batch: input.job.effective_batch,
        min_batch: input.job.effective_batch,
        max_batch: input.settings.max_batch.unwrap_or(MAX_BATCH),
        max_micro_batch: micro_batch_cap.min(i32::MAX as u64) / divisor,
    };
    let best = optimize(&pair).ok_or(Reason::AboveMaxBatch)?;
    Ok(best.micro_batch * best.accumulation * pair.replicas)
}

fn shape(input: &Input, micro_batch: u64, accumulation: u64) -> Shape {
    let cluster = &input.cluster;
    Shape {
        world_size: cluster.nodes * cluster.gpus_per_node,
        gpus_per_node: cluster.gpus_per_node,
        model_parallel: cluster.model_parallel.unwrap_or(input.job.model_parallel),
        micro_batch,
        accumulation,
    }
}

/// Fills the columns of time, memory and money of a plan that stands.
pub fn foresee(input: &Input, row: &mut Row) {
    row.outlook = Outlook::UNKNOWN;
    let Some((workload, profile, borrowed)) = profile_of(input) else {
        row.reasons.insert(Reason::OtherHardware);
        return;
    };
    let shape = shape(input, row.micro_batch.cast_unsigned(), row.accumulation.cast_unsigned());
    let forecast = profile.forecast(&shape, &workload.table);
    let hours = if row.total_steps == UNKNOWN {
        f64::NAN
    } else {
        row.total_steps as f64 * forecast.step_seconds / 3600.0
    };
    let gpu_hours = hours * shape.world_size as f64;
    row.outlook = Outlook {
        step_seconds: forecast.step_seconds,
        step_error: forecast.step_error,
        samples_per_second: row.effective_batch as f64 / forecast.step_seconds,
        efficiency: forecast.efficiency,
        hours,
        gpu_hours,
        cost: gpu_hours * input.cluster.price_per_gpu_hour,
        memory_gib: forecast.memory_bytes / GIB,
    };
    let reasons: &mut Reasons = &mut row.reasons;
    let estimated = workload.estimated || borrowed;
    reasons.insert_if(estimated, Reason::ForecastEstimated);
    reasons.insert_if(!estimated && !forecast.inside, Reason::OutsideMeasured);
    reasons.insert_if(!workload.table.is_empty() && !forecast.sync_measured, Reason::AllReduceFitted);
    let memory = !forecast.memory_bytes.is_nan();
    reasons.insert_if(workload.memory_estimated && memory, Reason::MemoryEstimated);
}

/// Whether the plan keeps the deadline and the budget that were asked for.
///
/// # Errors
/// When it does not, or when that cannot be told: no profile fits, the run has no end, the GPUs have no price.
pub fn within_limits(input: &Input, row: &Row) -> Result<(), Reason> {
    let (deadline, budget) = (input.settings.deadline_hours, input.settings.budget);
    if deadline.is_nan() && budget.is_nan() {
        return Ok(());
    }
    let Outlook { step_seconds, hours, cost, .. } = row.outlook;
    let checks = [
        (step_seconds.is_nan(), Reason::NeedsProfile),
        (hours.is_nan(), Reason::InvalidLength),
        (hours > deadline, Reason::MissesDeadline),
        (!budget.is_nan() && cost.is_nan(), Reason::InvalidCluster),
        (cost > budget, Reason::AboveBudget),
    ];
    checks.into_iter().find_map(|(found, reason)| found.then_some(reason)).map_or(Ok(()), Err)
}
