//! The types that fields have, and how texts and values become them.

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use super::choices::{
    Adapter, Beta2Rule, Coupling, DeviceBatches, DurationScale, Policy, Precision, SplitRule,
};
use super::value::{FieldKind, Illegal, Read, Value};
use crate::batch::MAX_BATCH;
use crate::lengths::{Convention, Curve, DropLast, Length, Ramp};
use crate::rules::{Decay, Optimizer, RampRule, Rule};

/// A type that a field may have.
pub(super) trait FieldType: Sized {
    /// A text as a value of this type.
    fn read(text: &str) -> Option<Value>;

    /// A value as this type, within the limits of its field; `None` where it is missing.
    fn of(value: &Value, kind: FieldKind) -> Result<Option<Self>, Illegal>;

    /// Whether it stands for something that is not known.
    fn is_unknown(&self) -> bool {
        false
    }

    /// The legal values, in words: `words`, or the names that it may have.
    fn legal(words: &'static str) -> &'static str {
        words
    }
}

impl<T: FieldType> FieldType for Option<T> {
    fn read(text: &str) -> Option<Value> {
        T::read(text)
    }

    fn legal(words: &'static str) -> &'static str {
        T::legal(words)
    }

    #[inline]
    fn of(value: &Value, kind: FieldKind) -> Result<Option<Self>, Illegal> {
        T::of(value, kind).map(|value| value.map(Some))
    }

    fn is_unknown(&self) -> bool {
        self.is_none()
    }
}

/// A number, whole where it can be.
fn number(text: &str) -> Option<Value> {
    text.parse().map(Value::Int).or_else(|_| text.parse().map(Value::Real)).ok()
}

/// From here on the nearest real of a number with a fraction may be whole.
const FRACTIONS_END: f64 = (1_u64 << 52) as f64;

impl FieldType for u64 {
    fn read(text: &str) -> Option<Value> {
        // "9007199254740992.4" is no count, and the real that is nearest to it is one.
        number(text).filter(
            |value| !matches!(value, Value::Real(x) if x.abs() >= FRACTIONS_END && text.contains('.')),
        )
    }

    #[inline]
    fn of(value: &Value, kind: FieldKind) -> Result<Option<Self>, Illegal> {
        value.count(if let FieldKind::Count(most) = kind { most } else { 0 })
    }
}

/// NaN is unknown.
impl FieldType for f64 {
    fn read(text: &str) -> Option<Value> {
        number(text)
    }

    #[inline]
    fn of(value: &Value, kind: FieldKind) -> Result<Option<Self>, Illegal> {
        value.real(&if let FieldKind::Real(least, most) = kind { least..=most } else { 0.0..=0.0 })
    }

    fn is_unknown(&self) -> bool {
        self.is_nan()
    }
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "1" => Some(true),
        "false" | "False" | "0" => Some(false),
        _ => None,
    }
}

impl FieldType for bool {
    fn read(text: &str) -> Option<Value> {
        flag(text).map(Read::Flag).map(Value::Read)
    }

