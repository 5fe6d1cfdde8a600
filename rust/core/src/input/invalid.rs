//! What of an input is illegal beside the rest of it.

use super::{Field, Input, MAX_GPUS};
use crate::duration::{Convention, Unit};
use crate::ramp::Ramp;

impl Input {
    /// The first field that is illegal by itself or beside the others.
    #[must_use]
    pub fn invalid(&self) -> Option<Field> {
        let Input { job, cluster, settings, fault, .. } = self;
        if fault.is_some() {
            return *fault;
        }
        let in_unit = |unit| job.duration.is_some_and(|d| d.unit == unit) || job.warmup.unit == unit;
        let replicas = job.tuned_replicas();
        let samples = job.effective_batch / replicas.unwrap_or(1).max(1);
        let micro_batch = job.micro_batch.unwrap_or(1);
        let checks = [
            (Field::EffectiveBatch, job.effective_batch > 0),
            (Field::Lr, !job.lr.is_nan()),
            (Field::MinLr, job.min_lr <= job.lr),
            (
                Field::DropLast,
                job.convention != Convention::Transformers || job.drop_last.loader || !job.drop_last.sampler,
            ),
            (Field::DatasetSize, job.dataset_size.is_some() || !in_unit(Unit::Epochs)),
            (Field::SeqLen, job.seq_len.is_some() || !in_unit(Unit::Tokens)),
            (Field::SeqLen, job.seq_len.is_some() || !matches!(job.ramp.as_deref(), Some(Ramp::Steps(_)))),
            (
                Field::Gpus,
                job.gpus.is_none_or(|gpus| {
                    gpus.is_multiple_of(job.model_parallel)
                        && (job.unequal_devices
                            || job.effective_batch.is_multiple_of(gpus / job.model_parallel))
                }),
            ),
            (Field::MicroBatch, job.unequal_devices || samples.is_multiple_of(micro_batch)),
            (
                Field::Accumulation,
                job.unequal_devices
                    || job.accumulation.is_none_or(|accumulation| match (replicas, job.micro_batch) {
                        (Some(_), Some(_)) => micro_batch * accumulation == samples,
                        _ => samples.is_multiple_of(micro_batch * accumulation),
                    }),
            ),
            (Field::Nodes, cluster.nodes.saturating_mul(cluster.gpus_per_node) <= MAX_GPUS),
            (Field::Ragged, !(settings.ragged && (settings.uneven || settings.require_multiple))),
        ];
        checks.into_iter().find_map(|(field, legal)| (!legal).then_some(field))
    }
}
