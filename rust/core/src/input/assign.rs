//! Values into their fields; a value that its field cannot have is the row's fault.

use std::sync::Arc;

use super::value::Illegal;
use super::{Field, Input, Kind, Policy, Read, Value};
use crate::batch::MAX_BATCH;
use crate::duration::{Convention, DropLast, Length, Unit};
use crate::optimizer::Optimizer;
use crate::scaling::Rule;

impl Input {
    /// Sets a field; an illegal value is kept as the row's fault.
    pub fn set(&mut self, field: Field, value: &Value) {
        self.set_known(field, value);
    }

    #[allow(clippy::inline_always, reason = "of a known field only its own line is left")]
    #[inline(always)]
    pub(super) fn set_known(&mut self, field: Field, value: &Value) {
        if self.assign(field, value).is_err() && self.fault.is_none() {
            self.fault = Some(field);
        }
    }

    #[allow(clippy::too_many_lines, clippy::inline_always, reason = "one line a field")]
    #[inline(always)]
    fn assign(&mut self, field: Field, value: &Value) -> Result<(), Illegal> {
        let Input { job, cluster, settings, .. } = self;
        let most = if let Kind::Count(most) = field.kind() { most } else { 0 };
        let range = if let Kind::Real(least, most) = field.kind() { least..=most } else { 0.0..=0.0 };
        let known = |x: f64| (!x.is_nan()).then_some(x);
        match field {
            Field::EffectiveBatch => job.effective_batch = value.count(most)?.ok_or(Illegal)?,
            Field::Lr => job.lr = known(value.real(&range)?).ok_or(Illegal)?,
            Field::Optimizer => match *value {
                Value::Read(Read::Optimizer(optimizer)) => job.optimizer = optimizer,
                Value::Missing => job.optimizer = Optimizer::AdamW,
                _ => return Err(Illegal),
            },
            Field::Momentum => job.momentum = value.real(&range)?,
            Field::Betas => match *value {
                Value::Read(Read::Betas(first, second))
                    if (0.0..1.0).contains(&first) && (0.0..1.0).contains(&second) =>
                {
                    job.betas = (first, second);
                }
                Value::Missing => job.betas = (f64::NAN, f64::NAN),
                _ => return Err(Illegal),
            },
            Field::Eps => job.eps = value.real(&range)?,
            Field::WeightDecay => job.weight_decay = known(value.real(&range)?).unwrap_or(0.0),
            Field::Decay => match *value {
                Value::Read(Read::Decay(decay)) => job.decay = Some(decay),
                Value::Missing => job.decay = None,
                _ => return Err(Illegal),
            },
            Field::EmaDecay => job.ema_decay = value.real(&range)?,
            Field::DatasetSize => job.dataset_size = value.count(most)?,
            Field::Duration => match *value {
                Value::Read(Read::Length(length)) if !length.is_zero() && length.unit != Unit::Percent => {
                    job.duration = Some(length);
                }
                Value::Missing => job.duration = None,
                _ => return Err(Illegal),
            },
            Field::Warmup => match *value {
                Value::Read(Read::Length(length)) => job.warmup = length,
                Value::Missing => job.warmup = Length::ZERO,
                _ => return Err(Illegal),
            },
            Field::MinLr => job.min_lr = known(value.real(&range)?).unwrap_or(0.0),
            Field::SeqLen => job.seq_len = value.count(most)?,
            Field::DropLast => {
                job.drop_last = if let Value::Read(Read::DropLast(drop)) = *value {
                    drop
                } else {
                    let both = value.flag()?;
                    DropLast { sampler: both, loader: both }
                }
            }
            Field::Convention => match *value {
                Value::Read(Read::Convention(convention)) => job.convention = convention,
                Value::Missing => job.convention = Convention::Torch,
                _ => return Err(Illegal),
            },
            Field::Gpus => job.gpus = value.count(most)?,
            Field::MicroBatch => job.micro_batch = value.count(most)?,
            Field::Accumulation => job.accumulation = value.count(most)?,
            Field::ModelParallel => job.model_parallel = value.count(most)?.unwrap_or(1),
            Field::Power => job.noise.power = value.real(&range)?,
            Field::NoiseScale => job.noise.scale = value.real(&range)?,
            Field::SigmaSq => job.noise.sigma_sq = value.real(&range)?,
            Field::MuSq => job.noise.mu_sq = value.real(&range)?,
            Field::Ramp => match value {
                Value::Read(Read::Ramp(ramp)) => job.ramp = Some(Arc::clone(ramp)),
                Value::Missing => job.ramp = None,
                _ => return Err(Illegal),
            },
            Field::Parameters => job.parameters = value.count(most)?,
            Field::ClipNorm | Field::BucketCapMb => drop(value.real(&range)?),
            Field::BatchNorm => job.batch_norm = value.flag()?,
            Field::Gpu => match value {
                Value::Read(Read::Gpu(name)) => cluster.gpu = Some(Arc::clone(name)),
                Value::Missing => cluster.gpu = None,
                _ => return Err(Illegal),
            },
            Field::Schedule | Field::Precision => match value {
                Value::Missing | Value::Read(Read::Name) => (),
                _ => return Err(Illegal),
            },
            Field::DeviceBatches => job.unequal_devices = *value != Value::Missing,
            Field::Nodes => cluster.nodes = value.count(most)?.unwrap_or(1),
            Field::GpusPerNode => cluster.gpus_per_node = value.count(most)?.unwrap_or(8),
            Field::ClusterModelParallel => cluster.model_parallel = value.count(most)?,
            Field::MemoryGib => cluster.memory_gib = value.real(&range)?,
            Field::IntraGbS => cluster.intra_gb_s = value.real(&range)?,
            Field::InterGbS => cluster.inter_gb_s = value.real(&range)?,
            Field::LatencyUs => cluster.latency_us = value.real(&range)?,
            Field::PricePerGpuHour => cluster.price_per_gpu_hour = value.real(&range)?,
            Field::Policy => match value {
                Value::Read(Read::Policy(policy)) => settings.policy = *policy,
                Value::Missing => settings.policy = Policy::Keep,
                _ => settings.policy = Policy::Batch(value.count(MAX_BATCH)?.ok_or(Illegal)?),
            },
            Field::Rule => match *value {
                Value::Read(Read::Rule(rule)) => settings.rule = rule,
                Value::Missing => settings.rule = Rule::Auto,
                _ => return Err(Illegal),
            },
            Field::MaxMicroBatch => settings.max_micro_batch = value.count(most)?,
            Field::MaxBatch => settings.max_batch = value.count(most)?,
            Field::BatchTolerance => settings.batch_tolerance = known(value.real(&range)?).unwrap_or(0.0),
            Field::MicroBatchMultiple => settings.micro_batch_multiple = value.count(most)?.unwrap_or(1),
            Field::RequireMultiple => settings.require_multiple = value.flag()?,
            Field::Ragged => settings.ragged = value.flag()?,
            Field::Uneven => settings.uneven = value.flag()?,
            Field::BetaHalfLife => settings.beta_half_life = value.flag()?,
            Field::DeadlineHours => settings.deadline_hours = value.real(&range)?,
            Field::Budget => settings.budget = value.real(&range)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_takes_or_refuses_each_kind_of_value() {
        let values = [
            Value::Missing,
            Value::Int(-1),
            Value::Int(i64::MAX),
            Value::Real(f64::INFINITY),
            Value::Real(-0.5),
            Value::Illegal,
        ];
        for &field in Field::ALL {
            let mut input = Input::default();
            input.set(field, &Value::Illegal);
            if field != Field::DeviceBatches {
                assert_eq!(input.fault, Some(field));
            }
            for value in &values {
                Input::default().set(field, value);
            }
        }
    }
}