    #[inline]
    fn of(value: &Value, _: FieldKind) -> Result<Option<Self>, Illegal> {
        value.flag()
    }
}

/// Types whose values are read from texts alone.
macro_rules! read_from_texts {
    ($($type:ty: |$text:ident| $read:expr, $pattern:pat => $taken:expr $(, unknown: $unknown:expr)?;)*) => {
        $(impl FieldType for $type {
            fn read($text: &str) -> Option<Value> {
                $read.map(Value::Read)
            }

            #[inline]
            fn of(value: &Value, _: FieldKind) -> Result<Option<Self>, Illegal> {
                match value {
                    Value::Missing => Ok(None),
                    Value::Read($pattern) => Ok(Some($taken)),
                    _ => Err(Illegal),
                }
            }

            $(fn is_unknown(&self) -> bool {
                $unknown(*self)
            })?
        })*
    };
}

read_from_texts! {
    Arc<Ramp>: |text| Ramp::parse(text).map(|ramp| Read::Ramp(Arc::new(ramp))),
        Read::Ramp(ramp) => Arc::clone(ramp);
    Arc<str>: |text| Some(Read::Gpu(text.into())), Read::Gpu(name) => Arc::clone(name);
    Curve: |text| Some(Read::Curve(Curve::parse(text))), Read::Curve(curve) => *curve;
    Beta2Rule: |text| Beta2Rule::parse(text).map(Read::Beta2), Read::Beta2(rule) => *rule;
    Length: |text| Length::parse(text).map(Read::Length), Read::Length(length) => *length,
        unknown: Length::is_zero;
}

/// Names as a person lists them: "a, b or c".
fn listed(names: &[&str]) -> String {
    match names {
        [most @ .., last] if !most.is_empty() => format!("{} or {last}", most.join(", ")),
        _ => names.concat(),
    }
}

/// Types whose values are read from their names, each with a list of (name, value); what a field of one must
/// be is that list, and what its own text has behind a semicolon.
macro_rules! read_from_names {
    ($($type:ident: $all:expr $(, $ours:path)?;)*) => {
        $(impl FieldType for $type {
            fn read(text: &str) -> Option<Value> {
                $(let text = &*$ours(text);)?
                let named = $all.into_iter().find(|(name, _)| *name == text);
                named.map(|(_, value)| Value::Read(Read::$type(value)))
            }

            #[inline]
            fn of(value: &Value, _: FieldKind) -> Result<Option<Self>, Illegal> {
                match value {
                    Value::Missing => Ok(None),
                    Value::Read(Read::$type(value)) => Ok(Some(*value)),
                    _ => Err(Illegal),
                }
            }

            fn legal(words: &'static str) -> &'static str {
                static NAMES: OnceLock<String> = OnceLock::new();
                let names = || listed(&$all.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
                NAMES.get_or_init(|| names() + words.find(';').map_or("", |beside| &words[beside..]))
            }
        })*
    };
}

read_from_names! {
    Optimizer: Optimizer::ALL, Optimizer::plain_name;
    Decay: Decay::ALL;
    Convention: Convention::ALL;
    Precision: Precision::ALL;
    Adapter: Adapter::ALL;
    Coupling: Coupling::ALL;
    Rule: Rule::ALL.iter().map(|card| (card.name, card.rule));
    RampRule: RampRule::all();
    SplitRule: SplitRule::ALL;
}

/// The averages of the first and the second moment; NaN where they are the optimizer's own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Betas(pub f64, pub f64);

impl FieldType for Betas {
    fn read(text: &str) -> Option<Value> {
        let inner = text.trim_matches(['(', ')', '[', ']', ' ']);
        let (first, second) = inner.split_once(',').or_else(|| inner.split_once(' '))?;
        Some(Value::Read(Read::Betas(first.trim().parse().ok()?, second.trim().parse().ok()?)))
    }

    #[inline]
    fn of(value: &Value, _: FieldKind) -> Result<Option<Self>, Illegal> {
        match *value {
            Value::Missing => Ok(None),
            Value::Read(Read::Betas(first, second))
                if (0.0..1.0).contains(&first) && (0.0..1.0).contains(&second) =>
            {
                Ok(Some(Betas(first, second)))
            }
            _ => Err(Illegal),
        }
    }

    fn is_unknown(&self) -> bool {
        self.0.is_nan() && self.1.is_nan()
    }
}

/// Sampler or loader, or a flag for both.
impl FieldType for DropLast {
    fn read(text: &str) -> Option<Value> {
        let drop_last = match text {
            "sampler" => Some(DropLast { sampler: true, loader: false }),
            "loader" => Some(DropLast { sampler: false, loader: true }),
            _ => flag(text).map(DropLast::both),
        };
        drop_last.map(Read::DropLast).map(Value::Read)
    }

    #[inline]
    fn of(value: &Value, _: FieldKind) -> Result<Option<Self>, Illegal> {
        match *value {
            Value::Read(Read::DropLast(drop)) => Ok(Some(drop)),
            _ => value.flag().map(|both| both.map(DropLast::both)),
        }
    }
}

/// A name, or the batch to reach as a number.
impl FieldType for Policy {
    fn read(text: &str) -> Option<Value> {
        let batch = || text.parse().ok().filter(|batch| (1..=MAX_BATCH).contains(batch)).map(Policy::Batch);
        let named = Policy::NAMED.into_iter().find(|(name, _)| *name == text).map(|(_, policy)| policy);
        named.or_else(batch).map(Read::Policy).map(Value::Read)
    }

    #[inline]
    fn of(value: &Value, _: FieldKind) -> Result<Option<Self>, Illegal> {
        match *value {
            Value::Read(Read::Policy(policy)) => Ok(Some(policy)),
            Value::Missing => Ok(None),
            _ => value.count(MAX_BATCH)?.map(Policy::Batch).map(Some).ok_or(Illegal),
        }
    }
}

/// A ratio alone is a number, too.
impl FieldType for DurationScale {
    fn read(text: &str) -> Option<Value> {
        DurationScale::parse(text).map(Read::DurationScale).map(Value::Read)
    }

    #[inline]
    fn of(value: &Value, kind: FieldKind) -> Result<Option<Self>, Illegal> {
        match *value {
            Value::Read(Read::DurationScale(scale)) => Ok(Some(scale)),
            _ => f64::of(value, kind).map(|ratio| ratio.map(|ratio| DurationScale { ratio, power: None })),
        }
    }
}

/// A value that must be legal, and that no plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct Checked<T>(PhantomData<T>);

impl<T> Checked<T> {
    /// Whatever the value was.
    pub(super) const NEW: Checked<T> = Checked(PhantomData);
}

impl<T: FieldType> FieldType for Checked<T> {
    fn read(text: &str) -> Option<Value> {
        T::read(text)
    }

    #[inline]
    fn of(value: &Value, kind: FieldKind) -> Result<Option<Self>, Illegal> {
        T::of(value, kind).map(|value| value.map(|_| Checked::NEW))
    }

    fn legal(words: &'static str) -> &'static str {
        T::legal(words)
    }

    fn is_unknown(&self) -> bool {
        true
    }
}

impl FieldType for DeviceBatches {
    /// A list as Python and JSON write it, or numbers between commas, semicolons or spaces; one number alone
    /// is no list.
    fn read(text: &str) -> Option<Value> {
        let inner = ['(', '[']
            .into_iter()
            .zip([')', ']'])
            .find_map(|(open, close)| text.strip_prefix(open)?.strip_suffix(close));
        let list = inner.unwrap_or(text).trim();
        // A tuple of one is written (256,).
        let list = if inner.is_some() { list.strip_suffix(',').unwrap_or(list) } else { list };
        let sign = [',', ';', ' '].into_iter().find(|&sign| list.contains(sign));
        if inner.is_none() && sign.is_none() {
            return None;
        }
        let numbers = list.split(sign.unwrap_or(',')).map(|batch| {
            let batch = batch.trim();
            batch.strip_suffix(".0").unwrap_or(batch).parse().ok()
        });
        DeviceBatches::of(numbers).map(Read::DeviceBatches).map(Value::Read)
    }

    #[inline]
    fn of(value: &Value, _: FieldKind) -> Result<Option<Self>, Illegal> {
        match *value {
            Value::Missing => Ok(None),
            Value::Real(x) if x.is_nan() => Ok(None),
            Value::Read(Read::DeviceBatches(batches)) => Ok(Some(batches)),
            _ => Err(Illegal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Field;

    #[test]
    fn batches_of_devices_are_lists_of_counts() {
        for text in ["(100, 156)", "[100,156]", "(100, 156.0)", "100;156", "100 156", " ( 100 , 156 ) "] {
            let batches = DeviceBatches { samples: 256, devices: 2 };
            assert_eq!(Field::DeviceBatches.read(text), Value::Read(Read::DeviceBatches(batches)), "{text}");
        }
        let single = DeviceBatches { samples: 256, devices: 1 };
        for text in ["(256,)", "[256]"] {
            assert_eq!(Field::DeviceBatches.read(text), Value::Read(Read::DeviceBatches(single)), "{text}");
        }
        for text in
            ["256", "()", "(0, 256)", "(128, -128)", "(128, None)", "128,,128", "x", "(1.5, 2)", "(128, 128"]
        {
            assert_eq!(Field::DeviceBatches.read(text), Value::Illegal, "{text}");
        }
    }
}
