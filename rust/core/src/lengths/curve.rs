//! A schedule's demands on the run: its text, as `isobatch.schedules` reads it, as far as a plan can be at
//! odds with it.

use super::length::{Length, Unit};

/// The part of a schedule that must have room in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Nothing.
    Any,
    /// A warmup.
    Warmup,
    /// A decay, between the warmup and the end.
    Fall,
    /// A rise in the warmup's place, before the end.
    Rise,
    /// The end of a decay, behind the warmup.
    Until,
}

/// The demands of a schedule, of which Python has checked that it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Curve {
    part: Part,
    /// How long that is; `None` where it is the kind's own share of the run.
    length: Option<Length>,
    /// Whether there must be a learning rate above 0 to end at.
    min_lr: bool,
    /// Whether a length is in epochs,
    pub epochs: bool,
    /// or in tokens.
    pub tokens: bool,
}

impl Curve {
    /// One that fits into every run.
    pub const ANY: Curve =
        Curve { part: Part::Any, length: None, min_lr: false, epochs: false, tokens: false };

    /// Reads a name, or a call with arguments such as `wsd(decay=20%)`.
    #[must_use]
    pub fn parse(text: &str) -> Curve {
        let (kind, inside) = text.split_once('(').unwrap_or((text, ""));
        let arguments = inside.trim_end_matches([')', ' ']).split(',');
        let named = arguments.map(|argument| argument.rsplit_once('=').unwrap_or(("", argument)));
        let mut lengths: Vec<(&str, Length)> =
            named.clone().filter_map(|(name, value)| Some((name.trim(), Length::parse(value)?))).collect();
        let (mut part, mut min_lr) = (Part::Any, false);
        match kind.trim() {
            "wsd" | "trapezoid" => part = Part::Fall,
            "one_cycle" => part = Part::Rise,
            "vaswani" => part = Part::Warmup,
            "linear" | "linear_to_zero" | "polynomial" | "cosine" | "one_minus_sqrt" | "rex" | "tanh" => {
                part = if lengths.is_empty() { Part::Any } else { Part::Until };
            }
            "exponential" => {
                let number = |(_, value): (&str, &str)| value.trim().parse::<f64>().is_ok();
                min_lr = !named.clone().any(number);
                // By its gamma it has no end, and without one no `every`, which is the first where it is not
                // named.
                let first = if lengths.iter().any(|(name, _)| *name == "every") { "until" } else { "every" };
                for (at, (name, _)) in lengths.iter_mut().enumerate().filter(|(_, (name, _))| name.is_empty())
                {
                    *name = if at == 0 { first } else { "until" };
                }
                lengths.retain(|(name, _)| (*name == "until") == min_lr);
                part = if min_lr && !lengths.is_empty() { Part::Until } else { Part::Any };
            }
            _ => {}
        }
        let in_unit = |unit| lengths.iter().any(|(_, length)| length.unit == unit);
        Curve {
            part,
            length: lengths.first().map(|(_, length)| *length).filter(|_| part != Part::Any),
            min_lr,
            epochs: kind.trim() == "goyal" || in_unit(Unit::Epochs),
            tokens: in_unit(Unit::Tokens),
        }
    }

    /// Whether it is not seen in such a run, which is all warmup, or has one in a rise's place.
    pub(crate) fn is_spared(&self, total: f64, warmup: f64) -> bool {
        warmup >= total || (self.part == Part::Rise && warmup > 0.0)
    }

    /// Whether it fits into a run of `total` steps after `warmup` of them, that ends at `end` times its peak;
    /// `steps` converts its lengths, but shares of the run.
    pub(crate) fn fits(&self, (total, warmup, end): (f64, f64, f64), steps: impl Fn(Length) -> f64) -> bool {
        let long = |default: f64| {
            let share = |percent: f64, power: f64| (percent * total / (power * 100.0)).floor();
            let length = self.length.map_or(share(default, 1.0), |length| match length.fraction_of_ten() {
                (n, d) if length.unit == Unit::Percent => share(n as f64, d as f64),
                _ => steps(length),
            });
            length.max(1.0)
        };
        let has_room = match self.part {
            Part::Any => true,
            Part::Warmup => warmup > 0.0,
            Part::Fall => long(20.0) <= total - warmup,
            Part::Rise => long(30.0) < total,
            Part::Until => long(100.0) > warmup,
        };
        has_room && (!self.min_lr || (end > 0.0 && end < 1.0))
    }

    /// The share of the run that a warmup may take less a step, with room to spare; `None` where no share
    /// says it.
    pub(crate) fn most_warmup(&self) -> Option<f64> {
        let of = |length: Option<Length>, default: f64| match length
            .map(|length| (length.unit, length.fraction_of_ten()))
        {
            None => Some(default),
            Some((Unit::Percent, (n, d))) => Some(n as f64 / (d as f64 * 100.0)),
            Some(_) => None,
        };
        match self.part {
            _ if self.min_lr => None,
            Part::Warmup => None,
            Part::Any => Some(f64::INFINITY),
            Part::Fall => of(self.length, 0.2).map(|fall| 1.0 - fall),
            Part::Rise => of(self.length, 0.3).map(|rise| if rise < 1.0 { 1.0 } else { 0.0 }),
            Part::Until => of(self.length, 1.0),
        }
    }
}
