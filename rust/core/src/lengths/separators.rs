//! Digits in groups of three, and the letters of powers of ten: `1_281_167`, `52k`. What may mean two numbers
//! is not read.

use std::borrow::Cow;

/// Separators of groups of three digits: in English, German, Swiss and French tables, and in code.
const SEPARATORS: [char; 9] = ['.', ',', ' ', '_', '\'', '’', '\u{a0}', '\u{2009}', '\u{202f}'];

const POWERS: [(char, &str); 4] = [('k', "e3"), ('m', "e6"), ('b', "e9"), ('t', "e12")];

/// The text without its underscores; `None` where they are not between groups of three digits.
pub(crate) fn without_underscores(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('_') {
        return Some(text.into());
    }
    let whole = text.split(['.', 'e', 'E']).next()?;
    let alone = !text[whole.len()..].contains('_');
    (alone && is_grouped(whole, '_')).then(|| text.replace('_', "").into())
}

/// The text with an exponent in the place of a K, M, B or T; `None` where it has no such letter behind a
/// plain number.
pub(crate) fn with_power(text: &str) -> Option<String> {
    let letter = text.chars().next_back()?;
    let (_, power) = POWERS.iter().find(|(power, _)| letter.eq_ignore_ascii_case(power))?;
    let number = without_underscores(text[..text.len() - letter.len_utf8()].trim_end())?;
    let plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.') && !is_grouped(&number, '.');
    (plain && !number.is_empty()).then(|| format!("{number}{power}"))
}

/// Whether these are groups of three digits, as in 50.000 or 1.281.167.
pub(crate) fn is_grouped(text: &str, separator: char) -> bool {
    let mut groups = text.split(separator);
    let first = groups.next().unwrap_or("");
    let rest: Vec<&str> = groups.collect();
    let digits = |group: &str| group.bytes().all(|b| b.is_ascii_digit());
    (1..=3).contains(&first.len())
        && !first.starts_with('0')
        && digits(first)
        && !rest.is_empty()
        && rest.iter().all(|group| group.len() == 3 && digits(group))
}

/// The numbers that a text with separators may mean, as they are written without; none where it has none.
pub(crate) fn readings(text: &str) -> Vec<String> {
    let mut numbers = Vec::new();
    for thousands in SEPARATORS {
        if is_grouped(text, thousands) {
            numbers.push(text.replace(thousands, ""));
        }
        for decimal in [',', '.'].into_iter().filter(|&decimal| decimal != thousands) {
            let Some((whole, fraction)) = text.split_once(decimal) else { continue };
            if is_grouped(whole, thousands) {
                numbers.extend(plain(&whole.replace(thousands, ""), fraction));
            }
        }
    }
    for decimal in [',', '.'] {
        if let Some((whole, fraction)) = text.split_once(decimal)
            && whole.bytes().all(|b| b.is_ascii_digit())
        {
            numbers.extend(plain(whole, fraction));
        }
    }
    numbers.dedup();
    numbers
}

/// A decimal without the zeros at its end; `None` where its fraction is none.
fn plain(whole: &str, fraction: &str) -> Option<String> {
    let (digits, power) = fraction.find(['e', 'E']).map_or((fraction, ""), |at| fraction.split_at(at));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = digits.trim_end_matches('0');
    Some(format!("{whole}{}{digits}{power}", if digits.is_empty() { "" } else { "." }))
}
