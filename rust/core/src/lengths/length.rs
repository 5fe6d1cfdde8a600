//! Lengths with a unit, as exact decimals.

use super::separators::{is_grouped, readings, with_power, without_underscores};

/// Counts of samples and tokens stop here: every integer up to it is exact as a real.
pub const MAX_COUNT: u64 = 1 << 53;

/// The unit of a [`Length`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Passes over the dataset (`ep`).
    Epochs,
    /// Optimizer steps at the tuned batch (`st`).
    Steps,
    /// Samples (`sp`).
    Samples,
    /// Tokens (`tok`).
    Tokens,
    /// Hundredths of the duration (`%`).
    Percent,
}

impl Unit {
    const SUFFIXES: [(&'static str, Unit); 5] = [
        ("tok", Unit::Tokens),
        ("ep", Unit::Epochs),
        ("st", Unit::Steps),
        ("sp", Unit::Samples),
        ("%", Unit::Percent),
    ];

    /// The units in words, as people write them.
    const WORDS: [(&'static str, Unit); 9] = [
        ("epochs", Unit::Epochs),
        ("epoch", Unit::Epochs),
        ("steps", Unit::Steps),
        ("step", Unit::Steps),
        ("samples", Unit::Samples),
        ("sample", Unit::Samples),
        ("tokens", Unit::Tokens),
        ("token", Unit::Tokens),
        ("percent", Unit::Percent),
    ];

    /// The number in front of a unit, and the unit.
    fn split(text: &str) -> Option<(&str, Unit)> {
        let text = text.trim();
        Unit::WORDS.iter().chain(&Unit::SUFFIXES).find_map(|&(word, unit)| {
            let at = text.len().checked_sub(word.len()).filter(|&at| text.is_char_boundary(at))?;
            text[at..].eq_ignore_ascii_case(word).then(|| (text[..at].trim_end(), unit))
        })
    }

    /// As it is written.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        Unit::SUFFIXES.iter().find(|(_, unit)| *unit == self).map_or("", |(suffix, _)| suffix)
    }
}

/// `mantissa / 10^scale` of a unit. A float would turn 29 % of 100 steps into 28.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    mantissa: u64,
    scale: u8,
    /// The unit of the count.
    pub unit: Unit,
}

impl Length {
    /// No length at all, in optimizer steps.
    pub const ZERO: Length = Length { mantissa: 0, scale: 0, unit: Unit::Steps };

    /// Reads a number and a unit, as in `90ep`, `3 epochs`, `10_000 steps`, `375e6tok`, `300B tokens`,
    /// `28.43%`; `None` for anything else, for more than 2^53, for a fraction of a step, sample or token, and
    /// for `10.000st`, whose point may stand between thousands.
    #[must_use]
    pub fn parse(text: &str) -> Option<Length> {
        let (number, unit) = Unit::split(text)?;
        // Nobody writes 1.5 epochs with zeros behind, and no share has thousands.
        let grouped = match unit {
            Unit::Percent => false,
            Unit::Epochs => number.ends_with('0') && is_grouped(number, '.'),
            _ => is_grouped(number, '.'),
        };
        if grouped {
            return None;
        }
        let (mantissa, scale) = match with_power(number) {
            Some(number) => decimal(&number),
            None => decimal(&without_underscores(number)?),
        }?;
        let whole = scale == 0 || matches!(unit, Unit::Epochs | Unit::Percent);
        whole.then_some(Length { mantissa, scale, unit })
    }

    /// The lengths that an illegal text may mean; where it only lacks the unit of tokens, it with that.
    pub(crate) fn forms(text: &str) -> Vec<String> {
        match Unit::split(text) {
            Some((number, unit)) => {
                readings(number).iter().map(|form| format!("{form}{}", unit.suffix())).collect()
            }
            None => {
                with_power(text).map(|_| format!("{text}{}", Unit::Tokens.suffix())).into_iter().collect()
            }
        }
    }

