//! One row: from a recipe, a cluster and the settings to a plan, or to the reasons why there is none.

use super::replicas::Replicas;
use super::row::{Cap, Nearest, Row, UNKNOWN, as_column};
use super::ways_out::{FindCounts, neighbouring_replicas, no_counts};
use super::{caution, layout, scale, steps};
use crate::batch;
use crate::forecast::{Fitted, Outlook, Workload, within_limits};
use crate::input::{Field, Input, Policy};
use crate::lengths::Layout;
use crate::numbers::gcd;
use crate::reason::{Reason, Reasons};

/// Plans one row into `row`, and gives the field that is illegal, if one is; with what was measured of its
/// workload by GPU type. Never panics: what cannot be planned says why, and what would work instead.
pub fn plan(input: &Input, workloads: &[Workload], row: &mut Row) -> Option<Field> {
    attempt(input, workloads, row, neighbouring_replicas)
}

/// As [`plan`], without what would work instead: to find that takes longer than most plans.
pub fn plan_or_not(input: &Input, workloads: &[Workload], row: &mut Row) -> Option<Field> {
    attempt(input, workloads, row, no_counts)
}

fn attempt(input: &Input, workloads: &[Workload], row: &mut Row, find_counts: FindCounts) -> Option<Field> {
    row.reasons = Reasons::default();
    row.rule = input.settings.rule;
    row.nearest_world_size = Nearest::NONE;
    row.nearest_batch = Nearest::NONE;
    row.cap = Cap::of(&input.recipe, &input.settings);
    let invalid = input.invalid();
    let outcome = match invalid {
        Some(field) => {
            (row.world_size, row.data_parallel) = (UNKNOWN, UNKNOWN);
            Err(field.reason())
        }
        None => fill(input, workloads, row, find_counts),
    };
    if let Err(reason) = outcome {
        row.reasons.insert(reason);
        row.forget();
    }
    invalid
}

fn fill(input: &Input, workloads: &[Workload], row: &mut Row, find_counts: FindCounts) -> Result<(), Reason> {
    let Input { recipe, cluster, settings, .. } = input;
    let world_size = cluster.nodes * cluster.gpus_per_node;
    let model_parallel = cluster.model_parallel.unwrap_or(recipe.model_parallel);
    let expert_parallel = cluster.expert_parallel.unwrap_or(recipe.expert_parallel);
    let group = expert_parallel / gcd(model_parallel, expert_parallel);
    row.world_size = as_column(world_size);
    row.data_parallel = UNKNOWN;
    let divisor = settings.divisor();
    if !world_size.is_multiple_of(model_parallel * group) {
        let single = Replicas { count: 1, model_parallel, group, divisor, cap: row.cap.samples() };
        let stages = steps::stages(recipe, recipe.effective_batch, input.consumed)?;
        let (below, above) = match settings.policy {
            Policy::Batch(batch) => find_counts(input, &stages, batch, world_size, single),
            Policy::Grow => {
                let (below, above) = batch::neighbours(world_size, model_parallel * group);
                (below, Some(above))
            }
            _ => find_counts(input, &stages, recipe.effective_batch, world_size, single),
        };
        row.nearest_world_size = Nearest::of_gpus(world_size, below, above);
        let whole = world_size.is_multiple_of(model_parallel);
        return Err(if whole { Reason::ExpertParallel } else { Reason::ModelParallel });
    }
    let count = world_size / model_parallel;
    row.data_parallel = as_column(count);
    let fitted = Fitted::of(cluster, workloads);
    let profile = fitted.as_ref().and_then(|fitted| fitted.on(recipe, settings, cluster));
    row.cap = Cap::here(recipe, settings, profile.as_ref())?;
    let replicas = Replicas { count, model_parallel, group, divisor, cap: row.cap.samples() };

    let target = layout::target(input, profile.as_ref(), row, replicas)?;
    let chosen = layout::layout(input, row, target, replicas, find_counts)?;
    let Layout { effective_batch, micro_batch, accumulation, .. } = chosen;
    if micro_batch.max(accumulation) > i32::MAX as u64 {
        return Err(Reason::TooLarge);
    }
    row.effective_batch = as_column(effective_batch);
    row.micro_batch = as_column(micro_batch);
    row.accumulation = as_column(accumulation);
    row.batch_change = effective_batch as f64 / recipe.effective_batch as f64 - 1.0;

    let gain = scale::scale(input, profile.as_ref(), row, effective_batch)?;
    steps::steps(input, row, chosen, gain)?;
    caution::caution(input, row, chosen);
    if let Some(profile) = &profile {
        let total_steps = u64::try_from(row.total_steps).ok();
        let (outlook, reasons) = profile.outlook(effective_batch, micro_batch, accumulation, total_steps);
        (row.outlook, row.reasons) = (outlook, row.reasons | reasons);
    } else {
        row.outlook = Outlook::UNKNOWN;
        row.reasons.insert_if(!workloads.is_empty(), Reason::OtherHardware);
    }
    row.reasons = row.reasons | within_limits(settings, &row.outlook)?;
    // A limit that nobody can check is an error of its own, so the missing link comes after it.
    row.reasons.insert_if(profile.is_some() && row.outlook.step_seconds.is_nan(), Reason::OtherHardware);
    Ok(())
}
