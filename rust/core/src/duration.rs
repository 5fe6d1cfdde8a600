//! Lengths with a unit, held as exact decimals, and what a real sampler, loader and trainer make of an epoch.

/// Counts of samples and tokens stop here: every integer up to it is exact as a real.
pub const MAX_COUNT: u64 = 1 << 53;

/// What a [`Length`] counts.
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

    /// What is written behind the number.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        Unit::SUFFIXES.iter().find(|&&(_, unit)| unit == self).map_or("", |&(suffix, _)| suffix)
    }
}

/// `mantissa / 10^scale` of a unit. A float would turn 29 % of 100 steps into 28.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    mantissa: u64,
    scale: u8,
    /// What it counts.
    pub unit: Unit,
}

impl Length {
    /// No length at all, in optimizer steps.
    pub const ZERO: Length = Length { mantissa: 0, scale: 0, unit: Unit::Steps };

    /// Reads a number and a unit, as in `90ep`, `2000st`, `375e6tok`, `28.43%`; `None` for anything else, for more than
    /// 2^53, and for a fraction of a step, sample or token.
    #[must_use]
    pub fn parse(text: &str) -> Option<Length> {
        let text = text.trim();
        let (number, unit) = Unit::SUFFIXES
            .iter()
            .find_map(|&(suffix, unit)| Some((text.strip_suffix(suffix)?.trim_end(), unit)))?;
        let (mantissa, scale) = decimal(number)?;
        let whole = scale == 0 || matches!(unit, Unit::Epochs | Unit::Percent);
        whole.then_some(Length { mantissa, scale, unit })
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
fn decimal(text: &str) -> Option<(u64, u8)> {
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

/// Whose trainer counts the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// `DistributedSampler` and `DataLoader`; a partial accumulation steps at the end of the epoch.
    Torch,
    /// Lightning's Trainer: ⌈batches / accumulation⌉ · epochs.
    Lightning,
    /// Transformers' Trainer over Accelerate's loader, which fills up the last batch of each process.
    Transformers,
    /// Megatron's: no epochs, and the end is floored.
    Megatron,
}

impl Convention {
    /// The names that users write, in the order of the variants.
    pub const ALL: [(&'static str, Convention); 4] = [
        ("torch", Convention::Torch),
        ("lightning", Convention::Lightning),
        ("transformers", Convention::Transformers),
        ("megatron", Convention::Megatron),
    ];
}

/// What is left out at the end of an epoch: by the sampler, by the loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropLast {
    /// The sampler cuts the dataset to a multiple of the replicas, where it would else repeat samples.
    pub sampler: bool,
    /// The loader leaves out a last, smaller micro-batch.
    pub loader: bool,
}

/// One epoch as it is really run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Optimizer steps.
    pub steps: u64,
    /// Samples that the replicas see together, repeats included.
    pub served: u64,
    /// Of these, repeats that fill up.
    pub padded: u64,
    /// Samples of the dataset that nobody sees.
    pub dropped: u64,
    /// The last step holds fewer samples than the others, in more than one micro-batch.
    pub uneven_tail: bool,
}

/// How the samples of a step are laid out over replicas and micro-batches.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Samples in a step.
    pub effective_batch: u64,
    /// Replicas.
    pub data_parallel: u64,
    /// Samples in a (full) micro-batch.
    pub micro_batch: u64,
    /// Micro-batches in a step.
    pub accumulation: u64,
    /// Whether micro-batches may differ in size, which a plain loader cannot serve: whole steps are cut from the dataset.
    pub ragged: bool,
}

impl Epoch {
    /// Runs the arithmetic of an epoch over `dataset` samples. `steps` is 0 where the dataset gives no full micro-batch.
    #[must_use]
    #[inline]
    pub fn of(dataset: u64, layout: Layout, drop: DropLast, convention: Convention) -> Epoch {
        Epoch::rest(dataset, 0, layout, drop, convention)
    }

