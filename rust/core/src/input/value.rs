//! Values on their way into fields.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::choices::{
    Adapter, Beta2Rule, Coupling, DeviceBatches, DurationScale, Policy, Precision, SplitRule,
};
use crate::lengths::{Convention, Curve, DropLast, Length, MAX_COUNT, Ramp};
use crate::rules::{Decay, Optimizer, RampRule, Rule};

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

/// The value of a text.
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
    RampRule(RampRule),
    SplitRule(SplitRule),
    Beta2(Beta2Rule),
    DurationScale(DurationScale),
    Flag(bool),
    Precision(Precision),
    Adapter(Adapter),
    Coupling(Coupling),
    Gpu(Arc<str>),
    DeviceBatches(DeviceBatches),
    Curve(Curve),
}

/// The kind of a field's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldKind {
    /// Whole numbers from 1 to this.
    Count(u64),
    /// Reals from the first to the second.
    Real(f64, f64),
    /// True or false.
    Flag,
    /// Names, lengths and the like.
    Other,
}

/// A value that its field cannot have.
#[derive(Debug)]
pub struct Illegal;

impl Value {
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

    /// A real in the range; `None` where it is unknown.
    pub(super) fn real(&self, range: &RangeInclusive<f64>) -> Result<Option<f64>, Illegal> {
        let x = match *self {
            Value::Missing => return Ok(None),
            Value::Int(n) => n as f64,
            Value::Real(x) if x.is_nan() => return Ok(None),
            Value::Real(x) => x,
            _ => return Err(Illegal),
        };
        if range.contains(&x) { Ok(Some(x)) } else { Err(Illegal) }
    }

    pub(super) fn flag(&self) -> Result<Option<bool>, Illegal> {
        match *self {
            Value::Missing => Ok(None),
            Value::Int(0) => Ok(Some(false)),
            Value::Int(1) => Ok(Some(true)),
            Value::Read(Read::Flag(value)) => Ok(Some(value)),
            _ => Err(Illegal),
        }
    }
}
