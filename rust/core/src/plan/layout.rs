//! The batch, and how it is laid out over replicas and micro-batches.

use super::row::{Nearest, Row};
use super::steps::stages;
use super::ways_out::Seek;
use crate::batch::{self, Split};
use crate::forecast::ClusterProfile;
use crate::input::{Input, Policy, Settings};
use crate::lengths::Layout;
use crate::numbers::gcd;
use crate::reason::Reason;

/// The replicas over which a batch is laid out.
#[derive(Clone, Copy)]
pub(super) struct Replicas {
    /// How many there are.
    pub count: u64,
    /// GPUs that hold one.
    pub model_parallel: u64,
    /// What every micro-batch must be a multiple of.
    pub divisor: u64,
}

impl Replicas {
    fn layout(self, effective_batch: u64, split: Split, ragged: bool) -> Layout {
        let Split { micro_batch, accumulation } = split;
        Layout { effective_batch, data_parallel: self.count, micro_batch, accumulation, ragged }
    }
}

/// The effective batch that the policy asks for.
pub(super) fn target(
    input: &Input,
    profile: Option<&ClusterProfile<'_>>,
    row: &mut Row,
    replicas: Replicas,
) -> Result<u64, Reason> {
    let Replicas { count, model_parallel, divisor } = replicas;
    let Input { recipe, settings, .. } = input;
    match settings.policy {
        Policy::Keep => Ok(recipe.effective_batch),
        Policy::Batch(batch) => Ok(batch),
        Policy::Goodput => profile.ok_or(Reason::NeedsProfile)?.best_batch(count, row.cap.samples(), divisor),
        Policy::Grow => match (recipe.tuned_replicas(), settings.max_micro_batch) {
            (Some(tuned), _) => {
                let samples = u128::from(recipe.effective_batch) * u128::from(count);
                if !samples.is_multiple_of(tuned.into()) {
                    // Only with unequal devices: the batch per replica is then a fraction.
                    let unit = tuned / gcd(tuned, recipe.effective_batch);
                    let (below, above) = batch::neighbours(count, unit);
                    let gpus = |r: u64| r * model_parallel;
                    row.nearest_world_size =
                        Nearest::of_gpus(gpus(count), below.map(gpus), Some(gpus(above)));
                    return Err(Reason::NotDivisible);
                }
                u64::try_from(samples / u128::from(tuned))
                    .ok()
                    .filter(|&b| b <= batch::MAX_BATCH)
                    .ok_or(Reason::TooLarge)
            }
            (None, Some(micro)) => {
                micro.checked_mul(count).filter(|&b| b <= batch::MAX_BATCH).ok_or(Reason::TooLarge)
            }
            (None, None) => Err(Reason::NeedsTunedGpus),
        },
    }
}

/// The batch nearest to the target that can be laid out here, and how.
pub(super) fn layout(
    input: &Input,
    row: &mut Row,
    target: u64,
    replicas: Replicas,
    seek: Seek,
) -> Result<Layout, Reason> {
    let settings = &input.settings;
    if row.cap.samples() < replicas.divisor {
        return Err(Reason::MultipleUnmet);
    }
    if target > most_of(settings) && settings.batch_tolerance == 0.0 {
        return Err(Reason::AboveMaxBatch);
    }
    if let Some(layout) = unlike(input, row, target, replicas) {
        return Ok(layout);
    }
    let effective_batch = even_batch(input, row, target, replicas, seek)?;
    row.reasons.insert_if(effective_batch != target, Reason::BatchMoved);
    // With a ramp, the micro-batch must divide every batch on the way.
    let common = stages(&input.recipe, effective_batch)?
        .iter()
        .fold(effective_batch, |common, stage| gcd(common, stage.batch));
    if common != effective_batch && !common.is_multiple_of(replicas.count * replicas.divisor) {
        return Err(Reason::RampNotDivisible);
    }
    let samples = common / replicas.count;
    let split = match batch::split(samples, row.cap.samples(), settings.micro_batch_multiple) {
        Some(split) => split,
        None if settings.require_multiple => return Err(Reason::MultipleUnmet),
        None => {
            row.reasons.insert(Reason::MultipleMissed);
            batch::split(samples, row.cap.samples(), 1).ok_or(Reason::MultipleUnmet)?
        }
    };
    let longer = effective_batch / common;
    let split = Split { accumulation: split.accumulation * longer, ..split };
    Ok(replicas.layout(effective_batch, split, false))
}

