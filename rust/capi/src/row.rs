//! One plan.

use std::ffi::c_int;

use isobatch_core::input::{Input, Record};
use isobatch_core::plan::{Row, plan};

use crate::fail::Fail;
use crate::fields::{Pair, set};

/// A plan as C has it: counts are −1, reals NaN, where they are not known.
#[repr(C)]
#[derive(Debug)]
pub struct PlanRow {
    status: c_int,
    reasons: u64,
    world_size: i64,
    data_parallel: i64,
    micro_batch: i64,
    accumulation: i64,
    effective_batch: i64,
    warmup_steps: i64,
    steps_per_epoch: i64,
    total_steps: i64,
    nearest_world_size: i64,
    nearest_batch: i64,
    lr: f64,
    lr_scale: f64,
    warmup_lr: f64,
    min_lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
}

impl From<&Row> for PlanRow {
    fn from(row: &Row) -> PlanRow {
        PlanRow {
            status: row.reasons.status() as c_int,
            reasons: row.reasons.bits(),
            world_size: row.world_size,
            data_parallel: row.data_parallel,
            micro_batch: row.micro_batch,
            accumulation: row.accumulation,
            effective_batch: row.effective_batch,
            warmup_steps: row.warmup_steps,
            steps_per_epoch: row.steps_per_epoch,
            total_steps: row.total_steps,
            nearest_world_size: row.nearest_world_size.nearest,
            nearest_batch: row.nearest_batch.nearest,
            lr: row.lr,
            lr_scale: row.lr_scale,
            warmup_lr: row.warmup_lr,
            min_lr: row.min_lr,
            beta1: row.moments.beta1,
            beta2: row.moments.beta2,
            eps: row.moments.eps,
            weight_decay: row.weight_decay,
        }
    }
}

/// Plans one job into a row of C's.
pub fn plan_into(given: &[Pair], out: &mut PlanRow) -> Result<(), Fail> {
    let mut input = Input::default();
    set(&mut input, given, &[Record::Recipe, Record::Cluster, Record::Settings])?;
    let mut row = Row::unknown();
    if let Some(field) = plan(&input, &[], &mut row) {
        return Err(Fail::illegal(field.name(), field.legal()));
    }
    *out = PlanRow::from(&row);
    Ok(())
}
