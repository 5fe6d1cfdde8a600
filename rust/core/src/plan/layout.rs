//! The batch, and how it is laid out over replicas and micro-batches.

use super::grid::{Grid, LOOKS};
use super::replicas::Replicas;
use super::row::{Nearest, Row};
use super::steps::stages;
use super::ways_out::FindCounts;
use crate::batch::{self, Split};
use crate::forecast::ClusterProfile;
use crate::input::{Input, Policy, Settings, SplitRule};
use crate::lengths::{Layout, Stage};
use crate::numbers::gcd;
use crate::reason::Reason;

/// The effective batch that the policy asks for.
pub(super) fn target(
    input: &Input,
    profile: Option<&ClusterProfile<'_>>,
    row: &mut Row,
    replicas: Replicas,
) -> Result<u64, Reason> {
    let Replicas { count, group, divisor, .. } = replicas;
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
                    let (below, above) = batch::neighbours(count, unit / gcd(unit, group) * group);
                    let gpus = |count| replicas.gpus(count);
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
    find_counts: FindCounts,
) -> Result<Layout, Reason> {
    let settings = &input.settings;
    if row.cap.samples() < replicas.divisor {
        return Err(Reason::MultipleUnmet);
    }
    if row.cap.samples() < settings.min_micro_batch {
        return Err(Reason::MicroBatchUnmet);
    }
    if target > most_of(settings) && settings.batch_tolerance == 0.0 {
        return Err(Reason::AboveMaxBatch);
    }
    let tuned_stages = stages(&input.recipe, input.recipe.effective_batch, input.consumed)?;
    let grid = Grid::of(input, replicas, &tuned_stages);
    if let Some(layout) = unlike(settings, row, target, replicas, &grid) {
        return Ok(layout);
    }
    let effective_batch = even_batch(input, row, target, replicas, (&grid, &tuned_stages), find_counts)?;
    row.reasons.insert_if(effective_batch != target, Reason::BatchMoved);
    let cap = row.cap.samples();
    let split = grid.split(effective_batch, cap, replicas.divisor).ok_or(Reason::MultipleUnmet)?;
    Ok(replicas.layout(effective_batch, split, false))
}

/// No batch above this.
fn most_of(settings: &Settings) -> u64 {
    settings.max_batch.unwrap_or(u64::MAX)
}

/// The target itself in micro-batches or replicas that differ, where that was asked for and is needed. In
/// every stage of a ramp each replica has samples, and under `uneven` a micro-batch.
fn unlike(
    settings: &Settings,
    row: &mut Row,
    target: u64,
    replicas: Replicas,
    grid: &Grid,
) -> Option<Layout> {
    let cap = row.cap.samples();
    let even = grid.fits(target, cap);
    if even || !settings.split.differs() || target > most_of(settings) || !grid.in_groups(target) {
        return None;
    }
    let (common, smallest) = grid.of_stages(target)?;
    if smallest < replicas.count {
        return None;
    }
    if settings.split == SplitRule::Ragged {
        let ragged = batch::ragged(target.div_ceil(replicas.count), cap);
        let exact = common.is_multiple_of(replicas.count * ragged.micro_batch);
        row.reasons.insert_if(!exact, Reason::Ragged);
        return Some(replicas.layout(target, ragged, !exact));
    }
    // As many micro-batches as replicas at least, so that every replica has one.
    let cap = cap.min(smallest / replicas.count);
    let split = batch::split(common, cap, replicas.divisor)?;
    if split.micro_batch < settings.min_micro_batch {
        return None;
    }
    row.reasons.insert(Reason::Uneven);
    let accumulation = (target / split.micro_batch).div_ceil(replicas.count);
    Some(replicas.layout(target, Split { accumulation, ..split }, true))
}

/// The batch nearest to the target that divides evenly, within the tolerance; otherwise what would work
/// instead.
fn even_batch(
    input: &Input,
    row: &mut Row,
    target: u64,
    replicas: Replicas,
    (grid, tuned_stages): (&Grid, &[Stage]),
    find_counts: FindCounts,
) -> Result<u64, Reason> {
    let Replicas { count, divisor, cap, .. } = replicas;
    let settings = &input.settings;
    let most = most_of(settings).min(batch::MAX_BATCH);
    if target <= most && grid.fits(target, cap) {
        return Ok(target);
    }
    let below = grid.below(target.min(most), cap, &mut { LOOKS });
    if let (true, Some(below)) = (settings.split == SplitRule::Smaller, below) {
        return Ok(below);
    }
    let above = Some(grid.above(target, cap)).filter(|&b| b <= most);
    let share = settings.batch_tolerance;
    let nearest = batch::nearer(target, below, above);
    if let Some(nearest) = nearest.filter(|&b| batch::change(b, target) <= share) {
        let within = batch::Tolerance { target, unit: grid.unit, least: grid.least, most, share };
        let micro_batch = |units| {
            let split = grid.split(units * grid.unit, cap, divisor);
            let split = split.filter(|split| split.micro_batch >= settings.min_micro_batch);
            split.map_or(0, |split| split.micro_batch / divisor)
        };
        let plain_cap = grid.is_plain().then_some(cap / divisor);
        return Ok(batch::tolerated(within, plain_cap, micro_batch).unwrap_or(nearest));
    }
    if target > most {
        return Err(Reason::AboveMaxBatch);
    }
    row.nearest_batch = Nearest::of(target, below, above);
    // Under grow the batch moves with the GPUs: another count of them is no way out.
    if settings.policy != Policy::Grow {
        let world_size = replicas.gpus(count);
        let (below, above) = find_counts(input, tuned_stages, target, world_size, replicas);
        row.nearest_world_size = Nearest::of_gpus(world_size, below, above);
    }
    Err(grid.refuses(target))
}
