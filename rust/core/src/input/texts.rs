//! Texts of fields: as a table has them, put right, and as this tool writes them itself.

use super::fields::{Field, Input};
use super::typed;
use super::value::{Read, Value};
use crate::lengths::with_power;
use crate::rules::Optimizer;

impl Field {
    /// The text of a table's cell as a value of it. A sequence length such as 4k, of 4000 or 4096 tokens, is
    /// unknown: it is refused where a length is counted in tokens, and only there.
    #[must_use]
    pub fn read_cell(self, text: &str) -> Value {
        match self.read(text) {
            Value::Illegal if self == Field::SeqLen && with_power(text.trim()).is_some() => Value::Missing,
            value => value,
        }
    }

    /// The values that an illegal text may mean: the legal ones, as "50000 or 50".
    #[must_use]
    pub fn right_form(self, text: &str) -> Option<String> {
        let mut forms = typed::forms(self.kind(), self.name(), text.trim());
        forms.retain(|form| {
            let mut input = Input::default();
            input.set(self, &self.read(form));
            input.fault.is_none()
        });
        forms.dedup();
        (!forms.is_empty()).then(|| forms.join(" or "))
    }

    /// A text as this tool itself writes it: "3ep" for "3 epochs", adamw for `AdamW`; `None` where there is
    /// no other way, or it is illegal.
    #[must_use]
    pub fn canonical(self, text: &str) -> Option<String> {
        match self.read(text) {
            Value::Read(Read::Length(length)) => Some(length.text()),
            Value::Read(Read::Optimizer(optimizer)) => {
                Optimizer::ALL.iter().find(|(_, kind)| *kind == optimizer).map(|(name, _)| (*name).into())
            }
            Value::Read(Read::Ramp(_)) => Some(text.replace('_', "")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::{Beta2Rule, DurationScale, Policy, Read};

    #[test]
    fn a_point_between_thousands_is_no_decimal_point() {
        for (field, text, form) in [
            (Field::DatasetSize, "50.000", Some("50000 or 50")),
            (Field::EffectiveBatch, "2.000", Some("2000 or 2")),
            (Field::DatasetSize, "1.281.167", Some("1281167")),
            (Field::DatasetSize, "1,281,167", Some("1281167")),
            (Field::DatasetSize, "1\u{202f}281\u{202f}167", Some("1281167")),
            (Field::DatasetSize, "12'800", Some("12800")),
            (Field::DatasetSize, "1_28", None),
            (Field::DatasetSize, "1e3k", None),
            (Field::Parameters, "1.300B", None),
            (Field::MemoryGib, "1.281.167,50", Some("1281167.5")),
            (Field::MemoryGib, "1 281 167,5", Some("1281167.5")),
            (Field::Lr, "1,5e-4", Some("1.5e-4")),
            (Field::Duration, "10.000st", Some("10000st or 10st")),
            (Field::Duration, "10,000 steps", Some("10000st or 10st")),
            (Field::Duration, "2,5ep", Some("2.5ep")),
            (Field::Duration, "3 days", None),
            (Field::Lr, "0,1", Some("0.1")),
            (Field::SeqLen, "4k", Some("4000 or 4096")),
            (Field::MemoryGib, "80GB", Some("74.5058 or 80")),
            (Field::DeadlineHours, "3 days", Some("72")),
            (Field::Momentum, "90 %", Some("0.9")),
            (Field::Duration, "1T", Some("1Ttok")),
            (Field::Lr, "fast", None),
            (Field::Optimizer, "50.000", None),
        ] {
            assert_eq!(field.read(text), Value::Illegal, "{text}");
            assert_eq!(field.right_form(text).as_deref(), form, "{text}");
        }
    }

    #[test]
    fn unambiguous_values_are_read() {
        for (field, text, value) in [
            (Field::DatasetSize, "52k", Value::Real(52_000.0)),
            (Field::Parameters, "7B", Value::Real(7e9)),
            (Field::Parameters, "1.3 B", Value::Real(1.3e9)),
            (Field::EffectiveBatch, "2.0000", Value::Real(2.0)),
            (Field::DatasetSize, "1_281_167", Value::Int(1_281_167)),
            (Field::EffectiveBatch, "64.0", Value::Real(64.0)),
            (Field::EffectiveBatch, "1e3", Value::Real(1000.0)),
            (Field::EffectiveBatch, "1234.000", Value::Real(1234.0)),
            (Field::MemoryGib, "80 GiB", Value::Int(80)),
            (Field::MemoryGib, "81920MiB", Value::Int(80)),
            (Field::BatchTolerance, "2 %", Value::Real(0.02)),
            (Field::DeadlineHours, "72h", Value::Int(72)),
            (Field::InterGbS, "25 GB/s", Value::Int(25)),
        ] {
            assert_eq!(field.read(text), value, "{text}");
        }
    }

    #[test]
    fn optimizers_by_the_names_of_other_libraries() {
        for (text, name) in [
            ("AdamW", Some("adamw")),
            ("torch.optim.SGD", Some("sgd")),
            ("adamw_torch_fused", Some("adamw")),
            ("paged_adamw_8bit", Some("adamw")),
            ("PagedAdamW8bit", Some("adamw")),
            ("lion_32bit", Some("lion")),
            ("RMSprop", Some("rmsprop")),
            ("galore_adamw", None),
            ("nadamw", None),
            ("FusedAdam", None),
        ] {
            assert_eq!(Field::Optimizer.canonical(text).as_deref(), name, "{text}");
        }
        assert_eq!(Field::Duration.canonical("3 epochs").as_deref(), Some("3ep"));
    }

    #[test]
    fn texts_are_read_by_field() {
        assert_eq!(Field::EffectiveBatch.read(" 256 "), Value::Int(256));
        assert_eq!(Field::Lr.read("3e-4"), Value::Real(3e-4));
        assert_eq!(Field::Lr.read("fast"), Value::Illegal);
        assert_eq!(Field::Policy.read("512"), Value::Read(Read::Policy(Policy::Batch(512))));
        assert_eq!(Field::Betas.read("(0.9, 0.95)"), Value::Read(Read::Betas(0.9, 0.95)));
        assert_eq!(Field::Rule.read("lineer"), Value::Illegal);
        let floored = Read::Beta2(Beta2Rule { half_life: false, floor: 0.95 });
        assert_eq!(Field::Beta2Rule.read("auto: 0.95"), Value::Read(floored));
        let moved = Read::DurationScale(DurationScale { ratio: 0.5, power: Some(-0.307) });
        assert_eq!(Field::DurationScale.read("0.5 ^ -0.307"), Value::Read(moved));
        assert_eq!(Field::Warmup.read(""), Value::Missing);
    }
}
