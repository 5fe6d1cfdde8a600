//! Values on their way into fields: from texts, as numbers and flags.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::{Field, Policy};
use crate::batch::MAX_BATCH;
use crate::duration::{Convention, DropLast, Length, MAX_COUNT};
use crate::optimizer::{Decay, Optimizer};
use crate::ramp::Ramp;
use crate::scaling::Rule;

/// A value on its way into a field. A column's texts are read once each, not once a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unknown: the field's default, where it has one.
    Missing,
    /// A whole number.
    Int(i64),
    /// A real; NaN is unknown.
    Real(f64),
    /// A text that is a value of its field.
    Read(Read),
    /// Not a value of any field.
    Illegal,
}

/// What a text stands for.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "named as the types they hold")]
pub enum Read {
    Optimizer(Optimizer),
    Betas(f64, f64),
    Decay(Decay),
    Length(Length),
    DropLast(DropLast),
    Convention(Convention),
    Ramp(Arc<Ramp>),
    Policy(Policy),
    Rule(Rule),
    Flag(bool),
    Gpu(Arc<str>),
    Name,
}

fn named<T: Copy>(all: &[(&str, T)], text: &str) -> Option<T> {
    all.iter().find(|(name, _)| *name == text).map(|&(_, value)| value)
}

fn flag(text: &str) -> Option<bool> {
    named(
        &[("true", true), ("false", false), ("True", true), ("False", false), ("1", true), ("0", false)],
        text,
    )
}

fn betas(text: &str) -> Option<(f64, f64)> {
    let inner = text.trim_matches(['(', ')', '[', ']', ' ']);
    let (first, second) = inner.split_once(',').or_else(|| inner.split_once(' '))?;
    Some((first.trim().parse().ok()?, second.trim().parse().ok()?))
}

fn policy(text: &str) -> Option<Policy> {
    named(&[("keep", Policy::Keep), ("grow", Policy::Grow), ("goodput", Policy::Goodput)], text)
        .or_else(|| text.parse().ok().filter(|b| (1..=MAX_BATCH).contains(b)).map(Policy::Batch))
}

fn drop_last(text: &str) -> Option<DropLast> {
    match text {
        "sampler" => Some(DropLast { sampler: true, loader: false }),
        "loader" => Some(DropLast { sampler: false, loader: true }),
        _ => flag(text).map(|both| DropLast { sampler: both, loader: both }),
    }
}

impl Value {
    /// Reads a text as a value of `field`.
    #[must_use]
    pub fn read(field: Field, text: &str) -> Value {
        let text = text.trim();
        if text.is_empty() {
            return Value::Missing;
        }
        let read = match field {
            Field::Optimizer => named(&Optimizer::ALL, text).map(Read::Optimizer),
            Field::Betas => betas(text).map(|(first, second)| Read::Betas(first, second)),
            Field::Decay => named(&Decay::ALL, text).map(Read::Decay),
            Field::Duration | Field::Warmup => Length::parse(text).map(Read::Length),
            Field::DropLast => drop_last(text).map(Read::DropLast),
            Field::Convention => named(&Convention::ALL, text).map(Read::Convention),
            Field::Ramp => Ramp::parse(text).map(|ramp| Read::Ramp(Arc::new(ramp))),
            Field::Policy => policy(text).map(Read::Policy),
            Field::Rule => Rule::ALL.iter().find(|card| card.name == text).map(|card| Read::Rule(card.rule)),
            Field::BatchNorm
            | Field::RequireMultiple
            | Field::Ragged
            | Field::Uneven
            | Field::BetaHalfLife => flag(text).map(Read::Flag),
            Field::Precision => matches!(text, "fp32" | "tf32" | "bf16" | "fp16").then_some(Read::Name),
            Field::Gpu => Some(Read::Gpu(text.into())),
            Field::Schedule | Field::DeviceBatches => Some(Read::Name),
            _ => {
                return text
                    .parse()
                    .map(Value::Int)
                    .or_else(|_| text.parse().map(Value::Real))
                    .unwrap_or(Value::Illegal);
            }
        };
        read.map_or(Value::Illegal, Value::Read)
    }

    /// A whole number from 1 to `max`; `None` where it is unknown.
    pub(super) fn count(&self, max: u64) -> Result<Option<u64>, Illegal> {
        let n = match *self {
            Value::Missing => return Ok(None),
            Value::Int(n) => n,
            Value::Real(x) if x.is_nan() => return Ok(None),
            #[allow(clippy::cast_possible_truncation, reason = "whole and at most 2^53")]
            Value::Real(x) if x.fract() == 0.0 && x.abs() <= MAX_COUNT as f64 => x as i64,
            _ => return Err(Illegal),
        };
        u64::try_from(n).ok().filter(|n| (1..=max).contains(n)).map(Some).ok_or(Illegal)
    }

    /// A real in the range; NaN where it is unknown.
    pub(super) fn real(&self, range: &RangeInclusive<f64>) -> Result<f64, Illegal> {
        let x = match *self {
            Value::Missing => return Ok(f64::NAN),
            Value::Int(n) => n as f64,
            Value::Real(x) if x.is_nan() => return Ok(x),
            Value::Real(x) => x,
            _ => return Err(Illegal),
        };
        if range.contains(&x) { Ok(x) } else { Err(Illegal) }
    }

    pub(super) fn flag(&self) -> Result<bool, Illegal> {
        match *self {
            Value::Missing | Value::Int(0) => Ok(false),
            Value::Int(1) => Ok(true),
            Value::Read(Read::Flag(value)) => Ok(value),
            _ => Err(Illegal),
        }
    }
}

/// A value that its field cannot have.
pub(super) struct Illegal;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_by_field() {
        assert_eq!(Value::read(Field::EffectiveBatch, " 256 "), Value::Int(256));
        assert_eq!(Value::read(Field::Lr, "3e-4"), Value::Real(3e-4));
        assert_eq!(Value::read(Field::Lr, "fast"), Value::Illegal);
        assert_eq!(Value::read(Field::Policy, "512"), Value::Read(Read::Policy(Policy::Batch(512))));
        assert_eq!(Value::read(Field::Betas, "(0.9, 0.95)"), Value::Read(Read::Betas(0.9, 0.95)));
        assert_eq!(Value::read(Field::Rule, "lineer"), Value::Illegal);
        assert_eq!(Value::read(Field::Warmup, ""), Value::Missing);
    }
}
