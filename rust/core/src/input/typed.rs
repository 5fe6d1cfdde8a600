//! Numbers of fields as people type them. What a field makes unambiguous is read; for what is not there are
//! the forms to write.

use std::borrow::Cow;

use super::value::FieldKind;
use crate::lengths::{Length, is_grouped, readings, with_power, without_underscores};

/// Counts that are never powers of two, so that K is a thousand.
const THOUSANDS: [&str; 2] = ["dataset_size", "parameters"];

/// The units that a field has, in lower case, with the power of ten or the factor to its own.
const UNITS: [(&str, &str, f64); 9] = [
    ("memory_gib", "gib", 1.0),
    ("memory_gib", "mib", 1.0 / 1024.0),
    ("intra_gb_s", "gb/s", 1.0),
    ("inter_gb_s", "gb/s", 1.0),
    ("latency_us", "us", 1.0),
    ("latency_us", "µs", 1.0),
    ("deadline_hours", "hours", 1.0),
    ("deadline_hours", "h", 1.0),
    ("batch_tolerance", "%", 0.01),
];

/// Units that are not read: a data sheet's 80 GB may be 80 GiB, and a network's Gb are bits.
const OTHERS: [(&str, &str, &[f64]); 5] = [
    ("memory_gib", "gb", &[1e9 / 1_073_741_824.0, 1.0]),
    ("intra_gb_s", "gb", &[1.0]),
    ("inter_gb_s", "gbit/s", &[0.125]),
    ("deadline_hours", "days", &[24.0]),
    ("deadline_hours", "d", &[24.0]),
];

/// The text of a number as the core parses it; `None` where it may mean another number.
pub(super) fn plain<'a>(kind: FieldKind, name: &str, text: &'a str) -> Option<Cow<'a, str>> {
    match kind {
        FieldKind::Count(_) if is_grouped(text, '.') => None,
        FieldKind::Count(_) if THOUSANDS.contains(&name) => {
            with_power(text).map(Cow::Owned).or_else(|| without_underscores(text))
        }
        FieldKind::Real(..) => in_unit(name, text).map(Cow::Owned).or_else(|| without_underscores(text)),
        FieldKind::Count(_) => without_underscores(text),
        FieldKind::Flag | FieldKind::Other => Some(text.into()),
    }
}

fn in_unit(name: &str, text: &str) -> Option<String> {
    let mut own = UNITS.iter().filter(|(field, ..)| *field == name);
    own.find_map(|(_, unit, factor)| converted(before(text, unit)?, *factor))
}

/// The number in front of a unit.
fn before<'a>(text: &'a str, unit: &str) -> Option<&'a str> {
    let at = text.len().checked_sub(unit.len()).filter(|&at| text.is_char_boundary(at))?;
    text[at..].eq_ignore_ascii_case(unit).then(|| text[..at].trim_end())
}

fn converted(number: &str, factor: f64) -> Option<String> {
    let value: f64 = without_underscores(number)?.parse().ok().filter(|x: &f64| x.is_finite())?;
    #[allow(clippy::float_cmp, reason = "a constant of the table above")]
    let hundredths = factor == 0.01;
    // A division by a whole number is rounded once.
    Some(if hundredths { value / 100.0 } else { value * factor }.to_string())
}

/// The values, legal or not, that a text may mean where its field does not read it.
pub(super) fn forms(kind: FieldKind, name: &str, text: &str) -> Vec<String> {
    let rounded = |number: &str, factor: f64| {
        let value: f64 = number.parse().ok()?;
        Some(((value * factor * 1e4).round() / 1e4).to_string())
    };
    let mut meanings = readings(text);
    meanings.extend(Length::forms(text));
    if matches!(kind, FieldKind::Count(_))
        && let Some(power) = with_power(text)
    {
        meanings.extend(power.parse::<f64>().ok().map(|number| number.to_string()));
        meanings.extend(power.strip_suffix("e3").and_then(|number| rounded(number, 1024.0)));
    }
    if let Some(number) = before(text, "%") {
        meanings.extend(converted(number, 0.01));
    }
    for (_, unit, factors) in OTHERS.iter().filter(|(field, ..)| *field == name) {
        if let Some(number) = before(text, unit) {
            meanings.extend(factors.iter().filter_map(|&factor| rounded(number, factor)));
        }
    }
    meanings
}
