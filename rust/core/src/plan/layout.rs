//! The batch, and how it is laid out over replicas and micro-batches.

use super::row::{Nearest, Row};
use super::steps::stages;
use super::ways_out::Seek;
use crate::batch::{self, Split};
use crate::forecast::ClusterProfile;
use crate::input::{Input, Policy};
use crate::lengths::Layout;
use crate::reason::Reason;

/// The effective batch that the policy asks for.
pub(super) fn target(
    input: &Input,
    profile: Option<&ClusterProfile<'_>>,
    row: &mut Row,
    replicas: u64,
    model_parallel: u64,
    divisor: u64,
) -> Result<u64, Reason> {
    let Input { recipe, settings, .. } = input;
    match settings.policy {
        Policy::Keep => Ok(recipe.effective_batch),
        Policy::Batch(batch) => Ok(batch),
        Policy::Goodput => {
            profile.ok_or(Reason::NeedsProfile)?.best_batch(replicas, row.cap.samples(), divisor)
        }
        Policy::Grow => match (recipe.tuned_replicas(), settings.max_micro_batch) {
            (Some(tuned), _) => {
                let samples = u128::from(recipe.effective_batch) * u128::from(replicas);
                if !samples.is_multiple_of(tuned.into()) {
                    // Only with unequal devices: the batch per replica is then a fraction.
                    let unit = tuned / gcd(tuned, recipe.effective_batch);
                    let (below, above) = batch::neighbours(replicas, unit);
                    let gpus = |r: u64| r * model_parallel;
                    row.nearest_world_size = Nearest::of(gpus(replicas), below.map(gpus), Some(gpus(above)));
                    return Err(Reason::NotDivisible);
                }
                u64::try_from(samples / u128::from(tuned))
                    .ok()
                    .filter(|&b| b <= batch::MAX_BATCH)
                    .ok_or(Reason::TooLarge)
            }
            (None, Some(micro)) => {
                micro.checked_mul(replicas).filter(|&b| b <= batch::MAX_BATCH).ok_or(Reason::TooLarge)
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
    replicas: u64,
    model_parallel: u64,
    divisor: u64,
    seek: Seek,
) -> Result<Layout, Reason> {
    let settings = &input.settings;
    let max_batch = settings.max_batch.unwrap_or(u64::MAX);
    let cap = row.cap.samples();
    let unit = replicas * divisor;
    let layout = |effective_batch, Split { micro_batch, accumulation }, ragged| Layout {
        effective_batch,
        data_parallel: replicas,
        micro_batch,
        accumulation,
        ragged,
    };
    if cap < divisor {
        return Err(Reason::MultipleUnmet);
    }
    if target > max_batch && settings.batch_tolerance == 0.0 {
        return Err(Reason::AboveMaxBatch);
    }

    let flexible = target >= replicas && target <= max_batch && input.recipe.ramp.is_none();
    if settings.ragged && flexible {
        let largest = target.div_ceil(replicas);
        let ragged = batch::ragged(largest, cap);
        let exact = target.is_multiple_of(replicas) && largest.is_multiple_of(ragged.accumulation);
        row.reasons.insert_if(!exact, Reason::Ragged);
        let missed = !ragged.micro_batch.is_multiple_of(settings.micro_batch_multiple);
        row.reasons.insert_if(missed, Reason::MultipleMissed);
        return Ok(layout(target, ragged, !exact));
    }
    if settings.uneven && flexible && !target.is_multiple_of(replicas) {
        // As many micro-batches as replicas at least, so that every replica has one.
        if let Some(split) = batch::split(target, cap.min(target / replicas), divisor) {
            row.reasons.insert(Reason::Uneven);
            let accumulation = split.accumulation.div_ceil(replicas);
            return Ok(layout(target, Split { accumulation, ..split }, true));
        }
    }

    let below = batch::neighbours(target.min(max_batch), unit).0;
    let effective_batch = if below == Some(target) {
        target
    } else {
        let above = Some(batch::neighbours(target, unit).1).filter(|&b| b <= max_batch.min(batch::MAX_BATCH));
        let tolerance = settings.batch_tolerance;
        let nearest = batch::nearer(target, below, above)
            .filter(|b| batch::change(*b, target) <= tolerance);
        match nearest {
            Some(nearest) if input.recipe.ramp.is_some() => nearest,
            Some(nearest) => {
                let most = max_batch.min(batch::MAX_BATCH);
                batch::tolerated(target, replicas, divisor, cap, tolerance, most).unwrap_or(nearest)
            }
            _ if target > max_batch => return Err(Reason::AboveMaxBatch),
            _ => {
                row.nearest_batch = Nearest::of(target, below, above);
                let gpus = replicas * model_parallel;
                // Under grow the batch moves with the GPUs: another count of them is no way out.
                let (below, above) = match settings.policy {
                    Policy::Grow => (None, None),
                    _ => seek(target, divisor, gpus, model_parallel),
                };
                row.nearest_world_size = Nearest::of(gpus, below, above);
                let divides = target.is_multiple_of(replicas);
                return Err(if divides { Reason::MultipleUnmet } else { Reason::NotDivisible });
            }
        }
    };
    row.reasons.insert_if(effective_batch != target, Reason::BatchMoved);
    // With a ramp, the micro-batch must divide every batch on the way.
    let common = stages(&input.recipe, effective_batch)?
        .iter()
        .fold(effective_batch, |common, s| gcd(common, s.batch));
    if common != effective_batch && !common.is_multiple_of(unit) {
        return Err(Reason::RampNotDivisible);
    }
    let preferred = batch::split(common / replicas, cap, settings.micro_batch_multiple);
    let split = match preferred {
        Some(split) => split,
        None if settings.require_multiple => return Err(Reason::MultipleUnmet),
        None => {
            row.reasons.insert(Reason::MultipleMissed);
            batch::split(common / replicas, cap, 1).ok_or(Reason::MultipleUnmet)?
        }
    };
    let longer = effective_batch / common;
    Ok(layout(effective_batch, Split { accumulation: split.accumulation * longer, ..split }, false))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
