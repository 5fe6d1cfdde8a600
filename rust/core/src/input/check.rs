//! Values of an input that are illegal beside its other values.

use super::{Field, Input, MAX_GPUS, Policy, Recipe, SplitRule};
use crate::lengths::{Convention, Length, Ramp, Unit};
use crate::rules::{Decay, Optimizer};

impl Input {
    /// The first field that is illegal by itself or beside the others.
    #[must_use]
    pub fn invalid(&self) -> Option<Field> {
        self.fault.or_else(|| self.contradictions().next())
    }

    /// Why a field does not fit the others, in words; `None` where its legal values say so.
    #[must_use]
    pub fn why(&self, field: Field) -> Option<String> {
        let recipe = &self.recipe;
        let gpus = recipe.gpus.filter(|_| self.fault.is_none() && field == Field::Gpus)?;
        let Recipe { model_parallel, expert_parallel, effective_batch, .. } = *recipe;
        Some(if !gpus.is_multiple_of(model_parallel) {
            format!("{gpus} is not a multiple of model_parallel {model_parallel}")
        } else if !gpus.is_multiple_of(expert_parallel) {
            format!("{gpus} is not a multiple of expert_parallel {expert_parallel}")
        } else {
            let replicas = gpus / model_parallel;
            format!("effective_batch {effective_batch} is not a multiple of {replicas} replicas")
        })
    }

    /// The fields that are illegal beside the others.
    pub fn contradictions(&self) -> impl Iterator<Item = Field> + use<> {
        let Input { recipe, cluster, settings, consumed: _, fault: _ } = self;
        let every = [recipe.eval_every, recipe.save_every, recipe.log_every];
        let in_unit = |unit| {
            let lengths = [recipe.duration, Some(recipe.warmup)].into_iter().chain(every);
            lengths.flatten().any(|length| length.unit == unit)
        };
        let of_run = |length: Option<Length>| {
            length.is_none_or(|length| !length.is_zero() && length.unit != Unit::Percent)
        };
        let searched = settings.policy == Policy::Goodput;
        let ragged = settings.split == SplitRule::Ragged;
        let differs = settings.split.differs();
        let fixed = settings.fixed_micro_batch();
        let replicas = recipe.tuned_replicas();
        let samples = recipe.effective_batch / replicas.unwrap_or(1).max(1);
        let micro_batch = recipe.micro_batch.unwrap_or(1);
        let checks = [
            (Field::EffectiveBatch, recipe.effective_batch > 0),
            (Field::Lr, recipe.lr > 0.0),
            (Field::Decay, recipe.decay != Some(Decay::Sqrt) || recipe.optimizer == Optimizer::Muon),
            (Field::Duration, of_run(recipe.duration)),
            (Field::EvalEvery, of_run(recipe.eval_every)),
            (Field::SaveEvery, of_run(recipe.save_every)),
            (Field::LogEvery, of_run(recipe.log_every)),
            (Field::Ramp, recipe.ramp.as_ref().is_none_or(|ramp| ramp.reaches(recipe.effective_batch))),
            (Field::MinLr, recipe.min_lr <= recipe.lr),
            (
                Field::DropLast,
                recipe.convention != Convention::Transformers
                    || recipe.drop_last.loader
                    || !recipe.drop_last.sampler,
            ),
            (Field::EvenBatches, recipe.even_batches || recipe.convention == Convention::Transformers),
            (Field::DatasetSize, recipe.dataset_size.is_some() || !in_unit(Unit::Epochs)),
            (Field::SeqLen, recipe.seq_len.is_some() || !in_unit(Unit::Tokens)),
            (
                Field::SeqLen,
                recipe.seq_len.is_some() || !matches!(recipe.ramp.as_deref(), Some(Ramp::ByTokens(_))),
            ),
            (
                Field::Gpus,
                recipe.gpus.is_none_or(|gpus| {
                    gpus.is_multiple_of(recipe.model_parallel)
                        && gpus.is_multiple_of(recipe.expert_parallel)
                        && (recipe.device_batches.is_some()
                            || recipe.effective_batch.is_multiple_of(gpus / recipe.model_parallel))
                }),
            ),
            (Field::MicroBatch, recipe.device_batches.is_some() || samples.is_multiple_of(micro_batch)),
            (
                Field::Accumulation,
                recipe.device_batches.is_some()
                    || recipe.accumulation.is_none_or(|accumulation| match (replicas, recipe.micro_batch) {
                        (Some(_), Some(_)) => micro_batch * accumulation == samples,
                        _ => samples.is_multiple_of(micro_batch * accumulation),
                    }),
            ),
            (
                Field::DeviceBatches,
                recipe.device_batches.is_none_or(|batches| {
                    let samples = batches.samples.saturating_mul(recipe.accumulation.unwrap_or(1));
                    let shared = match recipe.accumulation {
                        Some(_) => recipe.effective_batch == samples,
                        None => recipe.effective_batch.is_multiple_of(samples),
                    };
                    shared && replicas.is_none_or(|replicas| replicas == batches.devices)
                }),
            ),
            (Field::Nodes, cluster.nodes.saturating_mul(cluster.gpus_per_node) <= MAX_GPUS),
            (
                Field::MinMicroBatch,
                settings.min_micro_batch == 1
                    || !(ragged || searched && fixed.is_none())
                        && settings.max_micro_batch.is_none_or(|cap| settings.min_micro_batch <= cap),
            ),
            (
                Field::Split,
                settings.split != SplitRule::Smaller || settings.batch_tolerance == 0.0 && !searched,
            ),
            (
                Field::MicroBatchMultiple,
                settings.micro_batch_multiple == 1
                    || !ragged && settings.divisor().is_multiple_of(settings.micro_batch_multiple),
            ),
            (Field::AccumulationMultiple, settings.accumulation_multiple == 1 || !(differs || searched)),
            (Field::BatchMultiple, settings.batch_multiple == 1 || !searched),
        ];
        checks.into_iter().filter_map(|(field, legal)| (!legal).then_some(field))
    }
}