/// No batch above this.
fn most_of(settings: &Settings) -> u64 {
    settings.max_batch.unwrap_or(u64::MAX)
}

/// The target itself in micro-batches or replicas that differ, where that was asked for and is needed.
fn unlike(input: &Input, row: &mut Row, target: u64, replicas: Replicas) -> Option<Layout> {
    let (settings, cap) = (&input.settings, row.cap.samples());
    if target < replicas.count || target > most_of(settings) || input.recipe.ramp.is_some() {
        return None;
    }
    let divides = target.is_multiple_of(replicas.count);
    if settings.ragged {
        let largest = target.div_ceil(replicas.count);
        let ragged = batch::ragged(largest, cap);
        let exact = divides && largest.is_multiple_of(ragged.accumulation);
        row.reasons.insert_if(!exact, Reason::Ragged);
        let missed = !ragged.micro_batch.is_multiple_of(settings.micro_batch_multiple);
        row.reasons.insert_if(missed, Reason::MultipleMissed);
        return Some(replicas.layout(target, ragged, !exact));
    }
    if settings.uneven && !divides {
        // As many micro-batches as replicas at least, so that every replica has one.
        let cap = cap.min(target / replicas.count);
        let multiple = settings.micro_batch_multiple;
        let split =
            batch::split(target, cap, multiple).or_else(|| batch::split(target, cap, replicas.divisor))?;
        row.reasons.insert(Reason::Uneven);
        row.reasons.insert_if(!split.micro_batch.is_multiple_of(multiple), Reason::MultipleMissed);
        let accumulation = split.accumulation.div_ceil(replicas.count);
        return Some(replicas.layout(target, Split { accumulation, ..split }, true));
    }
    None
}

/// The batch nearest to the target that divides evenly, within the tolerance; otherwise what would work instead.
fn even_batch(
    input: &Input,
    row: &mut Row,
    target: u64,
    replicas: Replicas,
    seek: Seek,
) -> Result<u64, Reason> {
    let Replicas { count, model_parallel, divisor } = replicas;
    let Input { settings, recipe, .. } = input;
    let most = most_of(settings);
    let below = batch::neighbours(target.min(most), count * divisor).0;
    if below == Some(target) {
        return Ok(target);
    }
    let above = batch::neighbours(target, count * divisor).1;
    let above = Some(above).filter(|&b| b <= most.min(batch::MAX_BATCH));
    let tolerance = settings.batch_tolerance;
    let nearest = batch::nearer(target, below, above);
    if let Some(nearest) = nearest.filter(|&b| batch::change(b, target) <= tolerance) {
        // A ramp's micro-batch divides its other batches too, so that the nearest is as good as any.
        let batch = recipe.ramp.is_none().then(|| {
            let most = most.min(batch::MAX_BATCH);
            batch::tolerated(target, count, divisor, row.cap.samples(), tolerance, most)
        });
        return Ok(batch.flatten().unwrap_or(nearest));
    }
    if target > most {
        return Err(Reason::AboveMaxBatch);
    }
    row.nearest_batch = Nearest::of(target, below, above);
    let gpus = count * model_parallel;
    // Under grow the batch moves with the GPUs: another count of them is no way out.
    let (below, above) = match settings.policy {
        Policy::Grow => (None, None),
        _ => seek(target, divisor, gpus, model_parallel),
    };
    row.nearest_world_size = Nearest::of_gpus(gpus, below, above);
    Err(if target.is_multiple_of(count) { Reason::MultipleUnmet } else { Reason::NotDivisible })
}
