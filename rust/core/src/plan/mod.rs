//! One row: from a recipe, a cluster and the settings to a plan, or to the reasons why there is none.

mod caution;
mod choose;
mod lengths;
mod row;
mod scale;

pub use lengths::stages;
pub(crate) use lengths::tuned_warmup;
pub use row::{Cap, Nearest, Row, UNKNOWN};

use choose::neighbouring_replicas;
use row::as_column;

use crate::batch;
use crate::duration::Layout;
use crate::input::{Input, Policy};
use crate::outlook;
use crate::reason::{Reason, Reasons};

/// Plans one row into `row`. Never panics: what cannot be planned says why, and what would work instead.
pub fn plan(input: &Input, row: &mut Row) {
    attempt(input, row, neighbouring_replicas);
}

/// As [`plan`], without what would work instead: to find that takes longer than most plans.
pub fn plan_or_not(input: &Input, row: &mut Row) {
    attempt(input, row, |_, _, _, _| (None, None));
}

/// (batch, divisor, GPUs, model parallelism) → the GPU counts next to these that work.
type Seek = fn(u64, u64, u64, u64) -> (Option<u64>, Option<u64>);

fn attempt(input: &Input, row: &mut Row, seek: Seek) {
    row.reasons = Reasons::default();
    row.rule = input.settings.rule;
    row.nearest_world_size = Nearest::NONE;
    row.nearest_batch = Nearest::NONE;
    row.cap = Cap::of(input);
    let found = match input.invalid() {
        Some(field) => {
            (row.world_size, row.data_parallel) = (UNKNOWN, UNKNOWN);
            Err(field.reason())
        }
        None => fill(input, row, seek),
    };
    if let Err(reason) = found {
        row.reasons.insert(reason);
        row.forget();
    }
}

fn fill(input: &Input, row: &mut Row, seek: Seek) -> Result<(), Reason> {
    let Input { job, cluster, settings, .. } = input;
    let world_size = cluster.nodes * cluster.gpus_per_node;
    let model_parallel = cluster.model_parallel.unwrap_or(job.model_parallel);
    row.world_size = as_column(world_size);
    row.data_parallel = UNKNOWN;
    let divisor = if settings.require_multiple { settings.micro_batch_multiple } else { 1 };
    if !world_size.is_multiple_of(model_parallel) {
        let (below, above) = match settings.policy {
            Policy::Batch(batch) => seek(batch, divisor, world_size, model_parallel),
            Policy::Grow => {
                let (below, above) = batch::neighbours(world_size, model_parallel);
                (below, Some(above))
            }
            _ => seek(job.effective_batch, divisor, world_size, model_parallel),
        };
        row.nearest_world_size = Nearest::of(world_size, below, above);
        return Err(Reason::ModelParallel);
    }
    let replicas = world_size / model_parallel;
    row.data_parallel = as_column(replicas);
    let foreseen = !input.workloads.is_empty();
    if foreseen
        && settings.max_micro_batch.is_none()
        && let Some(cap) = outlook::memory_cap(input)?
    {
        row.cap = Cap::Memory(cap);
    }

    let target = choose::target(input, row, replicas, model_parallel, divisor)?;
    let chosen = choose::layout(input, row, target, replicas, model_parallel, divisor, seek)?;
    let Layout { effective_batch, micro_batch, accumulation, .. } = chosen;
    if micro_batch.max(accumulation) > i32::MAX as u64 {
        return Err(Reason::TooLarge);
    }
    row.effective_batch = as_column(effective_batch);
    row.micro_batch = as_column(micro_batch);
    row.accumulation = as_column(accumulation);
    row.batch_change = effective_batch as f64 / job.effective_batch as f64 - 1.0;

    let gain = scale::scale(input, row, effective_batch)?;
    lengths::lengths(input, row, chosen, gain)?;
    caution::caution(input, row, chosen);
    if foreseen {
        outlook::foresee(input, row);
    }
    outlook::within_limits(input, row)
}