    /// As a plain decimal with its unit: "3ep" for "3 epochs".
    pub(crate) fn text(self) -> String {
        let (mut digits, scale) = (self.mantissa.to_string(), usize::from(self.scale));
        if scale > 0 {
            digits = format!("{digits:0>width$}", width = scale + 1);
            digits.insert(digits.len() - scale, '.');
        }
        format!("{digits}{}", self.unit.suffix())
    }

    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.mantissa == 0
    }

    /// The number as a numerator and a power of ten.
    #[must_use]
    pub fn fraction_of_ten(self) -> (u64, u64) {
        (self.mantissa, 10u64.pow(self.scale.into()))
    }

    /// `⌊self × n / d⌋`, exact; `None` past 2^53.
    #[must_use]
    #[inline]
    pub fn floor_of(self, n: u64, d: u64) -> Option<u64> {
        if let Some((n, d)) = self.small_fraction(n, d) {
            return Some(n / d).filter(|&n| n <= MAX_COUNT);
        }
        let (n, d) = self.fraction(n, d);
        bounded(n / d)
    }

    /// `⌈self × n / d⌉`, exact; `None` past 2^53.
    #[must_use]
    #[inline]
    pub fn ceil_of(self, n: u64, d: u64) -> Option<u64> {
        if let Some((n, d)) = self.small_fraction(n, d) {
            return Some(n.div_ceil(d)).filter(|&n| n <= MAX_COUNT);
        }
        let (n, d) = self.fraction(n, d);
        bounded(n.div_ceil(d))
    }

    /// `self × n / d`, rounded half up, exact; `None` past 2^53.
    pub(crate) fn round_of(self, n: u64, d: u64) -> Option<u64> {
        let (n, d) = self.fraction(n, d);
        bounded((2 * n + d) / (2 * d))
    }

    /// `⌈total × self / 100⌉` as Python computes `ceil(total * ratio)`, in floats: 7 % of 100 steps are 8 to
    /// it. `None` past 2^53.
    pub(crate) fn share_in_floats(self, total: u64) -> Option<u64> {
        // Both are exact, and so their quotient is the float nearest to the ratio that is written.
        let ratio = self.mantissa as f64 / (10u64.pow(self.scale.into()) * 100) as f64;
        let share = (total as f64 * ratio).ceil();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, 0 to 2^53")]
        (share <= MAX_COUNT as f64).then_some(share as u64)
    }

    /// The fraction in 64 bits, where it fits: dividing 128 bits takes ten times as long.
    fn small_fraction(self, n: u64, d: u64) -> Option<(u64, u64)> {
        Some((
            self.mantissa.checked_mul(n)?,
            if self.scale == 0 { d } else { 10u64.pow(self.scale.into()).checked_mul(d)? },
        ))
    }

    fn fraction(self, n: u64, d: u64) -> (u128, u128) {
        (u128::from(self.mantissa) * u128::from(n), u128::from(10u64.pow(self.scale.into())) * u128::from(d))
    }
}

fn bounded(n: u128) -> Option<u64> {
    u64::try_from(n).ok().filter(|&n| n <= MAX_COUNT)
}

/// A plain or scientific decimal, without sign, as (mantissa, scale) in lowest terms.
pub(super) fn decimal(text: &str) -> Option<(u64, u8)> {
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = [whole, fraction].concat();
    if all.is_empty() || !all.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let mut mantissa: u64 = all.parse().ok()?;
    let mut scale = i32::try_from(fraction.len()).ok()?.checked_sub(exponent)?;
    while scale > 0 && mantissa.is_multiple_of(10) && mantissa > 0 {
        (mantissa, scale) = (mantissa / 10, scale - 1);
    }
    if mantissa == 0 {
        return Some((0, 0));
    }
    if scale < 0 {
        mantissa = mantissa.checked_mul(10u64.checked_pow(scale.unsigned_abs())?)?;
        scale = 0;
    }
    (mantissa <= MAX_COUNT && scale <= 15).then_some((mantissa, u8::try_from(scale).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_exact() {
        let warmup = Length::parse("28.43%").unwrap();
        assert_eq!(warmup.floor_of(7038, 100), Some(2000));
        assert_eq!(warmup.ceil_of(7038, 100), Some(2001));
        assert_eq!(Length::parse("29%").unwrap().floor_of(100, 100), Some(29));
        let round = |text: &str, n, d| Length::parse(text).unwrap().round_of(n, d);
        assert_eq!(
            (round("1st", 5, 2), round("1st", 249, 100), round("0.5ep", 9, 1)),
            (Some(3), Some(2), Some(5))
        );
    }

    #[test]
    fn only_a_number_with_a_unit_is_a_length() {
        let bad = "| 90 | ep | -1ep | +1ep | nanep | infst | 1.5st | 3 days | 1e99tok | 1e-20ep | .ep | \
            10.000st | 50.000 samples | 90.000ep | 1.281.167sp | 10,000st | 1_00st | 1T | 5 epoche";
        for bad in bad.split('|').map(str::trim) {
            assert_eq!(Length::parse(bad), None, "{bad}");
        }
        assert_eq!(Length::parse("375e6tok"), Length::parse("375000000 tok"));
        assert_eq!(Length::parse("1.5e3st"), Length::parse("1500st"));
        assert_eq!(Length::parse("0.0ep").map(Length::is_zero), Some(true));
    }

    #[test]
    fn units_in_words_and_letters_for_powers_are_read() {
        for (text, same) in [
            ("3 epochs", "3ep"),
            ("3Epochs", "3ep"),
            ("1 epoch", "1ep"),
            ("10000 steps", "10000st"),
            ("10_000st", "10000st"),
            ("10k steps", "10000st"),
            ("300B tokens", "300e9tok"),
            ("1.4Ttok", "1400e9tok"),
            ("3 percent", "3%"),
            ("3 %", "3%"),
            ("1.125ep", "1.125ep"),
            ("12.500%", "12.5%"),
            ("0.500ep", "0.5ep"),
        ] {
            assert!(Length::parse(text).is_some(), "{text}");
            assert_eq!(Length::parse(text), Length::parse(same), "{text}");
        }
        let text = |text| Length::parse(text).unwrap().text();
        assert_eq!(
            (text("3 epochs"), text("0.05ep"), text("28.43 %")),
            ("3ep".into(), "0.05ep".into(), "28.43%".into())
        );
    }
}