    /// What is left of an epoch behind its first `offset` samples. Padding and dropping are as if the rest were a dataset of
    /// its own; ragged steps take any number of samples, so there the epoch ends where it always does.
    #[must_use]
    #[inline]
    pub fn rest(dataset: u64, offset: u64, layout: Layout, drop: DropLast, convention: Convention) -> Epoch {
        let Layout { effective_batch, data_parallel, micro_batch, accumulation, ragged } = layout;
        let pass = micro_batch * data_parallel;
        let sampled = |n: u64| if drop.sampler { n / data_parallel } else { n.div_ceil(data_parallel) };
        let rest = dataset.saturating_sub(offset);
        let (steps, served) = if ragged {
            // Whole steps are dealt out; only a last, smaller one is shared by padding or cutting, as the sampler does.
            if drop.loader {
                let whole = (dataset / effective_batch * effective_batch).saturating_sub(offset);
                (whole / effective_batch, whole / effective_batch * effective_batch)
            } else {
                let served = (sampled(dataset) * data_parallel).saturating_sub(offset);
                (served.div_ceil(effective_batch), served)
            }
        } else {
            let (passes, served) = match (convention, drop.loader) {
                // Accelerate cuts whole micro-batches first, and fills the last ones from the start of the dataset; where
                // there is one process, it leaves the loader alone.
                (Convention::Transformers, false) if data_parallel == 1 => (rest.div_ceil(micro_batch), rest),
                (Convention::Transformers, true) => (rest / pass, rest / pass * pass),
                (Convention::Transformers, false) => (rest.div_ceil(pass), rest.div_ceil(pass) * pass),
                (_, true) => (sampled(rest) / micro_batch, sampled(rest) / micro_batch * pass),
                (_, false) => (sampled(rest).div_ceil(micro_batch), sampled(rest) * data_parallel),
            };
            (passes.div_ceil(accumulation), served)
        };
        Epoch {
            steps,
            served,
            padded: served.saturating_sub(rest),
            dropped: rest.saturating_sub(served),
            uneven_tail: accumulation > 1 && served != steps * effective_batch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(data_parallel: u64, micro_batch: u64, accumulation: u64) -> Layout {
        let effective_batch = data_parallel * micro_batch * accumulation;
        Layout { effective_batch, data_parallel, micro_batch, accumulation, ragged: false }
    }

    #[test]
    fn goyal_takes_157_steps_an_epoch() {
        let keep = Epoch::of(1_281_167, plain(256, 32, 1), DropLast::default(), Convention::Torch);
        assert_eq!((keep.steps, keep.padded), (157, 113));
        let drop = DropLast { sampler: false, loader: true };
        assert_eq!(Epoch::of(1_281_167, plain(256, 32, 1), drop, Convention::Torch).steps, 156);
    }

    #[test]
    fn a_percentage_is_exact() {
        let warmup = Length::parse("28.43%").unwrap();
        assert_eq!(warmup.floor_of(7038, 100), Some(2000));
        assert_eq!(warmup.ceil_of(7038, 100), Some(2001));
        assert_eq!(Length::parse("29%").unwrap().floor_of(100, 100), Some(29));
    }

    #[test]
    fn only_a_number_with_a_unit_is_a_length() {
        for bad in [
            "", "90", "ep", "-1ep", "+1ep", "nanep", "infst", "1.5st", "5epochs", "3 days", "1e99tok",
            "1e-20ep", ".ep",
        ] {
            assert_eq!(Length::parse(bad), None, "{bad}");
        }
        assert_eq!(Length::parse("375e6tok"), Length::parse("375000000 tok"));
        assert_eq!(Length::parse("1.5e3st"), Length::parse("1500st"));
        assert_eq!(Length::parse("0.0ep").map(Length::is_zero), Some(true));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_in_an_epoch(
            dataset in 1u64..5000, dp in 1u64..9, micro in 1u64..40, accumulation in 1u64..5,
            sampler: bool, loader: bool, ragged: bool, convention in 0usize..3,
        ) {
            let layout = Layout { ragged, ..plain(dp, micro, accumulation) };
            let e = Epoch::of(dataset, layout, DropLast { sampler, loader }, Convention::ALL[convention].1);
            prop_assert_eq!(dataset + e.padded, e.served + e.dropped);
            prop_assert!(e.padded == 0 || e.dropped == 0);
            prop_assert!(e.served <= e.steps * layout.effective_batch);
        }

        #[test]
        fn an_epoch_goes_on_behind_any_of_its_steps(
            dataset in 1u64..2000, dp in 1u64..9, micro in 1u64..20, accumulation in 1u64..5, less in 0u64..9,
            sampler: bool, loader: bool, ragged: bool, convention in 0usize..3,
        ) {
            let mut layout = Layout { ragged, ..plain(dp, micro, accumulation) };
            if ragged {
                layout.effective_batch -= less.min(layout.effective_batch - 1);
            }
            let (drop, convention) = (DropLast { sampler, loader }, Convention::ALL[convention].1);
            let whole = Epoch::of(dataset, layout, drop, convention);
            for step in 0..whole.steps {
                let done = step * layout.effective_batch;
                let rest = Epoch::rest(dataset, done, layout, drop, convention);
                prop_assert_eq!((rest.steps, rest.served), (whole.steps - step, whole.served - done));
            }
        }
    }
}
